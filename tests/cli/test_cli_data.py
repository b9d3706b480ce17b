import errno
import json
import os

import h5py
import numpy as np
import pytest
import yaml
from gymnasium.spaces import Discrete, MultiBinary, MultiDiscrete
from PIL import Image

from reverie.cli import data
from reverie.cli.data import data_command
from reverie.core.errors import ConfigError, RunError
from reverie.store import local_objects
from reverie.store.store import ReplayStore
from store_rows import COLUMNS, small_chunks, stacked


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run folder with 30 rows of two streams, two episodes each, and two rows that were superseded."""
    small_chunks(monkeypatch)
    rows = stacked(range(32))
    for name, at in {"is_first": [0, 15], "is_last": [14, 31], "is_terminal": [14]}.items():
        rows[name][:] = np.isin(np.arange(32), at)
    rows["reward"][:] = 1.0
    rows["reward"][:, [0, 15]] = 0.0
    rows["action"][:, [14, 31]] = 0.0
    folder = tmp_path / "run"
    store = ReplayStore(folder / "replay")
    first = store.begin(COLUMNS, 2)
    store.extend(rows)
    store.close(10)
    store.begin(COLUMNS, 2, first=30, parent=(first, 30))
    store.close(10)
    (folder / "config.yaml").write_text(yaml.safe_dump({"experiment": {"replay": {"store_path": "auto"}}}))
    action = {"kind": "categorical", "classes": [3], "size": 0}
    (folder / "spec.json").write_text(json.dumps({"observation": {}, "action": {"action": action}}))
    return folder


@pytest.mark.parametrize("inside", ["", "replay"])
def test_info(run, capsys, inside):
    assert data_command(["info", str(run / inside)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in ("rows 60, and 4 superseded", "obs/image uint8 [4, 4, 3]", "return mean 14.00",
                  "2 streams, rows 0 to 31 of each, 8 per file", "8 per file, after row 29 of 0-"):  # fmt: skip
        assert words in said


def test_validate(run, capsys):
    assert data_command(["validate", str(run)]) == 0
    assert "sound" in capsys.readouterr().out
    (segment,) = (run / "replay").glob("0-*")
    (segment / "reward/c.1.2").unlink()
    (segment / "zarr.json").unlink()
    assert data_command(["validate", str(run)]) == 1
    said = capsys.readouterr()
    assert f"damaged  {segment.name}/reward/c.1.2 is missing (rows 16 to 23 of stream 1)" in said.out
    assert f"{segment.name}/zarr.json is missing" in said.out


@pytest.fixture
def dataset(tmp_path):
    """Two hundred steps in ten episodes of D4RL's kind; the fourth has a NaN."""
    rng = np.random.default_rng(0)
    number, seen = np.arange(200), rng.normal(size=(201, 3)).astype("float32")
    ends = number % 20 == 19
    values = {
        "observations": seen[:-1],
        "next_observations": seen[1:],
        "actions": rng.uniform(-1, 0, (200, 2)).astype("float32"),
        "rewards": np.where(number == 70, np.nan, number).astype("float32"),
        "terminals": ends & (number < 100),
        "timeouts": ends & (number >= 100),
    }
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        for name, value in values.items():
            file[name] = value
    return tmp_path / "data.hdf5"


def test_info_of_a_dataset(dataset, tmp_path, capsys):
    with pytest.raises(RunError, match=r"cannot write .*: File exists"):
        data_command(["info", str(dataset), "--plot", str(dataset / "plot.png")])
    capsys.readouterr()
    assert data_command(["info", str(dataset), "--plot", str(tmp_path / "plot.png")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in ("format D4RL HDF5", "observation 3 numbers (float32)", "steps mean 20.0, 20 to 20",
                  "action 2 numbers, -1 to 1 (float32)", "number 10 with 200 steps", "ends 5 terminal, 5 truncated",
                  "50% of the range used", "returns ", "0 █▇▇██▅▄██▃"):  # fmt: skip
        assert words in said
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_info_describes_classes_in_words_and_bars(tmp_path, capsys):
    spaces = {"grid": MultiDiscrete(np.full((6, 6), 46)), "bits": MultiBinary(3), "one": Discrete(4, start=1)}
    assert [data._format_space(space) for space in spaces.values()] == [
        "6 x 6 cells of 46 classes", "3 bits", "4 classes from 1",
    ]  # fmt: skip
    actions, ends = np.array([0] * 6 + [1] * 3 + [2]), np.arange(10) % 5 == 4
    rewards, obs = np.arange(10.0), np.zeros((10, 1))
    np.savez(tmp_path / "a.npz", observations=obs, actions=actions, rewards=rewards, terminals=ends, timeouts=0 * ends)
    assert data_command(["info", str(tmp_path / "a.npz")]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert {f"0 {'█' * 30} 60%", f"1 {'█' * 15} 30%", f"2 {'█' * 5} 10%"} <= {*lines}


def test_info_shows_what_stands_still(tmp_path, capsys):
    """Constant elements, idle steps, and frames where there are images."""
    at = np.arange(40)
    values = {"actions": np.outer(np.where(at % 4, at / 40, 0), [1, 0.5]) * 2, "terminals": at % 20 == 19}
    np.savez(tmp_path / "a.npz", observations=np.stack([at, 0 * at + 3], axis=1), timeouts=0 * at, **values)
    np.savez(tmp_path / "b.npz", observations=np.full((40, 3, 8, 9), at[:, None, None, None], np.uint8), **values)
    assert data_command(["info", str(tmp_path / "a.npz")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "constant obs elements 1" in said
    assert "action 2 numbers, 0 to 1.95 (float64)" in said
    assert "25.0% idle (all 0)" in said
    assert data_command(["info", str(tmp_path / "a.npz"), "--figure", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")  # returns, lengths and actions: there are no images
    assert data_command(["info", str(tmp_path / "b.npz"), "--figure", str(tmp_path / "b.png")]) == 0
    with Image.open(tmp_path / "b.png") as sheet:
        pixels = np.asarray(sheet)
    assert pixels.shape[1] == 6 * (128 + 4) - 4  # six frames of 8 x 9 pixels, enlarged
    assert {20, 24, 28, 31, 35, 39} <= set(pixels[-60, :, 0].tolist())


@pytest.mark.parametrize("to", ["minari", "pydreamer", "store"])
def test_convert_a_run(run, tmp_path, capsys, to):
    assert data_command(["convert", str(run), str(tmp_path / "out"), "--format", to]) == 0
    said = capsys.readouterr()
    assert "4 episodes with 56 steps" in said.out
    assert "still running" in said.err
    assert data_command(["info", str(tmp_path / "out")]) == 0


def test_a_full_disk_ends_a_conversion(run, tmp_path, capsys, monkeypatch):
    written = local_objects.write_files

    def write(contents):
        if "c." in str(contents):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(next(iter(contents))))
        written(contents)

    monkeypatch.setattr(local_objects, "write_files", write)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(RunError, match="No space left on device"):
        data_command(["convert", str(run), str(tmp_path / "copy"), "--format", "store"])
    assert "the run continues" not in capsys.readouterr().out
    assert sorted(tmp_path.iterdir()) == before


def test_subsample(dataset, tmp_path, capsys):
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert data_command(["subsample", str(dataset), a, "--fraction", "0.1"]) == 0
    assert "1 episode with 20 steps" in capsys.readouterr().out
    with pytest.raises(RunError, match="a exists"):
        data_command(["subsample", str(dataset), a, "--fraction", "0.1"])
    with pytest.raises(SystemExit):
        data_command(["subsample", str(dataset), b])
    assert "pass exactly one of them" in capsys.readouterr().err
    assert data_command(["subsample", str(dataset), b, "--steps", "7"]) == 0
    assert "1 episode with 20 steps" in capsys.readouterr().out
    best = ["--top-fraction", "0.2", "--remainder", str(tmp_path / "rest"), "--format", "d4rl"]
    (tmp_path / "rest").mkdir()
    with pytest.raises(RunError, match="rest exists"):
        data_command(["subsample", str(dataset), str(tmp_path / "c"), *best])
    assert not (tmp_path / "c").exists()
    (tmp_path / "rest").rmdir()
    assert data_command(["subsample", str(dataset), str(tmp_path / "c"), *best]) == 0
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "2 episodes with 40 steps", "8 episodes with 160 steps",
    ]  # fmt: skip


def test_new_rewards(dataset, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "goals_of_ours.py").write_text("def reward(obs, action, following):\n    return following[:, 0]\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert (
        data_command(["convert", str(dataset), "out.hdf5", "--format", "d4rl", "--reward-fn", "goals_of_ours:reward"])
        == 0
    )
    with h5py.File("out.hdf5") as file:
        assert np.array_equal(file["rewards"][:], file["next_observations"][:, 0])
    with pytest.raises(ConfigError, match=r"reward = goals_of_ours:rewards: .* no class or function with that name"):
        data_command(
            ["convert", str(dataset), "other.hdf5", "--format", "d4rl", "--reward-fn", "goals_of_ours:rewards"]
        )

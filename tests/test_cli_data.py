import errno
import functools
import http.server
import json
import os
import threading

import h5py
import numpy as np
import pytest
import yaml

from reverie.commands.data import as_here, data_command
from reverie.core.errors import ConfigError, RunError
from reverie.store import files
from reverie.store.store import Store
from store_rows import COLUMNS, row, small_chunks, stacked


def quiet(text):
    pass


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
    store = Store(folder / "replay", say=quiet)
    first = store.begin(COLUMNS, 2)
    store.extend(rows)
    store.close(10)
    store.begin(COLUMNS, 2, first=30, parent=(first, 30))
    store.close(10)
    (folder / "config.yaml").write_text(yaml.safe_dump({"experiment": {"replay": {"store": "auto"}}}))
    action = {"kind": "categorical", "classes": [3], "size": 0}
    (folder / "spec.json").write_text(json.dumps({"observation": {}, "action": {"action": action}}))
    return folder


@pytest.mark.parametrize("inside", ["", "replay"])
def test_info(run, capsys, inside):
    assert data_command(["info", str(run / inside)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in (
        "rows 60, and 4 superseded",
        "obs/image uint8 [4, 4, 3]",
        "2 streams, rows 0 to 31 of each, 8 per file",
        "return mean 14.00",
        "8 per file, after row 29 of 0-",
    ):
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


def test_a_copy_of_a_run_knows_the_actions(run, tmp_path):
    minari = pytest.importorskip("minari")
    assert data_command(["convert", str(run), str(tmp_path / "lived")]) == 0
    assert minari.MinariDataset(tmp_path / "lived/data").action_space.n == 3


def test_nothing_is_written_to_a_url(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"target = s3:/+bucket/c: expected a path on this machine"):
        data_command(["convert", str(run), "s3://bucket/c", "--to", "store"])
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_wrong_usage(run, tmp_path, capsys):
    assert data_command([]) == 2
    assert "usage: reverie data" in capsys.readouterr().out
    assert data_command(["--help"]) == 0
    assert data_command(["infos", str(run)]) == 2
    assert "Did you mean 'info'?" in capsys.readouterr().err
    (run / "config.yaml").rename(run / "gone.yaml")
    assert data_command(["info", str(run)]) == 0  # without settings it is a dataset like others
    assert "reverie store" in capsys.readouterr().out
    (run / "config.yaml").write_text("experiment: {}")


def test_a_store_elsewhere(run, tmp_path, capsys):
    store = Store("memory://elsewhere/replay", say=quiet)
    store.begin(COLUMNS, 2)
    store.add(row(0))
    store.close(10)
    (run / "config.yaml").write_text(yaml.safe_dump({"experiment": {"replay": {"store": "memory://elsewhere/replay"}}}))
    assert data_command(["info", str(run)]) == 0
    assert "memory://elsewhere/replay" in capsys.readouterr().out


@pytest.fixture
def web(tmp_path):
    """A web server over the folder, by its address."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_store_on_a_web_server(run, web, tmp_path, capsys):
    """Whose lists do not tell the sizes of files."""
    assert data_command(["info", f"{web}/run/replay"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "rows 60" in said
    assert data_command(["validate", f"{web}/run/replay"]) == 0
    assert data_command(["convert", f"{web}/run/replay", str(tmp_path / "npz"), "--to", "pydreamer"]) == 0


# ---------------------------------------------------------------- datasets of any format


@pytest.fixture
def dataset(tmp_path):
    """Two hundred steps in ten episodes of D4RL's kind; the fourth has a NaN."""
    rng = np.random.default_rng(0)
    ends = np.arange(200) % 20 == 19
    values = {
        "observations": rng.normal(size=(201, 3)).astype("float32"),
        "actions": rng.uniform(-1, 0, (200, 2)).astype("float32"),
        "rewards": np.arange(200, dtype="float32"),
        "terminals": ends & (np.arange(200) < 100),
        "timeouts": ends & (np.arange(200) >= 100),
    }
    values["next_observations"] = values["observations"][1:]
    values["observations"] = values["observations"][:-1]
    values["rewards"][70] = np.nan
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        for name, value in values.items():
            file[name] = value
    return tmp_path / "data.hdf5"


def test_brackets_are_no_markup(run, dataset, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run.rename("a[red]b")
    dataset.rename("[red].hdf5")
    assert data_command(["info", "a[red]b"]) == data_command(["info", "[red].hdf5"]) == 0
    said = capsys.readouterr().out
    assert "a[red]b/replay" in said
    assert "[red].hdf5" in said


def test_info_of_a_dataset(dataset, tmp_path, capsys):
    with pytest.raises(RunError, match=r"cannot write .*: File exists"):
        data_command(["info", str(dataset), "--plot", str(dataset / "plot.png")])
    capsys.readouterr()
    assert data_command(["info", str(dataset), "--plot", str(tmp_path / "plot.png")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in (
        "format D4RL HDF5",
        "observation Box(-inf, inf, (3,), float32)",
        "action Box(-1.0, 1.0, (2,), float32)",
        "number 10 with 200 steps",
        "ends 5 terminal, 5 truncated",
        "steps mean 20.0, 20 to 20",
        "50% of the range used",
    ):
        assert words in said, words
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_info_names_values_that_are_nan(dataset, capsys):
    with h5py.File(dataset, "r+") as file:
        for name, moved in {"observations": 0, "next_observations": 1}.items():
            values = file[name][:]
            values[[24 - moved, 27 - moved, 29 - moved], [1, 1, 2]] = np.nan
            file[name][:] = values
    assert data_command(["info", str(dataset)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "obs 3 values NaN or infinite, in elements 1, 2" in said
    assert "reward 1 value NaN or infinite" in said


def test_info_draws_the_rows_of_a_run_as_well(run, tmp_path, capsys):
    assert data_command(["info", str(run), "--plot", str(tmp_path / "plot.png")]) == 0
    assert "100% of the classes used" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "plot.png").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [("config.yaml", "fps: 30"), ("config.yaml", "- a"), ("config.yaml", "a: ["), ("zarr.json", '{"attributes": {}}')],
)
def test_a_dataset_beside_a_file_that_is_named_like_one_of_ours(dataset, capsys, name, content):
    (dataset.parent / name).write_text(content)
    assert data_command(["info", str(dataset.parent)]) == 0
    assert data_command(["validate", str(dataset.parent)]) == 1
    assert "210 rows in 10 episodes: 1 bad" in capsys.readouterr().out


def test_validate_and_quarantine(dataset, tmp_path, capsys):
    assert data_command(["validate", str(dataset)]) == 1
    said = capsys.readouterr().out
    assert "wrong    reward is NaN or infinite: 1 row in 1 episode, first in row 74, episode 3" in said
    assert "remark   no episodes were replayed in an environment" in said
    assert "210 rows in 10 episodes: 1 bad" in said
    before = dataset.read_bytes()
    assert data_command(["validate", str(dataset), "--quarantine", str(tmp_path / "good")]) == 1
    assert "9 episodes with 180 steps" in capsys.readouterr().out
    assert data_command(["validate", str(tmp_path / "good")]) == 0
    assert dataset.read_bytes() == before
    with pytest.raises(RunError, match="good exists"):
        data_command(["validate", str(dataset), "--quarantine", str(tmp_path / "good")])


def test_quarantine_of_a_run(run, tmp_path, capsys):
    assert data_command(["validate", str(run), "--quarantine", str(tmp_path / "good")]) == 0
    said = capsys.readouterr().out
    assert "an episode was still running" in said
    assert "4 episodes with 56 steps" in said


def test_nothing_is_written_where_nothing_is_good(dataset, tmp_path, capsys):
    with h5py.File(dataset, "a") as file:
        file["rewards"][:] = np.nan
    assert data_command(["validate", str(dataset), "--quarantine", str(tmp_path / "good")]) == 1
    assert "every episode breaks a rule" in capsys.readouterr().err
    assert not (tmp_path / "good").exists()


@pytest.mark.parametrize("to", ["minari", "pydreamer", "store"])
def test_convert_a_run(run, tmp_path, capsys, to):
    assert data_command(["convert", str(run), str(tmp_path / "out"), "--to", to]) == 0
    said = capsys.readouterr()
    assert "4 episodes with 56 steps" in said.out
    assert "still running" in said.err
    assert data_command(["info", str(tmp_path / "out")]) == 0


def test_a_full_disk_ends_a_conversion(run, tmp_path, capsys, monkeypatch):
    def write(contents):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(next(iter(contents))))

    written = files.write
    monkeypatch.setattr(
        files, "write", lambda contents: write(contents) if "c." in str(contents) else written(contents)
    )
    before = sorted(tmp_path.iterdir())
    with pytest.raises(RunError, match="No space left on device"):
        data_command(["convert", str(run), str(tmp_path / "copy"), "--to", "store"])
    assert "the run continues" not in capsys.readouterr().out
    assert sorted(tmp_path.iterdir()) == before


def test_subsample(dataset, tmp_path, capsys):
    assert data_command(["subsample", str(dataset), str(tmp_path / "a"), "--fraction", "0.1"]) == 0
    assert "1 episode with 20 steps" in capsys.readouterr().out
    with pytest.raises(RunError, match="a exists"):
        data_command(["subsample", str(dataset), str(tmp_path / "a"), "--fraction", "0.1"])
    with pytest.raises(ConfigError, match="pass exactly one of them"):
        data_command(["subsample", str(dataset), str(tmp_path / "b")])
    assert data_command(["subsample", str(dataset), str(tmp_path / "b"), "--steps", "7", "--by", "step"]) == 0
    assert "with 7 steps" in capsys.readouterr().out


def test_options_of_readers(dataset, tmp_path, capsys):
    with h5py.File(dataset, "a") as file:
        del file["timeouts"], file["next_observations"]
    assert data_command(["info", str(dataset), "--time-limit", "20"]) == 0
    assert "number 10" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("limit", ["0", "-3"])
@pytest.mark.parametrize("command", ["info", "validate", "convert", "subsample"])
def test_time_limits_that_cannot_be(dataset, tmp_path, command, limit):
    more = {"convert": [str(tmp_path / "out")], "subsample": [str(tmp_path / "out"), "--steps", "5"]}.get(command, [])
    with pytest.raises(ConfigError, match=f"data.time_limit = {limit}: expected at least 1"):
        data_command([command, str(dataset), *more, "--time-limit", limit])
    assert not (tmp_path / "out").exists()


def test_recording_needs_a_run(tmp_path):
    with pytest.raises(RunError, match="no run in"):
        data_command(["record", str(tmp_path), str(tmp_path / "out"), "--episodes", "1"])
    with pytest.raises(ConfigError, match="expected exactly one of them"):
        data_command(["record", str(tmp_path), str(tmp_path / "out")])


@pytest.mark.parametrize(
    ("word", "here"),
    [
        ("--data.time-limit", "--time-limit"),
        ("--data.reader=mine:Mine", "--reader=mine:Mine"),
        ("--data.columns={obs: o}", "--columns={obs: o}"),
        ("--data.no-partial", "--no-partial"),
        ("--data.storage", "--data.storage"),
        ("data.time-limit", "data.time-limit"),
    ],
)
def test_options_of_reading_have_the_names_of_training_as_well(word: str, here: str) -> None:
    assert as_here(word) == here

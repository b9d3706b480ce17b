import json

import numpy as np
import pytest
import yaml

from reverie.cli_data import data_command
from reverie.core.errors import RunError
from reverie.data.store import Store
from store_rows import COLUMNS, row, small_chunks, stacked


def quiet(text):
    pass


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run folder with 30 rows of two streams, two episodes each, and two rows set aside."""
    small_chunks(monkeypatch)
    rows = stacked(range(32))
    for name, at in {"is_first": [0, 15], "is_last": [14, 31], "is_terminal": [14]}.items():
        rows[name][:] = np.isin(np.arange(32), at)
    rows["reward"][:] = 1.0
    rows["reward"][:, [0, 15]] = 0.0
    rows["action"][:, [14, 31]] = 0.0
    folder = tmp_path / "run"
    store = Store(folder / "replay", say=quiet)
    store.begin(COLUMNS, 2)
    store.extend(rows)
    store.resume("0", 30, COLUMNS, 2)
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
        "rows 60",
        "obs/image uint8 [4, 4, 3]",
        "0 2 streams, rows 0 to 29 of each, 8 in a file",
        "complete 2",
        "in part 2",
        "return mean 14.00",
        "aside/0 rows 30 to 31 of segment 0, 2 streams",
    ):
        assert words in said


def test_validate(run, capsys):
    assert data_command(["validate", str(run)]) == 0
    assert "sound" in capsys.readouterr().out
    (run / "replay/0/reward/c.1.2").unlink()
    (run / "replay/manifest-backup.json").unlink()
    assert data_command(["validate", str(run)]) == 1
    said = capsys.readouterr()
    assert "damaged  0/reward/c.1.2: is missing (rows 16 to 23 of stream 1)" in said.out
    assert "manifest-backup.json is missing" in said.out


def test_export(run, tmp_path, capsys):
    assert data_command(["export", str(run), "--to", "pydreamer", str(tmp_path / "npz")]) == 0
    assert "4 episodes" in capsys.readouterr().out
    assert len(list((tmp_path / "npz").iterdir())) == 4
    with pytest.raises(RunError, match="npz exists: choose another name"):
        data_command(["export", str(run), "--to", "pydreamer", str(tmp_path / "npz")])


def test_export_says_what_was_left_out(run, tmp_path, capsys):
    (run / "replay/0/reward/c.1.2").unlink()
    assert data_command(["export", str(run / "replay"), "--to", "pydreamer", str(tmp_path / "npz")]) == 0
    assert "left out 0/reward/c.1.2" in capsys.readouterr().err


def test_export_to_minari_knows_the_actions(run, tmp_path):
    minari = pytest.importorskip("minari")
    assert data_command(["export", str(run), "--to", "minari", str(tmp_path / "lived")]) == 0
    assert minari.MinariDataset(tmp_path / "lived/data").action_space.n == 3


def test_wrong_usage(run, tmp_path, capsys):
    assert data_command([]) == 2
    assert "usage: reverie data" in capsys.readouterr().out
    assert data_command(["--help"]) == 0
    assert data_command(["infos", str(run)]) == 2
    assert "Did you mean 'info'?" in capsys.readouterr().err
    (run / "config.yaml").unlink()
    with pytest.raises(RunError, match=r"no replay store in .*There is one in .*replay"):
        data_command(["info", str(run)])
    (run / "config.yaml").write_text(yaml.safe_dump({"experiment": {"replay": {"store": "none"}}}))
    with pytest.raises(RunError, match="its rows were not kept"):
        data_command(["info", str(run)])


def test_a_store_elsewhere(run, tmp_path, capsys):
    store = Store("memory://elsewhere/replay", say=quiet)
    store.begin(COLUMNS, 2)
    store.add(row(0))
    store.close(10)
    (run / "config.yaml").write_text(yaml.safe_dump({"experiment": {"replay": {"store": "memory://elsewhere/replay"}}}))
    assert data_command(["info", str(run)]) == 0
    assert "memory://elsewhere/replay" in capsys.readouterr().out

"""Minari's datasets come from the Hub whole, or not at all."""

import pytest

from hub_server import hub as hub
from minari_files import buffer, write
from recordings import LIVED, check, expected
from reverie.cli.data import data_command
from reverie.core.errors import ConfigError, RunError
from reverie.datasets.download import download_minari
from reverie.datasets.format_detection import open_reader

NAME = "D4RL/door/human-v2"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Where Minari keeps its datasets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    return tmp_path / "root"


def offer(hub, folder, name=NAME):
    """Put a dataset on the Hub, next to another one."""
    group, _, inside = name.partition("/")
    paths = {f"{inside}/{p.relative_to(folder).as_posix()}".lstrip("/"): p for p in folder.rglob("*") if p.is_file()}
    files = {path: file.read_bytes() for path, file in paths.items()}
    if inside:
        files |= {"pen/expert-v2/data/metadata.json": b"{}", "door/human-v20/data/metadata.json": b"{}"}
    hub.repos[f"farama-minari/{group}"] = {"private": False, "commits": [("1" * 40, files)]}


@pytest.mark.parametrize("name", [NAME, "simple-v0"])
def test_a_dataset(hub, root, tmp_path, capsys, monkeypatch, name):
    synced = []
    monkeypatch.setattr("reverie.core.files.fsync_path", synced.append)
    offer(hub, write(tmp_path / "made", [buffer(e) for e in LIVED]), name)
    assert data_command(["download", f"minari:{name}"]) == 0
    assert capsys.readouterr().out.strip() == str(root / name)
    check(open_reader(f"minari:{name}"), expected(LIVED))
    assert sorted(p.name for p in (root / name).rglob("*.*")) == ["main_data.hdf5", "metadata.json"]
    assert [p.name for p in root.rglob("*-v2*") if p.is_dir()] == ([] if name == "simple-v0" else ["human-v2"])
    assert synced[-1] == (root / name).parent  # its name outlives a power failure
    asked = len(hub.asked)
    download_minari(name)
    assert len(hub.asked) == asked  # it is there


def test_a_download_that_was_interrupted_is_continued(hub, root, tmp_path):
    offer(hub, write(tmp_path / "made", [buffer(e) for e in LIVED]))
    hub.lost = {"door/human-v2/data/metadata.json"}
    with pytest.raises(RunError, match=r"cannot download minari:D4RL/door/human-v2: .*To continue, run this again"):
        download_minari(NAME)
    assert not (root / NAME).exists()
    next(iter((root / "D4RL/door/.human-v2.part").rglob("main_data.hdf5"))).with_name("old.txt").touch()
    hub.lost, hub.asked = set(), []
    download_minari(NAME)
    assert not (root / NAME / "data/old.txt").exists()
    check(open_reader(f"minari:{NAME}"), expected(LIVED))
    assert not any(line.startswith("GET") and line.endswith("main_data.hdf5") for line in hub.asked)


def test_a_connection_that_is_lost_after_the_listing_leaves_no_part(hub, root, tmp_path, monkeypatch):
    """The Hub's client then returns the folder as it is."""
    offer(hub, write(tmp_path / "made", [buffer(e) for e in LIVED]))
    client = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(client, "snapshot_download", lambda *_, **__: None)
    with pytest.raises(RunError, match=r"human-v2/data/\w+\.\w+ is missing\. To continue, run this again"):
        download_minari(NAME)
    assert not (root / NAME).exists()


@pytest.mark.usefixtures("root")
def test_datasets_that_there_are_not(hub, tmp_path):
    with pytest.raises(RunError, match=r"cannot download minari:D4RL/door/humn-v2: "):
        download_minari("D4RL/door/humn-v2")
    offer(hub, write(tmp_path / "made", [buffer(e) for e in LIVED]))
    with pytest.raises(RunError, match="there is no Minari dataset 'D4RL/door/humn-v2'"):
        download_minari("D4RL/door/humn-v2")
    with pytest.raises(ConfigError, match="a name with a version"):
        download_minari("door")
    with pytest.raises(ConfigError, match="expected minari:NAME"):
        data_command(["download", "door-v0"])

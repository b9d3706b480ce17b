"""What is written appears at its path when it is complete; what fails on the way is an error."""

import contextlib
import resource
from functools import partial
from typing import get_args

import numpy as np
import pytest
from gymnasium import spaces

from d4rl_files import columns
from d4rl_files import write as write_hdf5
from recordings import FORMATS, copied
from reverie.cli.data import Format
from reverie.core.errors import ConfigError, DataError, RunError
from reverie.core.lock import lock_beside
from reverie.datasets.output import staged_file
from reverie.datasets.reader import DatasetInfo
from reverie.datasets.writers import write_d4rl, write_minari

minari = pytest.importorskip("minari")


def test_the_command_line_has_all_formats():
    assert get_args(Format) == ("auto", *FORMATS)


def test_what_exists_stays_and_what_fails_leaves_nothing(d4rl, tmp_path):
    (tmp_path / "out").mkdir()
    for to in FORMATS:
        with pytest.raises(RunError, match="out exists: choose another name"):
            copied(d4rl, tmp_path / "out", to)
    values = columns()
    values["observations"][9] = np.nan
    broken = write_hdf5(tmp_path / "b.hdf5", values)
    for to in ("pydreamer", "store"):  # those of learners; Minari takes what was recorded
        with pytest.raises(DataError, match=r"b\.hdf5, episode 3, step 0: observation"):
            copied(broken, tmp_path / to, to)
    for to in ("minari", "d4rl", "parquet", "store"):
        with pytest.raises(RunError, match="no episodes"):
            copied(d4rl, tmp_path / "none", to, choose=lambda episodes: iter(()))
    with pytest.raises(ConfigError, match="in the format Minari, but --format is store"):
        copied(d4rl, "minari:ab/b-v0", "store")
    with pytest.raises(ConfigError, match="format = 'hdf5': expected auto, minari, d4rl, "):
        copied(d4rl, tmp_path / "none", "hdf5")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.hdf5", "b.hdf5", "out"]


BOTH = spaces.Box(-np.inf, np.inf, (3,), np.float64), spaces.Box(-1, 1, (2,), np.float32)
LAST = np.arange(201) == 200
ROWS = {"obs": np.ones((201, 3)), "action": np.ones((201, 2), np.float32), "reward": np.ones(201), "is_terminal": LAST,
        "is_last": LAST}  # fmt: skip
FIELDS = {"observations": ROWS["obs"], "actions": ROWS["action"][1:], "rewards": ROWS["reward"][1:],
          "terminations": LAST[1:], "truncations": np.zeros(200, bool)}  # fmt: skip
"""The same as Minari has it."""


def failing(episode, main):
    """Yield an episode three times; the file ``main`` cannot grow while the second one is written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield episode
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (main.stat().st_size, before[1]))
        yield episode
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    yield episode


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # HDF5 cannot close its file
@pytest.mark.parametrize("form", ["minari", "d4rl"])
def test_a_write_that_fails_while_hdf5_closes_a_dataset_is_an_error(tmp_path, monkeypatch, form):
    """HDF5 would write the values of small datasets as they are closed, where h5py drops errors."""
    monkeypatch.setattr("reverie.datasets.writers.BUFFERED", 1)  # each episode is a block
    target, staged = tmp_path / "out", tmp_path / ".out.part"
    if form == "minari":
        episodes = failing(FIELDS, staged / "data" / "main_data.hdf5")
        write = partial(write_minari, episodes, target, *BOTH, {})
    else:
        episodes = failing(ROWS, staged)
        write = partial(write_d4rl, episodes, target, DatasetInfo(observation=BOTH[0], action=BOTH[1]))
    with contextlib.closing(episodes), pytest.raises(OSError, match="File"):
        write()
    assert not list(tmp_path.iterdir())


def test_leftovers_of_killed_processes_are_deleted_and_those_of_others_are_not(tmp_path):
    for name in ("dead", "dead folder", "alive"):
        (tmp_path / f".{name}.lock").touch()
        part = tmp_path / f".{name}.part"
        part.mkdir() if "folder" in name else part.touch()
    with lock_beside(tmp_path / "alive"), staged_file(tmp_path / "new") as staged:
        staged.write_bytes(b"x")
        assert sorted(path.name for path in tmp_path.glob(".*.part")) == [".alive.part", ".new.part"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".alive.part", "new"]


@pytest.mark.parametrize("kind", [staged_file, partial(staged_file, folder=True)])
def test_what_takes_its_name_is_on_the_disk_and_then_the_name(tmp_path, monkeypatch, kind):
    """Otherwise a power failure could leave files of zeros, or no name."""
    target, synced = tmp_path / "out", []  # with whether the output had its name by then
    monkeypatch.setattr("reverie.core.files.fsync_path", lambda path: synced.append((path.name, target.exists())))
    with kind(target) as staged:
        files = [staged] if kind is staged_file else [staged / "a", staged / "below" / "b"]
        for file in files:
            file.parent.mkdir(exist_ok=True)
            file.write_text("all")
    wanted = {(path.name, False) for path in (staged, *files, files[-1].parent) if path != tmp_path}
    assert set(synced[:-1]) == wanted
    assert synced[-1] == (tmp_path.name, True)

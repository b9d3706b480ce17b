"""What is written appears at its path when it is complete; what fails on the way is an error."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from d4rl_files import columns
from d4rl_files import write as write_hdf5
from recordings import FORMATS
from reverie.core.errors import ConfigError, DataError, RunError
from reverie.datasets.convert import write
from reverie.datasets.detect import open_reader
from reverie.datasets.output import staged_file
from reverie.datasets.reader import About
from reverie.datasets.writers import write_d4rl, write_minari

minari = pytest.importorskip("minari")


def test_what_exists_stays_and_what_fails_leaves_nothing(d4rl, tmp_path):
    (tmp_path / "out").mkdir()
    for to in FORMATS:
        with pytest.raises(RunError, match="out exists: choose another name"):
            write(open_reader(str(d4rl)), str(tmp_path / "out"), to)
    values = columns()
    values["observations"][9] = np.nan
    broken = write_hdf5(tmp_path / "b.hdf5", values)
    for to in ("pydreamer", "store"):  # those of learners; Minari takes what was recorded
        with pytest.raises(DataError, match="row 12"):
            write(open_reader(str(broken)), str(tmp_path / to), to)
    for to in ("minari", "d4rl", "parquet", "store"):
        with pytest.raises(RunError, match="no episodes"):
            write(open_reader(str(d4rl)), str(tmp_path / "none"), to, lambda episodes: iter(()))
    with pytest.raises(ConfigError, match="in the format Minari, but --to is store"):
        write(open_reader(str(d4rl)), "minari:ab/b-v0", "store")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.hdf5", "b.hdf5", "out"]


T = 200
BOTH = spaces.Box(-np.inf, np.inf, (3,), np.float64), spaces.Box(-1, 1, (2,), np.float32)


def rows() -> dict[str, np.ndarray]:
    """Rows of an episode of T steps."""
    last = np.arange(T + 1) == T
    return {
        "obs": np.ones((T + 1, 3)),
        "action": np.ones((T + 1, 2), np.float32),
        "reward": np.ones(T + 1),
        "is_terminal": last,
        "is_last": last,
    }


def fields() -> dict[str, Any]:
    """The same as the fields of Minari's episodes."""
    found = rows()
    return {
        "observations": found["obs"],
        "actions": found["action"][1:],
        "rewards": found["reward"][1:],
        "terminations": found["is_terminal"][1:],
        "truncations": np.zeros(T, bool),
    }


def failing(episode: dict[str, Any], main: Path) -> Generator[dict[str, Any]]:
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
def test_a_write_that_fails_while_hdf5_closes_a_dataset_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """HDF5 would write the values of small datasets as they are closed, where h5py drops errors."""
    monkeypatch.setattr("reverie.datasets.writers.BUFFERED", 1)  # each episode is a block
    target, staged = tmp_path / "out", tmp_path / ".out.part"
    episodes = failing(fields(), staged / "data" / "main_data.hdf5") if form == "minari" else failing(rows(), staged)
    if form == "minari":
        write = partial(write_minari, episodes, str(target), BOTH, {})
    else:
        write = partial(write_d4rl, episodes, target, About(observation=BOTH[0], action=BOTH[1]))
    with contextlib.closing(episodes), pytest.raises(OSError, match="File"):
        write()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [staged_file, partial(staged_file, folder=True)])
def test_what_takes_its_name_is_on_the_disk_and_then_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[Path], AbstractContextManager[Path]]
) -> None:
    """Otherwise a power failure could leave files of zeros, or no name."""
    synced: list[tuple[str, bool]] = []  # with whether the output had its name by then
    target = tmp_path / "out"
    monkeypatch.setattr("reverie.core.files.sync", lambda path: synced.append((path.name, target.exists())))
    with kind(target) as staged:
        files = [staged] if kind is staged_file else [staged / "a", staged / "below" / "b"]
        for file in files:
            file.parent.mkdir(exist_ok=True)
            file.write_text("all")
    wanted = {(path.name, False) for path in (staged, *files, files[-1].parent) if path != tmp_path}
    assert set(synced[:-1]) == wanted
    assert synced[-1] == (tmp_path.name, True)

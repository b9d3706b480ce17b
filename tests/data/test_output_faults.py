"""Datasets that are written: what fails on the way is an error, never a dataset with wrong numbers."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from reverie.core.errors import RunError
from reverie.datasets.output import staged_at, staged_file
from reverie.datasets.reader import About
from reverie.datasets.writers import write_d4rl, write_minari

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


def failing(episode: dict[str, Any], main: Path) -> Iterator[dict[str, Any]]:
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
    if form == "minari":
        write = partial(write_minari, failing(fields(), staged / "data" / "main_data.hdf5"), str(target), BOTH, {})
    else:
        write = partial(write_d4rl, failing(rows(), staged), target, About(observation=BOTH[0], action=BOTH[1]))
    with pytest.raises(RunError, match=r"cannot write .*out: File too large\. Free some space"):
        write()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [staged_file, staged_at])
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

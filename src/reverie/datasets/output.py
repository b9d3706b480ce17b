"""Common parts of all exports: a staged file that is moved there at the end, free space, a report."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from reverie.core.errors import RunError
from reverie.core.files import rename_durably
from reverie.core.lock import lock_beside
from reverie.core.rows import Rows
from reverie.core.signals import check_signals
from reverie.datasets.minari import minari_root


@dataclass
class WriteReport:
    """The result of an export."""

    path: Path
    episodes: int = 0
    steps: int = 0
    remarks: list[str] = field(default_factory=list)
    """Remarks about data that could not be written."""

    def add(self, steps: int) -> None:
        """Count an episode."""
        self.episodes, self.steps = self.episodes + 1, self.steps + steps

    def check(self) -> None:
        """Raise RunError unless an episode was written."""
        if not self.episodes:
            raise RunError("the dataset contains no episodes to write.")


_replaceable: set[Path] = set()
"""Paths that exports may replace, because they have all the episodes that are there."""


@contextlib.contextmanager
def replacing(target: str) -> Iterator[None]:
    """Let exports inside replace ``target``, a path or minari:NAME."""
    path = target_path(target).absolute()
    _replaceable.add(path)
    try:
        yield
    finally:
        _replaceable.discard(path)


@contextlib.contextmanager
def staged_file(path: Path, folder: bool = False) -> Iterator[Path]:
    """Provide a temporary path next to ``path``.

    The file or folder created there is renamed to ``path`` at the end, or deleted after an error. Only one process at a
    time can do this for a ``path``; it deletes what killed processes have left in the folder.
    """
    check_absent(path)
    _delete_leftovers(path.parent)
    with lock_beside(path):
        check_absent(path)  # another process can have written it before this one acquired the lock
        staged = path.with_name(f".{path.name}.part")
        delete(staged)
        try:
            if folder:
                staged.mkdir()
            yield staged
            check_signals()
            if path.is_dir():  # inside ``replacing``: a folder can only be renamed to an empty one
                os.replace(path, _old_path(path))
            rename_durably(staged, path)
            delete(_old_path(path))
        finally:
            delete(staged)


def _delete_leftovers(folder: Path) -> None:
    """Delete the temporary files of killed processes, whose locks nobody holds."""
    for file in folder.glob(".*.lock"):
        target = folder / file.name[1 : -len(".lock")]
        with contextlib.suppress(RunError), lock_beside(target):
            delete(target.with_name(f".{target.name}.part"))


def write_generated(
    folder: Path, name: str, episodes: int, play: Callable[[], Rows], progress: Callable[[str, int, int], None]
) -> list[Path]:
    """Write ``episodes`` that ``play`` returns to NAME.npz in ``folder``, and a tenth of them to NAME-val.npz.

    All have the same length. ``progress`` is called with a file, its episodes so far and in total. Returns the files.
    """
    files = {folder / f"{name}.npz": episodes, folder / f"{name}-val.npz": max(1, episodes // 10)}
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        staged = [stack.enter_context(staged_file(path)) for path in files]
        for part, (path, total) in zip(staged, files.items(), strict=True):
            columns: Rows = {}
            for number in range(total):
                for key, x in play().items():
                    if key not in columns:
                        columns[key] = np.empty((total * len(x), *x.shape[1:]), x.dtype)
                    columns[key][number * len(x) : (number + 1) * len(x)] = x
                progress(path.name, number + 1, total)
            with part.open("wb") as file:
                np.savez_compressed(file, **columns)  # type: ignore[arg-type]
    return list(files)


def delete(path: Path) -> None:
    """Delete a file or folder, if it exists and can be deleted."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def check_room(path: Path, num_bytes: int) -> None:
    """Raise RunError if fewer than ``num_bytes`` are free on the disk of ``path``: HDF5 would abort the process."""
    if shutil.disk_usage(path.parent).free < num_bytes:
        raise RunError(
            f"cannot write {path}: No space left on device. Free space there and try again; no partial file is left."
        )


def total_bytes(values: object) -> int:
    """Return the bytes of all arrays in nested dictionaries and tuples."""
    if isinstance(values, Mapping | tuple):
        return sum(map(total_bytes, values.values() if isinstance(values, Mapping) else values))
    return int(np.asarray(values).nbytes)


def target_path(target: str) -> Path:
    """Return the path of ``target``, a path or minari:NAME, a dataset in Minari's folder."""
    name = target.removeprefix("minari:")
    return Path(target).expanduser() if name == target else minari_root() / name


def _old_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def check_absent(path: Path) -> None:
    """Raise RunError if ``path`` exists, and is not to be replaced."""
    if _old_path(path).exists() and not path.exists():  # a process was killed between two renames
        os.replace(_old_path(path), path)
    if path.exists() and path.absolute() not in _replaceable:
        raise RunError(f"{path} exists: choose another name, or delete it first.")

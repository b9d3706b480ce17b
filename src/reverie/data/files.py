"""Many files written, and put in their places at once: all system calls in one compiled call (``files.c``).

Without a compiler they are made from here, one by one. Either way files are written beside their places, synchronised,
renamed, and the folders synchronised.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

import numpy as np

from reverie.core.compiler import kernels

Parts = Sequence[bytes | memoryview]
"""What a file holds, in parts that follow each other."""


def write(files: Mapping[Path, Parts]) -> None:
    """Write those files, in folders that are made where they are missing. One that fails is removed again.

    Raises:
        OSError: one cannot be written; those after it were not tried.
    """
    items = list(files.items())
    done = 0
    while done < len(items):
        path, error = _write(items[done:])
        if error is None:
            return
        done = [each for each, _ in items].index(path)
        if not isinstance(error, FileNotFoundError) or path.parent.exists():
            with contextlib.suppress(OSError):  # on a full disk half a file only takes room
                path.unlink(missing_ok=True)
            raise error
        path.parent.mkdir(parents=True, exist_ok=True)


def place(staged: Mapping[Path, Path]) -> None:
    """Give written files, the values, the names that are the keys: once this has returned, for good.

    Files are synchronised first, all of them, as a file system writes many faster than one by one.

    Raises:
        OSError: one cannot be synchronised or renamed. Some may have been.
    """
    folders = list(dict.fromkeys(path.parent for path in staged))
    library = kernels()
    if library is None:
        for beside in staged.values():
            sync(beside)
        for path, beside in staged.items():
            os.replace(beside, path)
        for folder in folders:
            sync(folder)
        return
    failed = np.zeros(2, np.int64)
    library.place_files(_names(staged.values()), _names(staged), len(staged), _names(folders), len(folders),
                        failed.ctypes.data)  # fmt: skip
    if failed[0]:
        raise _error(int(failed[0]), [*staged, *folders][failed[1]])


def opened(path: Path) -> BinaryIO:
    """A file to be written anew."""
    return path.open("wb")


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(items: Sequence[tuple[Path, Parts]]) -> tuple[Path, OSError | None]:
    """The last file that was tried, and what went wrong with it."""
    library = kernels()
    if library is None:
        for path, parts in items:
            try:
                with opened(path) as file:
                    for part in parts:
                        file.write(part)
            except OSError as error:
                return path, error
        return path, None
    buffers = [np.frombuffer(part, np.uint8) for _, parts in items for part in parts if len(part)]
    begins = np.array([0, *accumulate(sum(1 for part in parts if len(part)) for _, parts in items)], np.int64)
    sizes = np.array([len(buffer) for buffer in buffers], np.int64)
    addresses = np.array([buffer.ctypes.data for buffer in buffers], np.uintp)
    failed = np.zeros(2, np.int64)
    library.write_files(_names(path for path, _ in items), begins.ctypes.data, addresses.ctypes.data,
                        sizes.ctypes.data, len(items), failed.ctypes.data)  # fmt: skip
    path = items[failed[1]][0]
    return path, _error(int(failed[0]), path) if failed[0] else None


def _names(paths: Iterable[Path]) -> ctypes.Array[ctypes.c_char_p]:
    names = [os.fsencode(path) for path in paths]
    return (ctypes.c_char_p * len(names))(*names)


def _error(number: int, path: Path) -> OSError:
    """As Python would raise it, of the kind that belongs to the number."""
    return OSError(number, os.strerror(number), str(path))

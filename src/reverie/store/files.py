"""Writing many files durably, with all system calls in one compiled call (``files.c``).

Without a compiler Python makes the system calls, one by one. Either way files are written under temporary names,
synchronised, renamed, and then their folders are synchronised.
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
from reverie.core.files import sync

Parts = Sequence[bytes | memoryview]
"""The content of a file, as consecutive parts."""


def write(files: Mapping[Path, Parts]) -> None:
    """Write the files and make missing folders. A file whose writing fails is deleted.

    Raises:
        OSError: a file cannot be written; those after it were not tried.
    """
    items = list(files.items())
    done = 0
    while done < len(items):
        path, error = _write(items[done:])
        if error is None:
            return
        done = [each for each, _ in items].index(path)
        if not isinstance(error, FileNotFoundError) or path.parent.exists():
            with contextlib.suppress(OSError):  # an incomplete file would only take space on a full disk
                path.unlink(missing_ok=True)
            raise error
        path.parent.mkdir(parents=True, exist_ok=True)


def place(staged: Mapping[Path, Path]) -> None:
    """Rename written files (the values) to the keys. Once this returns, the change survives a crash.

    All files are synchronised before the first is renamed, because file systems write many faster than one by one.

    Raises:
        OSError: a file cannot be synchronised or renamed. Others may have been renamed already.
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
    """Open a file for writing, emptied."""
    return path.open("wb")


def _write(items: Sequence[tuple[Path, Parts]]) -> tuple[Path, OSError | None]:
    """Write files until one fails. Return the last one that was tried and its error, or None."""
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
    """Return the OSError, or the subclass of it, that Python would raise for an error number."""
    return OSError(number, os.strerror(number), str(path))

"""Files and checksums of a store in compiled calls that release the interpreter (``files.c``, ``checksum.c``)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from reverie.kernels.compiler import kernels


def write_files(items: Sequence[tuple[Path, Sequence[bytes | memoryview]]]) -> tuple[int, OSError | None]:
    """See ``store.files``."""
    library: Any = kernels()
    buffers = [np.frombuffer(part, np.uint8) for _, parts in items for part in parts if len(part)]
    begins = np.array([0, *accumulate(sum(1 for part in parts if len(part)) for _, parts in items)], np.int64)
    sizes, addresses = _sizes(buffers), _addresses(buffers)
    failed = np.zeros(2, np.int64)
    library.write_files(_names(path for path, _ in items), begins.ctypes.data, addresses.ctypes.data,
                        sizes.ctypes.data, len(items), failed.ctypes.data)  # fmt: skip
    index = int(failed[1])
    return index, _error(int(failed[0]), items[index][0]) if failed[0] else None


def place(staged: Mapping[Path, Path]) -> None:
    """See ``store.files``."""
    library: Any = kernels()
    folders = list(dict.fromkeys(path.parent for path in staged))
    failed = np.zeros(2, np.int64)
    library.place_files(_names(staged.values()), _names(staged), len(staged), _names(folders), len(folders),
                        failed.ctypes.data)  # fmt: skip
    if failed[0]:
        raise _error(int(failed[0]), [*staged, *folders][failed[1]])


def checksums(pieces: Sequence[memoryview]) -> list[int]:
    """See ``store.zarr``."""
    library: Any = kernels()
    buffers = [np.frombuffer(piece, np.uint8) for piece in pieces]
    sizes, addresses, found = _sizes(buffers), _addresses(buffers), np.empty(len(buffers), np.uint32)
    library.checksums(addresses.ctypes.data, sizes.ctypes.data, found.ctypes.data, len(buffers))
    out: list[int] = found.tolist()
    return out


def _sizes(buffers: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([len(buffer) for buffer in buffers], np.int64)


def _addresses(buffers: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([buffer.ctypes.data for buffer in buffers], np.uintp)


def _names(paths: Iterable[Path]) -> ctypes.Array[ctypes.c_char_p]:
    names = [os.fsencode(path) for path in paths]
    return (ctypes.c_char_p * len(names))(*names)


def _error(number: int, path: Path) -> OSError:
    """Return the OSError, or the subclass of it, that Python would raise for an error number."""
    return OSError(number, os.strerror(number), str(path))

"""HDF5 datasets as columns: memory-mapped if contiguous in the file, else read in pieces. Nothing is unpickled."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from reverie.core.errors import DataError, ReverieError
from reverie.datasets.reader import needs

if TYPE_CHECKING:
    import h5py

SIGNATURE = b"\x89HDF\r\n\x1a\n"
CACHE_BYTES = 1 << 20
LEFT_BYTES = 1 << 18
"""Bytes of a mapped column that are released from memory at a time."""
KEPT_BYTES = 64_000_000
"""Largest size in bytes at which a chunked or compressed column is read into memory as a whole."""


def is_hdf5(path: Path) -> bool:
    """Return True if the file begins with the signature of HDF5, perhaps after a user block."""
    size = path.stat().st_size
    with path.open("rb") as file:
        for offset in (0, 512, 1024, 2048, 4096):
            file.seek(offset)
            if offset < size and file.read(8) == SIGNATURE:
                return True
    return False


def open_hdf5(path: Path) -> h5py.File:
    """Open an HDF5 file for reading.

    Raises:
        ConfigError: the package h5py is missing.
        DataError: the file is cut off, damaged or not HDF5; the message says which.
    """
    try:
        import h5py
    except ImportError as error:
        raise needs("h5py", "hdf5", error) from None
    try:
        return bounded(h5py.File(path, "r"))
    except OSError as error:
        said = str(error)
        if "truncated" in said:
            raise DataError(
                f"{path} is incomplete: it has {path.stat().st_size:,} bytes, fewer than its header says ({said}). "
                "An HDF5 file cannot be read in part: download or copy it again."
            ) from None
        raise DataError(f"{path} cannot be read as HDF5: {said}.") from None


@contextmanager
def damage(what: Path | str) -> Iterator[None]:
    """While entered, turn the errors of h5py into one that says that the file is damaged.

    Raises:
        DataError: an OSError, KeyError or RuntimeError occurred.
    """
    try:
        yield
    except ReverieError:
        raise
    except (OSError, KeyError, RuntimeError) as error:
        why = error.args[0] if error.args else error
        raise DataError(f"{what} is damaged: {why}. Download or copy the file again.") from None


def bounded(file: h5py.File) -> h5py.File:
    """Limit the metadata cache of ``file`` to ``CACHE_BYTES``, as thousands of groups would fill it, and return it."""
    config = file.id.get_mdc_config()
    config.set_initial_size = True
    config.initial_size = config.min_size = config.max_size = CACHE_BYTES
    config.incr_mode = config.flash_incr_mode = config.decr_mode = 0  # no automatic resizing
    file.id.set_mdc_config(config)
    return file


def walk(group: h5py.Group, prefix: str = "") -> Iterator[tuple[str, h5py.Dataset]]:
    """Yield all datasets in a group and the groups below it, with their paths."""
    import h5py

    for name, item in group.items():
        if isinstance(item, h5py.Group):
            yield from walk(item, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", item


class Hdf5File:
    """An HDF5 file that is opened and mapped when it is first read, and closed at the end of each ``with``.

    A reader enters it for each reading: a dataset may consist of more files than a process may have open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._datasets: dict[str, h5py.Dataset] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file if it is open."""
        self._datasets.clear()
        self.__dict__.pop("memory", None)  # arrays that lie in the map keep it
        if (opened := self.__dict__.pop("opened", None)) is not None:
            opened.close()

    @cached_property
    def opened(self) -> h5py.File:
        """The open file. Raises as ``open_hdf5`` does."""
        return open_hdf5(self.path)

    @cached_property
    def memory(self) -> mmap.mmap:
        """The whole file, mapped once for all its columns, as each map holds a file descriptor.

        Raises:
            DataError: the file cannot be opened.
        """
        try:
            with self.path.open("rb") as file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror or error}.") from None

    def dataset(self, name: str) -> h5py.Dataset:
        """Return a dataset. It is held, and with it the chunks that it has decompressed, until the file is closed."""
        if name not in self._datasets:
            self._datasets[name] = self.opened[name]
        return self._datasets[name]


class Hdf5Column:
    """A numeric dataset ``[n, ...]``; a ``transitions.Column``."""

    def __init__(self, file: Hdf5File, name: str) -> None:
        """Wrap a dataset of ``file``.

        Raises:
            DataError: it holds objects, text or a single value.
        """
        dataset = file.dataset(name)
        if dataset.dtype.kind not in "biuf" or not dataset.shape:
            raise DataError(f"{file.path}: '{name}' contains {kind_of(dataset)}: expected an array of numbers.")
        self.file, self.name = file, name
        self.shape: tuple[int, ...] = tuple(dataset.shape)
        self.dtype: np.dtype[Any] = dataset.dtype
        self._bytes = int(dataset.nbytes)
        self._begin = self._offset(dataset)
        self._left = 0

    def _offset(self, dataset: h5py.Dataset) -> int | None:
        """Return where the values begin in the file; None if they are not contiguous there."""
        offset: int | None = dataset.id.get_offset() if dataset.chunks is None and not dataset.external else None
        whole = offset is not None and offset + self._bytes <= self.file.path.stat().st_size
        return offset if whole and not dataset.file.userblock_size else None

    @property
    def mapped(self) -> np.ndarray | None:
        """The whole dataset, mapped from the file; None if it is not contiguous there."""
        if self._begin is None:
            return None
        return np.frombuffer(self.file.memory, self.dtype, math.prod(self.shape), self._begin).reshape(self.shape)

    def _let_go(self, stop: int) -> None:
        """Release the mapped pages of rows before ``stop`` from this process; they may stay in the system's page cache.

        A released page that is read again is simply mapped again, so pages at the edges need no care.
        """
        assert self._begin is not None
        row_bytes = self._bytes // max(1, self.shape[0])
        if 0 <= (stop - self._left) * row_bytes < LEFT_BYTES and stop < self.shape[0]:
            return
        self._left = stop
        memory = self.file.memory
        low = self._begin // mmap.PAGESIZE * mmap.PAGESIZE
        high = min(-(-(self._begin + stop * row_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE, len(memory))
        if high > low and hasattr(memory, "madvise"):
            memory.madvise(mmap.MADV_DONTNEED, low, high - low)

    @cached_property
    def kept(self) -> np.ndarray | None:
        """The whole dataset in memory if it is small, so that each compressed chunk is decompressed once; else None."""
        return self._guarded(()) if self._begin is None and self._bytes <= KEPT_BYTES else None

    def read(self, start: int, stop: int) -> np.ndarray:
        """See ``transitions.Column``."""
        if (mapped := self.mapped) is not None:
            self._let_go(start)  # reading goes forwards
            return mapped[start:stop]
        rows: np.ndarray = self._guarded(slice(start, stop)) if self.kept is None else self.kept[start:stop]
        return rows

    def at(self, index: np.ndarray) -> np.ndarray:
        """See ``transitions.Column``."""
        if (mapped := self.mapped) is not None:
            found = mapped.take(index, axis=0)
            self._let_go(int(index[-1]) + 1)
            return found
        if self.kept is not None:
            return self.kept.take(index, axis=0)
        if len(index) <= 8:  # each may decompress a chunk, but indexing h5py with a list costs much more
            return np.stack([self._guarded(int(i)) for i in index])
        rows: np.ndarray = self._guarded(slice(int(index[0]), int(index[-1]) + 1))[index - index[0]]
        return rows

    def _guarded(self, where: Any) -> Any:
        with damage(f"{self.file.path}: '{self.name}'"):
            return self.file.dataset(self.name)[where]


def kind_of(dataset: h5py.Dataset) -> str:
    """Return a description of a dataset that is not an array of numbers."""
    if not dataset.shape:
        return "a single value"
    return "text" if dataset.dtype.kind in "SU" else f"objects ({dataset.dtype})"

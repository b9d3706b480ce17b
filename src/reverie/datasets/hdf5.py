"""HDF5 datasets as columns: memory-mapped if contiguous in the file, else read in pieces. Nothing is unpickled."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from reverie.core.errors import DataError
from reverie.datasets.reader import needs

if TYPE_CHECKING:
    import h5py

SIGNATURE = b"\x89HDF\r\n\x1a\n"
CACHE_BYTES = 1 << 20
KEPT_BYTES = 64_000_000
"""Largest size in bytes at which a chunked or compressed column is read into memory as a whole."""


def is_hdf5(path: Path) -> bool:
    """Return True if the file begins with the signature of HDF5, perhaps after a user block."""
    with path.open("rb") as file:
        for offset in (0, 512, 1024, 2048, 4096):
            file.seek(offset)
            if file.read(8) == SIGNATURE:
                return True
    return False


def open_hdf5(path: Path) -> h5py.File:
    """Open an HDF5 file for reading, with a small cache of metadata, which thousands of groups would fill."""
    try:
        import h5py
    except ImportError as error:
        raise needs("h5py", "hdf5", error) from None
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise DataError(f"{path} cannot be read as HDF5: {error}. If it is cut off, copy it again.") from None
    config = file.id.get_mdc_config()
    config.set_initial_size = True
    config.initial_size = config.min_size = config.max_size = CACHE_BYTES
    config.incr_mode = config.flash_incr_mode = config.decr_mode = 0  # no automatic resizing
    file.id.set_mdc_config(config)
    return file


class Hdf5File:
    """An HDF5 file that is opened when it is first read, and closed at the end of each ``with``.

    A reader enters it for each reading: a dataset may consist of more files than a process may have open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: dict[Any, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file if it is open."""
        self._held.clear()
        if (opened := self.__dict__.pop("opened", None)) is not None:
            opened.close()

    @cached_property
    def opened(self) -> h5py.File:
        """The open file. Raises as ``open_hdf5`` does."""
        return open_hdf5(self.path)

    def dataset(self, name: str) -> h5py.Dataset:
        """Return a dataset. It is held, and with it the chunks that it has decompressed, until the file is closed."""
        if name not in self._held:
            self._held[name] = self.opened[name]
        return self._held[name]

    def mapped(self, column: Hdf5Column) -> np.ndarray:
        """Return a column that is contiguous in the file. It holds a file descriptor until the file is closed."""
        if column not in self._held:
            whole = np.memmap(self.path, column.dtype, "r", column.offset or 0, column.shape)
            self._held[column] = whole.view(np.ndarray)  # slicing that is five times as fast
        found: np.ndarray = self._held[column]
        return found

    def column(self, name: str) -> Hdf5Column:
        """Return a numeric dataset ``[n, ...]``."""
        kind = getattr(self.dataset(name), "dtype", "a group")
        if not isinstance(kind, np.dtype) or kind.kind not in "biuf":
            raise DataError(f"{self.path}: '{name}' contains {kind}: expected an array of numbers.")
        return Hdf5Column(self, name)


class Hdf5Column:
    """A numeric dataset ``[n, ...]``; a ``transitions.Column``."""

    def __init__(self, file: Hdf5File, name: str) -> None:
        found = file.dataset(name)
        self.file = file
        self.name = name
        self.shape: tuple[int, ...] = tuple(found.shape)
        self.dtype: np.dtype[Any] = found.dtype
        self._keeps = found.chunks is not None and found.nbytes <= KEPT_BYTES
        offset = found.id.get_offset() if found.chunks is None and not found.external else None
        self.offset: int | None = offset if found.nbytes and not found.file.userblock_size else None

    @cached_property
    def _kept(self) -> np.ndarray:
        """The whole dataset, so that each compressed chunk is decompressed once."""
        return self._get(())

    def read(self, start: int, stop: int) -> np.ndarray:
        if self.offset is not None:
            return self.file.mapped(self)[start:stop]
        return self._kept[start:stop] if self._keeps else self._get(slice(start, stop))

    def _get(self, where: Any) -> np.ndarray:
        return np.asarray(self.file.dataset(self.name)[where])

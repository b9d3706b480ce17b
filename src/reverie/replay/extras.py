"""Saving the extra columns that a policy stores with the rows. Updates change them, so every checkpoint has a copy."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import numpy as np

from reverie.core.errors import DataError, warn
from reverie.core.specs import EXTRAS
from reverie.replay.storage import Storage

PIECE = 2**26
"""Approximate bytes that are held in memory at once."""


def extras_of(storage: Storage) -> list[str]:
    """Return the names of the extra columns that checkpoints hold."""
    return [name for name, spec in storage.specs.items() if name.startswith(EXTRAS) and spec.kept]


def file_of(folder: Path, name: str) -> Path:
    """Return the path of a column's file; characters that file names cannot have are quoted."""
    return folder / f"{quote(name.removeprefix(EXTRAS), safe='')}.npy"


def save_extras(storage: Storage, folder: Path) -> list[Path]:
    """Write each column of all rows held to a file ``[N, rows, ...]``, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in extras_of(storage):
        paths.append(file_of(folder, name))
        with paths[-1].open("wb") as file:
            np.lib.format.write_array_header_2_0(file, header(storage, name, storage.oldest))
            for stream in range(storage.streams):
                for start, stop in pieces(storage, name):
                    file.write(storage.read(start, stop, [name], stream)[name].tobytes())
    return paths


def load_extras(storage: Storage, folder: Path, first: int | None = None) -> None:
    """Load what ``save_extras`` wrote. The files hold the rows from ``first`` on, by default the oldest one held.

    If the files are of other columns, as an earlier version wrote them, it warns and leaves the columns blank.

    Raises:
        DataError: a file is missing, damaged or of other rows.
    """
    wanted, found = {file_of(folder, name) for name in extras_of(storage)}, set(folder.glob("*.npy"))
    if wanted - found and found - wanted:
        there, expected = (", ".join(sorted(path.stem for path in paths)) for paths in (found, wanted))
        warn(
            f"{folder} was written by another version: it contains {there} instead of {expected}. {expected} start as "
            "zeros and are replaced as rows are learned from."
        )
        return
    first = storage.oldest if first is None else first
    arrays = {name: opened(storage, name, file_of(folder, name), first) for name in extras_of(storage)}
    for name, array in arrays.items():
        for stream in range(storage.streams):
            for start, stop in pieces(storage, name):
                part = slice(start - first, stop - first)
                storage.replace(name, start, stream, array[stream, part])


def opened(storage: Storage, name: str, path: Path, first: int) -> np.ndarray:
    """Return the array of a file, memory-mapped.

    Raises:
        DataError: it cannot be read, or has another shape or dtype. Floats of another precision are accepted.
    """
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    expected, dtype = header(storage, name, first), np.dtype(storage.specs[name].dtype)
    if array.shape != expected["shape"] or (array.dtype != dtype and not array.dtype.kind == dtype.kind == "f"):
        raise DataError(
            f"{path} contains {array.dtype} {array.shape}: expected {storage.specs[name].dtype} {expected['shape']}, "
            f"{name} of rows {first} to {storage.count} of {storage.streams} streams."
        )
    return array


def header(storage: Storage, name: str, first: int) -> dict[str, object]:
    """Return the NumPy header of one column's array, of the rows from ``first`` on."""
    spec = storage.specs[name]
    shape = (storage.streams, storage.count - first, *spec.shape)
    return {"descr": np.lib.format.dtype_to_descr(np.dtype(spec.dtype)), "fortran_order": False, "shape": shape}


def pieces(storage: Storage, name: str) -> list[tuple[int, int]]:
    """Return the rows that are held as ranges ``(start, stop)`` of at most about ``PIECE`` bytes."""
    rows = max(1, PIECE // max(1, storage.specs[name].nbytes))
    starts = range(storage.oldest, storage.count, rows)
    return [(start, min(start + rows, storage.count)) for start in starts]

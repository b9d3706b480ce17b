"""Reads the columns of Arrow, Parquet and CSV tables as numeric arrays, one piece at a time."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reverie.core.errors import ConfigError, DataError
from reverie.datasets.reader import format_of, package, reading
from reverie.datasets.transitions import Column

MOST_OPEN = 8
"""Number of Parquet files that stay open: columns are read at about the same pace."""


class Piece(NamedTuple):
    """Rows of a table that are read together: a row group of Parquet, or a batch of Arrow; ``column(name)`` is one."""

    rows: int
    column: Callable[[str], Any]
    where: str
    """Its file, for messages."""


def pyarrow_of() -> Any:
    """Return the package pyarrow; raise ConfigError if it is not installed."""
    for name in ("pyarrow.ipc", "pyarrow.parquet"):
        package(name, "arrow")
    return package("pyarrow", "arrow")


@lru_cache(MOST_OPEN)
def _parquet(file: Path, changed: int) -> Any:
    return pyarrow_of().parquet.ParquetFile(file)


def open_table(file: Path) -> tuple[Any, list[Piece]]:
    """Return the schema of an Arrow, Parquet or CSV file, and its pieces; raise DataError if it is damaged."""
    with reading(file):
        if format_of(file) == "CSV":
            return pieces_of(package("pyarrow.csv", "arrow").read_csv(file), str(file))
        if is_parquet(file):
            again = partial(_parquet, file, file.stat().st_mtime_ns)  # a process may have about a thousand files open
            schema, groups = again().schema_arrow, range(again().num_row_groups)
            rows = [again().metadata.row_group(group).num_rows for group in groups]
            pieces = [Piece(rows[n], partial(_of_group, again, n), f"{file}, row group {n}") for n in groups]
            return schema, [piece for piece in pieces if piece.rows]
        return pieces_of(_arrow_table(file), str(file))


def pieces_of(table: Any, where: str) -> tuple[Any, list[Piece]]:
    """Return the schema of an Arrow table, and its pieces; ``where`` is for messages."""
    with reading(where):
        table.validate()  # Arrow ends the process where a column is shorter than its table
    return table.schema, [Piece(batch.num_rows, batch.column, where) for batch in table.to_batches() if batch.num_rows]


def table_of(file: Path) -> Any:
    """Return the whole table of an Arrow or Parquet file; raise DataError if it is damaged."""
    with reading(file):
        table = pyarrow_of().parquet.read_table(file) if is_parquet(file) else _arrow_table(file)
        table.validate(full=True)  # reading beyond the end of a buffer would end the process
    return table


def is_parquet(file: Path) -> bool:
    """Return whether a file begins as Parquet's do."""
    with file.open("rb") as opened:
        return opened.read(4) == b"PAR1"


def _of_group(opened: Callable[[], Any], group: int, name: str) -> Any:
    return opened().read_row_group(group, columns=[name]).column(0).combine_chunks()


def _arrow_table(file: Path) -> Any:
    arrow = pyarrow_of()
    mapped = arrow.memory_map(str(file))
    try:
        return arrow.ipc.open_stream(mapped).read_all()
    except arrow.ArrowInvalid:
        mapped.seek(0)
        return arrow.ipc.open_file(mapped).read_all()


class TableColumn:
    """One column of all pieces. If its rows are lists, ``flat`` makes each item a row."""

    def __init__(self, pieces: Sequence[Piece], name: str, where: str, flat: bool = False) -> None:
        self.arrow: Any = pyarrow_of()
        self.pieces = pieces
        self.name = name
        self.where = where
        self.flat = flat
        self._array = lru_cache(1)(self._piece)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Length of the list in each row of the table, ``[rows]``."""
        found = [self._read_piece(piece).value_lengths() for piece in self.pieces]
        return np.asarray(np.concatenate([each.fill_null(0).to_numpy(zero_copy_only=False) for each in found]))

    @cached_property
    def edges(self) -> np.ndarray:
        """Index of the first row of each piece, and the number of rows, ``[pieces + 1]``."""
        rows = np.cumsum([0, *(piece.rows for piece in self.pieces)])
        return np.append(0, np.cumsum(self.lengths))[rows] if self.flat else rows

    @cached_property
    def values(self) -> Column:
        """Its values as numbers, read piece by piece."""
        array = self._array(int(np.flatnonzero(np.diff(self.edges))[0]))
        known = int(np.asarray(array.is_valid()).argmax()) if array.null_count else 0
        one = numbers(self.arrow, array.slice(known, 1), self.where)
        return Column((int(self.edges[-1]), *one.shape[1:]), one.dtype, self._read)

    def _read(self, start: int, stop: int) -> np.ndarray:
        with reading(self.where):
            parts = [numbers(self.arrow, array, self.where) for array in self._slices(start, stop)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _read_piece(self, piece: Piece) -> Any:
        with reading(f"{piece.where}: '{self.name}'"):
            array = piece.column(self.name)
            array.validate(full=True)  # reading beyond the end of a buffer would end the process
            return array

    def _piece(self, piece: int) -> Any:
        array = self._read_piece(self.pieces[piece])
        return array.flatten() if self.flat else array

    def _slices(self, start: int, stop: int) -> Iterator[Any]:
        """Yield the rows from ``start`` to ``stop - 1`` as Arrow arrays."""
        while start < stop:
            piece = int(np.searchsorted(self.edges, start, "right")) - 1
            end = min(stop, int(self.edges[piece + 1]))
            yield self._array(piece).slice(start - int(self.edges[piece]), end - start)
            start = end

    def codes(self) -> tuple[np.ndarray, list[Any]]:
        """Return each value's number, int64 ``[n]``, and the value of each number."""
        whole = self.arrow.chunked_array(list(self._slices(0, int(self.edges[-1]))))
        if whole.null_count:
            raise DataError(f"{self.where} has no value in {whole.null_count:,} rows: expected one in each.")
        if self.arrow.types.is_dictionary(whole.type):
            whole = whole.cast(whole.type.value_type)
        coded = whole.dictionary_encode().unify_dictionaries()
        numbers = [np.asarray(chunk.indices.to_numpy(zero_copy_only=False), np.int64) for chunk in coded.chunks]
        return np.concatenate(numbers), coded.chunk(0).dictionary.to_pylist()


def vectors(columns: Sequence[TableColumn]) -> Column:
    """Return k columns of numbers as one column of vectors ``[n, k]``, in their order."""
    for column in columns:
        if len(shape := column.values.shape) > 1:
            found = f"{column.where} contains arrays of shape {list(shape[1:])}"
            raise ConfigError(f"{found}, not numbers to join. Name it alone, obs.{column.name}: {column.name}.")
    parts = [column.values for column in columns]

    def read(start: int, stop: int) -> np.ndarray:
        return np.stack([part.read(start, stop) for part in parts], axis=1)

    return Column((parts[0].shape[0], len(parts)), np.result_type(*(part.dtype for part in parts)), read)


def is_list(arrow: Any, kind: Any) -> bool:
    """Return whether the values of a type of Arrow's are lists."""
    types = arrow.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def numbers(arrow: Any, array: Any, where: str) -> np.ndarray:
    """Convert an Arrow array to NumPy, ``[n, ...]``. Lists become dimensions; compressed pictures are decoded.

    Only floats may be missing: they are NaN. ``where`` is for messages.
    """
    kind, types = array.type, arrow.types
    if isinstance(array, arrow.ExtensionArray):
        return numbers(arrow, array.storage, where)
    if array.null_count and not types.is_floating(kind):
        raise DataError(f"{where} has no value in some rows: expected one in each.")
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:  # as Hugging Face stores pictures
        return pictures(array.field("bytes").to_pylist())
    if types.is_binary(kind) or types.is_large_binary(kind):
        return pictures(array.to_pylist())
    if is_list(arrow, kind):
        if not types.is_fixed_size_list(kind):
            lengths = np.asarray(array.value_lengths().to_numpy(zero_copy_only=False))
            if len(lengths) and (lengths != lengths[0]).any():
                raise DataError(f"{where} has lists of different lengths: {lengths.min()} to {lengths.max()}.")
        inner = numbers(arrow, array.flatten(), where)
        return inner.reshape(len(array), len(inner) // max(1, len(array)), *inner.shape[1:])
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise DataError(f"{where} contains {kind}: expected numbers, lists of numbers, or images. Number text first.")
    return np.asarray(array.to_numpy(zero_copy_only=False))


def pictures(found: list[bytes]) -> np.ndarray:
    """Decode pictures to uint8 ``[n, H, W, C]``, or ``[n, H, W]`` if grey."""
    from PIL import Image

    return np.stack([np.asarray(Image.open(io.BytesIO(picture)), np.uint8) for picture in found])

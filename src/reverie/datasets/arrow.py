"""Reads the columns of Arrow, Parquet, CSV and TSV tables as numeric arrays, one piece at a time."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from reverie.core.errors import ConfigError, DataError
from reverie.core.files import check_expanded
from reverie.datasets.arrow_index import read_arrow_file
from reverie.datasets.arrow_values import arrow_to_numpy, to_plain
from reverie.datasets.source import TEXT_SUFFIXES, import_optional, import_pyarrow, open_data, reading
from reverie.datasets.transitions import LazyColumn

if TYPE_CHECKING:
    import pyarrow as pa

MAX_OPEN_FILES = 8
"""Number of Parquet files that stay open: columns are read at about the same pace."""
WIDTHS = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8}
"""Bytes of Parquet's numbers."""


class TableChunk(NamedTuple):
    """Rows of a table that are read together, a Parquet row group or an Arrow batch.

    ``column(name)`` returns a column.
    """

    rows: int
    column: Callable[[str], Any]
    label: str
    """Name of the file, for messages."""


@lru_cache(MAX_OPEN_FILES)
def _parquet(file: Path, changed: int) -> Any:
    opened = import_pyarrow().parquet.ParquetFile(file)
    groups = map(opened.metadata.row_group, range(opened.num_row_groups))
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    values = sum(column.num_values * WIDTHS.get(column.physical_type, 1) for column in columns)
    encoded = sum(column.total_uncompressed_size for column in columns)  # equal values are stored once
    check_expanded(file, file.stat().st_size, max(values, encoded))
    return opened


def open_table(file: Path, text: Iterable[str] = ()) -> tuple[Any, list[TableChunk]]:
    """Return the schema of an Arrow, Parquet, CSV or TSV file, and its pieces; raise DataError if it is damaged.

    ``text``: columns of CSV files that are read as text, even if they look like numbers.
    """
    with reading(file):
        if file.suffix.lower() in TEXT_SUFFIXES:
            csv = import_optional("pyarrow.csv", "arrow")
            comments, delimiter, point = _text_dialect(file)
            options = csv.ReadOptions(skip_rows=comments)
            parse = csv.ParseOptions(delimiter=delimiter)
            columns = dict.fromkeys(text, import_pyarrow().string())
            types = csv.ConvertOptions(column_types=columns, decimal_point=point)
            return table_pieces(csv.read_csv(file, options, parse, types), str(file))
        if _is_parquet(file):
            reopen = partial(_parquet, file, file.stat().st_mtime_ns)  # a process can have about a thousand open files
            schema, groups = reopen().schema_arrow, range(reopen().num_row_groups)
            rows = [reopen().metadata.row_group(group).num_rows for group in groups]
            pieces = [TableChunk(rows[n], partial(_read_group, reopen, n), f"{file}, row group {n}") for n in groups]
            return schema, [piece for piece in pieces if piece.rows]
        return table_pieces(read_arrow_file(file), str(file))


def _text_dialect(file: Path) -> tuple[int, str, str]:
    """Return the number of comment lines before the header of a CSV file, its separator, and its decimal point.

    Comments begin with # and are no names of columns. Spreadsheets in many languages separate columns by semicolons,
    since they write decimal commas.
    """
    delimiter, comments = TEXT_SUFFIXES[file.suffix.lower()], 0
    with io.TextIOWrapper(open_data(file), encoding="utf-8-sig", errors="replace") as stream:
        for line in stream:
            if not line.startswith("#") or delimiter in line.partition("{")[0]:
                break
            comments += 1
        else:
            return 0, delimiter, "."
        if delimiter not in line:
            delimiter = next((mark for mark in ";\t|" if mark in line), delimiter)
        has_commas = delimiter != "," and re.search(rf"(^|{re.escape(delimiter)})\"?-?\d+,\d", next(stream, ""))
    return comments, delimiter, "," if has_commas else "."


def add_partitions(tables: dict[Path, tuple[Any, list[TableChunk]]]) -> None:
    """Add the columns that names of folders contain, such as ``episode=7``, to tables of these files, in place."""
    arrow, partitions = import_pyarrow(), {}
    for file in tables:
        pairs = (part.partition("=") for part in file.parent.parts)
        partitions[file] = {name: unquote(value) for name, sign, value in pairs if name and sign}
    for name in sorted(set.intersection(*map(set, partitions.values()))):
        is_whole = all(re.fullmatch(r"0|-?[1-9]\d{0,17}", named[name]) for named in partitions.values())  # 07 is not 7
        for file, (schema, pieces) in tables.items():
            value = arrow.scalar(int(partitions[file][name]) if is_whole else partitions[file][name])
            if name not in schema.names:
                pieces = [piece._replace(column=partial(_or_constant, piece, name, value)) for piece in pieces]
                tables[file] = schema.append(arrow.field(name, value.type)), pieces


def unify_numbers(tables: dict[Path, tuple[Any, list[TableChunk]]], names: Iterable[str]) -> None:
    """Give number columns ``names`` the same type in all tables, in place: a file of whole numbers has integers."""
    types = import_pyarrow().types
    for name in names:
        kinds = [
            schema.field(name).type for schema, pieces in tables.values() if pieces and schema.names.count(name) == 1
        ]
        if len(set(kinds)) < 2 or not all(types.is_integer(kind) or types.is_floating(kind) for kind in kinds):
            continue
        kind = import_pyarrow().from_numpy_dtype(np.result_type(*(kind.to_pandas_dtype() for kind in kinds)))
        for file, (schema, pieces) in tables.items():
            pieces = [piece._replace(column=partial(_or_cast, piece, name, kind)) for piece in pieces]
            if (index := schema.get_field_index(name)) >= 0:
                tables[file] = schema.set(index, schema.field(index).with_type(kind)), pieces


def _or_cast(piece: TableChunk, name: str, kind: pa.DataType, column: str) -> Any:
    return piece.column(column).cast(kind) if column == name else piece.column(column)


def _or_constant(piece: TableChunk, name: str, value: pa.Scalar, column: str) -> Any:
    return import_pyarrow().repeat(value, piece.rows) if column == name else piece.column(column)


def table_pieces(table: pa.Table, label: str) -> tuple[Any, list[TableChunk]]:
    """Return the schema of an Arrow table, and its pieces; ``label`` is for messages."""
    with reading(label):
        table.validate()  # Arrow aborts the process if a column is shorter than its table
    return table.schema, [
        TableChunk(batch.num_rows, batch.column, label) for batch in table.to_batches() if batch.num_rows
    ]


def read_table(file: Path) -> Any:
    """Return the whole table of an Arrow or Parquet file; raise DataError if it is damaged."""
    with reading(file):
        table = _parquet(file, file.stat().st_mtime_ns).read() if _is_parquet(file) else read_arrow_file(file)
        table.validate(full=True)  # reading beyond the end of a buffer would abort the process
    return table


def _is_parquet(file: Path) -> bool:
    """Return whether a file begins like a Parquet file."""
    with open_data(file) as stream:
        return stream.read(4) == b"PAR1"


def _read_group(reopen: Callable[[], Any], group: int, name: str) -> Any:
    return reopen().read_row_group(group, columns=[name]).column(0).combine_chunks()


class TableColumn:
    """One column of all pieces. If its rows are lists, ``flat`` makes each item a row."""

    def __init__(
        self, pieces: Sequence[TableChunk], name: str, label: str, flat: bool = False, folder: Path | None = None
    ) -> None:
        self.arrow: Any = import_pyarrow()
        self.pieces = pieces
        self.name = name
        self.label = label
        self.flat = flat
        self.folder = folder
        """Folder of the images whose paths are in the table."""
        self._array = lru_cache(1)(self._piece)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Length of the list in each row of the table, ``[rows]``."""
        arrays = [self._read_piece(piece).value_lengths() for piece in self.pieces]
        return np.asarray(np.concatenate([array.fill_null(0).to_numpy(zero_copy_only=False) for array in arrays]))

    @cached_property
    def edges(self) -> np.ndarray:
        """Index of the first row of each piece, and the number of rows, ``[pieces + 1]``."""
        rows = np.cumsum([0, *(piece.rows for piece in self.pieces)])
        return np.append(0, np.cumsum(self.lengths))[rows] if self.flat else rows

    @cached_property
    def values(self) -> LazyColumn:
        """The values as numbers, read piece by piece."""
        array = self._array(int(np.flatnonzero(np.diff(self.edges))[0]))
        index = int(np.asarray(array.is_valid()).argmax()) if array.null_count else 0
        sample = arrow_to_numpy(self.arrow, array.slice(index, 1), self.label, folder=self.folder)
        read = partial(self._read, f"{list(sample.shape[1:])} {sample.dtype}")
        return LazyColumn((int(self.edges[-1]), *sample.shape[1:]), sample.dtype, read)

    def _read(self, kind: str, start: int, stop: int) -> np.ndarray:
        parts, row = [], start
        for array in self._slices(start, stop):
            with reading(self.label):
                parts.append(arrow_to_numpy(self.arrow, array, self.label, row, self.folder))
            if (part_kind := f"{list(parts[-1].shape[1:])} {parts[-1].dtype}") != kind:
                raise DataError(
                    f"{self.label} has values {part_kind} in row {row:,}, but {kind} before: expected one kind."
                )
            row += len(array)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _read_piece(self, piece: TableChunk) -> Any:
        with reading(f"{piece.label}: '{self.name}'"):
            array = piece.column(self.name)
            array.validate(full=True)  # reading beyond the end of a buffer would abort the process
            return to_plain(array)

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

    def times(self) -> np.ndarray:
        """Return times or numbers as numbers ``[n]``, NaN where one is missing; texts as they are; empty for others."""
        arrow = self.arrow
        array = arrow.chunked_array(list(self._slices(0, int(self.edges[-1]))))
        types, kind = arrow.types, array.type
        if types.is_string(kind) or types.is_large_string(kind):
            return np.asarray(array.to_numpy(), object)
        if types.is_time(kind):
            array = array.cast(arrow.time64("ns"))
        if types.is_temporal(kind):
            array = array.cast(arrow.int32() if types.is_date32(array.type) else arrow.int64())
        elif types.is_decimal(kind):
            array = array.cast(arrow.float64())
        values: np.ndarray = np.asarray(array.to_numpy())
        return values if values.dtype.kind in "iuf" else np.empty(0)

    def category_codes(self) -> tuple[np.ndarray, list[Any]]:
        """Return each value's number, int64 ``[n]``, and the value of each number."""
        parts = list(self._slices(0, int(self.edges[-1])))
        is_extension = isinstance(parts[0], self.arrow.ExtensionArray)  # such as a UUID
        column = self.arrow.chunked_array([part.storage for part in parts] if is_extension else parts)
        if column.null_count:
            raise DataError(f"{self.label} has no value in {column.null_count:,} rows: expected one in each.")
        coded = column.dictionary_encode().unify_dictionaries()
        codes = [np.asarray(chunk.indices.to_numpy(zero_copy_only=False), np.int64) for chunk in coded.chunks]
        names = coded.chunk(0).dictionary.to_pylist()
        if "" in names or any(name != name for name in names):  # a missing value of a CSV file, or NaN
            raise DataError(f"{self.label} is empty or NaN in some rows: expected a value in each.")
        return np.concatenate(codes), names


def join_columns(columns: Sequence[TableColumn]) -> LazyColumn:
    """Join k numeric columns into one column of vectors ``[n, k]``, in this order."""
    for column in columns:
        if len(shape := column.values.shape) > 1:
            error_prefix = f"{column.label} contains arrays of shape {list(shape[1:])}"
            raise ConfigError(
                f"{error_prefix}, not numbers to join. Name it separately, obs.{column.name}: {column.name}."
            )
    parts = [column.values for column in columns]

    def read(start: int, stop: int) -> np.ndarray:
        return np.stack([part.read(start, stop) for part in parts], axis=1)

    return LazyColumn((parts[0].shape[0], len(parts)), np.result_type(*(part.dtype for part in parts)), read)

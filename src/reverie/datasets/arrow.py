"""Reads the columns of Arrow, Parquet and CSV tables as numeric arrays, one piece at a time."""

from __future__ import annotations

import functools
import io
import itertools
import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from reverie.core.errors import ConfigError, DataError
from reverie.core.files import check_expanded, read_file
from reverie.core.images import open_image
from reverie.datasets.source import TEXT_SUFFIXES, import_optional, open_data, reading
from reverie.datasets.transitions import LazyColumn

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
MAX_OPEN_FILES = 8
"""Number of Parquet files that stay open: columns are read at about the same pace."""


ARROW_MAGIC = b"ARROW1"
"""First and last bytes of an Arrow file."""
MAX_PADDING = 128
"""Largest number of bytes between the last batch of an Arrow file and its index."""
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


def import_pyarrow() -> Any:
    """Return the package pyarrow; raise ConfigError if it is not installed."""
    for name in ("pyarrow.ipc", "pyarrow.parquet"):
        import_optional(name, "arrow")
    return import_optional("pyarrow", "arrow")


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
        if (suffix := file.suffix.lower()) in TEXT_SUFFIXES:
            csv = import_optional("pyarrow.csv", "arrow")
            options = csv.ReadOptions(skip_rows=_comment_lines(file))
            parse = csv.ParseOptions(delimiter=TEXT_SUFFIXES[suffix])
            types = csv.ConvertOptions(column_types=dict.fromkeys(text, import_pyarrow().string()))
            return table_pieces(csv.read_csv(file, options, parse, types), str(file))
        if _is_parquet(file):
            reopen = partial(_parquet, file, file.stat().st_mtime_ns)  # a process can have about a thousand open files
            schema, groups = reopen().schema_arrow, range(reopen().num_row_groups)
            rows = [reopen().metadata.row_group(group).num_rows for group in groups]
            pieces = [TableChunk(rows[n], partial(_read_group, reopen, n), f"{file}, row group {n}") for n in groups]
            return schema, [piece for piece in pieces if piece.rows]
        return table_pieces(_arrow_table(file), str(file))


def _comment_lines(file: Path) -> int:
    """Return the number of lines before the header of a CSV file: they begin with # and are no names of columns."""
    with io.TextIOWrapper(open_data(file), encoding="utf-8", errors="replace") as stream:
        for number, line in enumerate(stream):
            if not line.startswith("#") or TEXT_SUFFIXES[file.suffix.lower()] in line.partition("{")[0]:
                return number
    return 0


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


def add_nested(tables: dict[Path, tuple[Any, list[TableChunk]]], names: Iterable[str]) -> None:
    """Add columns for the ``names`` of fields of structs, such as ``observation.state``, to tables, in place."""
    for name, (file, (schema, pieces)) in itertools.product(names, list(tables.items())):
        if name not in schema.names and (path := _nested_path(schema, name)):
            root, *keys = path
            field = functools.reduce(_nested_field, keys, schema.field(root)).with_name(name)
            pieces = [piece._replace(column=partial(_or_nested, piece, name, path)) for piece in tables[file][1]]
            tables[file] = tables[file][0].append(field), pieces


def nested_names(schema: Any) -> list[str]:
    """Return the names of the columns of a table, with those of fields instead of structs, except images."""

    def below(field: Any, name: str) -> list[str]:
        if not (keys := _field_names(field.type)):
            return [name]
        return [inner for key in keys for inner in below(_nested_field(field, key), f"{name}.{key}")]

    return [inner for field in schema for inner in below(field, str(field.name))]


def _field_names(kind: Any) -> list[str]:
    """Return the names of the fields of a struct, or of the structs in a list; none of an image."""
    arrow = import_pyarrow()
    kind = kind.value_type if is_list(arrow, kind) else kind
    names = [field.name for field in kind] if arrow.types.is_struct(kind) else []
    return [] if "bytes" in names else names


def _nested_path(schema: Any, name: str) -> list[str]:
    """Return the column that contains a nested field, and the names that lead to it; empty if there is none."""
    for field in schema:
        rest, path = name.removeprefix(f"{field.name}."), [str(field.name)]
        while rest != name and (keys := [key for key in _field_names(field.type) if f"{rest}.".startswith(f"{key}.")]):
            path, field = [*path, keys[0]], _nested_field(field, keys[0])
            if rest == keys[0]:
                return path
            rest = rest.removeprefix(f"{keys[0]}.")
    return []


def _nested_field(field: Any, key: str) -> Any:
    """Return a field of a struct; of structs in a list, as a list."""
    arrow = import_pyarrow()
    if is_list(arrow, field.type):
        return arrow.field(key, arrow.list_(field.type.value_type.field(key).type))
    return field.type.field(key)


def _or_nested(piece: TableChunk, name: str, path: Sequence[str], column: str) -> Any:
    if column != name:
        return piece.column(column)
    arrow, array = import_pyarrow(), piece.column(path[0])
    struct_field = import_optional("pyarrow.compute", "arrow").struct_field
    for key in path[1:]:
        if is_list(arrow, array.type):
            offsets = np.append(0, np.cumsum(array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)))
            array = arrow.ListArray.from_arrays(arrow.array(offsets, arrow.int32()), struct_field(array.flatten(), key))
        else:
            array = struct_field(array, key)
    return array


def _or_constant(piece: TableChunk, name: str, value: Any, column: str) -> Any:
    return import_pyarrow().repeat(value, piece.rows) if column == name else piece.column(column)


def table_pieces(table: Any, label: str) -> tuple[Any, list[TableChunk]]:
    """Return the schema of an Arrow table, and its pieces; ``label`` is for messages."""
    with reading(label):
        table.validate()  # Arrow aborts the process if a column is shorter than its table
    return table.schema, [
        TableChunk(batch.num_rows, batch.column, label) for batch in table.to_batches() if batch.num_rows
    ]


def read_table(file: Path) -> Any:
    """Return the whole table of an Arrow or Parquet file; raise DataError if it is damaged."""
    with reading(file):
        table = _parquet(file, file.stat().st_mtime_ns).read() if _is_parquet(file) else _arrow_table(file)
        table.validate(full=True)  # reading beyond the end of a buffer would abort the process
    return table


def _is_parquet(file: Path) -> bool:
    """Return whether a file begins like a Parquet file."""
    with open_data(file) as stream:
        return stream.read(4) == b"PAR1"


def _read_group(reopen: Callable[[], Any], group: int, name: str) -> Any:
    return reopen().read_row_group(group, columns=[name]).column(0).combine_chunks()


def _arrow_table(file: Path) -> Any:
    """Return the table of an Arrow stream, or of an Arrow file, whose index at its end names its batches."""
    arrow = import_pyarrow()
    mapped = arrow.memory_map(str(file))
    is_file = mapped.read(6) == ARROW_MAGIC
    mapped.seek(0)
    messages = _indexed_messages(file, mapped) if is_file else arrow.ipc.MessageReader.open_stream(mapped)
    check_expanded(file, mapped.size(), sum(map(_expanded_size, messages)))
    mapped.seek(0)
    return (arrow.ipc.open_file if is_file else arrow.ipc.open_stream)(mapped).read_all()


def _indexed_messages(file: Path, mapped: Any) -> Iterator[Any]:
    """Yield the dictionaries and batches of an Arrow file; DataError if its index does not reach to its end.

    The file ends with the index, its length and a mark; Arrow's ``format/File.fbs`` numbers the fields of the index.
    """
    size = mapped.size()
    mapped.seek(size - 10)
    index_size, mark = struct.unpack("<i6s", mapped.read(10))
    mapped.seek(size - 10 - index_size)
    index, content_end = _FlatBuffer(mapped.read(index_size)), 0
    for number in (2, 3) if mark == ARROW_MAGIC else ():  # Footer.dictionaries and Footer.recordBatches
        if not (position := index.field(index.target(0), number)):
            continue
        blocks = index.target(position)
        for block in range(index.number(blocks)):
            offset, metadata_size, body_size = index.numbers("<qi4xq", blocks + 4 + 24 * block)
            mapped.seek(offset)
            yield import_pyarrow().ipc.read_message(mapped)
            content_end = max(content_end, offset + metadata_size + body_size)
    if mark != ARROW_MAGIC or (content_end and size - 10 - index_size - content_end > MAX_PADDING):
        raise DataError(f"{file}: its index ends at byte {content_end:,}, before its content: it seems damaged.")


class _FlatBuffer:
    """A flatbuffer, read by positions in its bytes."""

    def __init__(self, data: Any) -> None:
        self.data = memoryview(data)

    def numbers(self, kinds: str, position: int) -> tuple[int, ...]:
        return struct.unpack_from(kinds, self.data, position)

    def number(self, position: int, kind: str = "<I") -> int:
        return self.numbers(kind, position)[0]

    def field(self, table: int, index: int) -> int:
        """Return the position of a field of a table; 0 if it is missing."""
        vtable, entry = table - self.number(table, "<i"), 4 + 2 * index
        offset = self.number(vtable + entry, "<H") if entry < self.number(vtable, "<H") else 0
        return offset and table + offset

    def target(self, position: int) -> int:
        """Return the position to which the offset at ``position`` leads."""
        return position + self.number(position)


def _expanded_size(message: Any) -> int:
    """Return the bytes of a message of an Arrow stream, decompressed.

    Its metadata are a flatbuffer, whose fields Arrow's ``format/Message.fbs`` numbers from 0. Each compressed buffer in
    its body begins with its expanded size, or with -1 if it is stored as it is.
    """
    if message.type == "schema":
        return 0
    data, body = _FlatBuffer(message.metadata), memoryview(message.body or b"")
    batch = data.target(data.field(data.target(0), 2))  # Message.header
    batch = data.target(data.field(batch, 1)) if message.type == "dictionary" else batch  # DictionaryBatch.data
    if not data.field(batch, 3):  # RecordBatch.compression
        return len(body)
    buffers = data.target(data.field(batch, 2))  # RecordBatch.buffers
    ranges = [data.numbers("<qq", buffers + 4 + 16 * index) for index in range(data.number(buffers))]
    return sum(max(size, *struct.unpack_from("<q", body, start)) for start, size in ranges if size)


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

    def category_codes(self) -> tuple[np.ndarray, list[Any]]:
        """Return each value's number, int64 ``[n]``, and the value of each number."""
        parts = list(self._slices(0, int(self.edges[-1])))
        is_extension = isinstance(parts[0], self.arrow.ExtensionArray)  # such as a UUID
        column = self.arrow.chunked_array([part.storage for part in parts] if is_extension else parts)
        if column.null_count:
            raise DataError(f"{self.label} has no value in {column.null_count:,} rows: expected one in each.")
        if self.arrow.types.is_dictionary(column.type):
            values = [self.arrow.array(chunk.dictionary.to_pylist()) for chunk in column.chunks]  # text views of Polars
            column = self.arrow.chunked_array(
                [v.take(chunk.indices) for v, chunk in zip(values, column.chunks, strict=True)]
            )
        coded = column.dictionary_encode().unify_dictionaries()
        codes = [np.asarray(chunk.indices.to_numpy(zero_copy_only=False), np.int64) for chunk in coded.chunks]
        names = coded.chunk(0).dictionary.to_pylist()
        if "" in names:  # a missing value of a CSV file
            raise DataError(f"{self.label} is empty in some rows: expected a value in each.")
        return np.concatenate(codes), names


def declared_axes(field: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the stored shape of a field's tensors, and the order of its axes; None if it declares no tensors.

    The types are Arrow's ``fixed_shape_tensor`` and those of Ray Data, which pyarrow reads as lists if Ray is missing.
    """
    kind = field.type
    if isinstance(kind, import_pyarrow().FixedShapeTensorType):
        return tuple(kind.shape), tuple(kind.permutation or range(len(kind.shape)))
    metadata = field.metadata or {}
    if metadata.get(b"ARROW:extension:name") not in (b"ray.data.arrow_tensor", b"ray.data.arrow_tensor_v2"):
        return None
    shape = tuple(map(int, json.loads(metadata[b"ARROW:extension:metadata"])))
    return shape, tuple(range(len(shape)))


def to_tensors(column: LazyColumn, shape: tuple[int, ...], axes: tuple[int, ...], label: str) -> LazyColumn:
    """Return values ``[n, size]`` as tensors ``[n, ...]`` of a stored ``shape``, with their ``axes`` in this order."""
    if math.prod(shape) != math.prod(column.shape[1:]) or sorted(axes) != [*range(len(shape))]:
        raise DataError(f"{label} declares tensors of shape {list(shape)}, but has {list(column.shape[1:])}.")

    def read(start: int, stop: int) -> np.ndarray:
        tensors = column.read(start, stop).reshape(stop - start, *shape)
        return tensors.transpose(0, *(axis + 1 for axis in axes))

    return LazyColumn((column.shape[0], *(shape[axis] for axis in axes)), column.dtype, read)


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


def is_list(arrow: Any, kind: Any) -> bool:
    """Return whether the values of an Arrow type are lists."""
    types = arrow.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def arrow_to_numpy(arrow: Any, array: Any, label: str, row: int = 0, folder: Path | None = None) -> np.ndarray:
    """Convert an Arrow array to NumPy, ``[n, ...]``.

    Lists become dimensions; compressed images are decoded, and read if the table has only their paths in ``folder``.
    Only floats may be missing: they become NaN. ``label`` and ``row``, the number of the first one, are for messages.
    """
    kind, types = array.type, arrow.types
    if isinstance(array, arrow.ExtensionArray):
        return arrow_to_numpy(arrow, array.storage, label, row)
    if array.null_count and not types.is_floating(kind):
        raise DataError(f"{label} has no value in some rows: expected one in each.")
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:  # as Hugging Face stores images
        return decode_images([_image_bytes(image, label, folder) for image in array.to_pylist()], label, row)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return decode_images(array.to_pylist(), label, row)
    if is_list(arrow, kind):
        if not types.is_fixed_size_list(kind):
            lengths = np.asarray(array.value_lengths().to_numpy(zero_copy_only=False))
            if len(lengths) and (lengths != lengths[0]).any():
                raise DataError(f"{label} has lists of different lengths: {lengths.min()} to {lengths.max()}.")
        inner = arrow_to_numpy(arrow, array.flatten(), label)
        return inner.reshape(len(array), len(inner) // max(1, len(array)), *inner.shape[1:])
    if types.is_string(kind) and len(array) and Path(array[0].as_py()).suffix.lower() in IMAGE_SUFFIXES:
        images = [_image_bytes({"path": path}, label, folder) for path in array.to_pylist()]
        return decode_images(images, label, row)
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise DataError(
            f"{label} contains {kind}: expected numbers, lists of numbers, or images. Encode text as numbers first."
        )
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _image_bytes(image: Mapping[str, Any] | None, label: str, folder: Path | None) -> bytes:
    """Return the content of an image that a table contains, or whose path in ``folder`` it contains."""
    if image is None or not (image.get("bytes") or image.get("path")):
        raise DataError(f"{label} has neither the content nor the path of an image in some rows: expected one in each.")
    if image.get("bytes"):
        return bytes(image["bytes"])
    root = (folder or Path()).resolve()
    file = (root / str(image["path"])).resolve()
    if folder is None or not file.is_relative_to(root) or not file.is_file():
        raise DataError(
            f"{label} has the path of an image, {image['path']}, which is not in {root}. Copy the images there, or "
            "store their content in the table."
        )
    return read_file(file)


def decode_images(images: list[bytes], label: str, row: int = 0) -> np.ndarray:
    """Decode images to ``[n, H, W, C]``, or ``[n, H, W]`` if grayscale; ``label`` and ``row``: see ``arrow_to_numpy``.

    They are uint8, except gray images of more bits, such as depth: these keep their uint16, int32 or float32.
    """
    pictures = [open_image(image) for image in images]
    kinds = [f"{picture.mode} images of {picture.height} x {picture.width} pixels" for picture in pictures]
    if odd := next((index for index, kind in enumerate(kinds) if kind != kinds[0]), 0):
        raise DataError(f"{label} has {kinds[odd]} in row {row + odd:,}, but {kinds[0]} before: expected one kind.")
    return np.stack([np.asarray(picture) for picture in pictures])

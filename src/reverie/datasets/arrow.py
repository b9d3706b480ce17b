"""Reads the columns of Arrow and Parquet tables as numeric arrays, one piece at a time."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from reverie.core.errors import ConfigError, DataError


@dataclass(frozen=True)
class RowGroup:
    """A row group of a Parquet file."""

    table: Callable[[], Any]
    """Returns the Parquet file, which is opened where it is not: a process may have about a thousand files open."""
    number: int
    schema: Any


@dataclass(frozen=True)
class Piece:
    """Rows of a table that are read together, at least one."""

    rows: int
    found: Any
    """A record batch of Arrow, or a ``RowGroup``."""

    @property
    def schema(self) -> Any:
        """Names and types of the columns, and metadata."""
        return self.found.schema


class TableColumn:
    """One column of all pieces; a ``transitions.Column``."""

    def __init__(self, arrow: Any, pieces: list[Piece], name: str, where: str) -> None:
        self.arrow, self.pieces, self.name, self.where = arrow, pieces, name, where
        self.edges = np.cumsum([0, *(piece.rows for piece in pieces)])
        self.held: tuple[int, Any] = (-1, None)
        kind = pieces[0].schema.field(name).type
        self.is_list: bool = arrow.types.is_list(kind) or arrow.types.is_large_list(kind)
        """Whether the values may be episodes."""

    @cached_property
    def _sample(self) -> np.ndarray:
        """The first value that is not missing, ``[1, ...]``."""
        array = self._array(0)
        known = int(np.asarray(array.is_valid()).argmax()) if array.null_count else 0
        return self._numbers(array.slice(known, 1), known)

    @property
    def shape(self) -> tuple[int, ...]:
        """``[n, ...]``."""
        return (int(self.edges[-1]), *self._sample.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        return self._sample.dtype

    def _array(self, piece: int) -> Any:
        if self.held[0] != piece:
            self.held = piece, self._read(self.pieces[piece])
        return self.held[1]

    def _read(self, piece: Piece) -> Any:
        found = piece.found
        try:
            if isinstance(found, RowGroup):
                array = found.table().read_row_group(found.number, columns=[self.name]).column(0).combine_chunks()
            else:
                array = found.column(found.schema.get_field_index(self.name))
            array.validate(full=True)  # reading beyond the end of a buffer would end the process
        except (self.arrow.ArrowException, OSError) as error:
            raise DataError(f"{self.where} is damaged: {error}. Download or copy the table again.") from None
        if len(array) != piece.rows:
            raise DataError(
                f"{self.where} is damaged: it has {len(array):,} values where its table says {piece.rows:,} rows. "
                "Download or copy the table again."
            )
        return array

    def read(self, start: int, stop: int) -> np.ndarray:
        """See ``Column``."""
        stop = min(stop, self.shape[0])
        parts = []
        while start < stop:
            piece = int(np.searchsorted(self.edges, start, "right")) - 1
            end = min(stop, int(self.edges[piece + 1]))
            inside = self._array(piece).slice(start - int(self.edges[piece]), end - start)
            parts.append(self._numbers(self._filled(inside), start))
            start = end
        if len({part.shape[1:] for part in parts}) > 1:
            raise DataError(f"{self.where} has values of different shapes: {sorted({p.shape[1:] for p in parts})}.")
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def at(self, index: np.ndarray) -> np.ndarray:
        """See ``Column``."""
        return np.concatenate([self.read(int(i), int(i) + 1) for i in index])

    def episode(self, row: int) -> np.ndarray:
        """Return the values of the list in one row of the table, ``[steps, ...]``; of a number itself, ``[1]``."""
        piece = int(np.searchsorted(self.edges, row, "right")) - 1
        array = self._array(piece).slice(row - int(self.edges[piece]), 1)
        check_complete(self.arrow, array, self.where, row)
        return numbers(self.arrow, array.flatten() if holds_lists(self.arrow, array.type) else array, self.where)

    def codes(self) -> tuple[np.ndarray, list[Any]]:
        """Return each value's number, in the order of first appearance, int64 ``[n]``, and the value of each number.

        Raises:
            DataError: values are missing, or are neither numbers nor text.
        """
        known: dict[Any, int] = {}
        parts = []
        for piece, row in enumerate(self.edges[:-1].tolist()):
            array = self._array(piece)
            if array.null_count:
                first = row + int(np.asarray(array.is_null()).argmax())
                raise DataError(f"{self.where} has no value in row {first:,}: expected one in each row.")
            try:
                coded = array if self.arrow.types.is_dictionary(array.type) else array.dictionary_encode()
            except self.arrow.ArrowNotImplementedError:
                raise DataError(f"{self.where} contains {array.type}: expected numbers or text.") from None
            numbers = [known.setdefault(value, len(known)) for value in coded.dictionary.to_pylist()]
            parts.append(np.array(numbers, np.int64)[np.asarray(coded.indices.to_numpy(zero_copy_only=False))])
        return np.concatenate(parts), list(known)

    def _numbers(self, array: Any, row: int) -> np.ndarray:
        """Return an array whose first value is that of ``row`` as numbers."""
        check_complete(self.arrow, array, self.where, row)
        return numbers(self.arrow, array, self.where)

    def _filled(self, array: Any) -> Any:
        """Return an array with lists of NaN in place of missing lists of floats."""
        if not array.null_count or not self.shape[1:] or self.dtype.kind != "f":
            return array
        return array.fill_null(self.arrow.scalar(np.full(self.shape[1:], np.nan).tolist(), array.type))


class SideBySide:
    """k columns of numbers as one column of vectors ``[n, k]``, in their order; a ``transitions.Column``."""

    def __init__(self, columns: Sequence[TableColumn]) -> None:
        self.columns = columns
        self.is_list = all(column.is_list for column in columns)
        self.shape = (columns[0].shape[0], len(columns))
        self.dtype = np.result_type(*(column.dtype for column in columns))

    def read(self, start: int, stop: int) -> np.ndarray:
        """See ``Column``."""
        return self._joined([column.read(start, stop) for column in self.columns])

    def at(self, index: np.ndarray) -> np.ndarray:
        """See ``Column``."""
        return self._joined([column.at(index) for column in self.columns])

    def episode(self, row: int) -> np.ndarray:
        """See ``TableColumn``."""
        return self._joined([column.episode(row) for column in self.columns])

    def _joined(self, parts: list[np.ndarray]) -> np.ndarray:
        for column, part in zip(self.columns, parts, strict=True):
            if part.ndim > 1:
                raise ConfigError(
                    f"{column.where} contains values of shape {list(part.shape[1:])}: columns that are joined into one "
                    "vector must contain a number in each step. Name this column alone, such as "
                    f"obs.{column.name}: {column.name}."
                )
            if len(part) != len(parts[0]):
                raise DataError(
                    f"{column.where} has {len(part)} values, but '{self.columns[0].name}' has {len(parts[0])}."
                )
        return np.stack(parts, axis=1)


def check_complete(arrow: Any, array: Any, where: str, row: int) -> None:
    """Check that only floats are missing, also inside lists; the first value is that of ``row``.

    Raises:
        DataError: other values are missing; the message names the first such row.
    """
    lacking = first_missing(arrow, array)
    if lacking >= 0:
        raise DataError(
            f"{where} has no value in row {row + lacking:,}: expected one in each row. Only floats may be missing; "
            "they are read as NaN."
        )


def first_missing(arrow: Any, array: Any) -> int:
    """Return the index of the first value of an array that is missing, or contains one that is; -1 if there is none.

    Missing floats do not count.
    """
    kind, types = array.type, arrow.types
    if isinstance(array, arrow.ExtensionArray):
        return first_missing(arrow, array.storage)
    if types.is_floating(kind):
        return -1
    if array.null_count:
        return int(np.asarray(array.is_null()).argmax())
    if holds_lists(arrow, kind):
        inside = first_missing(arrow, array.flatten())
        return inside if inside < 0 else int(arrow.compute.list_parent_indices(array)[inside].as_py())
    return -1


def holds_lists(arrow: Any, kind: Any) -> bool:
    """Return whether the values of a type of Arrow's are lists."""
    types = arrow.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def holds_pictures(arrow: Any, kind: Any) -> bool:
    """Return whether the values of a type of Arrow's are compressed pictures, alone or as Hugging Face stores them."""
    types = arrow.types
    if types.is_struct(kind):
        return "bytes" in [field.name for field in kind]
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def numbers(arrow: Any, array: Any, where: str) -> np.ndarray:
    """Convert an Arrow array to NumPy, ``[n, ...]``. Lists become further dimensions; compressed pictures are decoded.

    Args:
        arrow: the package.
        array: an array in which only floats are missing, which become NaN.
        where: the column, for messages.

    Raises:
        DataError: lists differ in length, or values are not numbers.
    """
    kind, types = array.type, arrow.types
    if holds_pictures(arrow, kind):
        return pictures((array.field("bytes") if types.is_struct(kind) else array).to_pylist(), where)
    if isinstance(array, arrow.ExtensionArray):
        return numbers(arrow, array.storage, where)
    if holds_lists(arrow, kind):
        inner = numbers(arrow, array.flatten(), where)
        if len(array) and len(inner) % len(array):
            raise DataError(f"{where} has lists of different lengths.")
        if not types.is_fixed_size_list(kind):
            lengths = np.asarray(array.value_lengths().to_numpy(zero_copy_only=False))
            if len(lengths) and (lengths != lengths[0]).any():
                raise DataError(f"{where} has lists of different lengths: {lengths.min()} to {lengths.max()}.")
        return inner.reshape(len(array), len(inner) // max(1, len(array)), *inner.shape[1:])
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        text = types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind)
        coded = " Number its values first, in pandas by frame[column].astype('category').cat.codes." if text else ""
        raise DataError(f"{where} contains {kind}: expected numbers, lists of numbers, or images.{coded}")
    return np.asarray(array.to_numpy(zero_copy_only=False))


def pictures(found: list[bytes], where: str) -> np.ndarray:
    """Decode pictures to uint8 ``[n, H, W, C]``, or ``[n, H, W]`` if they are grey.

    Raises:
        DataError: one cannot be decoded, or they differ in size.
    """
    from PIL import Image

    try:
        return np.stack([np.asarray(Image.open(io.BytesIO(picture)), np.uint8) for picture in found])
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{where}: an image cannot be read: {error}.") from None

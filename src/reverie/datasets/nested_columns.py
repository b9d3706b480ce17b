"""Columns that are fields of structs in a table, by dotted names such as ``observation.state``."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reverie.datasets.arrow import TableChunk
from reverie.datasets.arrow_values import is_list
from reverie.datasets.source import import_optional, import_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa


def add_nested(tables: dict[Path, tuple[Any, list[TableChunk]]], names: Iterable[str]) -> None:
    """Add columns for the ``names`` of fields of structs, such as ``observation.state``, to tables, in place."""
    for name, (file, (schema, pieces)) in itertools.product(names, list(tables.items())):
        if name not in schema.names and (path := _nested_path(schema, name)):
            root, *keys = path
            field = functools.reduce(_nested_field, keys, schema.field(root)).with_name(name)
            pieces = [piece._replace(column=partial(_or_nested, piece, name, path)) for piece in tables[file][1]]
            tables[file] = tables[file][0].append(field), pieces


def nested_names(schema: pa.Schema) -> list[str]:
    """Return the names of the columns of a table, with those of fields instead of structs, except images."""

    def below(field: pa.Field, name: str) -> list[str]:
        if not (keys := _field_names(field.type)):
            return [name]
        return [inner for key in keys for inner in below(_nested_field(field, key), f"{name}.{key}")]

    return [inner for field in schema for inner in below(field, str(field.name))]


def _field_names(kind: pa.DataType) -> list[str]:
    """Return the names of the fields of a struct, or of the structs in a list; none of an image."""
    arrow = import_pyarrow()
    kind = kind.value_type if is_list(arrow, kind) else kind
    names = [field.name for field in kind] if arrow.types.is_struct(kind) else []
    return [] if "bytes" in names else names


def _nested_path(schema: pa.Schema, name: str) -> list[str]:
    """Return the column that contains a nested field, and the names that lead to it; empty if there is none."""
    for field in schema:
        rest, path = name.removeprefix(f"{field.name}."), [str(field.name)]
        while rest != name and (keys := [key for key in _field_names(field.type) if f"{rest}.".startswith(f"{key}.")]):
            path, field = [*path, keys[0]], _nested_field(field, keys[0])
            if rest == keys[0]:
                return path
            rest = rest.removeprefix(f"{keys[0]}.")
    return []


def _nested_field(field: pa.Field, key: str) -> Any:
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

"""Finds Arrow and Parquet tables in a folder, and checks that their columns are alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.errors import ConfigError, DataError
from reverie.datasets.arrow import holds_lists, holds_pictures
from reverie.datasets.concat import by_number
from reverie.datasets.reader import format_of

FORMATS = ("Arrow", "Parquet")


def tables_in(path: Path) -> list[Path]:
    """Return the tables in a folder and below it, by number.

    Files and folders whose names begin with ".", "_" or "cache-" are left out.

    Raises:
        ConfigError: there are several splits (train, test, validation): one must be named.
    """
    tables = (p for p in path.rglob("*") if format_of(p) in FORMATS)
    found = sorted((p for p in tables if not any(map(_hidden, p.relative_to(path).parts))), key=by_number)
    splits = {p.relative_to(path).parts[0] for p in found if len(p.relative_to(path).parts) > 1}
    if {"train"} < splits and splits <= {"train", "test", "validation"}:
        raise ConfigError(
            f"{path} has the splits {', '.join(sorted(splits))}: pass the path of one, such as {path}/train."
        )
    return found


def is_parquet(file: Path) -> bool:
    """Return whether a file begins as Parquet files do, whatever its name."""
    with file.open("rb") as opened:
        return opened.read(4) == b"PAR1"


def _hidden(name: str) -> bool:
    return name.startswith(("cache-", ".", "_"))


def check_alike(arrow: Any, files: Sequence[tuple[Path, Any]], names: Iterable[str]) -> None:
    """Check that each of the named columns is in all files once, and of one kind.

    Args:
        arrow: the package.
        files: the files, with their schemas.
        names: of the columns.

    Raises:
        DataError: a file lacks a column, has several of this name, or has one of another kind than the first file.
    """
    first, schema = files[0]
    for name in names:
        for file, other in files:
            if (count := len(other.get_all_field_indices(name))) != 1:
                raise DataError(
                    f"{file} has {count or 'no'} column{'s' * (count > 1)} '{name}'; the columns of {first.name} are "
                    f"{', '.join(schema.names)}. Expected this column once in each file. Correct the file or leave it "
                    "out."
                )
            one, two = (kind_of(arrow, each.field(name).type) for each in (schema, other))
            if one != two:
                raise DataError(
                    f"{file}: '{name}' contains {two}, but in {first.name} it contains {one}: expected the same in all "
                    "files. Correct the file or leave it out."
                )


def kind_of(arrow: Any, kind: Any) -> str:
    """Return what the values of a type of Arrow's are read as, such as "lists of numbers"."""
    types = arrow.types
    if isinstance(kind, arrow.BaseExtensionType):
        return kind_of(arrow, kind.storage_type)
    if types.is_dictionary(kind):
        return kind_of(arrow, kind.value_type)
    if holds_lists(arrow, kind):
        return f"lists of {kind_of(arrow, kind.value_type)}"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return "numbers"
    if holds_pictures(arrow, kind):
        return "images"
    return "text" if types.is_string(kind) or types.is_large_string(kind) else str(kind)


def dtype_of(arrow: Any, kind: Any) -> np.dtype[Any]:
    """Return the dtype of the numbers, perhaps in lists, or of the images that values of a type of Arrow's are."""
    if isinstance(kind, arrow.BaseExtensionType):
        return dtype_of(arrow, kind.storage_type)
    if holds_lists(arrow, kind) or arrow.types.is_dictionary(kind):
        return dtype_of(arrow, kind.value_type)
    return np.dtype(np.uint8 if holds_pictures(arrow, kind) else kind.to_pandas_dtype())

"""Gymnasium spaces: their nesting, and the columns of their recorded values.

Nested ``Dict`` and ``Tuple`` spaces become keys such as ``arm/camera`` and ``sensors/0``; a *leaf* is a space inside
them that is neither. Columns of recorded values are called ``obs`` or ``obs/<key>``, and ``action`` or
``action/<key>``. ``core/obs_codec.py`` and ``core/action_codec.py`` convert values to the arrays that learners see.

This file must not import torch: worker processes import it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import DTypeLike

from reverie.core.errors import DataError, RowError, short_repr

Space = spaces.Space[Any]
Path = tuple[Any, ...]
Columns = Mapping[str, np.ndarray]

NUMBERS = "biuf"
"""Kinds of NumPy dtypes that are numbers, including bool."""
MOST_CLASSES = 2**18
"""Maximum total number of classes of an observation or action, which networks encode one-hot: 1 MB a row."""
ROUNDING = 1e-6
"""Tolerance for the distance of a float32 number from the integer it represents: relative, and absolute below 1."""


# ---------------------------------------------------------------- nested spaces


def children(space: Space) -> list[tuple[Any, Space]]:
    """Return the names and the spaces directly inside a ``Dict`` or ``Tuple``; of other spaces, nothing."""
    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else []


def is_nested(space: Space) -> bool:
    """Return whether ``space`` is a ``Dict`` or a ``Tuple``."""
    return isinstance(space, spaces.Dict | spaces.Tuple)


def iter_leaves(space: Space, path: Path = ()) -> Iterator[tuple[Path, Space]]:
    """Yield the path and the space of each leaf; ``path``: the path of ``space``."""
    if not is_nested(space):
        yield path, space
    for name, inner in children(space):
        yield from iter_leaves(inner, (*path, name))


def column(root: str, path: Path) -> str:
    """Return the name of the column of the leaf at ``path`` in the space ``root``: ``obs/arm/camera``."""
    return "/".join((root, *map(str, path)))


def columns_in(space: Space, root: str) -> list[tuple[str, Space]]:
    """Return the name of the column and the space of each leaf."""
    return [(column(root, path), leaf) for path, leaf in iter_leaves(space)]


def map_leaves(space: Space, root: str, leaf_fn: Callable[[str, Space], Space]) -> Space:
    """Return ``space`` with each leaf replace_at_path by ``leaf_fn(column, leaf)``; ``root`` names the whole space."""
    inner = {name: map_leaves(part, f"{root}/{name}", leaf_fn) for name, part in children(space)}
    if isinstance(space, spaces.Dict):
        return spaces.Dict(inner)
    return spaces.Tuple(tuple(inner.values())) if isinstance(space, spaces.Tuple) else leaf_fn(root, space)


def columns_to_nested(space: Space, columns: Columns, root: str) -> Any:
    """Arrange columns ``[n, ...]`` as n values of ``space``: dictionaries and tuples of arrays."""
    if is_nested(space):
        inner = {name: columns_to_nested(part, columns, f"{root}/{name}") for name, part in children(space)}
        return inner if isinstance(space, spaces.Dict) else tuple(inner.values())
    values = columns[root]
    return [str(text) for text in values] if isinstance(space, spaces.Text) else values.astype(space.dtype, copy=False)


def get_at_path(value: Any, path: Path) -> Any:
    """Return the value at ``path`` in nested dictionaries and tuples, or in a nested space; DataError if it is missing.

    The error continues a sentence that names the whole path.
    """
    for name in path:
        try:
            value = value[name]
        except (LookupError, TypeError):
            present = (
                f"only {', '.join(map(repr, value)) or 'no keys'}" if isinstance(value, Mapping) else short_repr(value)
            )
            raise DataError(f"is missing: its space declares {name!r}, but there is {present}") from None
    return value


def replace_at_path(value: Any, path: Path, leaf: object) -> Any:
    """Return ``value``, nested dictionaries and tuples, with ``leaf`` at ``path``, as a copy."""
    if not path:
        return leaf
    inner = replace_at_path(value[path[0]], path[1:], leaf)
    if isinstance(value, Mapping):
        return {**value, path[0]: inner}
    return tuple(inner if i == path[0] else part for i, part in enumerate(value))


def classes_of(space: Space) -> tuple[np.ndarray, np.ndarray]:
    """Return how many classes each element of a discrete space has, and its first class, ``[*space.shape]`` int64."""
    if isinstance(space, spaces.Discrete):
        return np.int64(space.n), np.int64(space.start)  # type: ignore[return-value]  # scalars, as arrays of rank 0
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec.astype(np.int64), np.asarray(space.start, np.int64)
    shape = space.shape or ()
    return np.full(shape, 2), np.zeros(shape, np.int64)


# ---------------------------------------------------------------- columns of recorded values


def convert_rows(
    convert: Callable[..., np.ndarray], columns: Sequence[np.ndarray], argument: object, error_prefix: str, first: int
) -> np.ndarray:
    """Return ``convert(*columns, argument)``; if it fails, name the first row that is wrong."""
    try:
        return convert(*columns, argument)
    except DataError:
        for row in range(len(columns[0])):
            try:
                convert(*(values[row : row + 1] for values in columns), argument)
            except DataError as problem:
                raise RowError(error_prefix, first + row, str(problem), error_prefix.partition(" ")[0]) from None
        raise


def first_item(value: Any) -> Any:
    """Return the first value of a batch, as a vector environment returns observations."""
    if isinstance(value, Mapping):
        return {key: first_item(part) for key, part in value.items()}
    return tuple(map(first_item, value)) if isinstance(value, tuple) else value[0]


def add_batch_axis(value: object) -> Any:
    """Return a value as a batch of one."""
    if isinstance(value, Mapping):
        return {key: add_batch_axis(part) for key, part in value.items()}
    return tuple(map(add_batch_axis, value)) if isinstance(value, tuple) else np.asarray(value)[None]


def cast(values: np.ndarray, dtype: DTypeLike | None, name: str, first: int = 0) -> np.ndarray:
    """Return ``values`` ``[n, ...]`` called ``name`` as ``dtype``, which changes them by rounding errors only.

    ``first``: number of the first row, for messages.
    """
    if values.dtype == dtype or values.dtype.kind not in NUMBERS:
        return values.astype(dtype, copy=False)
    dtype = np.dtype(dtype)
    with np.errstate(invalid="ignore", over="ignore"):  # checked below
        if dtype.kind == "f":
            out = values.astype(dtype)
            wrong = np.isfinite(values) & ~np.isfinite(out)
            if values.dtype.kind in "iu":  # an identifier, which must not be rounded to a neighbor
                wrong |= out.astype(values.dtype) != values
        else:
            out = (np.rint(values) if values.dtype.kind == "f" else values).astype(dtype)
            wrong = ~np.isclose(out, values, ROUNDING, ROUNDING)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        problem = (
            f"is {values[at]}: expected a value of {dtype}, the dtype that its space declares. Correct the space of "
            "the environment, or its values"
        )
        raise RowError(name, first + at[0], problem, name.partition("/")[0])
    return out

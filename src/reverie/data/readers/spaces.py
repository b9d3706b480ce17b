"""Gymnasium spaces: their JSON form as Minari writes it, and their leaves as columns.

A *leaf* is a space inside nested Dict and Tuple spaces that is neither itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.data.readers.base import Space


def space_of(text: str | Mapping[str, Any], where: str) -> Space:
    """Return the space that ``text``, JSON, describes; error messages begin with ``where``.

    Raises:
        DataError: the text is not valid, or the kind of space is unknown.
    """
    try:
        described = json.loads(text) if isinstance(text, str) else text
        return KINDS[described["type"]](described, where)
    except (AssertionError, AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise DataError(f"{where}: cannot read a space ({error!r}): {str(text)[:200]}") from None


def _box(said: Mapping[str, Any], where: str) -> Space:
    dtype, shape = np.dtype(said["dtype"]), tuple(said["shape"])
    low, high = (np.array(said[bound], dtype=dtype).reshape(shape) for bound in ("low", "high"))
    return spaces.Box(low, high, shape, dtype.type)


def _text(said: Mapping[str, Any], where: str) -> Space:
    return spaces.Text(int(said["max_length"]), min_length=int(said["min_length"]), charset=said["charset"])


def _dict(said: Mapping[str, Any], where: str) -> Space:
    return spaces.Dict({key: space_of(inner, where) for key, inner in said["subspaces"].items()})


KINDS: dict[str, Callable[[Mapping[str, Any], str], Space]] = {
    "Box": _box,
    "Discrete": lambda said, where: spaces.Discrete(int(said["n"]), start=int(said.get("start", 0))),
    "MultiDiscrete": lambda said, where: spaces.MultiDiscrete(said["nvec"], start=said.get("start")),
    "MultiBinary": lambda said, where: spaces.MultiBinary(said["n"]),
    "Dict": _dict,
    "Tuple": lambda said, where: spaces.Tuple(tuple(space_of(inner, where) for inner in said["subspaces"])),
    "Text": _text,
}


def text_of(space: Space) -> str:
    """Return ``space`` as JSON text, which ``space_of`` and the Minari library can read.

    Raises:
        DataError: the kind of space has no such description.
    """
    return json.dumps(_described(space))


def _described(space: Space) -> dict[str, Any]:
    found: dict[str, Any] = {"type": type(space).__name__}
    if found["type"] not in KINDS:
        raise DataError(f"the space {space} cannot be described: expected one of {', '.join(KINDS)}.")
    if isinstance(space, spaces.Dict):
        return found | {"subspaces": {key: _described(inner) for key, inner in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return found | {"subspaces": [_described(inner) for inner in space.spaces]}
    if isinstance(space, spaces.Text):
        letters = "".join(sorted(space.character_set))
        return found | {"max_length": space.max_length, "min_length": space.min_length, "charset": letters}
    found |= {"dtype": str(space.dtype), "shape": list(space.shape or ())}
    if isinstance(space, spaces.Box):
        return found | {"low": space.low.tolist(), "high": space.high.tolist()}
    names = {spaces.Discrete: ("n", "start"), spaces.MultiDiscrete: ("nvec", "start"), spaces.MultiBinary: ("n",)}
    return found | {name: np.asarray(getattr(space, name)).tolist() for name in names[type(space)]}


def with_leaves(space: Space, column: str, made: Callable[[str, Space], Space]) -> Space:
    """Return ``space`` with each leaf replaced by ``made(column, leaf)``; ``column`` is the name of the whole space."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: with_leaves(s, f"{column}/{key}", made) for key, s in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple(tuple(with_leaves(s, f"{column}/{i}", made) for i, s in enumerate(space.spaces)))
    return made(column, space)


def is_open(space: Space) -> bool:
    """Return True if it is a Box of which at least one bound is infinite."""
    return isinstance(space, spaces.Box) and not bool(np.isfinite(space.low).all() and np.isfinite(space.high).all())


def opened(space: Space) -> Space:
    """Return ``space`` with infinite bounds for all leaves of floats."""

    def without(_: str, leaf: Space) -> Space:
        if not isinstance(leaf, spaces.Box) or leaf.dtype.kind != "f":
            return leaf
        return spaces.Box(-np.inf, np.inf, leaf.shape, leaf.dtype.type)

    return with_leaves(space, "", without)


def in_units(actions: Mapping[str, np.ndarray], space: Space, last: np.ndarray) -> dict[str, np.ndarray]:
    """Convert actions in [-1, 1], and discrete actions counted from 0, to actions of ``space``, by column.

    Boxes are scaled linearly to their bounds, integer boxes rounded. Rows in which ``last`` is True get zeros.
    """
    out = {}
    for column, _, leaf in leaves_of(space, "action"):
        values = actions[column if column in actions else "action"]  # a store has no name for a single action
        flat = values.reshape(len(values), -1)
        if isinstance(leaf, spaces.Box):
            low, high = (bound.reshape(-1).astype(np.float64) / 2.0 for bound in (leaf.low, leaf.high))
            flat = flat.clip(-1.0, 1.0) * (high - low) + (high + low)  # halved: large bounds would overflow
            flat = flat if leaf.dtype.kind == "f" else np.rint(flat)
        else:
            flat = flat + np.asarray(getattr(leaf, "start", 0)).reshape(-1)
        flat[last] = 0
        out[column] = flat.astype(leaf.dtype).reshape(len(values), *(leaf.shape or ()))
    return out


def leaves_of(space: Space, column: str, way: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...], Space]]:
    """Yield each leaf as (name of its column, its path in Minari's files, its space)."""
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from leaves_of(inner, f"{column}/{key}", (*way, str(key)))
    elif isinstance(space, spaces.Tuple):
        for index, inner in enumerate(space.spaces):
            yield from leaves_of(inner, f"{column}/{index}", (*way, f"_index_{index}"))
    else:
        yield column, way, space


def nested(space: Space, columns: Mapping[str, np.ndarray], root: str) -> Any:
    """Arrange columns ``[n, ...]`` as n values of ``space``: dictionaries and tuples of arrays."""
    if isinstance(space, spaces.Dict):
        return {key: nested(inner, columns, f"{root}/{key}") for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(nested(inner, columns, f"{root}/{index}") for index, inner in enumerate(space.spaces))
    values = columns[root]
    if isinstance(space, spaces.Text):
        return [str(text) for text in values]
    return values.astype(space.dtype, copy=False)


def tree_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with keys such as ``arm/camera`` as nested dictionaries.

    Raises:
        DataError: a key is also the beginning of another, as ``camera`` is of ``camera/depth``.
    """
    for key in values:
        below = next((other for other in values if other.startswith(f"{key}/")), None)
        if below is not None:
            raise DataError(
                f"'{key}' and '{below}' cannot both be keys: '{key}' would be an array and a dictionary at once. Give "
                "one of them another name. Of a replay store, `reverie data export PATH --to pydreamer FOLDER` writes "
                "both, as these files have no nested keys."
            )
    out: dict[str, Any] = {}
    for key, value in values.items():
        *parents, leaf = key.split("/")
        inside = out
        for parent in parents:
            inside = inside.setdefault(parent, {})
        inside[leaf] = value
    return out


def nested_spaces(found: Mapping[str, Space], root: str) -> Any:
    """Arrange spaces with names such as ``obs/arm/camera`` as nested Dict spaces."""

    def made(value: Any) -> Any:
        return spaces.Dict({key: made(inner) for key, inner in value.items()}) if isinstance(value, dict) else value

    return made(tree_of({name.removeprefix(f"{root}/"): space for name, space in found.items()}))


def check_held(space: Space, columns: Mapping[str, np.ndarray], root: str) -> None:
    """Check that ``nested`` changes no value of ``columns`` ``[n, ...]``, other than that it rounds floats.

    Raises:
        DataError: it does, as of fractions to integers, or of integers beyond 2^53 to floats.
    """
    for column, _, leaf in leaves_of(space, root):
        values = columns[column]
        kinds = values.dtype.kind + np.dtype(leaf.dtype).kind
        if values.dtype == leaf.dtype or kinds == "ff" or not set(kinds) <= set("biuf"):
            continue
        with np.errstate(invalid="ignore"):  # a float that is beyond all integers
            changed = values[values.astype(leaf.dtype).astype(values.dtype) != values]
        if len(changed):
            raise DataError(
                f"'{column}' has the value {changed.flat[0]}, which {leaf.dtype}, the type of its space, does not "
                "hold. Correct the data, or use a format that keeps the type of arrays (--to d4rl, --to parquet)."
            )


def first_of(values: Any) -> Any:
    """Return the first of the values that ``nested`` returns."""
    if isinstance(values, dict):
        return {key: first_of(inner) for key, inner in values.items()}
    if isinstance(values, tuple):
        return tuple(first_of(inner) for inner in values)
    return values[0]


def is_picture(space: Space) -> bool:
    """Return True if Minari compresses values of this space as images: uint8 from 0 to 255, at least 32 x 32."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return False
    return min(space.shape[:2]) >= 32 and not space.low.any() and bool((space.high == 255).all())

"""Gymnasium's spaces as text, as Minari writes them, and their leaves as columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.data.readers.base import Space


def space_of(text: str | Mapping[str, Any], where: str) -> Space:
    """The space that ``text`` describes; errors begin with ``where``.

    Raises:
        DataError: it describes none that is known.
    """
    try:
        described = json.loads(text) if isinstance(text, str) else text
        return KINDS[described["type"]](described, where)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{where}: a space cannot be read ({error!r}): {str(text)[:200]}") from None


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


def leaves_of(space: Space, column: str, way: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...], Space]]:
    """Every leaf: the column that it is, the way to it in Minari's files, and its space."""
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from leaves_of(inner, f"{column}/{key}", (*way, str(key)))
    elif isinstance(space, spaces.Tuple):
        for index, inner in enumerate(space.spaces):
            yield from leaves_of(inner, f"{column}/{index}", (*way, f"_index_{index}"))
    else:
        yield column, way, space


def is_picture(space: Space) -> bool:
    """Whether Minari compresses values of this space, where it does so at all: whole bytes, 32 x 32 or larger."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return False
    return min(space.shape[:2]) >= 32 and not space.low.any() and bool((space.high == 255).all())

"""Gymnasium spaces as JSON, in the form that Minari writes: in run folders, stores and datasets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError

Space = spaces.Space[Any]


def space_of(text: str | Mapping[str, Any], where: str) -> Space:
    """Return the space that ``text``, JSON, describes; error messages begin with ``where``."""
    try:
        described = json.loads(text) if isinstance(text, str) else text
        return KINDS[described["type"]](described, where)
    except (AssertionError, AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise DataError(f"{where}: cannot read a space ({error!r}): {str(text)[:200]}") from None


def _box(said: Mapping[str, Any], where: str) -> Space:
    dtype, shape = np.dtype(said["dtype"]), tuple(said["shape"])
    low, high = (np.array(said[bound], dtype=dtype).reshape(shape) for bound in ("low", "high"))
    return spaces.Box(low, high, shape, dtype.type)


KINDS: dict[str, Callable[[Mapping[str, Any], str], Space]] = {
    "Box": _box,
    "Discrete": lambda said, where: spaces.Discrete(int(said["n"]), start=int(said.get("start", 0))),
    "MultiDiscrete": lambda said, where: spaces.MultiDiscrete(said["nvec"], start=said.get("start")),
    "MultiBinary": lambda said, where: spaces.MultiBinary(said["n"]),
    "Dict": lambda said, where: spaces.Dict({k: space_of(inner, where) for k, inner in said["subspaces"].items()}),
    "Tuple": lambda said, where: spaces.Tuple(tuple(space_of(inner, where) for inner in said["subspaces"])),
    "Text": lambda said, where: spaces.Text(
        int(said["max_length"]), min_length=int(said["min_length"]), charset=said["charset"]
    ),
}


def text_of(space: Space) -> str:
    """Return ``space`` as JSON text, which ``space_of`` and the Minari library can read."""
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

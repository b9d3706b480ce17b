"""Gymnasium spaces as JSON, in the form that Minari writes: in run folders, stores and datasets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError

Space = spaces.Space[Any]


def space_of(text: str | Mapping[str, Any], error_prefix: str) -> Space:
    """Return the space that ``text``, JSON, describes; error messages begin with ``error_prefix``."""
    try:
        data = json.loads(text) if isinstance(text, str) else text
        return KINDS[data["type"]](data, error_prefix)
    except (AssertionError, AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise DataError(f"{error_prefix}: cannot read a space ({error!r}): {str(text)[:200]}") from None


def _box(data: Mapping[str, Any], error_prefix: str) -> Space:
    dtype, shape = np.dtype(data["dtype"]), tuple(data["shape"])
    low, high = (np.array(data[bound], dtype=dtype).reshape(shape) for bound in ("low", "high"))
    return spaces.Box(low, high, shape, dtype.type)


KINDS: dict[str, Callable[[Mapping[str, Any], str], Space]] = {
    "Box": _box,
    "Discrete": lambda data, error_prefix: spaces.Discrete(int(data["n"]), start=int(data.get("start", 0))),
    "MultiDiscrete": lambda data, error_prefix: spaces.MultiDiscrete(data["nvec"], start=data.get("start")),
    "MultiBinary": lambda data, error_prefix: spaces.MultiBinary(data["n"]),
    "Dict": lambda data, error_prefix: spaces.Dict(
        {k: space_of(inner, error_prefix) for k, inner in data["subspaces"].items()}
    ),
    "Tuple": lambda data, error_prefix: spaces.Tuple(
        tuple(space_of(inner, error_prefix) for inner in data["subspaces"])
    ),
    "Text": lambda data, error_prefix: spaces.Text(
        int(data["max_length"]), min_length=int(data["min_length"]), charset=data["charset"]
    ),
}


def text_of(space: Space) -> str:
    """Return ``space`` as JSON text, which ``space_of`` and the Minari library can read."""
    return json.dumps(_space_to_dict(space))


def _space_to_dict(space: Space) -> dict[str, Any]:
    data: dict[str, Any] = {"type": type(space).__name__}
    if data["type"] not in KINDS:
        raise DataError(f"the space {space} cannot be described: expected one of {', '.join(KINDS)}.")
    if isinstance(space, spaces.Dict):
        return data | {"subspaces": {key: _space_to_dict(inner) for key, inner in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return data | {"subspaces": [_space_to_dict(inner) for inner in space.spaces]}
    if isinstance(space, spaces.Text):
        letters = "".join(sorted(space.character_set))
        return data | {"max_length": space.max_length, "min_length": space.min_length, "charset": letters}
    data |= {"dtype": str(space.dtype), "shape": list(space.shape or ())}
    if isinstance(space, spaces.Box):
        return data | {"low": space.low.tolist(), "high": space.high.tolist()}
    names = {spaces.Discrete: ("n", "start"), spaces.MultiDiscrete: ("nvec", "start"), spaces.MultiBinary: ("n",)}
    return data | {name: np.asarray(getattr(space, name)).tolist() for name in names[type(space)]}

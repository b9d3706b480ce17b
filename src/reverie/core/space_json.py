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
    low, high = (_filled(said[bound], shape, dtype) for bound in ("low", "high"))
    return spaces.Box(low, high, shape, dtype.type)


def _choices(said: Mapping[str, Any], where: str) -> Space:
    shape = tuple(said.get("shape") or np.shape(said["nvec"]))
    return spaces.MultiDiscrete(_filled(said["nvec"], shape), start=_filled(said.get("start") or 0, shape))


def _filled(values: Any, shape: tuple[int, ...], dtype: Any = np.int64) -> np.ndarray:
    """Return ``values`` as an array of ``shape``; a single number stands for all of them."""
    array = np.array(values, dtype)
    return np.full(shape, array) if array.ndim == 0 else array.reshape(shape)


KINDS: dict[str, Callable[[Mapping[str, Any], str], Space]] = {
    "Box": _box,
    "Discrete": lambda said, where: spaces.Discrete(int(said["n"]), start=int(said.get("start", 0))),
    "MultiDiscrete": _choices,
    "MultiBinary": lambda said, where: spaces.MultiBinary(said["n"]),
    "Dict": lambda said, where: spaces.Dict({k: space_of(inner, where) for k, inner in said["subspaces"].items()}),
    "Tuple": lambda said, where: spaces.Tuple(tuple(space_of(inner, where) for inner in said["subspaces"])),
    "Text": lambda said, where: spaces.Text(
        int(said["max_length"]), min_length=int(said["min_length"]), charset=said["charset"]
    ),
}


def text_of(space: Space, short: bool = False) -> str:
    """Return ``space`` as JSON text, which ``space_of`` and the Minari library can read.

    ``short`` writes equal numbers once, for places that hold few characters; Minari cannot read that.
    """
    return json.dumps(_described(space, short))


def _described(space: Space, short: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"type": type(space).__name__}
    if found["type"] not in KINDS:
        raise DataError(f"the space {space} cannot be described: expected one of {', '.join(KINDS)}.")
    if isinstance(space, spaces.Dict):
        return found | {"subspaces": {key: _described(inner, short) for key, inner in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return found | {"subspaces": [_described(inner, short) for inner in space.spaces]}
    if isinstance(space, spaces.Text):
        letters = "".join(sorted(space.character_set))
        return found | {"max_length": space.max_length, "min_length": space.min_length, "charset": letters}
    found |= {"dtype": str(space.dtype), "shape": list(space.shape or ())}
    names: dict[str, tuple[str, ...]] = {
        "Box": ("low", "high"), "Discrete": ("n", "start"), "MultiDiscrete": ("nvec", "start"), "MultiBinary": ("n",),
    }  # fmt: skip
    values = {name: np.asarray(getattr(space, name)) for name in names[found["type"]]}
    once = short and found["type"] != "MultiBinary"  # whose n is its shape
    return found | {name: (_once(array) if once else array).tolist() for name, array in values.items()}


def _once(array: np.ndarray) -> np.ndarray:
    """Return the number that all elements are, ``[]``, or else the array."""
    return array.reshape(-1)[0] if array.size and (array == array.reshape(-1)[0]).all() else array

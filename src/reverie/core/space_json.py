"""Gymnasium spaces as JSON, in the form that Minari writes: in run folders, stores and datasets."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, DTypeLike

from reverie.core.errors import DataError, short_repr

Space = spaces.Space[Any]
MAX_NUMBERS = 100_000_000
"""Maximum number of bounds or choices of a space, which a file declares by a few digits."""


def space_from_json(text: str | Mapping[str, Any], error_prefix: str) -> Space:
    """Return the space that ``text``, JSON, describes; error messages begin with ``error_prefix``."""
    try:
        data = json.loads(text) if isinstance(text, str) else text
        return SPACE_PARSERS[data["type"]](data, error_prefix)
    except DataError:  # of a part; with each level that quoted it, the text would double
        raise
    except (AssertionError, AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise DataError(f"{error_prefix}: cannot read a space ({error!r}): {short_repr(text)}") from None


def _box(data: Mapping[str, Any], error_prefix: str) -> Space:
    dtype, shape = np.dtype(data["dtype"]), tuple(data["shape"])
    low, high = (_fill_array(data[bound], shape, dtype) for bound in ("low", "high"))
    return spaces.Box(low, high, shape, dtype.type)


def _choices(data: Mapping[str, Any], error_prefix: str) -> Space:
    shape = tuple(data.get("shape") or np.shape(data["nvec"]))
    return spaces.MultiDiscrete(_fill_array(data["nvec"], shape), start=_fill_array(data.get("start") or 0, shape))


def _flags(data: Mapping[str, Any], error_prefix: str) -> Space:
    _check_shape(np.atleast_1d(data["n"]).tolist())
    return spaces.MultiBinary(data["n"])


def _fill_array(values: ArrayLike, shape: tuple[int, ...], dtype: DTypeLike = np.int64) -> np.ndarray:
    """Return ``values`` as an array of ``shape``; a single number stands for all of them."""
    array = np.array(values, dtype)
    return np.full(_check_shape(shape), array) if array.ndim == 0 else array.reshape(shape)


def _check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    if (count := math.prod(shape)) > MAX_NUMBERS:
        raise ValueError(f"it has {count:,} numbers: expected at most {MAX_NUMBERS:,}")
    return tuple(shape)


SPACE_PARSERS: dict[str, Callable[[Mapping[str, Any], str], Space]] = {
    "Box": _box,
    "Discrete": lambda data, error_prefix: spaces.Discrete(int(data["n"]), start=int(data.get("start", 0))),
    "MultiDiscrete": _choices,
    "MultiBinary": _flags,
    "Dict": lambda data, error_prefix: spaces.Dict(
        {k: space_from_json(inner, error_prefix) for k, inner in data["subspaces"].items()}
    ),
    "Tuple": lambda data, error_prefix: spaces.Tuple(
        tuple(space_from_json(inner, error_prefix) for inner in data["subspaces"])
    ),
    "Text": lambda data, error_prefix: spaces.Text(
        int(data["max_length"]), min_length=int(data["min_length"]), charset=data["charset"]
    ),
}


def space_to_json(space: Space, short: bool = False) -> str:
    """Return ``space`` as JSON text, which ``space_from_json`` and the Minari library can read.

    ``short`` writes equal numbers once, for locations with limited length; Minari cannot read this.
    """
    return json.dumps(_space_to_dict(space, short))


def _space_to_dict(space: Space, short: bool) -> dict[str, Any]:
    data: dict[str, Any] = {"type": type(space).__name__}
    if data["type"] not in SPACE_PARSERS:
        raise DataError(f"the space {space} cannot be described: expected one of {', '.join(SPACE_PARSERS)}.")
    if isinstance(space, spaces.Dict):
        return data | {"subspaces": {key: _space_to_dict(inner, short) for key, inner in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return data | {"subspaces": [_space_to_dict(inner, short) for inner in space.spaces]}
    if isinstance(space, spaces.Text):
        letters = "".join(sorted(space.character_set))
        return data | {"max_length": space.max_length, "min_length": space.min_length, "charset": letters}
    data |= {"dtype": str(space.dtype), "shape": list(space.shape or ())}
    names: dict[str, tuple[str, ...]] = {
        "Box": ("low", "high"), "Discrete": ("n", "start"), "MultiDiscrete": ("nvec", "start"), "MultiBinary": ("n",),
    }  # fmt: skip
    values = {name: np.asarray(getattr(space, name)) for name in names[data["type"]]}
    once = short and data["type"] != "MultiBinary"  # whose n is its shape
    return data | {name: (_once(array) if once else array).tolist() for name, array in values.items()}


def _once(array: np.ndarray) -> np.ndarray:
    """Return the common value of all elements, ``[]``, or else the array."""
    return array.reshape(-1)[0] if array.size and (array == array.reshape(-1)[0]).all() else array

"""From rows as learners see them back to values of the environment's space: the inverse of ``recorded.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.core.specs import ObsPart, ObsSpec
from reverie.envs.base import EnvConfig
from reverie.envs.spaces import ObsCodec, inside

Space = spaces.Space[Any]
Columns = dict[str, np.ndarray]
Convert = Callable[[np.ndarray], np.ndarray]

ROUNDING = 1e-6
"""Relative, and below 1 absolute, distance of a float32 number from the whole number that it stands for."""


class GivenBack:
    """Turns rows that an environment showed back into the values of its observation ``space``.

    Raises:
        EnvError: the space is not supported.
        ValueError: ``spec`` is not what the environment shows (observations were resized or stacked), or a part of a
            tuple is missing.
    """

    def __init__(self, space: Space, spec: ObsSpec, env: EnvConfig) -> None:
        codec = ObsCodec(space, env.keeps, env.channels)
        if codec.spec != dict(spec):
            raise ValueError("the observations of the environment differ from the recorded ones")
        kept = {path for _, path, _ in codec.leaves}
        self.space = _pruned(space, (), kept)
        self._columns = [
            (_stored(key, len(spec)), "/".join(("obs", *map(str, path))), *_back(inside(space, path), spec[key], env))
            for key, path, _ in codec.leaves
        ]

    def __call__(self, rows: Columns) -> Columns:
        """Return ``rows`` with the columns of ``space`` in place of the stored ones.

        Raises:
            DataError: a value is not one of the dtype that ``space`` declares.
        """
        out = {name: values for name, values in rows.items() if name.partition("/")[0] != "obs"}
        return out | {name: cast(convert(rows[stored]), dtype, name) for stored, name, convert, dtype in self._columns}


def cast(values: np.ndarray, dtype: Any, name: str) -> np.ndarray:
    """Return ``values`` ``[n, ...]`` called ``name`` as ``dtype``, which changes them by rounding errors only.

    Raises:
        DataError: ``dtype`` has no such value: 300, -1 or 1.5 in uint8, 1e300 in float32.
    """
    if values.dtype == dtype or values.dtype.kind not in "biuf":
        return values.astype(dtype, copy=False)
    dtype = np.dtype(dtype)
    with np.errstate(invalid="ignore", over="ignore"):  # checked below
        if dtype.kind == "f":
            out = values.astype(dtype)
            wrong = np.isfinite(values) & ~np.isfinite(out)
        else:
            out = (np.rint(values) if values.dtype.kind == "f" else values).astype(dtype)
            wrong = ~np.isclose(out, values, ROUNDING, ROUNDING)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise DataError(
            f"{name} is {values[at]} in row {at[0]}: expected a value of {dtype}, the dtype that its space declares. "
            "Correct the space of the environment, or its values"
        )
    return out


def _stored(key: str, parts: int) -> str:
    """Return the column of a part; a single part without a nested key is called ``obs``."""
    return "obs" if parts == 1 and "/" not in key else f"obs/{key}"


def _pruned(space: Space, path: tuple[Any, ...], kept: set[tuple[Any, ...]]) -> Space:
    """Return ``space`` with only the leaves in ``kept``."""

    def seen(name: Any) -> bool:
        return any(way[: len(path) + 1] == (*path, name) for way in kept)

    if isinstance(space, spaces.Dict):
        return spaces.Dict({k: _pruned(inner, (*path, k), kept) for k, inner in space.spaces.items() if seen(k)})
    if isinstance(space, spaces.Tuple):
        if not all(map(seen, range(len(space.spaces)))):
            raise ValueError("a part of a tuple was not recorded, so the keys of the parts after it would change")
        return spaces.Tuple(tuple(_pruned(inner, (*path, i), kept) for i, inner in enumerate(space.spaces)))
    return space


def _back(leaf: Space, part: ObsPart, env: EnvConfig) -> tuple[Convert, Any]:
    """Return the inverse of the conversion in ``leaves.py``: from many values of a part to those of its leaf space.

    With it comes the dtype of the leaf, to which ``cast`` turns the result.
    """
    if isinstance(leaf, spaces.Text):
        characters = np.array(["", *sorted(leaf.character_set)])
        return lambda values: np.array(["".join(row) for row in characters[values]], object), object
    if part.kind == "image":
        return lambda values: _pixels(values, leaf, part, env), leaf.dtype
    if part.kind == "categorical":
        start = np.asarray(getattr(leaf, "start", 0))
        return lambda values: values + start, leaf.dtype
    return lambda values: values, leaf.dtype


def _pixels(values: np.ndarray, leaf: Space, part: ObsPart, env: EnvConfig) -> np.ndarray:
    """Return images ``[n, H, W, C]`` with the axes and bounds of ``leaf``."""
    assert leaf.shape is not None
    if part.dtype == "uint8":
        low, high = (int(leaf.low.min()), int(leaf.high.max())) if isinstance(leaf, spaces.Box) else (0, 1)
        if (low, high) != (0, 255):
            values = np.rint(values * ((high - low) / 255)) + low
    if len(leaf.shape) == 4:
        values = np.moveaxis(values.reshape(*values.shape[:3], leaf.shape[0], -1), 3, 1)
    if len(leaf.shape) > 2 and (env.channels == "first" or part.shape[:2] != leaf.shape[-3:-1]):
        values = np.moveaxis(values, -1, -3)
    return values.reshape(len(values), *leaf.shape)

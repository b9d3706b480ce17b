"""From rows as learners see them back to values of the environment's space: the inverse of ``recorded.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.specs import ObsPart, ObsSpec
from reverie.envs.base import EnvConfig
from reverie.envs.spaces import ObsCodec, inside

Space = spaces.Space[Any]
Columns = dict[str, np.ndarray]
Convert = Callable[[np.ndarray], np.ndarray]


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
            (_stored(key, len(spec)), "/".join(("obs", *map(str, path))), _back(inside(space, path), spec[key], env))
            for key, path, _ in codec.leaves
        ]

    def __call__(self, rows: Columns) -> Columns:
        """Return ``rows`` with the columns of ``space`` in place of the stored ones."""
        out = {name: values for name, values in rows.items() if name.partition("/")[0] != "obs"}
        return out | {name: convert(rows[stored]) for stored, name, convert in self._columns}


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


def _back(leaf: Space, part: ObsPart, env: EnvConfig) -> Convert:
    """Return the inverse of the conversion in ``leaves.py``: from many values of a part to those of its leaf space."""
    if isinstance(leaf, spaces.Text):
        characters = np.array(["", *sorted(leaf.character_set)])
        return lambda values: np.array(["".join(row) for row in characters[values]], object)
    if part.kind == "image":
        return lambda values: _pixels(values, leaf, part, env)
    if part.kind == "categorical":
        start = np.asarray(getattr(leaf, "start", 0))
        return lambda values: (values + start).astype(leaf.dtype)
    assert leaf.dtype is not None
    whole = leaf.dtype.kind != "f"
    return lambda values: (np.rint(values) if whole else values).astype(leaf.dtype)


def _pixels(values: np.ndarray, leaf: Space, part: ObsPart, env: EnvConfig) -> np.ndarray:
    """Return images ``[n, H, W, C]`` with the axes, bounds and dtype of ``leaf``."""
    assert leaf.shape is not None
    if part.dtype == "uint8":
        low, high = (int(leaf.low.min()), int(leaf.high.max())) if isinstance(leaf, spaces.Box) else (0, 1)
        if (low, high) != (0, 255):
            values = np.rint(values * ((high - low) / 255)) + low
    if len(leaf.shape) == 3 and (env.channels == "first" or part.shape != leaf.shape):
        values = values.transpose(0, 3, 1, 2)
    return values.reshape(len(values), *leaf.shape).astype(leaf.dtype)

"""Conversion between actions of any space and the flat arrays of policies, for one action or a column of n.

Nested actions have keys such as ``arm/grip``. A bare action is called ``action``.

This file must not import torch: worker processes import it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError, EnvError, short_repr
from reverie.core.obs_conversion import Decode
from reverie.core.spaces import (
    MOST_CLASSES,
    Columns,
    Path,
    Space,
    children,
    classes_of,
    column,
    convert_rows,
    is_nested,
    iter_leaves,
)
from reverie.core.specs import ActionPart, ActionSpec

SCALARS = 16
"""Up to this many numbers, Python scales faster than NumPy."""
BOUND_TOLERANCE = 1e-4
"""Tolerance for actions outside their bounds due to rounding, in units of half the range."""


class ActionCodec:
    """Converts actions of one space from and to flat ones ``[A]``: one-hot, or scaled to [-1, 1]."""

    def __init__(self, space: Space) -> None:
        leaves = {"/".join(map(str, path)) or "action": (path, leaf) for path, leaf in iter_leaves(space)}
        if len(leaves) < len(list(iter_leaves(space))):
            raise EnvError(f"two actions have the same key: found only {sorted(leaves)}. Rename one of them.")
        self.spec: ActionSpec = ActionSpec(parts={key: _action_part(key, leaf) for key, (_, leaf) in leaves.items()})
        self.outside: int = 0
        """Number of encoded actions that were moved to the nearest bound."""
        cuts = self.spec.slices()
        self._leaves = [(key, path, leaf, cuts[key], _decoder(leaf)) for key, (path, leaf) in sorted(leaves.items())]
        self._decode = unflatten_fn(space, {path: (cut, decode) for _, path, _, cut, decode in self._leaves})

    def __call__(self, flat: np.ndarray) -> Any:
        """Return the action of the space for ``flat`` ``[A]``: the largest class, numbers clipped and scaled.

        For ``[N, A]``, return N actions for a vector environment.
        """
        return self._decode(flat)

    def unflatten(self, flat: np.ndarray, last: np.ndarray) -> dict[str, np.ndarray]:
        """Return columns of the actions for ``flat`` ``[n, A]``; zeros in the rows ``last``, which have no action."""
        out = {}
        for _, path, _, cut, decode in self._leaves:
            name = column("action", path)
            out[name] = decode(flat[:, cut])
            out[name][last] = 0
        return out

    def flatten(self, rows: Columns, first: int = 0) -> np.ndarray:
        """Return flat actions ``[n, A]`` float32 of recorded columns; zeros where ``is_last``, which have no action.

        Continuous actions outside their bounds are clipped, as in environments, and counted.
        """
        parts = []
        for key, path, leaf, _, _ in self._leaves:
            flat = self._scaled if isinstance(leaf, spaces.Box) else _one_hot
            columns = rows[column("action", path)], rows["is_last"]
            parts.append(convert_rows(flat, columns, leaf, f"action '{key}'", first))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _scaled(self, values: np.ndarray, last: np.ndarray, leaf: spaces.Box) -> np.ndarray:
        if math.prod(values.shape[1:]) != math.prod(leaf.shape):
            raise DataError(f"has shape {values.shape[1:]}; its space declares {leaf.shape}")
        low, high = (bound.reshape(-1).astype(np.float64) / 2.0 for bound in (leaf.low, leaf.high))
        flat = values.reshape(len(values), -1)
        with np.errstate(over="ignore"):  # checked below
            if (low == -0.5).all() and (high == 0.5).all():
                unit: np.ndarray = flat.astype(np.float32, copy=False)
            else:
                unit = ((flat - (low + high)) / np.where(high > low, high - low, 1.0)).astype(np.float32)
        if unit[last].any():  # also for NaN
            unit = np.where(last[:, None], np.float32(0.0), unit)
        smallest, largest = (float(unit.min()), float(unit.max())) if unit.size else (0.0, 0.0)
        if smallest >= -1.0 and largest <= 1.0:
            return unit
        bad = ~np.isfinite(unit).all(axis=1)
        if bad.any():
            raise DataError(f"is {values[bad][0]}: expected finite float32 numbers")
        self.outside += int((np.abs(unit) > 1.0 + BOUND_TOLERANCE).any(axis=1).sum())
        return unit.clip(-1.0, 1.0)


def _one_hot(values: np.ndarray, last: np.ndarray, leaf: Space) -> np.ndarray:
    counts, start = (array.reshape(-1) for array in classes_of(leaf))
    chosen = values.reshape(len(values), -1)
    if chosen.shape[1] != len(counts):
        raise DataError(f"has {chosen.shape[1]} discrete values; its space declares {len(counts)}")
    index = chosen.astype(np.int64) - start
    index[last] = 0
    wrong = (index < 0) | (index >= counts) | (index + start != chosen) & ~last[:, None]
    if wrong.any():
        row, part = (int(i) for i in np.argwhere(wrong)[0])
        raise DataError(f"is {chosen[row, part]}; its space declares {start[part]}..{start[part] + counts[part] - 1}")
    out = np.zeros((len(values), int(counts.sum())), np.float32)
    np.put_along_axis(out, index + np.cumsum(counts) - counts, 1.0, axis=1)
    out[last] = 0.0
    return out


def _action_part(key: str, space: Space) -> ActionPart:
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        counts = classes_of(space)[0]
        if (total := int(counts.astype(np.float64).sum())) > MOST_CLASSES:
            raise EnvError(
                f"action '{key}' has {total:,} classes, each an output of a network: expected at most "
                f"{MOST_CLASSES:,}. Declare numbers, a Box, and round them in a wrapper."
            )
        return ActionPart(kind="categorical", classes=tuple(map(int, counts.reshape(-1))))
    if isinstance(space, spaces.Box) and space.dtype.kind in "iuf":
        _check_bounds(key, space)
        low, high = (tuple(map(float, bound.reshape(-1))) for bound in (space.low, space.high))
        return ActionPart(kind="continuous", size=len(low), low=low, high=high)
    supported = "Discrete, MultiDiscrete, MultiBinary, numeric Box, or a Dict or Tuple of these"
    raise EnvError(f"action '{key}' has the space {space}, which is not supported: expected {supported}.")


def _check_bounds(key: str, space: spaces.Box) -> None:
    if not (np.isfinite(space.low) & np.isfinite(space.high)).all():
        box = f"gymnasium.spaces.Box(-1.0, 1.0, {space.shape})"
        raise EnvError(
            f"action '{key}' is unbounded (low {short_repr(space.low)}, high {short_repr(space.high)}): expected "
            "finite bounds, to which [-1, 1] is scaled. Declare them in the environment (of a vector: "
            f"vector.single_action_space = {box}), or wrap it: "
            f"gymnasium.wrappers.TransformAction(env, lambda action: action, {box}). ClipAction removes bounds: apply "
            "it inside this wrapper. RescaleAction needs them: apply it outside."
        )


def unflatten_fn(
    space: Space, leaves: Mapping[Path, tuple[slice, Callable[[Any], Any]]], path: Path = ()
) -> Callable[[Any], Any]:
    """Return the function from flat actions to values of the ``space`` at ``path``."""
    if is_nested(space):
        parts = {name: unflatten_fn(inner, leaves, (*path, name)) for name, inner in children(space)}
        if isinstance(space, spaces.Dict):
            return lambda flat: {name: part(flat) for name, part in parts.items()}
        return lambda flat: tuple(part(flat) for part in parts.values())
    cut, decode = leaves[path]
    return lambda flat: decode(flat[..., cut])


def _decoder(space: Space) -> Decode:
    if isinstance(space, spaces.Discrete):
        start, dtype = space.dtype.type(space.start), space.dtype  # NumPy integers, as from space.sample()
        if dtype == np.intp and not start:
            return lambda flat: flat.argmax(-1)
        return lambda flat: start + flat.argmax(-1).astype(dtype)
    return _unscale_fn(space) if isinstance(space, spaces.Box) else _choices(*classes_of(space), space.dtype)


def _choices(counts: np.ndarray, start: np.ndarray, dtype: np.dtype[Any] | None) -> Decode:
    ends = np.cumsum(counts.reshape(-1)).tolist()
    cuts = [slice(end - int(n), end) for end, n in zip(ends, counts.reshape(-1), strict=True)]

    def decode(flat: np.ndarray) -> np.ndarray:
        chosen = np.array([flat[..., cut].argmax(-1) for cut in cuts]).T  # [..., choices]
        classes: np.ndarray = chosen.reshape(*flat.shape[:-1], *counts.shape) + start
        return classes.astype(dtype)

    return decode


def _unscale_fn(space: spaces.Box) -> Decode:
    low, high, is_integer = space.low, space.high, space.dtype.kind != "f"
    # The bounds are halved before they are added, since the sum of two large bounds would overflow.
    half_low, half_high = (bound.reshape(-1).astype(np.float64) / 2.0 for bound in (low, high))
    middle, half = half_high + half_low, half_high - half_low
    # Arrays, since clipping with Python numbers takes twice as long.
    unit_low, unit_high = -np.ones_like(half), np.ones_like(half)

    def unscale(flat: np.ndarray) -> np.ndarray:
        unit = flat.astype(np.float64)
        np.minimum(np.maximum(unit, unit_low, out=unit), unit_high, out=unit)
        return (unit * half + middle).reshape(*flat.shape[:-1], *low.shape).astype(space.dtype)

    ranges = list(zip(half.tolist(), middle.tolist(), strict=True))
    limits = list(zip(low.reshape(-1).tolist(), high.reshape(-1).tolist(), strict=True))

    def one_by_one(flat: np.ndarray) -> np.ndarray:
        values = [min(max(x, -1.0), 1.0) * by + at for x, (by, at) in zip(flat.tolist(), ranges, strict=True)]
        if is_integer:  # a number beyond the dtype would wrap around
            values = [min(max(round(x), lower), upper) for x, (lower, upper) in zip(values, limits, strict=True)]
        return np.array(values, space.dtype).reshape(low.shape)

    def scaled(flat: np.ndarray) -> np.ndarray:
        if flat.ndim == 1:  # 7 us less after an update, without NumPy
            return one_by_one(flat) if is_integer or len(ranges) <= SCALARS else unscale(flat)
        return np.array([one_by_one(row) for row in flat]).reshape(-1, *low.shape) if is_integer else unscale(flat)

    # Rounding to the dtype, such as float32, can exceed a bound. If both ends stay inside, all values between them do.
    inside = all(((low <= end) & (end <= high)).all() for end in (scaled(unit_low), scaled(unit_high)))
    return scaled if inside else lambda flat: np.minimum(np.maximum(scaled(flat), low), high)

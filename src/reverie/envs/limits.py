"""Declared bounds and time limits of environments: warn once about values outside bounds, and find the time limit.

This file must not import torch: worker processes import it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from reverie.core.logger import logger
from reverie.core.obs_codec import ObsCodec
from reverie.core.spaces import Space

EXACT = 2**24
"""Learners see float32, which represents all integers up to this one exactly, but not the next."""
FIRST, EVERY = 1000, 13
"""Number of initial turns in which all rows are checked, and the interval afterwards: a check takes 3 % of a fast
step."""
STATED = ("max_episode_steps", "_max_episode_steps", "max_steps")
"""Attributes in which environments that end episodes themselves usually store their time limit."""
NO_LIMIT = 10**6
"""Larger values count as no time limit."""


class DeclaredBounds(NamedTuple):
    """Bounds ``[*shape]`` of a vector, and whether its dtype has integers that float32 cannot distinguish."""

    low: np.ndarray
    high: np.ndarray
    is_wide: bool


def is_wide(space: Space) -> bool:
    """Return whether the dtype of ``space`` has integers that float32 cannot distinguish."""
    dtype = np.dtype(space.dtype)
    return (dtype.itemsize >= 4 and dtype.kind in "iu") or dtype.itemsize >= 8


def declared_bounds(codec: ObsCodec | None) -> dict[str, DeclaredBounds]:
    """Return the bounds of the vectors by key; bounds of images are checked during conversion."""
    leaves = [] if codec is None else codec.leaves
    return {
        leaf.key: DeclaredBounds(leaf.space.low, leaf.space.high, is_wide(leaf.space))
        for leaf in leaves
        if leaf.part.kind == "vector" and isinstance(leaf.space, spaces.Box)
    }


class Limit(NamedTuple):
    """Limits of the vector ``key``, ``[*shape]`` each; ``text`` gives the reason and the advice."""

    key: str
    low: np.ndarray
    high: np.ndarray
    text: str


class LimitCheck:
    """Warns about the first observation outside of each limit; rows are stored unchanged."""

    def __init__(self, bounds: Mapping[str, DeclaredBounds]) -> None:
        self._limits = list(limits_of(bounds))
        self._turn = 0

    def __call__(self, rows: Mapping[str, np.ndarray], location: Callable[[int], str]) -> None:
        """Check ``rows``, ``[N, *shape]`` by key; ``location(n)`` names environment n and its step."""
        if not self._limits:
            return
        self._turn += 1
        if self._turn > FIRST and self._turn % EVERY:
            return
        for limit in list(self._limits):
            array = rows[limit.key]
            wrong = (array < limit.low) | (array > limit.high)
            if wrong.any():
                self._limits.remove(limit)
                at = tuple(map(int, np.argwhere(wrong)[0]))
                low, high = (np.broadcast_to(bound, array.shape[1:])[at[1:]] for bound in (limit.low, limit.high))
                index_text = f" at index {at[1:]}" if at[1:] else ""
                observation = f"{location(at[0])}: observation '{limit.key}' is {array[at]:.7g}{index_text}"
                logger.warning(
                    f"{observation}, {limit.text.format(low=low, high=high)} This warning is logged only once"
                )


def limits_of(bounds: Mapping[str, DeclaredBounds]) -> Iterator[Limit]:
    """Yield the limits to check: finite bounds, and integers beyond float32's precision."""
    for key, declared in bounds.items():
        with np.errstate(over="ignore"):  # bounds of float64, which then count as none
            low, high = declared.low.astype(np.float32), declared.high.astype(np.float32)
        if np.isfinite(low).any() or np.isfinite(high).any():
            yield Limit(key, low, high, OUTSIDE)
        if declared.is_wide and (low.min(initial=0) < -EXACT or high.max(initial=0) > EXACT):
            yield Limit(key, np.full_like(low, -EXACT), np.full_like(high, EXACT), INEXACT)


OUTSIDE = (
    "but its space declares {low:g} to {high:g}. It is used unchanged. Declare the true bounds, or -np.inf and "
    "np.inf, or clip it in a wrapper."
)
INEXACT = (
    "but learners see float32, which rounds integers beyond {high:,.0f}. Subtract an offset, such as the time of the "
    "first step, or divide; encode identifiers as classes, or exclude them with env.exclude_keys."
)


def own_limit(layers: list[gymnasium.Env[Any, Any]]) -> int | None:
    """Return the environment's own time limit, in its own steps; None: unknown.

    ``layers``: its wrappers, and the environment itself last.
    """
    limited = [layer for layer in layers if isinstance(layer, gymnasium.wrappers.TimeLimit)]
    if limited:
        return min(int(layer._max_episode_steps) for layer in limited)
    inner = layers[-1]
    spec = getattr(inner, "spec", None)
    stated = [getattr(inner, name, None) for name in STATED]
    if isinstance(spec, EnvSpec):
        stated += [spec.max_episode_steps, spec.kwargs.get("max_num_frames_per_episode")]
    return max((int(x) for x in stated if isinstance(x, int | np.integer) and 1 < x <= NO_LIMIT), default=None)

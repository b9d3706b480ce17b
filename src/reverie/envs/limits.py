"""Declared bounds and time limits of environments: warn once about values outside bounds and undeclared time limits.

This file must not import torch: worker processes import it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from reverie.core.logger import logger
from reverie.core.obs_codec import ObsCodec
from reverie.core.spaces import Space
from reverie.core.specs import ObsSpec, has_players

EXACT = 2**24
"""Learners see float32, which represents all integers up to this one exactly, but not the next."""
NUM_CHECKED_ROWS, CHECK_INTERVAL = 1000, 31
"""All of this many first rows are checked, then those of every 31st turn: of a prime number, so that in the course of
time each step of episodes of one length is checked."""
TIME_LIMIT_ATTRIBUTES = ("max_episode_steps", "_max_episode_steps", "max_steps")
"""Attributes in which environments that end episodes themselves usually store their time limit."""
NO_LIMIT = 10**6
"""Larger values count as no time limit."""
MIN_EQUAL_ENDS, MIN_EQUAL_FRACTION, MIN_EQUAL_LENGTH = 3, 0.2, 20
"""Minimum number and fraction of episodes, and steps in each, for which equal lengths are not a coincidence."""
MAX_CHECKED_ENDS = 20
"""Number of episodes of a run whose ends are checked."""


class DeclaredBounds(NamedTuple):
    """Bounds ``[*shape]`` of a vector, and whether its dtype has integers that float32 cannot distinguish."""

    low: np.ndarray
    high: np.ndarray
    is_wide: bool


def is_wide(space: Space) -> bool:
    """Return whether the dtype of ``space`` has integers that float32 cannot distinguish."""
    dtype = np.dtype(space.dtype)
    return (dtype.itemsize >= 4 and dtype.kind in "iu") or dtype.itemsize >= 8


def is_rounded(values: np.ndarray) -> np.ndarray:
    """Return which ``values`` beyond ``EXACT`` float32 rounds, as it rounds all times of day, bool in their shape."""
    with np.errstate(over="ignore", invalid="ignore"):
        is_changed = values.astype(np.float32).astype(values.dtype) != values
    if values.dtype.kind == "f":
        is_changed &= np.isfinite(values) & (np.abs(values) > EXACT)
    return np.asarray(is_changed)


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
        self._limits = list(_limits_of(bounds))
        self._turn, self._num_rows = 0, 0

    def __call__(self, rows: Mapping[str, np.ndarray], location: Callable[[int], str]) -> None:
        """Check ``rows``, ``[N, *shape]`` by key, in some turns; ``location(n)`` names environment n and its step."""
        self._turn += 1
        if self._limits and (self._num_rows < NUM_CHECKED_ROWS or self._turn % CHECK_INTERVAL == 0):
            self._num_rows += len(rows[self._limits[0].key])
            self.check(rows, location)

    def check(self, rows: Mapping[str, np.ndarray], location: Callable[[int], str]) -> None:
        """Check ``rows`` in any turn."""
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


def _limits_of(bounds: Mapping[str, DeclaredBounds]) -> Iterator[Limit]:
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
    "but learners see float32, which rounds numbers beyond {high:,.0f}. Subtract an offset, such as the time of the "
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
    stated = [getattr(inner, name, None) for name in TIME_LIMIT_ATTRIBUTES]
    if isinstance(spec, EnvSpec):
        stated += [spec.max_episode_steps, spec.kwargs.get("max_num_frames_per_episode")]
    return max((int(x) for x in stated if isinstance(x, int | np.integer) and 1 < x <= NO_LIMIT), default=None)


class EpisodeEnd(NamedTuple):
    """The length of an episode in decisions, and its flags."""

    length: int
    terminated: bool
    truncated: bool


class PlayedEnv(Protocol):
    """One environment or several, as far as the lengths of its episodes depend on it."""

    max_episode_steps: int | None
    frames_per_action: int

    @property
    def obs_spec(self) -> ObsSpec:
        """The observations by key."""


def termination_warning(ends: Sequence[EpisodeEnd], env: PlayedEnv) -> str:
    """Return a warning if the longest episodes of ``env`` seem to be terminated by a time limit; else "".

    The declared limit can be in decisions or in steps. Games of two players end where their boards are full.
    """
    limit, frames = env.max_episode_steps, env.frames_per_action
    if has_players(env.obs_spec):
        return ""
    longest = max((end.length for end in ends), default=0)
    last = [end for end in ends if end.terminated and end.length == longest]
    is_declared = limit is not None and longest in (limit, -(-limit // frames))
    are_many = len(last) >= max(MIN_EQUAL_ENDS, MIN_EQUAL_FRACTION * len(ends)) or any(
        limit is None and end.truncated for end in last
    )
    if not any(is_declared and not end.truncated for end in last) and not (longest >= MIN_EQUAL_LENGTH and are_many):
        return ""
    setting = "env.truncate_at_limit = True" + ("" if is_declared else f", env.max_episode_steps = {longest}")
    return (
        f"no episode was longer than {longest} steps, and {len(last)} of {len(ends)} were terminated then. If that is "
        f"a time limit, set {setting}, or return truncated=True there, and terminated=False: learners assume a value "
        "of 0 after a termination"
    )


class EndCheck:
    """Warns once if the first episodes of N environments seem to be terminated by a time limit."""

    def __init__(self, num_envs: int, env: PlayedEnv) -> None:
        """``num_envs``: 0 to check nothing."""
        self._env = env
        self._begun = [0] * num_envs  # turn of the first row of each environment's episode
        self._ends: list[EpisodeEnd] = []
        self.turn: int = 0
        """Number of rows of each environment so far. Add 1 for rows of which none begins or ends an episode."""
        self.is_done: bool = not num_envs
        """Whether nothing more is checked."""

    def __call__(self, first: Iterable[bool], terminated: Iterable[bool], truncated: Iterable[bool]) -> None:
        """Look at rows of N environments, by their flags."""
        self.turn += 1
        for number, (is_first, *flags) in enumerate(zip(first, terminated, truncated, strict=True)):
            if is_first:
                self._begun[number] = self.turn
            elif any(flags) and not self.is_done:
                self._ends.append(EpisodeEnd(self.turn - self._begun[number], *flags))
                if text := termination_warning(self._ends, self._env):
                    logger.warning(text)
                self.is_done = bool(text) or len(self._ends) >= MAX_CHECKED_ENDS

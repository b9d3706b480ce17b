"""Prioritised experience replay: windows are drawn in proportion to what was last surprising about them.

Source: Schaul et al. 2016, Prioritized Experience Replay, arXiv 1511.05952.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reverie.core.compiler import kernels
from reverie.core.config import Config
from reverie.core.errors import ConfigError, DataError
from reverie.core.types import State
from reverie.data.starts import Starts
from reverie.data.storage import Storage


@dataclass(frozen=True, kw_only=True)
class PriorityConfig(Config):
    """Prioritised replay, for the share of windows that ``fractions.priority`` gives to it."""

    alpha: float = 0.6
    """How much priorities matter: 0 not at all, 1 in proportion (Schaul et al. 2016, equation 1)."""
    beta: float = 0.4
    """How much of the bias importance weights take back in the beginning: 0 nothing, 1 all (section 3.4)."""
    beta_end: float = 1.0
    """The same after `beta_windows`."""
    beta_windows: int = 10_000_000
    """Windows drawn until beta has gone linearly to beta_end; 0 to begin there."""
    epsilon: float = 1e-6
    """Added to every priority, so that no window is lost for ever (section 3.3)."""

    def __post_init__(self) -> None:
        for name, top in {"alpha": np.inf, "beta": 1.0, "beta_end": 1.0}.items():
            value = getattr(self, name)
            if not (np.isfinite(value) and 0 <= value <= top):
                limit = "0 or more" if top == np.inf else "0 to 1"
                raise ConfigError(f"replay.priority.{name} = {value}: expected a number, {limit}.")
        if not (np.isfinite(self.epsilon) and self.epsilon > 0):
            raise ConfigError(f"replay.priority.epsilon = {self.epsilon}: expected a number above 0.")
        if self.beta_windows < 0:
            raise ConfigError(
                f"replay.priority.beta_windows = {self.beta_windows}: expected a number of windows, 0 or more."
            )


class Prioritised:
    """A window of priority p is drawn with probability ``(p + epsilon)^alpha / sum`` (equation 1), with replacement.

    New windows get the highest priority that there has been (algorithm 1, line 6), so that each is likely to be drawn
    soon.
    """

    listens = True

    def __init__(self, starts: Starts, rng: np.random.Generator, rows: Storage, config: PriorityConfig) -> None:
        """Draws from ``starts``, windows of ``rows``."""
        self.starts, self.rng, self.rows, self.config = starts, rng, rows, config
        self.highest, self.drawn = 1.0, 0
        self.clear()

    def clear(self) -> None:
        """See ``Sampler``."""
        size = self.rows.streams * self.rows.capacity
        self.priority = np.zeros(size, np.float32)  # by handle % size; 0 where no window begins
        self.tree = SumTree(size)
        self.oldest = self.starts.oldest

    def add(self, fresh: np.ndarray, lived: bool = True) -> None:
        """See ``Sampler``."""
        oldest = self.starts.oldest
        evicted = np.arange(self.oldest, min(oldest, self.oldest + len(self.priority)))
        self.oldest = oldest
        slots = np.concatenate([evicted, fresh]) % len(self.priority)
        self._set(slots, np.repeat([0.0, self.highest], [len(evicted), len(fresh)]))

    def draw(self, count: int) -> Tensor:
        """``count`` handles."""
        slots = self.tree.draw(self.rng.random(count))
        oldest, size = self.starts.oldest, len(self.priority)
        handles: np.ndarray = oldest + (slots - oldest) % size
        return torch.from_numpy(handles)

    def probability(self, handles: np.ndarray) -> np.ndarray:
        """Equation 1."""
        probability: np.ndarray = self.tree.leaves[handles % len(self.priority)] / self.tree.total
        return probability

    def beta(self) -> float:
        """The exponent of importance weights now."""
        cfg = self.config
        done = min(1.0, self.drawn / cfg.beta_windows) if cfg.beta_windows else 1.0
        return cfg.beta + (cfg.beta_end - cfg.beta) * done

    def feedback(self, handles: np.ndarray, priority: np.ndarray) -> None:
        """New priorities ``[B]`` of windows ``[B]``; evicted ones are skipped, of one that comes twice the last holds.

        One that is not finite leaves a window's priority as it is: it is the run that has diverged, and it says so.

        Raises:
            DataError: a priority is negative.
        """
        if len(negative := priority[priority < 0]):
            raise DataError(f"an update gave a window the priority {negative[0]:.4g}: expected numbers, 0 or more.")
        slots = handles % len(self.priority)
        known = (handles >= self.starts.oldest) & (self.priority[slots] > 0) & np.isfinite(priority)
        if known.any():
            raised = priority[known] + self.config.epsilon
            self.highest = max(self.highest, float(raised.max()))
            self._set(slots[known], raised)

    def _set(self, slots: np.ndarray, priority: np.ndarray) -> None:
        kept = priority.astype(np.float32)
        self.priority[slots] = kept
        self.tree.set(slots, self._leaf(kept))

    def _leaf(self, priority: np.ndarray) -> np.ndarray:
        return np.where(priority > 0, priority.astype(np.float64) ** self.config.alpha, 0.0)

    def state_dict(self) -> State:
        """The generator, the priorities of all windows held and how far beta is."""
        return {
            "rng": self.rng.bit_generator.state,
            "oldest": self.starts.oldest // self.rows.streams,
            "priority": self.priority[self._held(self.starts.oldest)],
            "highest": self.highest,
            "drawn": self.drawn,
        }

    def load_state_dict(self, state: State) -> None:
        """See ``Sampler``."""
        self.rng.bit_generator.state = dict(state["rng"])
        if "priority" not in state:
            return
        self.highest, self.drawn = state["highest"], state["drawn"]
        saved = state["oldest"] * self.rows.streams
        oldest = max(saved, self.starts.oldest)
        slots = self._held(oldest)
        self.priority[slots] = state["priority"][oldest - saved :]
        self.tree.set(slots, self._leaf(self.priority[slots]))

    def _held(self, oldest: int) -> np.ndarray:
        handles = np.arange(oldest, self.rows.count * self.rows.streams)
        return handles % len(self.priority)


class SumTree:
    """Non-negative weights of which one is found by a number in 0..1 in O(log n), for whole arrays of numbers at once.

    Each node has 32 children, whose sum it is; sums are always made anew from the children, so that rounding does not
    build up and a tree depends on its leaves only, not on how they came to be.
    """

    FAN = 32

    def __init__(self, size: int) -> None:
        """``size`` weights of 0."""
        self.levels = [np.zeros(self._padded(size))]  # leaves first
        while len(self.levels[-1]) > self.FAN:
            self.levels.append(np.zeros(self._padded(len(self.levels[-1]) // self.FAN)))
        self._library = kernels()
        self._addresses = np.array([level.ctypes.data for level in self.levels], np.int64)
        self._told = (self._addresses.ctypes.data, len(self.levels))  # what ``tree.c`` is told of the levels

    def _padded(self, size: int) -> int:
        return -(-size // self.FAN) * self.FAN

    @property
    def leaves(self) -> np.ndarray:
        """All weights, and some 0 after them."""
        return self.levels[0]

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self.levels[-1].sum())

    def set(self, slots: np.ndarray, weights: np.ndarray) -> None:
        """Give the leaves ``slots`` new ``weights``; of a slot that comes twice the last holds."""
        if self._library is None:
            self._set(slots, weights)
            return
        slots, weights = np.ascontiguousarray(slots, np.int64), np.ascontiguousarray(weights, np.float64)
        self._library.tree_set(*self._told, slots.ctypes.data, weights.ctypes.data, len(slots))

    def _set(self, slots: np.ndarray, weights: np.ndarray) -> None:
        self.levels[0][slots] = weights
        for children, parents in zip(self.levels, self.levels[1:], strict=False):
            slots = slots // self.FAN
            if len(slots) > self.FAN:
                slots = np.unique(slots)
            parents[slots] = children.reshape(-1, self.FAN)[slots].sum(1)

    def draw(self, numbers: np.ndarray) -> np.ndarray:
        """The slots at which the running sum of all weights passes ``numbers`` x ``total``; never one of weight 0."""
        slots, target = np.zeros(len(numbers), np.int64), numbers * self.total
        if self._library is None:
            return self._draw(slots, target)
        self._library.tree_draw(*self._told, target.ctypes.data, len(target), slots.ctypes.data)
        return slots

    def _draw(self, slots: np.ndarray, target: np.ndarray) -> np.ndarray:
        for level in reversed(self.levels):
            sums = level.reshape(-1, self.FAN)[slots].cumsum(1)
            # Sums made in another order may differ in their last digit; the target must lie below.
            target = np.minimum(target, np.nextafter(sums[:, -1], 0))
            child = (sums <= target[:, None]).sum(1)
            before = np.take_along_axis(sums, np.maximum(child - 1, 0)[:, None], 1)[:, 0]
            target = target - np.where(child > 0, before, 0.0)
            slots = slots * self.FAN + child
        return slots

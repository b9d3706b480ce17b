"""Prioritized experience replay: windows are drawn in proportion to their latest priority, such as the TD error.

Source: Schaul et al. 2016, Prioritized Experience Replay, arXiv 1511.05952.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.core.errors import DataError
from reverie.core.kernel_dispatch import accelerated
from reverie.core.types import State
from reverie.replay.config import PriorityConfig
from reverie.replay.samplers import Sampler
from reverie.replay.storage import Storage
from reverie.replay.windows import Windows


class PrioritizedSampler(Sampler):
    """Draws a window of priority p with probability ``(p + epsilon)^alpha / sum`` (equation 1), with replacement.

    New windows get the highest priority so far (algorithm 1, line 6), so that they are likely to be drawn soon.
    """

    listens = True

    def __init__(self, windows: Windows, rng: np.random.Generator, config: PriorityConfig) -> None:
        super().__init__(windows, rng)
        self.storage: Storage = windows.storage
        self.config = config
        self.highest: float = 1.0
        self.drawn: int = 0
        self.clear()

    def clear(self) -> None:
        size = self.storage.streams * self.storage.capacity
        self.priority: np.ndarray = np.zeros(size, np.float32)  # by handle % size; 0 where no window begins
        self.tree: SumTree = SumTree(size)
        self.oldest: int = self.windows.oldest

    def add(self, new: np.ndarray, collected: bool = True) -> None:
        oldest = self.windows.oldest
        evicted = np.arange(self.oldest, min(oldest, self.oldest + len(self.priority)))
        self.oldest = oldest
        slots = np.concatenate([evicted, new]) % len(self.priority)
        self._set(slots, np.repeat([0.0, self.highest], [len(evicted), len(new)]))

    def draw(self, count: int, out: Tensor | None = None) -> Tensor:
        slots = tree_draw(self.tree, self.rng.random(count))
        oldest, size = self.windows.oldest, len(self.priority)
        handles: np.ndarray = oldest + (slots - oldest) % size
        return torch.from_numpy(handles)

    def probability(self, handles: np.ndarray) -> np.ndarray:
        """Return equation 1 for each of ``handles`` ``[B]``."""
        return np.asarray(self.tree.leaves[handles % len(self.priority)] / self.tree.total)

    def beta(self) -> float:
        """Return the current exponent of the importance weights."""
        cfg = self.config
        done = min(1.0, self.drawn / cfg.beta_anneal_windows) if cfg.beta_anneal_windows else 1.0
        return cfg.beta + (cfg.beta_end - cfg.beta) * done

    def feedback(self, handles: np.ndarray, priority: np.ndarray) -> None:
        """Set the finite priorities ``[B]`` of stored windows ``[B]``; the last value of duplicates counts."""
        if len(negative := priority[priority < 0]):
            raise DataError(f"an update returned the priority {negative[0]:.4g}: expected a number, 0 or more.")
        slots = handles % len(self.priority)
        is_current = (handles >= self.windows.oldest) & (self.priority[slots] > 0) & np.isfinite(priority)
        if is_current.any():
            raised = priority[is_current] + self.config.epsilon
            self.highest = max(self.highest, float(raised.max()))
            self._set(slots[is_current], raised)

    def _set(self, slots: np.ndarray, priority: np.ndarray) -> None:
        stored = self.priority[slots] = priority.astype(np.float32)
        tree_set(self.tree, slots, np.where(stored > 0, stored.astype(np.float64) ** self.config.alpha, 0.0))

    def state_dict(self) -> State:
        """Return the generator, the priorities of all windows, and the progress of beta."""
        return {
            **super().state_dict(),
            "oldest": self.windows.oldest // self.storage.streams,
            "priority": self.priority[self._held_slots(self.windows.oldest)],
            "highest": self.highest,
            "drawn": self.drawn,
        }

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.highest, self.drawn = state["highest"], state["drawn"]
        saved = state["oldest"] * self.storage.streams
        oldest = max(saved, self.windows.oldest)
        self._set(self._held_slots(oldest), state["priority"][oldest - saved :])

    def _held_slots(self, oldest: int) -> np.ndarray:
        handles = np.arange(oldest, self.storage.count * self.storage.streams)
        return handles % len(self.priority)


class SumTree:
    """A sum tree: draws an index in proportion to its weight in O(log n). Each node is the sum of its 32 children."""

    FAN = 32

    def __init__(self, size: int) -> None:
        """Make a tree of ``size`` weights, all 0."""
        self.levels: list[np.ndarray] = []  # leaves first; each padded to a multiple of FAN
        while not self.levels or size > 1:
            size = -(-size // self.FAN)
            self.levels.append(np.zeros(size * self.FAN))
        self.fast: Any = None  # addresses that a kernel has looked up

    @property
    def leaves(self) -> np.ndarray:
        """All weights, padded with zeros."""
        return self.levels[0]

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self.levels[-1].sum())


@accelerated
def tree_set(tree: SumTree, slots: np.ndarray, weights: np.ndarray) -> None:
    """Set the weights ``[B]`` of leaves ``slots`` ``[B]``; the last value of duplicates counts."""
    tree.leaves[slots] = weights
    for children, parents in itertools.pairwise(tree.levels):
        slots = np.unique(slots // tree.FAN)
        parents[slots] = children.reshape(-1, tree.FAN)[slots].sum(1)


@accelerated
def tree_draw(tree: SumTree, numbers: np.ndarray) -> np.ndarray:
    """Return the slots, never of weight 0, where the running sum exceeds ``numbers`` ``[B]`` in [0, 1) x ``total``."""
    slots, target = np.zeros(len(numbers), np.int64), numbers * tree.total
    for level in reversed(tree.levels):
        sums = level.reshape(-1, tree.FAN)[slots].cumsum(1)
        # Sums in another order may differ by rounding; the target must be below the last sum.
        target = np.minimum(target, np.nextafter(sums[:, -1], 0))
        child = (sums <= target[:, None]).sum(1)
        before = np.take_along_axis(sums, np.maximum(child - 1, 0)[:, None], 1)[:, 0]
        target = target - np.where(child > 0, before, 0.0)
        slots = slots * tree.FAN + child
    return slots

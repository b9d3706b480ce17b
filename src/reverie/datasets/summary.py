"""Summary of a dataset: its episodes, returns and actions, from one pass over all rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from gymnasium import spaces

from reverie.core.errors import count_noun
from reverie.core.rows import Rows, iter_episodes
from reverie.core.spaces import classes_of, columns_in
from reverie.core.specs import IS_INTERVENTION
from reverie.datasets.reader import Space

BINS = 20
"""Number of bins of each continuous action's range, for the coverage."""
MAX_ELEMENTS = 1024
"""Maximum number of elements of a column whose constant elements are reported."""
DECIMALS = 1
"""Decimals to which numbers are rounded before distinct observations are counted."""
NUM_EPISODES, NUM_FRAMES = 6, 6
"""Number of episodes with sample images, and of images of each."""


class ActionStatistics:
    """Statistics of the action ``name`` of a dataset, by bin or class."""

    def __init__(self, name: str, space: Space) -> None:
        self.name = name
        self.steps: int = 0
        self.outside: int = 0
        self.at_bounds: int = 0
        self.idle: int = 0
        """Number of steps whose action is 0 in every dimension, for continuous actions."""
        if isinstance(space, spaces.Box):
            self.bounds: list[np.ndarray] = [bound.reshape(-1).astype(np.float64) for bound in (space.low, space.high)]
            self.classes: np.ndarray = np.full(len(self.bounds[0]), BINS)
        else:
            counts, start = (np.reshape(array, -1) for array in classes_of(space))
            self.bounds, self.classes = [start, start + counts - 1], counts
        self.is_box: bool = isinstance(space, spaces.Box)
        self.counts: np.ndarray = np.zeros((len(self.classes), int(self.classes.max())), np.int64)
        """How often each value was taken: ``[choices, classes]`` or ``[dimensions, BINS]``."""
        self.used: np.ndarray = np.full((2, len(self.classes)), [[np.inf], [-np.inf]])
        """Smallest and largest value of each dimension, ``[2, D]``."""

    def add(self, values: np.ndarray) -> None:
        """Add actions ``[n, ...]`` to the statistics."""
        flat, (low, high) = values.reshape(len(values), -1).astype(np.float64), self.bounds
        span = np.where(high > low, high - low, 1.0) if self.is_box else high - low + 1
        slack = 1e-6 * span
        self.steps += len(flat)
        self.used = np.stack([np.fmin(self.used[0], np.fmin.reduce(flat)), np.fmax(self.used[1], np.fmax.reduce(flat))])
        self.outside += int(((flat < low - slack) | (flat > high + slack)).sum())
        self.at_bounds += int(((flat <= low + slack) | (flat >= high - slack)).sum())
        self.idle += int((flat == 0).all(axis=1).sum()) if self.is_box else 0
        bins = (flat - low) / span * self.classes
        good = np.isfinite(bins) & (self.is_box | (bins >= 0) & (bins < self.classes))
        bins = np.where(good, np.clip(bins, 0, self.classes - 1), 0).astype(np.int64)
        for choice, row in enumerate(self.counts):
            row += np.bincount(bins[good[:, choice], choice], minlength=len(row))

    @property
    def coverage(self) -> float:
        """Fraction of all classes, or of all bins, used at least once, in [0, 1]."""
        return float((self.counts > 0).sum() / max(1, self.classes.sum()))

    @property
    def axis(self) -> tuple[float, float] | None:
        """Bounds of a one-dimensional continuous action; None for other actions."""
        return (float(self.bounds[0][0]), float(self.bounds[1][0])) if self.is_box and len(self.counts) == 1 else None

    def format(self) -> str:
        """Return the statistics as one line of text."""
        suffix = f", {self.outside:,} outside" if self.outside else ""
        if self.is_box:
            used = ", ".join(f"{a:.3g} to {b:.3g}" for a, b in self.used.T[:6])
            dots, share = " ..." * (len(self.classes) > 6), self.at_bounds / max(1, self.steps * len(self.classes))
            suffix += f", {self.idle / max(1, self.steps):.1%} idle (all 0)" if self.idle else ""
            return f"{self.coverage:.0%} of the range used ({used}{dots}), {share:.1%} at the bounds{suffix}"
        shares = self.counts / max(1, self.steps)
        listing = "; ".join(" ".join(f"{share:.0%}" for share in row[:18]) for row in shares[:3])
        return f"{self.coverage:.0%} of the classes used ({listing}){suffix}"


@dataclass
class Summary:
    """Statistics of a dataset."""

    actions: list[ActionStatistics]
    scores: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    num_taken: int = 0
    """Number of steps that a person took."""
    num_terminal: int = 0
    """Number of episodes that end in a terminal state; the others are truncated."""
    rewards: tuple[float, float] = (np.inf, -np.inf)
    rows: int = 0
    num_stepless: int = 0
    """Number of episodes with a single row, which have no step."""
    nonfinite_counts: dict[str, np.ndarray] = field(default_factory=dict)
    """Number of NaN or infinite values of each element ``[elements]``, for columns that have any."""
    ranges: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """Smallest and largest value of each element ``[elements]``, for columns of at most ``MAX_ELEMENTS``."""
    frames: dict[str, list[np.ndarray]] = field(default_factory=dict)
    """Images ``[NUM_FRAMES, ...]`` of the first ``NUM_EPISODES`` episodes, evenly spread, by column."""
    states: set[int] | None = None
    """Hashes of distinct observations, rounded to ``DECIMALS``; None: they are not counted."""
    num_still: int = 0
    """Number of steps that change no observation, if they are counted."""

    def add(self, episode: Rows) -> None:
        """Add an episode to the statistics."""
        steps = len(episode["reward"]) - 1
        self.rows += steps + 1
        if steps < 1:
            self.num_stepless += 1
            return
        for name, column in episode.items():
            used = column[:-1] if name.partition("/")[0] == "action" else column  # the last action is not taken
            if column.dtype.kind == "f" and not np.isfinite(used).all():
                self.nonfinite_counts[name] = (~np.isfinite(used)).reshape(len(used), -1).sum(
                    axis=0
                ) + self.nonfinite_counts.get(name, 0)
        rewards = episode["reward"][1:].astype(np.float64)
        self.scores.append(float(rewards.sum()))
        self.lengths.append(steps)
        self.num_terminal += bool(episode["is_terminal"][-1])
        self.num_taken += int(np.count_nonzero(episode.get(IS_INTERVENTION, ())))
        finite, (low, high) = rewards[np.isfinite(rewards)], self.rewards
        self.rewards = (float(finite.min(initial=low)), float(finite.max(initial=high)))
        for use in self.actions:
            use.add(episode[use.name][:-1])
        for name, column in episode.items():
            if name.partition("/")[0] in ("obs", "action") and column.dtype.kind in "biuf":
                self._add_values(name, column[:-1] if name.startswith("action") else column)
        if self.states is not None:
            parts = (column for name, column in episode.items() if name.partition("/")[0] == "obs")
            self._add_states([part.reshape(steps + 1, -1) for part in parts if part.dtype.kind in "biuf"])

    def _add_states(self, columns: list[np.ndarray]) -> None:
        """Count the observations of an episode, columns ``[n, elements]``."""
        assert self.states is not None
        rows = np.concatenate(columns, 1) + 0  # bool becomes int
        self.num_still += int((rows[1:] == rows[:-1]).all(1).sum())
        self.states.update(hash(row.tobytes()) for row in rows.round(DECIMALS) + 0)  # -0 becomes 0

    def _add_values(self, name: str, column: np.ndarray) -> None:
        """Add one column ``[n, ...]`` of an episode to the ranges, or its images to the frames."""
        if column.dtype == np.uint8 and column.ndim in (3, 4):
            if len(self.frames.setdefault(name, [])) < NUM_EPISODES:
                self.frames[name].append(column[np.linspace(0, len(column) - 1, NUM_FRAMES).round().astype(int)])
        elif (flat := column.reshape(len(column), -1)).shape[1] <= MAX_ELEMENTS:
            low, high = self.ranges.get(name, (np.inf, -np.inf))
            self.ranges[name] = np.fmin(low, np.fmin.reduce(flat)), np.fmax(high, np.fmax.reduce(flat))

    def constant_lines(self) -> list[tuple[str, str]]:
        """Return a line for each column with elements that never change."""
        lines = []
        for name, (low, high) in self.ranges.items():
            constant = np.flatnonzero(low == high)
            if len(constant):
                dots = " ..." * (len(constant) > 8)
                which = "elements " + ", ".join(map(str, constant[:8])) + dots if len(low) > 1 else f"always {low[0]:g}"
                lines.append((name, which))
        return lines

    def reach_lines(self, discount: float, subgoal_steps: int) -> list[tuple[str, str]]:
        """Return lines about goals among later rows, which end at an episode's last row with an action."""
        steps = np.array(self.lengths)  # [E]
        within = steps - (1 - discount**steps) / (1 - discount)  # sum of P(distance <= k) = 1 - discount^k, k < steps
        shares = [part.sum() / steps.sum() for part in (within, np.maximum(steps - subgoal_steps, 0))]
        mean = 1 / (1 - discount)
        return [
            ("states", f"{len(self.states or ()):,} distinct, rounded to {10.0**-DECIMALS:g}"),
            ("still", f"{self.num_still / steps.sum():.1%} of the steps change no observation"),
            ("goals", f"{shares[0]:.0%} of geometric goals, on average {mean:.0f} steps later, lie within the episode"),
            ("subgoals", f"{shares[1]:.0%} of the steps have a goal {subgoal_steps} steps later"),
        ]

    def broken_lines(self) -> list[tuple[str, str]]:
        """Return a line for each column with NaN or infinite values: their number, and the elements."""
        lines = []
        for name, counts in self.nonfinite_counts.items():
            at = ", ".join(map(str, np.flatnonzero(counts)[:8]))
            elements = f", in elements {at}" if len(counts) > 1 else ""
            lines.append((name, f"{count_noun(int(counts.sum()), 'value')} NaN or infinite{elements}"))
        return lines


def summarize(parts: Iterable[Rows], action: Space, states: bool = False) -> Summary:
    """Return the summary of all rows; ``action`` is the action space. ``states``: also count distinct observations."""
    actions = [ActionStatistics(name, leaf) for name, leaf in columns_in(action, "action")]
    summary = Summary(actions=actions, states=set() if states else None)
    for episode in iter_episodes(parts):
        summary.add(episode)
    return summary

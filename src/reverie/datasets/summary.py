"""Summary of a dataset: its episodes, returns and actions, from one pass over all rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from gymnasium import spaces

from reverie.core.spaces import columns_in
from reverie.core.statistics import binned
from reverie.core.words import plural
from reverie.datasets.episodes import episodes_of
from reverie.datasets.reader import Rows, Space

BINS = 20
"""Number of bins of each continuous action's range, for the coverage."""
BAR = 24
"""Most characters of a bar of :func:`histogram`."""


@dataclass
class ActionUse:
    """Statistics of one action of the dataset."""

    name: str
    space: Space
    steps: int = 0
    counts: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """How often each value was taken: ``[choices, classes]`` or ``[dimensions, BINS]``."""
    low: np.ndarray | None = None
    """Smallest value of each dimension, ``[D]``."""
    high: np.ndarray | None = None
    """Largest value of each dimension, ``[D]``."""
    at_bounds: int = 0
    """Number of values at or beyond a bound, of all ``steps`` x D."""
    outside: int = 0
    """Number of values beyond a bound."""

    def add(self, values: np.ndarray) -> None:
        """Add actions ``[n, ...]`` to the statistics."""
        flat = values.reshape(len(values), -1)
        self.steps += len(flat)
        if not isinstance(self.space, spaces.Box):
            self._classes(flat)
        elif len(flat) and flat.dtype.kind in "biuf":
            self._numbers(flat.astype(np.float64), self.space)

    def _classes(self, flat: np.ndarray) -> None:
        counts, start = classes_of(self.space)
        index = flat.astype(np.int64) - start
        inside = (index >= 0) & (index < counts)
        self.outside += int((~inside).sum())
        if not self.counts.size:
            self.counts = np.zeros((len(counts), int(counts.max())), np.int64)
        for choice in range(len(counts)):
            found = np.bincount(index[inside[:, choice], choice], minlength=self.counts.shape[1])
            self.counts[choice] += found

    def _numbers(self, flat: np.ndarray, space: spaces.Box) -> None:
        low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
        with np.errstate(invalid="ignore"):
            least, most = np.nanmin(flat, axis=0), np.nanmax(flat, axis=0)
            span = np.where(high > low, high - low, 1.0)
            slack = 1e-6 * span
            self.outside += int(((flat < low - slack) | (flat > high + slack)).sum())
            self.at_bounds += int(((flat <= low + slack) | (flat >= high - slack)).sum())
            place = np.clip((flat - low) / span * BINS, 0, BINS - 1)
        self.low = least if self.low is None else np.fmin(self.low, least)
        self.high = most if self.high is None else np.fmax(self.high, most)
        if not self.counts.size:
            self.counts = np.zeros((flat.shape[1], BINS), np.int64)
        if np.isfinite(span).all():
            for dimension in range(flat.shape[1]):
                good = place[np.isfinite(flat[:, dimension]), dimension].astype(np.int64)
                self.counts[dimension] += np.bincount(good, minlength=BINS)

    @property
    def coverage(self) -> float:
        """Share of all classes, or of all bins, that was used at least once, in [0, 1]."""
        if isinstance(self.space, spaces.Box):
            return float((self.counts > 0).mean()) if self.counts.size else 0.0
        counts, _ = classes_of(self.space)
        used = sum(int((row[:count] > 0).sum()) for row, count in zip(self.counts, counts, strict=True))
        return used / int(counts.sum())

    @property
    def axis(self) -> tuple[float, float] | None:
        """Bounds of a one-dimensional continuous action; None for any other."""
        if isinstance(self.space, spaces.Box) and len(self.counts) == 1:
            return float(self.space.low.reshape(-1)[0]), float(self.space.high.reshape(-1)[0])
        return None

    def words(self) -> str:
        """Return the statistics as one line of text."""
        if isinstance(self.space, spaces.Box):
            if self.low is None or self.high is None:
                return "no actions"
            used = f"{', '.join(f'{a:.3g} to {b:.3g}' for a, b in zip(self.low[:6], self.high[:6], strict=True))}"
            numbers = max(1, self.steps * len(self.low))
            more = f", {self.outside:,} outside" if self.outside else ""
            return (
                f"{self.coverage:.0%} of the range used ({used}{' ...' if len(self.low) > 6 else ''}), "
                f"{self.at_bounds / numbers:.1%} at the bounds{more}"
            )
        shares = self.counts / max(1, self.steps)
        shown = "; ".join(" ".join(f"{share:.0%}" for share in row[:18]) for row in shares[:3])
        return f"{self.coverage:.0%} of the classes used ({shown})"


@dataclass
class Summary:
    """Statistics of a dataset."""

    actions: list[ActionUse]
    scores: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    terminal: int = 0
    """Number of episodes that end in a terminal state; the others are truncated."""
    rewards: tuple[float, float] = (np.inf, -np.inf)
    rows: int = 0
    stepless: int = 0
    """Number of episodes of a single row, which have no step."""
    broken: dict[str, np.ndarray] = field(default_factory=dict)
    """How many values of each element of a column are NaN or infinite ``[elements]``, of columns that have such."""

    def add(self, episode: Rows) -> None:
        """Add an episode to the statistics."""
        steps = len(episode["reward"]) - 1
        self.rows += steps + 1
        if steps < 1:
            self.stepless += 1
            return
        self._count_broken(episode)
        rewards = episode["reward"][1:].astype(np.float64)
        self.scores.append(float(rewards.sum()))
        self.lengths.append(steps)
        self.terminal += bool(episode["is_terminal"][-1])
        finite = rewards[np.isfinite(rewards)]
        least, most = self.rewards
        self.rewards = (float(finite.min(initial=least)), float(finite.max(initial=most)))
        for use in self.actions:
            use.add(episode[use.name][:-1])

    def _count_broken(self, episode: Rows) -> None:
        """Count the values that are NaN or infinite; the last action is not taken, and may be."""
        for name, column in episode.items():
            if column.dtype.kind == "f":
                used = column[:-1] if name.partition("/")[0] == "action" else column
                wrong = (~np.isfinite(used)).reshape(len(used), -1).sum(axis=0)
                if wrong.any():
                    self.broken[name] = wrong + self.broken.get(name, 0)

    def broken_lines(self) -> list[tuple[str, str]]:
        """Return the columns with values that are NaN or infinite, how many these are, and in which elements."""
        lines = []
        for name, counts in self.broken.items():
            at = np.flatnonzero(counts)
            where = f", in {'element' if len(at) == 1 else 'elements'} {', '.join(map(str, at[:8]))}"
            more = " ..." if len(at) > 8 else ""
            text = f"{plural(int(counts.sum()), 'value')} NaN or infinite{where + more if len(counts) > 1 else ''}"
            lines.append((name, text))
        return lines


def classes_of(space: Space) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of classes of each choice of a discrete space, and the index of its first class."""
    if isinstance(space, spaces.Discrete):
        return np.array([int(space.n)]), np.array([int(space.start)])
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec.reshape(-1).astype(np.int64), np.asarray(space.start).reshape(-1).astype(np.int64)
    size = int(np.prod(space.shape or (1,)))
    return np.full(size, 2), np.zeros(size, np.int64)


def summarise(parts: Iterable[Rows], action: Space) -> Summary:
    """Return the summary of all rows; ``action`` is the action space."""
    uses = [ActionUse(name, leaf) for name, leaf in columns_in(action, "action")]
    summary = Summary(actions=uses)
    for episode in episodes_of(parts):
        summary.add(episode)
    return summary


def histogram(values: list[float], bins: int = 8) -> list[str]:
    """Return a histogram as text, with one line for each of ``bins`` ranges and bars of up to ``BAR`` characters."""
    counts, edges = binned(values, bins)
    most = counts.max(initial=1)
    return [
        f"{low:>10.5g} to {high:>10.5g} {'#' * round(BAR * count / most):<{BAR}} {count:,}"
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]

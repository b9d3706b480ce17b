"""Summary of a dataset: its episodes, returns and actions, from one pass over all rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from gymnasium import spaces

from reverie.core.rows import Rows, episodes_of
from reverie.core.spaces import classes_of, columns_in
from reverie.core.words import plural
from reverie.datasets.reader import Space

BINS = 20
"""Number of bins of each continuous action's range, for the coverage."""


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

    @property
    def classes(self) -> np.ndarray:
        """Number of classes of each choice, or of bins of each dimension, ``[choices]``."""
        if isinstance(self.space, spaces.Box):
            return np.full(len(self.counts), BINS)
        return np.asarray(classes_of(self.space)[0]).reshape(-1)

    def add(self, values: np.ndarray) -> None:
        """Add actions ``[n, ...]`` to the statistics."""
        flat = values.reshape(len(values), -1)
        self.steps += len(flat)
        if not self.counts.size:
            most = BINS if isinstance(self.space, spaces.Box) else int(self.classes.max())
            self.counts = np.zeros((flat.shape[1], most), np.int64)
        if isinstance(self.space, spaces.Box):
            place, good = self._bins(flat.astype(np.float64), self.space)
        else:
            place = flat.astype(np.int64) - np.asarray(classes_of(self.space)[1]).reshape(-1)
            good = (place >= 0) & (place < self.classes)
            self.outside += int((~good).sum())
        for choice, row in enumerate(self.counts):
            row += np.bincount(place[good[:, choice], choice], minlength=len(row))

    def _bins(self, flat: np.ndarray, space: spaces.Box) -> tuple[np.ndarray, np.ndarray]:
        """Count values at the bounds; return the bin of each value, and which have one."""
        low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
        with np.errstate(invalid="ignore"):
            least, most = np.nanmin(flat, axis=0), np.nanmax(flat, axis=0)
            span = np.where(high > low, high - low, 1.0)
            self.outside += int(((flat < low - 1e-6 * span) | (flat > high + 1e-6 * span)).sum())
            self.at_bounds += int(((flat <= low + 1e-6 * span) | (flat >= high - 1e-6 * span)).sum())
            place = np.clip((flat - low) / span * BINS, 0, BINS - 1)
        self.low = least if self.low is None else np.fmin(self.low, least)
        self.high = most if self.high is None else np.fmax(self.high, most)
        good = np.isfinite(place)
        return np.where(good, place, 0).astype(np.int64), good

    @property
    def coverage(self) -> float:
        """Share of all classes, or of all bins, that was used at least once, in [0, 1]."""
        return float((self.counts > 0).sum() / max(1, self.classes.sum()))

    @property
    def axis(self) -> tuple[float, float] | None:
        """Bounds of a one-dimensional continuous action; None for any other."""
        if isinstance(self.space, spaces.Box) and len(self.counts) == 1:
            return float(self.space.low.reshape(-1)[0]), float(self.space.high.reshape(-1)[0])
        return None

    def words(self) -> str:
        """Return the statistics as one line of text."""
        more = f", {self.outside:,} outside" if self.outside else ""
        if self.low is not None and self.high is not None:
            used = ", ".join(f"{a:.3g} to {b:.3g}" for a, b in zip(self.low[:6], self.high[:6], strict=True))
            at_bounds = self.at_bounds / max(1, self.steps * len(self.low))
            return (
                f"{self.coverage:.0%} of the range used ({used}{' ...' if len(self.low) > 6 else ''}), "
                f"{at_bounds:.1%} at the bounds{more}"
            )
        shares = self.counts / max(1, self.steps)
        shown = "; ".join(" ".join(f"{share:.0%}" for share in row[:18]) for row in shares[:3])
        return f"{self.coverage:.0%} of the classes used ({shown}){more}"


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
        for name, column in episode.items():
            used = column[:-1] if name.partition("/")[0] == "action" else column  # the last one is not taken
            if column.dtype.kind == "f" and not np.isfinite(used).all():
                self.broken[name] = (~np.isfinite(used)).reshape(len(used), -1).sum(axis=0) + self.broken.get(name, 0)
        rewards = episode["reward"][1:].astype(np.float64)
        self.scores.append(float(rewards.sum()))
        self.lengths.append(steps)
        self.terminal += bool(episode["is_terminal"][-1])
        finite, (least, most) = rewards[np.isfinite(rewards)], self.rewards
        self.rewards = (float(finite.min(initial=least)), float(finite.max(initial=most)))
        for use in self.actions:
            use.add(episode[use.name][:-1])

    def broken_lines(self) -> list[tuple[str, str]]:
        """Return the columns with values that are NaN or infinite, how many these are, and in which elements."""
        lines = []
        for name, counts in self.broken.items():
            at = ", ".join(map(str, np.flatnonzero(counts)[:8]))
            where = f", in elements {at}" if len(counts) > 1 else ""
            lines.append((name, f"{plural(int(counts.sum()), 'value')} NaN or infinite{where}"))
        return lines


def summarise(parts: Iterable[Rows], action: Space) -> Summary:
    """Return the summary of all rows; ``action`` is the action space."""
    summary = Summary(actions=[ActionUse(name, leaf) for name, leaf in columns_in(action, "action")])
    for episode in episodes_of(parts):
        summary.add(episode)
    return summary

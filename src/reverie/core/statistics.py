"""Aggregate scores with confidence intervals: rliable's measures, and the stratified bootstrap.

Source: Agarwal, Schwarzer, Castro, Courville and Bellemare, "Deep reinforcement learning at the edge of the
statistical precipice", NeurIPS 2021, arXiv:2108.13264, section 4. Tests compare it with the authors' package.

Scores are ``[R]`` of R runs or episodes, or ``[R, M]`` of R runs on each of M tasks. Leading axes are allowed: a
measure of ``[..., R, M]`` is ``[...]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from reverie.core.errors import DataError

Measure = Callable[..., np.ndarray]
"""A function from scores ``[..., R, M]`` to ``[...]``; one that compares takes two samples."""
Series = tuple[np.ndarray, np.ndarray]
"""Steps ``[K]`` and measured values ``[K]``."""
Interval = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Steps ``[K]``, estimates ``[K]``, and the lower and upper bounds of their intervals ``[K]``, NaN where unknown."""

CONFIDENCE = 0.95
"""Nominal coverage of intervals. Percentile intervals of few scores contain the true value less often than that."""
Z95 = 1.959964
"""Quantile of the normal distribution for intervals of 95 %."""
MIN_RUNS = 5
"""Smallest number of runs for an interval: of 3 scores, a nominal 95 % bootstrap interval covers 75 %; of 5, 90 %."""
RESAMPLES = 2000
"""Number of bootstrap samples; the 2.5 % outside an interval at either end are then 2.5 +- 0.35 %."""
FINAL_RESAMPLES = 50_000
"""The same for scores at the end of training, as many as rliable draws; each point of a curve uses fewer."""
MAX_RESAMPLED = 5_000_000
"""Maximum number of scores resampled in all: of more than 100 scores there are fewer bootstrap samples than 50,000."""
BLOCK = 500_000
"""Number of scores resampled at a time, which bounds the memory."""


class IntervalEstimate(NamedTuple):
    """A measure and its confidence interval, whose ends are NaN if there were too few scores."""

    value: float
    low: float
    high: float

    @property
    def has_interval(self) -> bool:
        """Whether the interval exists."""
        return math.isfinite(self.low) and math.isfinite(self.high)


class Share(NamedTuple):
    """``right`` of ``total``, and Wilson's interval of the fraction: Wilson (1927), 95 %."""

    right: int
    total: int

    @property
    def interval(self) -> tuple[float, float]:
        """Return the lower and upper end."""
        n, p = self.total, self.right / self.total
        middle, half = p + Z95**2 / (2 * n), Z95 * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n**2))
        return (middle - half) / (1 + Z95**2 / n), (middle + half) / (1 + Z95**2 / n)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers by name."""
        return {**self._asdict(), "interval": self.interval}

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.right} of {self.total} ({100 * low:.0f} to {100 * high:.0f} %)"


def mean(scores: ArrayLike) -> np.ndarray:
    """Return the mean over all runs and tasks."""
    return np.asarray(table(scores).mean((-2, -1)))


def median(scores: ArrayLike) -> np.ndarray:
    """Return the median over tasks of the mean over runs; for a single task, the median over runs."""
    scores = table(scores)
    return np.asarray(np.median(scores[..., 0] if scores.shape[-1] == 1 else scores.mean(-2), axis=-1))


def iqm(scores: ArrayLike) -> np.ndarray:
    """Return the interquartile mean: without the n // 4 lowest and highest of n scores (section 4.3)."""
    scores = table(scores)
    ordered = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    cut = ordered.shape[-1] // 4
    return np.asarray(ordered[..., cut : ordered.shape[-1] - cut].mean(-1))


def probability_of_improvement(scores: ArrayLike, opponents: ArrayLike) -> np.ndarray:
    """Return the probability that a run beats one of ``opponents`` ``[..., Q, M]`` on a random task; a tie counts half.

    This is the mean over tasks of the Mann-Whitney U divided by the number of pairs (section 4.3).
    """
    a, b = table(scores), table(opponents)
    if a.shape[-1] != b.shape[-1]:
        raise DataError(f"scores on {a.shape[-1]} and on {b.shape[-1]} tasks: expected the same tasks in both.")
    a_scores, b_scores = a[..., :, None, :], b[..., None, :, :]  # [..., R, 1, M], [..., 1, Q, M]
    return np.asarray(((a_scores > b_scores) + 0.5 * (a_scores == b_scores)).mean((-3, -2, -1)))


def performance_profile(scores: ArrayLike, thresholds: ArrayLike) -> np.ndarray:
    """Return the fractions ``[..., K]`` of runs, over all tasks, with a score above K ``thresholds`` (section 4.2)."""
    return np.asarray((table(scores)[..., None] > np.asarray(thresholds)).mean((-3, -2)))


def interval(
    measure: Measure, *samples: ArrayLike, confidence: float = CONFIDENCE, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return a percentile interval by stratified bootstrap (section 4.1): each task's runs are resampled on their own.

    Args:
        measure: the statistic to estimate; called with each of ``samples`` as ``[resamples, R, M]``.
        *samples: ``[R]`` or ``[R, M]`` each, resampled independently.
        confidence: nominal coverage, in (0, 1).
        resamples: number of bootstrap samples.
        seed: of a separate random generator, so that the same scores always have the same interval.

    Returns:
        ``(low, high)`` in the shape of ``measure``; NaN with fewer than :data:`MIN_RUNS` runs or a number not finite.
    """
    tables = [table(sample) for sample in samples]
    if any(len(t) < MIN_RUNS or not np.isfinite(t).all() for t in tables):
        nothing = np.full(np.shape(measure(*tables)), np.nan)
        return nothing, nothing
    generator = np.random.default_rng(seed)
    size = math.prod(t.size for t in tables)
    resamples = max(min(resamples, RESAMPLES), min(resamples, MAX_RESAMPLED // size))
    block = max(1, BLOCK // size)
    counts = [min(block, resamples - done) for done in range(0, resamples, block)]
    values = [measure(*(_bootstrap(t, count, generator) for t in tables)) for count in counts]
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(np.concatenate(values), [tail, 100 - tail], axis=0)
    return low, high


def _bootstrap(scores: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """Return ``count`` tables ``[R, M]``; each column is drawn with replacement from that of ``scores`` ``[R, M]``."""
    picks = generator.integers(len(scores), size=(count, *scores.shape))
    if scores.shape[1] == 1:
        return scores[:, 0].take(picks)  # one column: four times as fast
    return np.take_along_axis(scores[None], picks, axis=1)


def estimate_interval(measure: Measure, scores: ArrayLike, resamples: int = RESAMPLES) -> IntervalEstimate:
    """Return a measure of ``scores`` with its 95 % confidence interval."""
    low, high = interval(measure, scores, resamples=resamples)
    return IntervalEstimate(float(measure(scores)), float(low), float(high))


def running_mean(values: np.ndarray) -> np.ndarray:
    """Return trailing means ``[n]`` of ``values`` ``[n]`` over a tenth of all points, 20 at most."""
    width = max(1, min(20, len(values) // 10))
    start = [np.mean(values[:n]) for n in range(1, min(width, len(values) + 1))]
    # Differences of cumulative sums would lose all digits after one large value.
    windows = np.lib.stride_tricks.sliding_window_view(values, width) if len(values) >= width else np.zeros((0, width))
    return np.concatenate([start, windows.mean(-1)])


def histogram(values: ArrayLike, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how many finite ``values`` are in each of k bins of equal width, ``[k]``, and the bins' edges ``[k + 1]``.

    k is ``bins``; 1 if the values are equal, or too close for edges between them in float64; 0 if there are none.
    """
    finite = np.asarray(values, np.float64)
    finite = finite[np.isfinite(finite)]
    if not len(finite):
        return np.zeros(0, np.int64), np.zeros(1)
    edges = np.linspace(finite.min(), finite.max(), bins + 1)
    if not (edges[1:] > edges[:-1]).all():
        return np.array([len(finite)]), edges[[0, -1]]
    return np.histogram(finite, edges)


def table(scores: ArrayLike) -> np.ndarray:
    """Return ``scores`` as ``[..., R, M]`` float64."""
    values = np.asarray(scores, np.float64)
    return values[:, None] if values.ndim == 1 else values

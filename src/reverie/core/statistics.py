"""How good scores are and how sure one can be of it: rliable's measures, with intervals by stratified bootstrap.

Source: Agarwal, Schwarzer, Castro, Courville and Bellemare, "Deep reinforcement learning at the edge of the
statistical precipice", NeurIPS 2021, arXiv:2108.13264, section 4. Written anew in NumPy because the authors' package
brings pandas, SciPy and statsmodels along; tests hold it against numbers that their package computed.

Scores are ``[R]`` of R runs or episodes, or ``[R, M]`` of R runs on each of M tasks. More axes may stand in front: a
measure of ``[..., R, M]`` is ``[...]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from reverie.core.errors import DataError

Measure = Callable[..., np.ndarray]
"""``[..., R, M]`` to ``[...]``; of two samples where it compares them."""

CONFIDENCE = 0.95
"""Share of intervals that should hold the truth. Percentile intervals of few scores hold it less often."""
LEAST = 3
"""Runs that an interval needs: the bootstrap of one or two scores says nothing about the next."""
RESAMPLES = 2000
"""Bootstrap samples; the 2.5 % that an interval leaves out at either end are then 2.5 +- 0.35 %."""
BLOCK = 500_000
"""Scores that are resampled at a time, which bounds the memory."""


class Estimate(NamedTuple):
    """A measure and its interval, whose ends are NaN where there were too few scores for one."""

    value: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether there is an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def mean(scores: ArrayLike) -> np.ndarray:
    """Mean over all runs and tasks."""
    return np.asarray(table(scores).mean((-2, -1)))


def median(scores: ArrayLike) -> np.ndarray:
    """Median over tasks of the mean over runs; of one task, where that would be the mean, the median over runs."""
    scores = table(scores)
    return np.asarray(np.median(scores[..., 0] if scores.shape[-1] == 1 else scores.mean(-2), axis=-1))


def iqm(scores: ArrayLike) -> np.ndarray:
    """Interquartile mean: the mean without the lowest and the highest quarter of all runs and tasks (section 4.3).

    Of n scores, n // 4 are left out at either end, as by ``scipy.stats.trim_mean``: of fewer than four it is the mean.
    """
    scores = table(scores)
    ordered = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    cut = ordered.shape[-1] // 4
    return np.asarray(ordered[..., cut : ordered.shape[-1] - cut].mean(-1))


def optimality_gap(scores: ArrayLike, target: float = 1.0) -> np.ndarray:
    """By how much scores miss ``target`` on average; what lies above it does not make up for it (section 4.3)."""
    return np.asarray(target - np.minimum(table(scores), target).mean((-2, -1)))


def probability_of_improvement(scores: ArrayLike, others: ArrayLike) -> np.ndarray:
    """How probable it is that a run beats one of ``others`` on a task chosen at random; a tie counts half.

    That is the mean over tasks of Mann and Whitney's U by the number of pairs (section 4.3).

    Args:
        scores: ``[R]`` or ``[..., R, M]``.
        others: ``[Q]`` or ``[..., Q, M]``, of as many tasks.

    Raises:
        DataError: the tasks are not as many.
    """
    a, b = table(scores), table(others)
    if a.shape[-1] != b.shape[-1]:
        raise DataError(f"scores of {a.shape[-1]} and of {b.shape[-1]} tasks: both must be of the same tasks.")
    left, right = a[..., :, None, :], b[..., None, :, :]  # [..., R, 1, M], [..., 1, Q, M]
    return np.asarray(((left > right) + 0.5 * (left == right)).mean((-3, -2, -1)))


def performance_profile(scores: ArrayLike, thresholds: ArrayLike) -> np.ndarray:
    """Which share of all runs and tasks is above each of K ``thresholds`` (section 4.2): ``[..., K]``."""
    above = table(scores)[..., None] > np.asarray(thresholds, float)  # [..., R, M, K]
    return np.asarray(above.mean((-3, -2)))


def interval(
    measure: Measure,
    *samples: ArrayLike,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """The ends of a percentile interval by stratified bootstrap (section 4.1): runs are drawn anew for each task.

    It has a generator of its own, and the same scores always have the same interval.

    Args:
        measure: what is estimated; called with each of ``samples`` as ``[resamples, R, M]``.
        *samples: ``[R]`` or ``[R, M]`` each, and drawn from independently.
        confidence: share of intervals that should hold the truth.
        resamples: how many bootstrap samples.
        seed: of the generator.

    Returns:
        ``(low, high)``, of the shape of one value of ``measure``; NaN where a sample has fewer than :data:`LEAST` runs
        or holds a number that is not finite.
    """
    tables = [table(sample) for sample in samples]
    if any(len(t) < LEAST or not np.isfinite(t).all() for t in tables):
        nothing = np.full(np.shape(measure(*tables)), np.nan)
        return nothing, nothing
    generator = np.random.default_rng(seed)
    block = max(1, BLOCK // math.prod(t.size for t in tables))
    values = [
        measure(*(resample(t, min(block, resamples - done), generator) for t in tables))
        for done in range(0, resamples, block)
    ]
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(np.concatenate(values), [tail, 100 - tail], axis=0)
    return low, high


def resample(scores: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """``count`` tables ``[R, M]`` whose columns are drawn, with replacement, from those of ``scores``."""
    picks = generator.integers(len(scores), size=(count, *scores.shape))
    return np.take_along_axis(scores[None], picks, axis=1)


def estimate(measure: Measure, scores: ArrayLike, resamples: int = RESAMPLES) -> Estimate:
    """A measure of ``scores`` and its 95 % interval."""
    low, high = interval(measure, scores, resamples=resamples)
    return Estimate(float(measure(scores)), float(low), float(high))


def running_mean(values: np.ndarray) -> np.ndarray:
    """Mean of the last tenth of the points, 20 at most: it never looks ahead."""
    width = max(1, min(20, len(values) // 10))
    total = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - width)
    return np.asarray((total[ends] - total[starts]) / (ends - starts))


def table(scores: ArrayLike) -> np.ndarray:
    """``scores`` as ``[..., R, M]`` float64.

    Raises:
        DataError: there are none.
    """
    values = np.asarray(scores, np.float64)
    if values.ndim == 0 or not values.size:
        raise DataError(f"scores of shape {values.shape}: expected [R] of R runs, or [R, M] of R runs on M tasks.")
    return values[:, None] if values.ndim == 1 else values

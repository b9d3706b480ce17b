"""Aggregate several seeds of one experiment, with confidence intervals across seeds, and compare settings.

The score of a seed is the mean return of the final evaluation of its run. Its curve holds the evaluations during
training or, if there were none, a running mean over log entries of training scores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from reverie.core.errors import plural
from reverie.core.files import write_json
from reverie.core.statistics import (
    CONFIDENCE,
    FINAL_RESAMPLES,
    Interval,
    IntervalEstimate,
    Measure,
    Series,
    estimate_interval,
    interval,
    iqm,
    mean,
    median,
    probability_of_improvement,
    running_mean,
)
from reverie.log.metrics import evaluations_in, read_metrics, series_of

MEASURES: dict[str, Measure] = {"iqm": iqm, "mean": mean, "median": median}
READ = ("episode/score", "eval/score", "eval/final", "estimate/return", "estimate/discount")
"""Metrics that are read from the logs."""
MOST_POINTS = 100
"""Most points of a curve whose seeds were not measured at the same steps."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Learning curves of S seeds, at K steps that all seeds have in common."""

    what: Literal["evaluation", "training"]
    """Source of the scores: evaluations, or training episodes."""
    steps: np.ndarray
    """``[K]``: env steps, or updates in a run on recorded data alone."""
    scores: np.ndarray
    """``[S, K]``. A seed that ended early because it reached ``stop_score`` keeps its last score."""
    measured: list[Series]
    """Measured points of each seed, before they are put on common steps."""
    measures: dict[str, list[IntervalEstimate]]
    """For each of :data:`MEASURES`, K estimates over the seeds."""

    def interval(self) -> Interval:
        """Return steps, interquartile mean (IQM), and lower and upper end of its interval: ``[K]`` each."""
        middle = np.array(self.measures["iqm"], float).reshape(-1, 3)
        return self.steps, middle[:, 0], middle[:, 1], middle[:, 2]


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """Scores and curves of the seeds that have finished."""

    seeds: list[int]
    scores: list[float | None]
    """Score of each seed; None if its run ended without an evaluation."""
    steps: list[int]
    """Steps that each seed took, in ``unit``."""
    unit: str
    """Unit of ``steps``: "env steps" or "updates"."""
    score: dict[str, IntervalEstimate]
    """IQM, mean and median over the seeds that have a score; empty if none has."""
    curve: Curve
    estimates: list[float | None]
    """Discounted return of each seed's policy by fitted Q evaluation; None if its run estimated none."""
    estimate: dict[str, IntervalEstimate]
    """IQM, mean and median over the seeds that have an estimate; empty if none has."""
    discount: float | None = None
    """Discount factor of the estimates; None if there are none."""

    def final(self) -> Interval:
        """Return the steps of the longest run, the IQM of the scores and its interval: ``[1]`` each, or ``[0]``."""
        shown = [(max(self.steps), *self.score["iqm"])] if self.score else []
        steps, middle, low, high = np.array(shown, float).reshape(-1, 4).T
        return steps, middle, low, high


class Measured(NamedTuple):
    """How the runs of all seeds are measured: a setting that they share."""

    unit: str  # of their length: "env steps" or "updates"
    evaluates: bool  # whether there are evaluations during training
    period: float | None  # steps between two evaluations; None if they are due at times
    early: bool  # whether a score may end a run early


class OfSeed(NamedTuple):
    """What the files of one finished run come to: steps, score, estimate with its discount, points of the curve."""

    steps: int
    score: float | None
    estimate: float | None
    discount: float | None
    measured: Series


def aggregate(runs: Mapping[int, OfSeed], how: Measured) -> Aggregate:
    """Aggregate finished runs, at least one, by seed. They have the same settings, except for the seed."""
    found = list(runs.values())
    scores, estimates = [one.score for one in found], [one.estimate for one in found]
    return Aggregate(
        seeds=list(runs),
        scores=scores,
        steps=[one.steps for one in found],
        unit=how.unit,
        score=intervals_of(scores),
        curve=curve_of([one.measured for one in found], how),
        estimates=estimates,
        estimate=intervals_of(estimates),
        discount=next((one.discount for one in found if one.discount is not None), None),
    )


def of_seed(metrics: Path, final: Mapping[str, Any], how: Measured) -> OfSeed:
    """Read the log of one finished run. ``final``: the evaluation at its end from eval.json; empty if there is none."""
    rows = read_metrics(metrics, READ)
    steps, score = int(rows[-1]["step"]) if rows else 0, None
    if final:
        score = float(final["score"]["mean"])
        steps = max(steps, int(final["updates" if "updates" in final else "env_steps"]))
    estimates, discounts = (series_of(rows, f"estimate/{name}")[1].tolist() for name in ("return", "discount"))
    measured = evaluation_scores(rows, how.period) if how.evaluates else training_scores(rows)
    return OfSeed(steps, score, (estimates or [None])[-1], (discounts or [None])[-1], measured)


def intervals_of(values: Sequence[float | None]) -> dict[str, IntervalEstimate]:
    """Return all :data:`MEASURES` of the values that are known, with intervals; none if no value is."""
    known = [value for value in values if value is not None]
    return {name: estimate_interval(measure, known, FINAL_RESAMPLES) for name, measure in MEASURES.items() if known}


def curve_of(measured: list[Series], how: Measured) -> Curve:
    """Return the learning curves of several seeds, from the scores of each."""
    same = how.evaluates and how.period is not None
    # A seed ended by stop_score keeps its last score; where steps are not fixed, the last ones are close to each other.
    steps = common_steps(measured, same=same, held=how.early or not same)
    scores = np.stack([np.interp(steps, *series) if len(steps) else steps for series in measured])
    measures = {
        name: [estimate_interval(measure, scores[:, k]) for k in range(len(steps))]
        for name, measure in MEASURES.items()
    }
    what: Literal["evaluation", "training"] = "evaluation" if how.evaluates else "training"
    return Curve(what=what, steps=steps, scores=scores, measured=measured, measures=measures)


def training_scores(rows: Sequence[Mapping[str, Any]]) -> Series:
    """Return the running mean over log entries, each with the mean score of the training episodes since the last."""
    steps, scores = series_of(rows, "episode/score")
    return steps, running_mean(scores)


def evaluation_scores(rows: Sequence[Mapping[str, Any]], period: float | None) -> Series:
    """Return the scores of the evaluations during training, at the multiples of ``period`` at which they were due.

    They took place after the turn of the loop that passed it, which differs between seeds. None: steps as they are.
    """
    steps, scores = series_of(evaluations_in(rows)[0], "eval/score")
    if period is None:
        return steps, scores
    due, first = np.unique(steps // period * period, return_index=True)
    return due[due > 0], scores[first[due > 0]]  # none is due at step 0: it was due at a shorter period


def common_steps(measured: Sequence[Series], *, same: bool, held: bool) -> np.ndarray:
    """Return the steps ``[K]`` at which all seeds can be compared; none if a seed has no score.

    ``same``: the seeds were measured at the same steps, as far as each of them came. Otherwise the steps are spaced
    evenly, for interpolation. ``held``: the steps reach beyond the last score of shorter seeds, which keep that score.
    """
    if not all(len(steps) for steps, _ in measured):
        return np.zeros(0)
    furthest = (max if held else min)(steps[-1] for steps, _ in measured)
    if same:
        union = sorted({step for steps, _ in measured for step in steps if step <= furthest})
        return np.array([x for x in union if all(x in steps or x > steps[-1] for steps, _ in measured)], float)
    first, last = max(steps[0] for steps, _ in measured), furthest
    return np.unique(np.round(np.linspace(first, last, min(MOST_POINTS, max(len(steps) for steps, _ in measured)))))


def write_aggregate(path: Path, found: Aggregate | None, head: Mapping[str, Any]) -> None:
    """Write aggregate.json: ``head``, and the aggregate if a seed has finished. Unknown values are null."""
    values = dict(head)
    if found is not None:
        curve, seeds = found.curve, [str(seed) for seed in found.seeds]
        values |= {"unit": found.unit, "confidence": CONFIDENCE}
        values["score"] = {name: plain(e._asdict()) for name, e in found.score.items()}
        if found.estimate:
            of_seeds = dict(zip(seeds, found.estimates, strict=True))
            measures = {name: plain(e._asdict()) for name, e in found.estimate.items()}
            values["estimate"] = {**measures, "seeds": of_seeds, "discount": found.discount}
        values["curve"] = {
            "of": curve.what,
            "steps": curve.steps.astype(int).tolist(),
            "seeds": dict(zip(seeds, curve.scores.tolist(), strict=True)),
        }
        for name, estimates in curve.measures.items():
            rows = [plain(found._asdict()) for found in estimates]
            values["curve"][name] = {field: [row[field] for row in rows] for field in IntervalEstimate._fields}
    write_json(path, values)


def plain(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return ``values`` for JSON, which has no NaN: None in place of numbers that are not finite."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def table(found: Aggregate) -> str:
    """Format the scores of all seeds and their aggregate as a table for the terminal; estimates if there are none."""
    what, values, measures = "score", found.scores, found.score
    if found.estimate and not found.score:
        what, values, measures = "estimate", found.estimates, found.estimate
    lines = [f"{'seed':>6}{what:>12}{found.unit:>14}"]
    for seed, value, steps in zip(found.seeds, values, found.steps, strict=True):
        lines.append(f"{seed:>6}{'-' if value is None else f'{value:.2f}':>12}{steps:>14,}")
    if measures:
        seeds = plural(sum(value is not None for value in values), "seed")
        lines += ["", f"{'':>6}{what:>12}   95 % interval over {seeds}"]
    for name, measured in measures.items():
        ends = f"{measured.low:.2f} to {measured.high:.2f}" if measured.sure else "too few seeds"
        lines.append(f"{'IQM' if name == 'iqm' else name:>6}{measured.value:>12.2f}   {ends}")
    if not found.score:
        lines += ["", "no scores: the seeds had no final evaluation (--eval-episodes 0, or --env none)"]
    if what == "estimate":
        lines.append("an estimate is the discounted return that fitted Q evaluation expects of the policy")
    return "\n".join(lines)


# ---------------------------------------------------------------- comparison of settings


@dataclass(frozen=True)
class Contender:
    """One setting: its name, and the scores ``[R]`` of its R seeds, or the returns estimated for them."""

    name: str
    """Folder of its runs, or the run, or the pattern of them, as it was given."""
    measured: str
    """What can be compared: the environment, or for estimates the data and the discount."""
    scores: np.ndarray
    curve: Interval
    """Steps ``[K]``, IQM over the seeds ``[K]``, and lower and upper end of its interval ``[K]``, NaN where unknown."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Settings side by side; as text, tables of their scores and of the probabilities."""

    contenders: list[Contender]
    """In the order given."""
    better: dict[tuple[str, str], IntervalEstimate]
    """Probability that a seed of the first has a better score than a seed of the second, by their names."""
    figure: Path | None = None
    """PNG file of the learning curves, if one was asked for and there are any."""

    def __str__(self) -> str:
        parts = []
        for measured in dict.fromkeys(contender.measured for contender in self.contenders):
            group = [contender for contender in self.contenders if contender.measured == measured]
            width = max(len(measured) - 2, *(len(contender.name) for contender in group))
            lines = [f"{measured:<{width + 2}}{'seeds':>7}{'mean':>11}{'median':>11}{'IQM':>11}   95 % interval"]
            lines += [f"  {contender.name:<{width}}{row(contender.scores)}" for contender in group]
            if len(group) > 1:
                lines += ["", "Probability that a seed of the first has a better score than a seed of the second:"]
            for one, other in itertools.combinations([contender.name for contender in group], 2):
                found = self.better[one, other]
                ends = f"95 % {found.low:.2f} to {found.high:.2f}" if found.sure else "too few seeds for an interval"
                lines.append(f"  {found.value:.2f} ({ends})  {one} over {other}")
            parts.append("\n".join(lines))
        return "\n\n".join(parts)


def improvements(contenders: Sequence[Contender]) -> dict[tuple[str, str], IntervalEstimate]:
    """Return the probability of improvement of each of the contenders over each later one of the same measure."""
    found = {}
    for one, other in itertools.combinations(contenders, 2):
        if one.measured == other.measured:
            value = float(probability_of_improvement(one.scores, other.scores))
            ends = interval(probability_of_improvement, one.scores, other.scores, resamples=FINAL_RESAMPLES)
            found[one.name, other.name] = IntervalEstimate(value, *map(float, ends))
    return found


def row(scores: np.ndarray) -> str:
    """Return the cells of one table row: number of scores, mean, median, and IQM with its interval."""
    middle = estimate_interval(iqm, scores, FINAL_RESAMPLES)
    ends = f"{middle.low:.2f} to {middle.high:.2f}" if middle.sure else "too few seeds"
    return f"{len(scores):>7}{mean(scores):>11.2f}{median(scores):>11.2f}{middle.value:>11.2f}   {ends}"

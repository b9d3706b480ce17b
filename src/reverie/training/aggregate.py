"""Aggregate several seeds of one experiment: final scores and learning curves, with confidence intervals across seeds.

The score of a seed is the mean return of the final evaluation of its run, whose episodes influenced nothing. Its
curve holds the evaluations during training or, if there were none, a running mean over log entries of training scores.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from reverie.core.statistics import (
    CONFIDENCE,
    FINAL_RESAMPLES,
    Interval,
    IntervalEstimate,
    Measure,
    Series,
    estimate,
    iqm,
    mean,
    median,
    running_mean,
)
from reverie.core.words import plural
from reverie.experiment import ExperimentConfig
from reverie.folder import RunFolder, found_at_end, write_json
from reverie.log.sinks import FINAL, evaluations_in, read_metrics, series_of
from reverie.run.schedule import parse_period

MEASURES: dict[str, Measure] = {"iqm": iqm, "mean": mean, "median": median}
READ = ("episode/score", "eval/score", FINAL, "estimate/return", "estimate/discount")
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
    """The seeds that have finished."""
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
    """Return of each seed's policy as fitted Q evaluation estimates it, discounted; None if its run estimated none."""
    estimate: dict[str, IntervalEstimate]
    """IQM, mean and median over the seeds that have an estimate; empty if none has."""
    discount: float | None = None
    """Discount factor of the estimates; None if there are none."""

    def final(self) -> Interval:
        """Return the steps of the longest run, the IQM of the scores and its interval: ``[1]`` each, or ``[0]``."""
        shown = [(max(self.steps), *self.score["iqm"])] if self.score else []
        steps, middle, low, high = np.array(shown, float).reshape(-1, 4).T
        return steps, middle, low, high


def aggregate(runs: Mapping[int, RunFolder], config: ExperimentConfig) -> Aggregate:
    """Aggregate finished runs, at least one, by seed. Their settings are those of ``config``, except for the seed."""
    found = [result_of(folder, config) for folder in runs.values()]
    scores, estimates = [one.score for one in found], [one.estimate for one in found]
    return Aggregate(
        seeds=list(runs),
        scores=scores,
        steps=[one.steps for one in found],
        unit=unit_of(config),
        score=intervals_of(scores),
        curve=curve_of([one.measured for one in found], config),
        estimates=estimates,
        estimate=intervals_of(estimates),
        discount=next((one.discount for one in found if one.discount is not None), None),
    )


@dataclass(frozen=True, kw_only=True)
class Result:
    """What the log of one seed comes to, without its rows: they need far more memory."""

    steps: int
    score: float | None
    estimate: float | None
    discount: float | None
    """Of the estimate."""
    measured: Series
    """See ``Curve``."""


def result_of(folder: RunFolder, config: ExperimentConfig) -> Result:
    """Read the log of one finished run."""
    rows = read_metrics(folder.metrics, READ)
    steps, score = final_score(folder, rows)
    estimated, discount = (last_of(rows, f"estimate/{name}") for name in ("return", "discount"))
    return Result(steps=steps, score=score, estimate=estimated, discount=discount, measured=scores_of(rows, config))


def intervals_of(values: Sequence[float | None]) -> dict[str, IntervalEstimate]:
    """Return all :data:`MEASURES` of the values that are known, with intervals; none if no value is."""
    known = [value for value in values if value is not None]
    return {name: estimate(measure, known, FINAL_RESAMPLES) for name, measure in MEASURES.items() if known}


def last_of(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the last value of a metric; None if there is none."""
    found = series_of(rows, name)[1]
    return float(found[-1]) if len(found) else None


def unit_of(config: ExperimentConfig) -> str:
    """Return the unit in which the length of a run is counted."""
    return "updates" if config.data.alone else "env steps"


def final_score(folder: RunFolder, rows: Sequence[Mapping[str, Any]]) -> tuple[int, float | None]:
    """Return how many steps a run took, and the mean return of its final evaluation (None if it had none).

    The score is that of eval.json, even if a later ``reverie eval`` of a checkpoint has overwritten that file. Without
    that file it is the last one in the log that is not marked as one during training.
    """
    steps = int(rows[-1]["step"]) if rows else 0
    own, score = found_at_end(folder.evaluation) or {}, None
    with contextlib.suppress(ValueError, KeyError, TypeError):
        score = float(own["score"]["mean"])
        steps = max(steps, int(own["updates" if "updates" in own else "env_steps"]))
    if score is not None:
        return steps, score
    scores = series_of([row for row in rows if row.get(FINAL) != 0], "eval/score")[1]
    return steps, float(scores[-1]) if len(scores) else None


def source_of(config: ExperimentConfig) -> Literal["evaluation", "training"]:
    """Return the source of the scores of a curve, see ``Curve.what``."""
    return "evaluation" if config.evaluates_on_the_way else "training"


def scores_of(rows: Sequence[Mapping[str, Any]], config: ExperimentConfig) -> Series:
    """Return the scores of one seed's curve, from the rows of its metrics."""
    if source_of(config) == "training":
        return training_scores(rows)
    period, is_seconds = parse_period(config.schedule.eval_every)
    return evaluation_scores(rows, None if is_seconds else period)


def curve_of(measured: list[Series], config: ExperimentConfig) -> Curve:
    """Return the learning curves of several seeds, from the scores of each."""
    what, (_, is_seconds) = source_of(config), parse_period(config.schedule.eval_every)
    same = what == "evaluation" and not is_seconds
    # A seed ended by stop_score keeps its last score. Where evaluations are not due at fixed steps, the last entries of
    # the logs are close to each other.
    steps = common_steps(measured, same=same, held=config.stop_score is not None or not same)
    scores = np.stack([np.interp(steps, *series) if len(steps) else steps for series in measured])
    measures = {
        name: [estimate(measure, scores[:, k]) for k in range(len(steps))] for name, measure in MEASURES.items()
    }
    return Curve(what=what, steps=steps, scores=scores, measured=measured, measures=measures)


def training_scores(rows: Sequence[Mapping[str, Any]]) -> Series:
    """Return the running mean over log entries, each with the mean score of the training episodes since the last."""
    steps, scores = series_of(rows, "episode/score")
    return steps, running_mean(scores)


def evaluation_scores(rows: Sequence[Mapping[str, Any]], period: float | None) -> Series:
    """Return the scores of the evaluations during training.

    An evaluation that is due every ``period`` steps takes place after the first turn of the loop that passes the
    multiple of ``period``; turns differ between seeds, so it is recorded at that multiple, and a second one there is
    left out: in logs of earlier versions, where no evaluation is marked, it is the final one. ``period`` None: steps as
    they are.
    """
    steps, scores = series_of(evaluations_in(rows)[0], "eval/score")
    if period is None:
        return steps, scores
    points: dict[float, float] = {}
    for step, score in zip(steps // period * period, scores, strict=True):
        points.setdefault(float(step), float(score))
    points.pop(0.0, None)  # none is due at step 0: this is an unmarked final one, or due at a shorter period
    return np.array(list(points), float), np.array(list(points.values()), float)


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
            values["estimate"] = {name: plain(e._asdict()) for name, e in found.estimate.items()} | {"seeds": of_seeds}
            values["estimate"]["discount"] = found.discount
        values["curve"] = {
            "of": curve.what,
            "steps": curve.steps.astype(int).tolist(),
            "seeds": dict(zip(seeds, curve.scores.tolist(), strict=True)),
            **{name: columns(estimates) for name, estimates in curve.measures.items()},
        }
    write_json(path, values)


def columns(estimates: Sequence[IntervalEstimate]) -> dict[str, list[float | None]]:
    """Return estimates as one list for each of their fields."""
    rows = [plain(found._asdict()) for found in estimates]
    return {name: [row[name] for row in rows] for name in IntervalEstimate._fields}


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
        lines += ["", "no scores: the seeds had no final evaluation (--eval-episodes 0, or --eval-env none)"]
    if what == "estimate":
        lines.append("an estimate is the discounted return that fitted Q evaluation expects of the policy")
    return "\n".join(lines)

"""What several seeds come to together: their scores and their curves, with intervals across seeds.

The score of a seed is the mean return of the evaluation at the end of its run, whose episodes decided nothing. Its
curve is what evaluations during training said or, if there were none, the running mean of training episodes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from reverie.core.statistics import CONFIDENCE, Estimate, Measure, estimate, iqm, mean, median, running_mean
from reverie.experiment import ExperimentConfig
from reverie.folder import RunFolder, found_at_end, write_json
from reverie.log.sinks import read_metrics
from reverie.run.schedule import parse_period

MEASURES: dict[str, Measure] = {"iqm": iqm, "mean": mean, "median": median}
RESAMPLES = 50_000
"""Bootstrap samples for the scores at the end, as many as rliable takes; each point of a curve has fewer."""
MOST_POINTS = 100
"""Points of a curve whose seeds were not measured at the same steps."""

Series = tuple[np.ndarray, np.ndarray]
"""Steps ``[K]`` and scores ``[K]``."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """How S seeds learned, at K steps that they have in common."""

    what: Literal["evaluation", "training"]
    """Whether scores are of evaluations or of training episodes."""
    steps: np.ndarray
    """``[K]``: env steps, or updates where nothing is lived."""
    scores: np.ndarray
    """``[S, K]``. A seed that ended earlier than others, since it was good enough, keeps its last score."""
    measured: list[Series]
    """What was measured of each seed, where it was."""
    measures: dict[str, list[Estimate]]
    """K estimates of each of :data:`MEASURES`."""

    def interval(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Steps, interquartile mean, and the ends of its interval: ``[K]`` each."""
        middle = np.array(self.measures["iqm"], float).reshape(-1, 3)
        return self.steps, middle[:, 0], middle[:, 1], middle[:, 2]


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """Scores and curves of the seeds that have finished."""

    seeds: list[int]
    """Which."""
    scores: list[float | None]
    """Of each seed; None if its run ended without an evaluation."""
    steps: list[int]
    """How far each came."""
    unit: str
    """What steps are: env steps or updates."""
    score: dict[str, Estimate]
    """IQM, mean and median over the seeds that have a score; empty if none has."""
    curve: Curve

    def final(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Steps of the longest run, interquartile mean and its interval: ``[1]`` each, or ``[0]``."""
        shown = [(max(self.steps), *self.score["iqm"])] if self.score else []
        steps, middle, low, high = np.array(shown, float).reshape(-1, 4).T
        return steps, middle, low, high


def aggregate(runs: Mapping[int, RunFolder], config: ExperimentConfig) -> Aggregate:
    """What the finished runs of these seeds come to; at least one. Their settings are ``config``, but for the seed."""
    metrics = {seed: read_metrics(folder.metrics) for seed, folder in runs.items()}
    ends = [final_score(folder, metrics[seed]) for seed, folder in runs.items()]
    scores = [score for _, score in ends if score is not None]
    return Aggregate(
        seeds=list(runs),
        scores=[score for _, score in ends],
        steps=[steps for steps, _ in ends],
        unit=unit_of(config),
        score={name: estimate(measure, scores, RESAMPLES) for name, measure in MEASURES.items() if scores},
        curve=curve_of(list(metrics.values()), config),
    )


def unit_of(config: ExperimentConfig) -> str:
    """What the steps of a run are."""
    return "updates" if config.data.alone else "env steps"


def final_score(folder: RunFolder, rows: Sequence[Mapping[str, Any]]) -> tuple[int, float | None]:
    """How many steps a run took, and the mean return of the evaluation at its end.

    eval.json says so, also if a later ``reverie eval`` of some checkpoint has written it.
    """
    steps = int(rows[-1]["step"]) if rows else 0
    own, score = found_at_end(folder.evaluation) or {}, None
    with contextlib.suppress(ValueError, KeyError, TypeError):
        score = float(own["score"]["mean"])
        steps = max(steps, int(own["updates" if "updates" in own else "env_steps"]))
    if score is not None:
        return steps, score
    scores = series_of(rows, "eval/score")[1]
    return steps, float(scores[-1]) if len(scores) else None


def curve_of(metrics: Sequence[Sequence[Mapping[str, Any]]], config: ExperimentConfig) -> Curve:
    """The curves of seeds from the rows of their metrics."""
    what: Literal["evaluation", "training"] = "evaluation" if config.evaluates_on_the_way else "training"
    period, is_seconds = parse_period(config.schedule.eval_every)
    if what == "training":
        measured = [training_scores(rows) for rows in metrics]
    else:
        measured = [evaluation_scores(rows, None if is_seconds else period) for rows in metrics]
    same = what == "evaluation" and not is_seconds
    # A seed that a score has ended keeps it. Without steps of evaluations, the last entries of a log are not far apart.
    steps = common_steps(measured, same=same, held=config.stop_score is not None or not same)
    scores = np.stack([np.interp(steps, *series) if len(steps) else steps for series in measured])
    measures = {
        name: [estimate(measure, scores[:, k]) for k in range(len(steps))] for name, measure in MEASURES.items()
    }
    return Curve(what=what, steps=steps, scores=scores, measured=measured, measures=measures)


def training_scores(rows: Sequence[Mapping[str, Any]]) -> Series:
    """Running mean of the scores of training episodes."""
    steps, scores = series_of(rows, "episode/score")
    return steps, running_mean(scores)


def evaluation_scores(rows: Sequence[Mapping[str, Any]], period: float | None) -> Series:
    """Scores of the evaluations during training.

    One that is due every ``period`` steps comes with the first turn in which so many have passed; it is said to be
    at the multiple that it is for, as turns differ from seed to seed. So the one at the end, which may have the same
    steps but comes later, is told apart.
    """
    steps, scores = series_of(rows, "eval/score")
    if period is None:
        return steps, scores
    points: dict[float, float] = {}
    for step, score in zip(steps // period * period, scores, strict=True):
        points.setdefault(float(step), float(score))
    points.pop(0.0, None)  # none is due at the beginning: a run that was shorter than the period
    return np.array(list(points), float), np.array(list(points.values()), float)


def series_of(rows: Sequence[Mapping[str, Any]], name: str) -> Series:
    """Steps and values of what is called ``name``, where it is finite."""
    points = [(row["step"], row[name]) for row in rows if math.isfinite(row.get(name, math.nan))]
    steps, values = np.array(points, float).reshape(-1, 2).T
    return steps, values


def common_steps(measured: Sequence[Series], *, same: bool, held: bool) -> np.ndarray:
    """Steps ``[K]`` at which all seeds can be looked at; none if one of them has no score.

    ``same``: they were measured at the same steps, as far as each of them came. Otherwise steps are laid out evenly, to
    be interpolated at. ``held``: they are looked at beyond their last score as well, which stays what it is.
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
    """Write aggregate.json: ``head``, and what was found if a seed has finished. What is not known is null."""
    values = dict(head)
    if found is not None:
        curve, seeds = found.curve, [str(seed) for seed in found.seeds]
        values |= {"unit": found.unit, "confidence": CONFIDENCE}
        values["score"] = {name: plain(e._asdict()) for name, e in found.score.items()}
        values["curve"] = {
            "of": curve.what,
            "steps": curve.steps.astype(int).tolist(),
            "seeds": dict(zip(seeds, curve.scores.tolist(), strict=True)),
            **{name: columns(estimates) for name, estimates in curve.measures.items()},
        }
    write_json(path, values)


def columns(estimates: Sequence[Estimate]) -> dict[str, list[float | None]]:
    """Estimates as a list of each of their parts."""
    rows = [plain(found._asdict()) for found in estimates]
    return {name: [row[name] for row in rows] for name in Estimate._fields}


def plain(values: Mapping[str, float]) -> dict[str, float | None]:
    """``values`` for a file of JSON, which has no NaN."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def table(found: Aggregate) -> str:
    """The scores of all seeds and what they come to, for people."""
    lines = [f"{'seed':>6}{'score':>12}{found.unit:>14}"]
    for seed, score, steps in zip(found.seeds, found.scores, found.steps, strict=True):
        lines.append(f"{seed:>6}{'-' if score is None else f'{score:.2f}':>12}{steps:>14,}")
    if not found.score:
        return "\n".join(
            [*lines, "", "no scores: there was no evaluation at their ends (--eval-episodes 0, or --eval-env none)"]
        )
    lines += ["", f"{'':>6}{'score':>12}   95 % interval over {sum(s is not None for s in found.scores)} seeds"]
    for name, value in found.score.items():
        ends = f"{value.low:.2f} to {value.high:.2f}" if value.sure else "too few for one"
        lines.append(f"{'IQM' if name == 'iqm' else name:>6}{value.value:>12.2f}   {ends}")
    return "\n".join(lines)

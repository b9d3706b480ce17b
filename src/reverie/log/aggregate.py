"""Aggregate several seeds of one experiment, with confidence intervals across seeds, and compare settings.

The score of a seed is the mean return of the final evaluation of its run. Its curve holds the evaluations during
training or, if there were none, a running mean over log entries of training scores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from reverie.core.errors import count_noun
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
from reverie.log.jsonl import metric_series, read_metrics, split_evaluations

AGGREGATES: dict[str, Measure] = {"iqm": iqm, "mean": mean, "median": median}
READ_METRICS = ("episode/score", "eval/score", "eval/final", "estimate/return", "estimate/discount")
"""Metrics read from the logs."""
SINGLE_SEEDS = (
    "A probability of improvement needs two seeds of each setting: its folder, or a pattern in quotes such as "
    "'runs/sac-*'."
)
MAX_POINTS = 100
"""Maximum points of a curve whose seeds were not measured at the same steps."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Learning curves of S seeds, at K steps that all seeds have in common."""

    source: Literal["evaluation", "training"]
    """Source of the scores: evaluations, or training episodes."""
    steps: np.ndarray
    """``[K]``: env steps, or updates in an offline run."""
    scores: np.ndarray
    """``[S, K]``. A seed that ended early because it reached ``stop_score`` keeps its last score."""
    points: list[Series]
    """Measured points of each seed, before they are put on common steps."""

    def estimates(self, name: str) -> list[IntervalEstimate]:
        """Return one of :data:`AGGREGATES` over the seeds, with its interval, at the K steps."""
        return [estimate_interval(AGGREGATES[name], scores) for scores in self.scores.T]

    def interval(self) -> Interval:
        """Return steps, interquartile mean (IQM), and lower and upper end of its interval: ``[K]`` each."""
        middle = np.array(self.estimates("iqm"), float).reshape(-1, 3)
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


class MeasurementSettings(NamedTuple):
    """How the runs of all seeds are measured."""

    unit: str  # of their length: "env steps" or "updates"
    evaluates: bool  # whether there are evaluations during training
    period: float | None  # steps between two evaluations; None if they are due at times
    early: bool  # whether a score can end a run early


class SeedSummary(NamedTuple):
    """Summary of one finished run: steps, score, estimate with its discount, points of the curve."""

    steps: int
    score: float | None
    estimate: float | None
    discount: float | None
    points: Series


def aggregate(runs: Mapping[int, SeedSummary], settings: MeasurementSettings) -> Aggregate:
    """Aggregate finished runs, at least one, by seed. They have the same settings, except for the seed."""
    summaries = list(runs.values())
    scores, estimates = [seed.score for seed in summaries], [seed.estimate for seed in summaries]
    return Aggregate(
        seeds=list(runs),
        scores=scores,
        steps=[seed.steps for seed in summaries],
        unit=settings.unit,
        score=aggregate_intervals(scores),
        curve=seeds_curve_data([seed.points for seed in summaries], settings),
        estimates=estimates,
        estimate=aggregate_intervals(estimates),
        discount=next((seed.discount for seed in summaries if seed.discount is not None), None),
    )


def summarize_seed(metrics: Path, final: Mapping[str, Any], settings: MeasurementSettings) -> SeedSummary:
    """Read the log of one finished run. ``final``: the evaluation at its end from eval.json; empty if there is none."""
    rows = read_metrics(metrics, READ_METRICS)
    steps, score = int(rows[-1]["step"]) if rows else 0, None
    if final:
        score = float(final["score"]["mean"])
        steps = max(steps, int(final["updates" if "updates" in final else "env_steps"]))
    estimates, discounts = (metric_series(rows, f"estimate/{name}")[1].tolist() for name in ("return", "discount"))
    points = evaluation_scores(rows, settings.period) if settings.evaluates else _training_scores(rows)
    return SeedSummary(steps, score, (estimates or [None])[-1], (discounts or [None])[-1], points)


def aggregate_intervals(values: Sequence[float | None]) -> dict[str, IntervalEstimate]:
    """Return all :data:`AGGREGATES` of the values that are not None, with intervals; empty if all are None."""
    numbers = [value for value in values if value is not None]
    return {
        name: estimate_interval(measure, numbers, FINAL_RESAMPLES) for name, measure in AGGREGATES.items() if numbers
    }


def seeds_curve_data(points: list[Series], settings: MeasurementSettings) -> Curve:
    """Return the learning curves of several seeds, from the scores of each."""
    same = settings.evaluates and settings.period is not None
    # A seed ended by stop_score keeps its last score; where steps are not fixed, the last ones are close to each other.
    steps = _common_steps(points, same=same, extend_last=settings.early or not same)
    scores = np.stack([np.interp(steps, *series) if len(steps) else steps for series in points])
    source: Literal["evaluation", "training"] = "evaluation" if settings.evaluates else "training"
    return Curve(source=source, steps=steps, scores=scores, points=points)


def _training_scores(rows: Sequence[Mapping[str, Any]]) -> Series:
    """Return the running mean over log entries, each with the mean score of the training episodes since the last."""
    steps, scores = metric_series(rows, "episode/score")
    return steps, running_mean(scores)


def evaluation_scores(rows: Sequence[Mapping[str, Any]], period: float | None) -> Series:
    """Return the scores of the evaluations during training, at the multiples of ``period`` at which they were due.

    They took place after the turn of the loop that passed it, which differs between seeds. None: steps as they are.
    """
    steps, scores = metric_series(split_evaluations(rows)[0], "eval/score")
    if period is None:
        return steps, scores
    due, first = np.unique(steps // period * period, return_index=True)
    return due[due > 0], scores[first[due > 0]]  # no evaluation is due at step 0: it was due at a shorter period


def _common_steps(points: Sequence[Series], *, same: bool, extend_last: bool) -> np.ndarray:
    """Return the steps ``[K]`` at which all seeds can be compared; none if a seed has no score.

    ``same``: the seeds were measured at the same steps, up to the last step of each. Otherwise the steps are spaced
    evenly, for interpolation. ``extend_last``: the steps reach beyond the last score of shorter seeds, which keep it.
    """
    if not all(len(steps) for steps, _ in points):
        return np.zeros(0)
    furthest = (max if extend_last else min)(steps[-1] for steps, _ in points)
    if same:
        union = sorted({step for steps, _ in points for step in steps if step <= furthest})
        return np.array([x for x in union if all(x in steps or x > steps[-1] for steps, _ in points)], float)
    first, last = max(steps[0] for steps, _ in points), furthest
    spaced = np.linspace(first, last, min(MAX_POINTS, max(len(steps) for steps, _ in points)))
    is_whole = all(np.array_equal(steps, np.round(steps)) for steps, _ in points)  # not where they are seconds
    return np.unique(np.round(spaced) if is_whole else spaced)


def write_aggregate(path: Path, aggregate: Aggregate | None, head: Mapping[str, Any]) -> None:
    """Write aggregate.json: ``head``, and the aggregate if a seed has finished. Unknown values are null."""
    values = dict(head)
    if aggregate is not None:
        curve, seeds = aggregate.curve, [str(seed) for seed in aggregate.seeds]
        values |= {"unit": aggregate.unit, "confidence": CONFIDENCE}
        values["score"] = {name: nan_to_none(e._asdict()) for name, e in aggregate.score.items()}
        if aggregate.estimate:
            of_seeds = dict(zip(seeds, aggregate.estimates, strict=True))
            measures = {name: nan_to_none(e._asdict()) for name, e in aggregate.estimate.items()}
            values["estimate"] = {**measures, "seeds": of_seeds, "discount": aggregate.discount}
        values["curve"] = {
            "of": curve.source,
            "steps": curve.steps.astype(int).tolist(),
            "seeds": dict(zip(seeds, curve.scores.tolist(), strict=True)),
        }
        for name in AGGREGATES:
            rows = [nan_to_none(entry._asdict()) for entry in curve.estimates(name)]
            values["curve"][name] = {field: [row[field] for row in rows] for field in IntervalEstimate._fields}
    write_json(path, values)


def nan_to_none(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return ``values`` for JSON, which has no NaN: None instead of numbers that are not finite."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def format_seeds_table(aggregate: Aggregate) -> str:
    """Format the scores of all seeds and their aggregate as a table for the terminal; estimates if there are none."""
    label, values, measures = "score", aggregate.scores, aggregate.score
    if aggregate.estimate and not aggregate.score:
        label, values, measures = "estimate", aggregate.estimates, aggregate.estimate
    lines = [f"{'seed':>6}{label:>12}{aggregate.unit:>14}"]
    for seed, value, steps in zip(aggregate.seeds, values, aggregate.steps, strict=True):
        lines.append(f"{seed:>6}{'-' if value is None else f'{value:.2f}':>12}{steps:>14,}")
    if measures:
        seeds = count_noun(sum(value is not None for value in values), "seed")
        lines += ["", f"{'':>6}{label:>12}   95 % interval over {seeds}"]
    for name, measured in measures.items():
        ends = f"{measured.low:.2f} to {measured.high:.2f}" if measured.has_interval else "too few seeds"
        lines.append(f"{'IQM' if name == 'iqm' else name:>6}{measured.value:>12.2f}   {ends}")
    if not aggregate.score:
        lines += ["", "no scores: the seeds had no final evaluation (--eval-episodes 0, or --env none)"]
    if label == "estimate":
        lines.append("an estimate is the discounted return that fitted Q evaluation expects of the policy")
    return "\n".join(lines)


# ---------------------------------------------------------------- comparison of settings


@dataclass(frozen=True)
class ComparedSetting:
    """One setting: its name, and the scores ``[R]`` of its R seeds, or the returns estimated for them.

    Over M environments: normalized scores ``[R, M]``.
    """

    name: str
    """Folder of its runs, or the run, or the pattern that matches them, as passed by the caller."""
    algorithm: str
    comparison_key: str
    """What can be compared: the environment, or for estimates the data and the discount."""
    scores: np.ndarray
    curve: Curve
    unit: str
    """Unit of the steps: "env steps" or "updates"."""
    steps: int
    """Steps after which the scores were measured, of the longest run."""
    is_final: bool
    """Whether the scores are evaluations at the end of training."""
    episode_scores: tuple[float, ...] = ()
    """Scores of the episodes at the end of training, if there is a single seed and they are known."""
    label: str = ""
    """Name for people, which settings in several environments share; "": ``name``."""
    runs: tuple[Path, ...] = ()
    """Folders of the seeds, in the order of the curve's points."""

    @property
    def title(self) -> str:
        """Its label, or else its name."""
        return self.label or self.name

    def iqm(self) -> IntervalEstimate:
        """Return the interquartile mean (IQM) of the scores with its interval over the seeds."""
        return estimate_interval(iqm, self.scores, FINAL_RESAMPLES)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Settings side by side; as text, tables of their scores and of the probabilities."""

    settings: list[ComparedSetting]
    """In the order given."""
    probability_of_improvement: dict[tuple[str, str], IntervalEstimate]
    """Probability that a seed of the first has a better score than a seed of the second, by their names.

    NaN where a setting has a single seed.
    """
    figure: Path | None = None
    """File of the learning curves, if requested and if there are any."""
    normalized: list[ComparedSetting] = field(default_factory=list)
    """Normalized scores of each label in all environments; none without references."""

    @property
    def groups(self) -> dict[str, list[ComparedSetting]]:
        """What is compared with each other: the settings in each environment, and the normalized scores over all."""
        groups: dict[str, list[ComparedSetting]] = {}
        for setting in (*self.settings, *self.normalized):
            groups.setdefault(setting.comparison_key, []).append(setting)
        return groups

    def __str__(self) -> str:
        parts = []
        for key, group in self.groups.items():
            width = max(len(key) - 2, *(len(setting.title) for setting in group))
            units = {setting.unit for setting in group}
            head = f"{'seeds':>7}{units.pop() if len(units) == 1 else 'steps':>11}{'mean':>9}{'median':>10}{'IQM':>10}"
            lines = [f"{key:<{width + 2}}{head}   95 % interval"]
            lines += [f"  {setting.title:<{width}}{_format_score_cells(setting)}" for setting in group]
            if (fewest := smaller_budget(group)) is not None:
                lines += ["", f"The budgets differ: at = {fewest} (--at {fewest}) compares all after {fewest:,} steps."]
            parts.append("\n".join([*lines, *self._format_improvements(group)]))
        return "\n\n".join(parts)

    def _format_improvements(self, group: Sequence[ComparedSetting]) -> list[str]:
        """Return the lines of the probabilities of improvement in a group; pairs with a single seed have none."""
        lines = []
        for first, second in itertools.combinations((setting for setting in group if len(setting.scores) > 1), 2):
            chance = self.probability_of_improvement[first.name, second.name]
            ends = f"95 % {chance.low:.2f} to {chance.high:.2f}" if chance.has_interval else "too few seeds"
            lines.append(f"  {chance.value:.2f} ({ends})  {first.title} over {second.title}")
        if lines:
            return ["", "Probability that a seed of the first scores better than a seed of the second:", *lines]
        return ["", SINGLE_SEEDS] if len(group) > 1 else []


def smaller_budget(settings: Sequence[ComparedSetting]) -> int | None:
    """Return the fewest steps after which one of the ``settings`` was measured; None if others are equal or unlike."""
    fewest, most = (end(setting.steps for setting in settings) for end in (min, max))
    is_same_unit = len({setting.unit for setting in settings}) == 1
    return fewest if is_same_unit and fewest < 0.95 * most else None  # a turn of the loop may pass the planned end


def improvements(settings: Sequence[ComparedSetting]) -> dict[tuple[str, str], IntervalEstimate]:
    """Return the probability of improvement of each setting over each later setting with the same comparison key."""
    pairs = [(a, b) for a, b in itertools.combinations(settings, 2) if a.comparison_key == b.comparison_key]
    return {(a.name, b.name): estimate_improvement(a.scores, b.scores) for a, b in pairs}


def estimate_improvement(first: np.ndarray, second: np.ndarray) -> IntervalEstimate:
    """Return the probability that a seed of the first has the better score; NaN with fewer than two seeds of each."""
    if min(len(first), len(second)) < 2:
        return IntervalEstimate(math.nan, math.nan, math.nan)
    ends = interval(probability_of_improvement, first, second, resamples=FINAL_RESAMPLES)
    return IntervalEstimate(float(probability_of_improvement(first, second)), *map(float, ends))


def normalize_scores(
    settings: Sequence[ComparedSetting], references: Mapping[str, tuple[float, float]], warn: Callable[[str], object]
) -> list[ComparedSetting]:
    """Return the normalized scores of each label over all environments; a label without some of them is left out.

    ``references``: for each environment the scores that become 0 and 1.
    """
    normalized = []
    for title in dict.fromkeys(setting.title for setting in settings):
        members = {setting.comparison_key: setting for setting in settings if setting.title == title}
        if missing := references.keys() - members.keys():
            warn(f"{title}: left out of the normalized scores, since it has none in {', '.join(sorted(missing))}")
            continue
        rows = min(len(setting.scores) for setting in members.values())
        if any(len(setting.scores) > rows for setting in members.values()):
            warn(f"{title}: the first {count_noun(rows, 'seed')} of each environment count in the normalized scores")
        columns = [(members[env].scores[:rows] - low) / (high - low) for env, (low, high) in references.items()]
        steps = max(setting.steps for setting in members.values())
        first = next(iter(members.values()))
        changes: dict[str, Any] = {"name": f"{title}, normalized", "label": title, "comparison_key": "all, normalized"}
        normalized.append(replace(first, **changes, scores=np.stack(columns, 1), steps=steps, episode_scores=()))
    return normalized


def _format_score_cells(setting: ComparedSetting) -> str:
    """Return the cells of one table row: numbers of scores and steps, mean, median, and IQM with its interval."""
    scores, middle = setting.scores, setting.iqm()
    ends = f"{middle.low:.2f} to {middle.high:.2f}" if middle.has_interval else "too few seeds"
    if setting.episode_scores and (episodes := estimate_interval(iqm, setting.episode_scores)).has_interval:
        ends = f"one seed; IQM of its {len(setting.episode_scores)} episodes {episodes.low:.2f} to {episodes.high:.2f}"
    numbers = f"{mean(scores):>9.2f}{median(scores):>10.2f}{middle.value:>10.2f}"
    return f"{len(scores):>7}{setting.steps:>11,}{numbers}   {ends}"

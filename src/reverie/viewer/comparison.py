"""Runs compared: runs with the same settings are seeds of one group."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reverie.core.errors import ReverieError, count_noun
from reverie.core.statistics import MIN_RUNS, IntervalEstimate, Series, mean
from reverie.distributed.compare import AXES, along_axis, measurement_settings, read_compared_setting
from reverie.log.aggregate import (
    ComparedSetting,
    MeasurementSettings,
    evaluation_scores,
    seeds_curve_data,
    smaller_budget,
)
from reverie.log.colors import assign_hues
from reverie.log.jsonl import FINAL, metric_series, read_metrics, split_evaluations
from reverie.log.trackers import flatten_settings
from reverie.run.folder import LEARNING_SETTINGS, RunFolder, SavedConfig, read_saved_config
from reverie.viewer.findings import format_number

METRICS = ("eval/score", "episode/score", "estimate/return")
"""Metrics whose curves are compared."""
BUDGETS = ("steps", "updates")
"""Settings for the length of a run: runs of another length are another group."""
MAX_POINTS, MAX_LABELS = 400, 3
"""Maximum points of a curve, and groups that a sentence names."""


class GroupKey(NamedTuple):
    """What the runs of a group have in common."""

    algorithm: str
    env: str
    settings: tuple[tuple[str, str], ...]
    """Settings that influence learning, and their values."""


class Group(NamedTuple):
    """Runs with the same settings."""

    key: GroupKey
    label: str
    """The algorithm, or what else distinguishes the group from others of the same algorithm and environment."""
    runs: dict[str, Path]
    saved: dict[Path, SavedConfig]
    score: ComparedSetting | None = None
    """Scores of the seeds as ``reverie compare`` reads them; None if there are none yet."""
    estimate: IntervalEstimate = IntervalEstimate(math.nan, math.nan, math.nan)
    """IQM of the scores, with its interval."""


def group_key(saved: SavedConfig) -> GroupKey:
    """Return what a run with these settings has in common with the others of its group."""
    settings = [
        item
        for item in flatten_settings(saved.experiment)
        if (item[0].startswith(LEARNING_SETTINGS) and item[0] != "replay.store_path") or item[0] in BUDGETS
    ]
    return GroupKey(saved.algorithm, saved.env, tuple(settings))


def compare_settings(runs: Mapping[str, Path], axis: str = "steps", same_budget: bool = False) -> dict[str, Any]:
    """Return ``groups`` of runs with the same settings, and ``differences``: a setting, and its value in each group.

    ``answers`` has for each environment a sentence about its groups, by their numbers, and whether their budgets
    differ. ``remarks`` names runs that are left out or compared before the end of training.

    Args:
        runs: folders of the runs by name.
        axis: one of :data:`AXES` for the curves.
        same_budget: compare the groups of an environment after the fewest steps of a group.
    """
    groups, differences = _group_runs(runs)
    remarks: list[str] = []
    scored = [_with_scores(group, remarks) for group in groups]
    budgets = {task: smaller_budget([score for _, score in rivals]) for task, rivals in _by_task(scored).items()}
    if same_budget:
        remarks.clear()
        ends = [budgets[group.score.comparison_key] if group.score else None for group in scored]
        scored = [_with_scores(group, remarks, at) for group, at in zip(groups, ends, strict=True)]
    return {
        "groups": [
            _describe_group(group, axis) | {"hue": hue} for group, hue in zip(scored, _hues(groups), strict=True)
        ],
        "differences": [[setting, values] for setting, values in differences.items()],
        "answers": [
            {"task": task, "text": _answer_comparison(rivals), "budget": budgets.get(task)}
            for task, rivals in _by_task(scored).items()
        ],
        "remarks": remarks,
    }


def _group_runs(runs: Mapping[str, Path]) -> tuple[list[Group], dict[str, list[str]]]:
    """Return the groups of runs, and the settings in which they differ, with the value of each group."""
    members: dict[GroupKey, dict[str, Path]] = {}
    saved = {path: read_saved_config(path) for path in runs.values()}
    for name, path in runs.items():
        members.setdefault(group_key(saved[path]), {})[name] = path
    differences = _find_differences([*members])
    labels = _label_groups(members, differences)
    groups = [
        Group(key, label, inside, {path: saved[path] for path in inside.values()})
        for label, (key, inside) in zip(labels, members.items(), strict=True)
    ]
    return groups, differences


def _hues(groups: Sequence[Group]) -> list[int]:
    """Return the hue of each group, as if the groups of its environment were alone."""
    envs = {group.key.env: [g.key.algorithm for g in groups if g.key.env == group.key.env] for group in groups}
    hues = {env: assign_hues(algorithms) for env, algorithms in envs.items()}
    return [hues[group.key.env].pop(0) for group in groups]


def _find_differences(keys: Sequence[GroupKey]) -> dict[str, list[str]]:
    """Return the values in each group of the settings that all groups have and that differ, by name."""
    tables = [dict(key.settings) for key in keys]
    shared = [setting for setting in tables[0] if all(setting in table for table in tables)]
    values = {setting: [table[setting] for table in tables] for setting in shared}
    return {setting: [*map(_format_setting, row)] for setting, row in values.items() if len(set(row)) > 1}


def _format_setting(text: str) -> str:
    """Return a setting as people say it: a schedule as its values over env steps."""
    pairs = re.findall(r"\[([^][,]+), ([^][,]+)\]", text)
    if not text.startswith("[[") or not pairs:
        return text
    points = [(float(step), float(value)) for step, value in pairs]
    if len(points) == 2 and not points[0][0]:
        return f"{points[0][1]:g} to {points[1][1]:g} over {points[1][0]:,.0f}"
    return ", ".join(f"{value:g} at {step:,.0f}" for step, value in points)


def _label_groups(members: Mapping[GroupKey, Mapping[str, Path]], differences: Mapping[str, list[str]]) -> list[str]:
    """Return the algorithm of each group, or what else tells it from others of its algorithm and environment."""
    labels, keys = [], [*members]
    for number, (key, runs) in enumerate(members.items()):
        rivals = [i for i, rival in enumerate(keys) if rival[:2] == key[:2]]
        rows = {name: row for name, row in differences.items() if any(row[i] != row[number] for i in rivals)}
        if len(rows) > 2:
            labels.append(next(iter(runs)) + (" and like it" if len(runs) > 1 else ""))
        else:
            values = [f"{name.split('.')[-1]} {row[number]}" for name, row in rows.items()]
            labels.append(", ".join([key.algorithm, *values]))
    return labels


def _with_scores(group: Group, remarks: list[str], at: int | None = None) -> Group:
    """Return a group with its scores, up to step ``at``; without them and with a remark if there are none."""
    try:
        score = read_compared_setting(group.label, group.saved, at, remarks.append)
    except ReverieError as error:
        remarks.append(str(error))
        return group._replace(score=None)
    return group._replace(score=score, estimate=score.iqm())


def _by_task(groups: Sequence[Group]) -> dict[str, list[tuple[Group, ComparedSetting]]]:
    """Return the groups with scores by what makes them comparable."""
    tasks: dict[str, list[tuple[Group, ComparedSetting]]] = {}
    for group in groups:
        if group.score is not None:
            tasks.setdefault(group.score.comparison_key, []).append((group, group.score))
    return tasks


def _answer_comparison(rivals: Sequence[tuple[Group, ComparedSetting]]) -> str:
    """Return a sentence: which of several groups is best, its mean and interval, or why that is unknown."""
    ranked = sorted(rivals, key=lambda rival: -rival[0].estimate.value)
    (best, score), (low, high) = ranked[0], (end(other.steps for _, other in rivals) for end in (min, max))
    unclear = [group for group, _ in ranked[1:] if not group.estimate.high < best.estimate.low]
    overlapping = [group for group in (best, *unclear) if group.estimate.has_interval]
    is_same = smaller_budget([other for _, other in rivals]) is None
    length = (
        f"after {high:,} {score.unit}" if is_same else f"after different budgets ({low:,} to {high:,} {score.unit})"
    )
    task = f"{score.comparison_key} {length}"
    facts, others = (
        _describe_score(best, score),
        [(g.label, format_number(float(mean(x.scores)))) for g, x in ranked[1:2]],
    )
    if not unclear:
        against = "".join(f" against {value} of {label}" for label, value in others)
        return f"{best.label} {'is best' if others else 'was measured'} on {task}, with a mean of {facts}{against}."
    if best in overlapping and len(overlapping) > 1:
        reason = f"the intervals of {_join_labels(overlapping)} overlap"
    else:
        few = [group for group in (best, *unclear) if not group.estimate.has_interval]
        reason = f"{_join_labels(few)} {'has' if len(few) == 1 else 'have'} fewer than {MIN_RUNS} seeds"
    means = "".join(f", {label} of {value}" for label, value in others)
    return f"Cannot tell which is best on {task}, as {reason}: {best.label} has a mean of {facts}{means}."


def _describe_score(group: Group, score: ComparedSetting) -> str:
    """Return the mean, the interval and the number of runs of a group in words."""
    value, low, high = map(format_number, group.estimate)
    ends = f"IQM {value}, 95 % interval {low} to {high}, " if group.estimate.has_interval else ""
    seeds = count_noun(len(score.scores), "seed")
    count = seeds if len(group.runs) == len(score.scores) else f"{count_noun(len(group.runs), 'run')}, {seeds}"
    return f"{format_number(float(mean(score.scores)))} ({ends}{count})"


def _join_labels(groups: Sequence[Group]) -> str:
    """Return the labels of groups in words, the first three of many."""
    labels = [group.label for group in groups]
    labels = (
        labels if len(labels) <= MAX_LABELS else [*labels[: MAX_LABELS - 1], f"{len(labels) - MAX_LABELS + 1} others"]
    )
    return " and ".join([", ".join(labels[:-1]), labels[-1]] if len(labels) > 1 else labels)


def _describe_group(group: Group, axis: str) -> dict[str, Any]:
    """Return the names and scores of the runs, their curves by metric, and their evaluations at the end."""
    settings = [saved.experiment for saved in group.saved.values()]
    how, seeds, score = measurement_settings(settings[0]), [values["seed"] for values in settings], group.score
    names = (*METRICS, FINAL, *AXES.values())
    logs = [read_metrics(RunFolder(path).metrics, names) for path in group.runs.values()]
    ends = [metric_series(split_evaluations(log)[1][-1:], "eval/score") for log in logs]
    finals = [along_axis(end, log, axis) for end, log in zip(ends, logs, strict=True)]
    first = [seeds.index(seed) for seed in dict.fromkeys(seeds)]
    head: dict[str, Any] = {"label": group.label, "env": group.key.env, "unit": how.unit if axis == "steps" else axis}
    head |= {"runs": list(group.runs), "seeds": len(first), "curves": _read_curves(logs, first, how, axis)}
    head["finals"] = [[x[0], y[0]] for x, y in finals if len(x)]
    if score is None:
        return head | {"score": None}
    numbers = {"mean": float(mean(score.scores)), **group.estimate._asdict()}
    texts = {name: format_number(x) for name, x in numbers.items() if math.isfinite(x)}
    scores = {"scores": score.scores, "mean": numbers["mean"], "interval": group.estimate, "texts": texts}
    return head | {"score": {"task": score.comparison_key, **scores}}


def _read_curves(
    logs: Sequence[list[dict[str, Any]]], first: Sequence[int], how: MeasurementSettings, axis: str
) -> dict[str, Any]:
    """Return the curve of each metric: the values of each run along ``axis``, and the interval of their IQM.

    The interval is that of the ``first`` runs of each seed, as others are copies; None for fewer than :data:`MIN_RUNS`.
    """
    curves: dict[str, Any] = {}
    for metric in METRICS:
        evaluates = metric == "eval/score"
        points = [evaluation_scores(log, how.period) if evaluates else metric_series(log, metric) for log in logs]
        points = [along_axis(thin_series(series), log, axis) for series, log in zip(points, logs, strict=True)]
        if any(len(x) for x, _ in points):
            measured = how._replace(evaluates=evaluates and axis == "steps")  # else the points differ between seeds
            seeds = [points[run] for run in first]
            interval = seeds_curve_data(seeds, measured).interval() if len(seeds) >= MIN_RUNS else None
            curves[metric] = {"seeds": points, "interval": interval}
    return curves


def thin_series(series: Series) -> Series:
    """Return a series averaged to at most :data:`MAX_POINTS` points."""
    if len(series[0]) <= MAX_POINTS:
        return series
    parts = np.array_split(np.arange(len(series[0])), MAX_POINTS)
    steps, values = (np.array([x[part].mean() for part in parts]) for x in series)
    return steps, values

"""Runs compared: runs with the same settings are seeds of one group."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reverie.core.statistics import MIN_RUNS, Series
from reverie.distributed.compare import measurement_settings
from reverie.log.aggregate import MeasurementSettings, evaluation_scores, seeds_curve_data
from reverie.log.jsonl import FINAL, metric_series, read_metrics, split_evaluations
from reverie.log.trackers import flatten_settings
from reverie.run.folder import LEARNING_SETTINGS, RunFolder, read_saved_config

METRICS = ("eval/score", "episode/score", "estimate/return")
"""Metrics whose curves are compared."""
MAX_POINTS = 400
"""Maximum points of a curve."""


class GroupKey(NamedTuple):
    """What the runs of a group have in common."""

    algorithm: str
    env: str
    settings: tuple[tuple[str, str], ...]
    """Settings that influence learning, and their values."""


def compare_settings(runs: Mapping[str, Path]) -> dict[str, Any]:
    """Return ``groups`` of runs with the same settings, and ``differences``: a setting, and its value in each group."""
    groups: dict[GroupKey, dict[str, Path]] = {}
    for name, path in runs.items():
        saved = read_saved_config(path)
        settings = [item for item in flatten_settings(saved.experiment) if item[0].startswith(LEARNING_SETTINGS)]
        key = GroupKey(saved.algorithm, saved.env, tuple(item for item in settings if item[0] != "replay.store_path"))
        groups.setdefault(key, {})[name] = path
    tables = [dict(key.settings) for key in groups]
    shared = [setting for setting in tables[0] if all(setting in table for table in tables)]
    values = {setting: [table[setting] for table in tables] for setting in shared}
    return {
        "groups": [_describe_group(key, paths) for key, paths in groups.items()],
        "differences": [[setting, row] for setting, row in values.items() if len(set(row)) > 1],
    }


def _describe_group(key: GroupKey, runs: Mapping[str, Path]) -> dict[str, Any]:
    """Return the names of ``runs``, their curves by metric, and steps and scores of their evaluations at the end.

    A curve holds the steps and values of each run; from :data:`MIN_RUNS` seeds on also the interval of their IQM. Runs
    with the same seed are copies, and count once.
    """
    settings = [read_saved_config(path).experiment for path in runs.values()]
    how, seeds = measurement_settings(settings[0]), [values["seed"] for values in settings]
    first = [seeds.index(seed) for seed in dict.fromkeys(seeds)]
    logs = [read_metrics(RunFolder(path).metrics, (*METRICS, FINAL)) for path in runs.values()]
    curves: dict[str, Any] = {}
    for metric in METRICS:
        evaluates = metric == "eval/score"
        points = [evaluation_scores(log, how.period) if evaluates else metric_series(log, metric) for log in logs]
        points = [thin_series(series) for series in points]
        if any(len(steps) for steps, _ in points):
            curves[metric] = {
                "seeds": points,
                "interval": _seeds_interval([points[i] for i in first], how._replace(evaluates=evaluates)),
            }
    finals = [[row["step"], row["eval/score"]] for log in logs for row in split_evaluations(log)[1][-1:]]
    head = {"algorithm": key.algorithm, "env": key.env, "unit": how.unit, "runs": list(runs), "seeds": len(first)}
    return head | {"curves": curves, "finals": finals}


def _seeds_interval(points: list[Series], how: MeasurementSettings) -> Any:
    """Return steps, IQM, and the interval of the IQM over the seeds; None for fewer than :data:`MIN_RUNS` seeds."""
    return seeds_curve_data(points, how).interval() if len(points) >= MIN_RUNS else None


def thin_series(series: Series) -> Series:
    """Return a series averaged to at most :data:`MAX_POINTS` points."""
    if len(series[0]) <= MAX_POINTS:
        return series
    parts = np.array_split(np.arange(len(series[0])), MAX_POINTS)
    steps, values = (np.array([x[part].mean() for part in parts]) for x in series)
    return steps, values

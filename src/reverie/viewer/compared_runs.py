"""The report of several runs: seeds of the same settings are a group, and groups are compared."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.errors import count_noun
from reverie.core.statistics import IntervalEstimate, performance_profile
from reverie.core.version import version
from reverie.distributed.compare import describe_further_seeds, find_run_groups
from reverie.log.aggregate import estimate_improvement
from reverie.viewer.comparison import METRICS, compare_settings
from reverie.viewer.findings import Finding, format_number

Section = dict[str, Any]
"""A part of a page (``static/report.js``): its ``title``, and ``text``, ``chart``, ``table``, ``code`` or others."""


def find_runs_to_compare(locations: Sequence[Path | str]) -> dict[str, Path]:
    """Return the runs at paths, in folders or at patterns, by their path below the folder that they share.

    Raises:
        RunError: there is no run at a location.
    """
    groups = [group for location in locations for group in find_run_groups(os.fspath(location))]
    paths = [path.absolute() for group in groups for path in group.runs]
    root = os.path.commonpath([path.parent for path in paths])
    return {path.relative_to(root).as_posix(): path for path in paths}


def collect_comparison(runs: Mapping[str, Path]) -> dict[str, Any]:
    """Return the facts of several runs: those of ``compare_settings``, and the chances of a better score."""
    facts = compare_settings(runs)
    pairs = [x for groups in _by_task(facts["groups"]).values() for x in itertools.combinations(groups, 2)]
    chances = [
        (a["label"], b["label"], *estimate_improvement(a["score"]["scores"], b["score"]["scores"])) for a, b in pairs
    ]
    return {"version": version(), **facts, "improvement": [chance for chance in chances if np.isfinite(chance[2])]}


def find_in_comparison(facts: Mapping[str, Any]) -> list[Finding]:
    """Return a finding for each task: which group is best, and how many further seeds would tell."""
    tasks = _by_task(facts["groups"])
    return [
        Finding(answer["text"], describe_further_seeds({
            group["label"]: (group["score"]["scores"], group["score"]["interval"]) for group in tasks[answer["task"]]
        }))
        for answer in facts["answers"]
    ]  # fmt: skip


def comparison_numbers(facts: Mapping[str, Any]) -> list[list[str]]:
    """Return up to three numbers for the top of the page, each with its unit."""
    scored = [(group["label"], group["score"]) for group in facts["groups"] if group["score"] is not None]
    ranked = sorted(scored, key=lambda item: -item[1]["interval"].value)
    return [[_format(x["interval"]), f"IQM of {count_noun(len(x['scores']), 'seed')} of {y}"] for y, x in ranked[:3]]


def comparison_sections(facts: Mapping[str, Any]) -> list[Section]:
    """Return the parts of the page."""
    groups, sections = facts["groups"], list[Section]()
    for env in dict.fromkeys(group["env"] for group in groups):
        sections += _curves([group for group in groups if group["env"] == env], env)
    scored = [group for group in groups if group["score"] is not None]
    rows = [
        [g["label"], g["score"]["task"], f"{len(g['score']['scores'])}", format_number(g["score"]["mean"]),
         _format(g["score"]["interval"]), ", ".join(map(format_number, g["score"]["scores"]))]
        for g in scored
    ]  # fmt: skip
    head = ["setting", "task", "seeds", "mean", "IQM [95 % interval over seeds]", "score of each seed"]
    sections.append({"title": "Scores", "table": {"head": head, "rows": rows}})
    for task, rivals in _by_task(groups).items():
        sections += _profile(rivals, task)
    if facts["improvement"]:
        sections.append({"title": "Probability of improvement", "text": [
            f"A seed of {a} scores better than a seed of {b} with probability {_format(IntervalEstimate(*numbers))}."
            for a, b, *numbers in facts["improvement"]
        ]})  # fmt: skip
    if facts["differences"]:
        table = {"head": ["setting", *(g["label"] for g in groups)], "rows": [[x, *y] for x, y in facts["differences"]]}
        sections.append({"title": "Settings that differ", "table": table})
    rows = [[group["label"], group["env"], ", ".join(group["runs"])] for group in groups]
    return [*sections, {
        "title": "Runs", "table": {"head": ["setting", "environment", "runs"], "rows": rows}, "text": facts["remarks"]
    }]  # fmt: skip


def _by_task(groups: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the groups that have scores by what makes them comparable."""
    tasks: dict[str, list[Mapping[str, Any]]] = {}
    for group in groups:
        if group["score"] is not None:
            tasks.setdefault(group["score"]["task"], []).append(group)
    return tasks


def _format(estimate: IntervalEstimate) -> str:
    ends = f" [{format_number(estimate.low)}, {format_number(estimate.high)}]" if estimate.has_interval else ""
    return f"{format_number(estimate.value)}{ends}"


def _curves(groups: Sequence[Mapping[str, Any]], env: str) -> list[Section]:
    """Return the learning curves in an environment: a thin line for each seed, and the IQM of each group."""
    metric = next((name for name in METRICS if all(name in group["curves"] for group in groups)), None)
    if metric is None:
        return []
    lines: list[dict[str, Any]] = []
    for group in groups:
        curve, kind = group["curves"][metric], f"hue{group['hue']}"
        lines += [{"kind": f"thin {kind}", "points": np.stack(seed, 1)} for seed in curve["seeds"]]
        name, seeds = group["label"], count_noun(group["seeds"], "seed")
        if curve["interval"] is None:
            points, name = _means(curve["seeds"]), f"{name}, mean of {seeds}"
        else:
            points, name = np.stack(curve["interval"], 1), f"{name}, IQM of {seeds} with its interval"
        lines.append({"name": name, "kind": kind, "points": points})
    label = {"eval/score": "Return of evaluations", "episode/score": "Return of training episodes"}.get(metric, metric)
    chart = {"label": f"{label} in {env}", "unit": groups[0]["unit"], "lines": lines}
    return [{"title": f"{label}, {env}", "chart": chart}]


def _means(seeds: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the steps at which all seeds have values, and the mean of these, ``[K, 2]``."""
    tables = [dict(zip(x.tolist(), y.tolist(), strict=True)) for x, y in seeds]
    steps = sorted(set(tables[0]).intersection(*tables[1:]))
    return np.array([[step, np.mean([table[step] for table in tables])] for step in steps]).reshape(-1, 2)


def _profile(rivals: Sequence[Mapping[str, Any]], task: str) -> list[Section]:
    """Return the performance profiles of two or more groups of a task: the share of seeds above each score."""
    scores = [np.asarray(group["score"]["scores"]) for group in rivals]
    if len(rivals) < 2 or min(map(len, scores)) < 2:
        return []
    ends = np.unique(np.concatenate(scores))
    ends = np.insert(ends, 0, ends[0] - 0.05 * (ends[-1] - ends[0]))
    steps = np.repeat(ends, 2)[1:]  # a share holds from a score up to the next one
    lines = [
        {"name": group["label"], "kind": f"hue{group['hue']}",
         "points": np.stack([steps, np.repeat(performance_profile(x, ends), 2)[:-1]], 1)}
        for group, x in zip(rivals, scores, strict=True)
    ]  # fmt: skip
    label = f"Share of seeds with a score above a threshold, {task}"
    chart = {"label": label, "unit": "score", "lines": lines, "range": [0, 1], "starts": True}
    return [{"title": "Performance profile", "chart": chart}]

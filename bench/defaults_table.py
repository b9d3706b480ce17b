"""The tables of what default settings learned, online and from logs, for `table.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from efficiency_table import method_name
from words import digits, grid, time

Row = Mapping[str, Any]
TITLES = {
    "Thermostat": "chamber in kelvin and pascals", "Robot": "robot among obstacles", "Battery": "battery and prices",
    "SwingUp": "swing-up", "Inventory": "inventory", "Admission": "admission to a queue",
    "SparseRobot": "robot, sparse reward", "Cue": "memory of a cue", "Scheduling": "scheduling, masked",
    "Allocation": "allocation, multi-discrete", "Crane": "crane",
}  # fmt: skip


def defaults_table(result: Mapping[str, Any]) -> list[str]:
    """One row an algorithm and task; below, those that learn from a log."""
    lines = online_table(result)
    return [*lines, "", *logs_table(result)] if result.get("logs") else lines


def group_seeds(rows: Iterable[Row]) -> dict[tuple[str, str], dict[str, list[Row]]]:
    """The rows of all seeds by algorithm and task, then by library."""
    seeds: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        seeds.setdefault((row["algorithm"], row["task"]), {}).setdefault(row["library"], []).append(row)
    return seeds


def logs_table(result: Mapping[str, Any]) -> list[str]:
    """One row a log and algorithm."""
    seeds = group_seeds(row for row in result["rows"] if "updates" in row)
    means = {row["task"]: digits(row["mean"]) for row in result["logs"]}
    lines = []
    for algorithm, task in sorted(seeds, key=lambda key: (list(means).index(key[1]), key[0] != "bc", key[0])):
        rows = [seeds[algorithm, task].get(library, []) for library in ("d3rlpy", "reverie")]
        lines.append([TITLES[task], means[task], method_name(algorithm), *map(summary, rows), *map(seconds, rows)])
    head = ["log", "its mean return", "algorithm", "d3rlpy", "reverie", "processor time, d3rlpy", "reverie"]
    return grid(head, lines)


def online_table(result: Mapping[str, Any]) -> list[str]:
    """One row an algorithm and task."""
    seeds = group_seeds(row for row in result["rows"] if "updates" not in row)
    ends = {row["task"]: [digits(row[name]) for name in ("random", "heuristic")] for row in result["tasks"]}
    lines = []
    for algorithm, task in sorted(seeds, key=lambda key: (key[0], list(TITLES).index(key[1]))):
        rows = [seeds[algorithm, task].get(library, []) for library in ("sb3", "reverie")]
        lines.append([method_name(algorithm), TITLES[task], *ends[task], *map(summary, rows), *map(seconds, rows)])
    head = ["algorithm", "task", "random", "heuristic", "Stable-Baselines3", "reverie"]
    return grid([*head, "processor time, Stable-Baselines3", "reverie"], lines)


def summary(rows: list[Row]) -> str:
    """The mean score over seeds, the lowest and highest, and the mean with sampled actions."""
    if not rows:
        return "-"
    scores = [row["score"] for row in rows]
    text = digits(float(np.mean(scores)))
    if len(rows) > 1:
        text += f" ({digits(min(scores))} to {digits(max(scores))})"
    if "sampled" in rows[0]:
        text += f"; sampled {digits(float(np.mean([row['sampled'] for row in rows])))}"
    return text + ("" if len(rows) > 1 else ", one seed")


def seconds(rows: list[Row]) -> str:
    """The mean processor time of a seed."""
    return time(float(np.mean([row["cpu_seconds"] for row in rows]))) if rows else "-"

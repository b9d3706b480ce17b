"""The table of what each method reached in how much processor time, for `table.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from words import digits, grid, time

from reverie.core.statistics import estimate_interval, iqm

PATIENCE = (30, 120, 480)
"""Seconds of processor time after which a user may want to stop."""
TITLES = {
    "cheetah": "HalfCheetah", "hopper": "Hopper", "walker": "Walker2d", "walker_walk": "walker-walk",
    "cheetah_run": "cheetah-run", "reacher_easy": "reacher-easy", "breakout": "MinAtar Breakout",
    "asterix": "MinAtar Asterix", "door_key": "MiniGrid DoorKey-6x6", "key_corridor": "MiniGrid KeyCorridorS3R1",
}  # fmt: skip


def method_name(method: str) -> str:
    """`sb3_sac` is SAC of Stable-Baselines3."""
    name = method.removeprefix("sb3_")
    return f"`{name}`" if name == method else f"Stable-Baselines3, {name.upper().replace('_', '-')}"


def efficiency_table(result: Mapping[str, Any]) -> list[str]:
    """One row a task and method, those of one task with the best first."""
    seeds: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in result["rows"]:
        seeds.setdefault((row["task"], row["method"]), []).append(row)
    score = {key: float(iqm([row["score"] for row in rows])) for key, rows in seeds.items()}
    lines = []
    for key in sorted(seeds, key=lambda key: (list(TITLES).index(key[0]), -score[key])):
        rows, (task, method) = seeds[key], key
        seconds = float(np.mean([row["cpu_seconds"] for row in rows]))
        first = max(row["curve"][0][2] for row in rows)
        early = [digits(score_after(rows, limit)) if first <= limit < seconds else "-" for limit in PATIENCE]
        where = f"{TITLES[task]}, {rows[0]['steps']:,}"
        lines.append([where, method_name(method), str(len(rows)), with_interval(rows), time(seconds), *early])
    return grid(["task, env steps", "algorithm", "seeds", "score", "processor time of a seed",
                 *(f"score after {limit} s" for limit in PATIENCE)], lines)  # fmt: skip


def with_interval(rows: list[Mapping[str, Any]]) -> str:
    """The interquartile mean of the last scores, and its interval or, for fewer than five seeds, the range."""
    scores = [row["score"] for row in rows]
    estimate = estimate_interval(iqm, scores)
    low, high = (estimate.low, estimate.high) if estimate.has_interval else (min(scores), max(scores))
    return digits(estimate.value) + (f" ({digits(low)} to {digits(high)})" if len(scores) > 1 else "")


def score_after(rows: list[Mapping[str, Any]], limit: float) -> float:
    """The interquartile mean of what the seeds' curves, joined by lines, show after `limit` seconds."""
    curves = [np.array(row["curve"]).T for row in rows]
    return float(iqm([np.interp(limit, seconds, scores) for _, scores, seconds in curves]))

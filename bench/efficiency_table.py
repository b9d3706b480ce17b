"""What each method reached in how many env steps and how much CPU time, for `table.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from words import digits, grid, time

from reverie.core.statistics import estimate_interval, iqm

TITLES = {
    "cheetah": "HalfCheetah", "hopper": "Hopper", "walker": "Walker2d", "walker_walk": "walker-walk",
    "cheetah_run": "cheetah-run", "reacher_easy": "reacher-easy", "breakout": "MinAtar Breakout",
    "asterix": "MinAtar Asterix", "door_key": "MiniGrid DoorKey-6x6", "key_corridor": "MiniGrid KeyCorridorS3R1",
}  # fmt: skip
CONTINUOUS = ("cheetah", "hopper", "walker", "walker_walk", "cheetah_run", "reacher_easy")
Seeds = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]


def efficiency_table(result: Mapping[str, Any]) -> list[str]:
    """Three sentences; one row a task, one column a method, and the best one after one and ten minutes."""
    seeds: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in result["rows"]:
        seeds.setdefault((row["task"], row["method"]), []).append(row)
    ours = {key: rows for key, rows in seeds.items() if not key[1].startswith("sb3_")}
    lines = sentences(ours)
    discrete = [task for task in TITLES if task not in CONTINUOUS]
    for tasks, methods in ((CONTINUOUS, ("ppo", "sac", "td3", "tdmpc2")), (discrete, ("ppo", "dqn", "qr_dqn"))):
        head = ["task, env steps", *(f"`{name}`" for name in methods), "best after 1 min", "10 min"]
        lines += ["", *grid(head, [table_row(ours, task, methods) for task in tasks])]
    return lines


def peers_scores_table(result: Mapping[str, Any]) -> list[str]:
    """One row a task, one column an algorithm of Stable-Baselines3."""
    seeds: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in result["rows"]:
        if row["method"].startswith("sb3_"):
            seeds.setdefault((row["task"], row["method"]), []).append(row)
    methods = sorted({method for _, method in seeds})
    body = [[TITLES[task], *(cell(seeds[task, name]) if (task, name) in seeds else "-" for name in methods)]
            for task in TITLES if any(of == task for of, _ in seeds)]  # fmt: skip
    return grid(["task", *(name.removeprefix("sb3_").upper().replace("_", "-") for name in methods)], body)


def table_row(seeds: Seeds, task: str, methods: Sequence[str]) -> list[str]:
    """Return the scores of one task."""
    steps = next(rows[0]["steps"] for (name, _), rows in seeds.items() if name == task)
    cells = [cell(seeds[task, name]) if (task, name) in seeds else "-" for name in methods]
    return [f"{TITLES[task]}, {steps:,}", *cells, *(f"`{best_after(seeds, task, s)}`" for s in (60, 600))]


def sentences(seeds: Seeds) -> list[str]:
    """Say what ran, the answer and the exception."""
    best = {task: max((name for of, name in seeds if of == task), key=lambda name: score(seeds[task, name]))
            for task in TITLES}  # fmt: skip
    off_policy = [task for task in CONTINUOUS if best[task] in ("sac", "td3", "tdmpc2")]
    dqn = [task for task in best if task not in CONTINUOUS and best[task] in ("dqn", "qr_dqn")]
    rest = ", ".join(TITLES[task] for task in TITLES if best[task] == "ppo")
    seconds = {name: [float(np.mean([row["cpu_seconds"] for row in seeds[task, name]])) for task in CONTINUOUS]
               for name in ("ppo", "sac", "td3")}  # fmt: skip
    times = ", ".join(f"`{name}` {time(min(each))} to {time(max(each))}" for name, each in seconds.items())
    at_first = sum(best_after(seeds, task, 60) == "ppo" for task in TITLES)
    return [
        "Each algorithm trained on one thread with its default settings, five seeds each; with continuous actions, "
        f"runs took {times} of CPU time.",
        f"With the same env steps, replay beats `ppo`: `sac`, `td3` or `tdmpc2` is best in {len(off_policy)} of "
        f"{len(CONTINUOUS)} tasks with continuous actions, `dqn` or `qr_dqn` in {len(dqn)} of "
        f"{len(TITLES) - len(CONTINUOUS)} with discrete ones; after one minute of CPU time `ppo` is best in "
        f"{at_first} of {len(TITLES)}.",
        f"The exceptions are {rest}; after a million env steps, published returns of `sac` on Hopper and Walker2d are "
        "higher than those of `ppo` (Haarnoja et al. 2018).",
    ]


def score(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the interquartile mean of the last scores."""
    return float(iqm([row["score"] for row in rows]))


def cell(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the score, and its 95 % interval or, below five seeds, its range."""
    scores = [row["score"] for row in rows]
    estimate = estimate_interval(iqm, scores)
    low, high = (estimate.low, estimate.high) if estimate.has_interval else (min(scores), max(scores))
    return f"{digits(estimate.value)} ({digits(low)} to {digits(high)})"


def best_after(seeds: Seeds, task: str, limit: float) -> str:
    """Return the method with the highest score after `limit` seconds, on curves joined by lines."""
    scores = {}
    for (name, method), rows in seeds.items():
        curves = [np.array(row["curve"]).T for row in rows]
        if name == task and max(seconds[0] for _, _, seconds in curves) <= limit:
            scores[method] = float(iqm([np.interp(limit, seconds, scores) for _, scores, seconds in curves]))
    return max(scores, key=scores.__getitem__)

#!/usr/bin/env python3
"""Does bfloat16 learn what float32 learns? Learning curves of both, five seeds, CartPole-v1 and an image task.

    python bench/precision.py [--seeds 5] [--jobs 2] [--out bench/precision.json]

Curves are judged by their mean over all evaluations, and the difference between the precisions by a 95 % bootstrap
interval over seeds: 0 inside it means that these seeds do not tell them apart. Every run is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine
from results import save

PRECISIONS = ("float32", "bfloat16")
IMAGE = {
    "replay_ratio": 0.5, "learning_starts": 64, "env.num": 4, "replay.capacity": 20_000, "algo.batch_size": 8,
    "algo.batch_length": 16, "algo.optim.lr": 1e-3, "algo.optim.warmup": 50, "algo.encoder.depth": 8,
    "algo.decoder.depth": 8,
}  # fmt: skip
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "CartPole-v1": ("cartpole", {"steps": 4000, "schedule.eval_every": 400, "stop_score": None}),
    "reverie/Look-v0": ("cpu", IMAGE | {"steps": 1200, "schedule.eval_every": 100, "eval_episodes": 20}),
}

CHILD = """
import json, sys
from pathlib import Path
import reverie

env, preset, seed, run, settings = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], json.loads(sys.argv[5])
reverie.train("dreamer_v3", env=env, preset=preset, seed=seed, run=run, console=False, tensorboard=False, **settings)
rows = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
print("RESULT " + json.dumps([[r["step"], r["eval/score"]] for r in rows if "eval/score" in r]))
"""


def curve(task: str, precision: str, seed: int) -> list[list[float]]:
    """``[env_steps, score]`` of every evaluation on the way."""
    preset, settings = TASKS[task]
    settings = settings | {"algo.precision": precision, "threads": 1}
    with tempfile.TemporaryDirectory() as folder:
        arguments = [task, preset, str(seed), str(Path(folder) / "run"), json.dumps(settings)]
        done = subprocess.run([sys.executable, "-c", CHILD, *arguments], check=True, capture_output=True, text=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    points: list[list[float]] = json.loads(line.removeprefix("RESULT "))
    return points


def judged(curves: dict[str, dict[str, list[list[float]]]]) -> dict[str, Any]:
    """Mean score of each precision, and the bootstrap interval of their difference."""
    areas = {p: np.array([np.mean([s for _, s in points]) for points in curves[p].values()]) for p in PRECISIONS}
    rng = np.random.default_rng(0)
    means = {p: rng.choice(a, (10_000, len(a))).mean(1) for p, a in areas.items()}
    low, high = np.percentile(means["bfloat16"] - means["float32"], [2.5, 97.5])
    table = {p: round(float(a.mean()), 3) for p, a in areas.items()}
    return table | {"difference_95": [round(float(low), 3), round(float(high), 3)], "apart": bool(low > 0 or high < 0)}


def main() -> int:
    """Train, judge and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    table: dict[str, Any] = {"command": "python bench/precision.py", "machine": machine(), "tasks": {}}
    for task in args.tasks:
        jobs = list(product(PRECISIONS, range(1, args.seeds + 1)))
        with ThreadPoolExecutor(args.jobs) as pool:
            results = list(pool.map(lambda job: curve(task, *job), jobs))  # noqa: B023  # mapped before the next task
        curves: dict[str, dict[str, list[list[float]]]] = {p: {} for p in PRECISIONS}
        for (precision, seed), points in zip(jobs, results, strict=True):
            curves[precision][str(seed)] = points
        table["tasks"][task] = judged(curves) | {"curves": curves}
        save(args.out, table)
        print(task, json.dumps(judged(curves)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

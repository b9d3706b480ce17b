#!/usr/bin/env python3
"""Do DreamerV1, V2, R2-Dreamer and Plan2Explore learn, and does Plan2Explore explore?

    python bench/dreamers.py [cartpole minigrid pendulum maze ...] [--seeds 3] [--jobs 2] [--out dreamers.json]

Seeds train through the command line with the presets of a machine without a GPU, each in a process and folder of its
own. The score is of episodes which decided nothing; the curve is of evaluations during training. Of Plan2Explore both
are zero-shot: the task's policy has learned in imagination only. ``cells`` counts the cells of the maze
(``examples/maze.py``) that the point had been in after so many env steps, of 36; ``random`` takes random actions. The
workshop (``examples/workshop.py``) tells which actions are legal by a mask, by a penalty or not at all. ``made`` counts
the items of 8 that only a tenth of the latest rows of training have more of; scores with a penalty are lower by it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from machine import machine
from results import save

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.append(str(EXAMPLES))
from maze import CELLS, Maze, cells  # noqa: E402


class Task(NamedTuple):
    """What is to be learned, by whom."""

    env: str
    names: tuple[str, ...]
    steps: int
    every: int
    """Env steps between evaluations."""
    flags: tuple[str, ...] = ()
    own: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Flags of one algorithm alone."""
    goal: float | None = None
    """Score that ends the training, when fresh episodes confirm it."""


MODELS = ("tdmpc2", "dreamer_v3", "r2dreamer", "sac")
"""Side by side where actions are continuous."""
PIXELS = (
    *("--replay-ratio", "0.25", "--learning-starts", "300", "--random-steps", "300", "--env.num", "4"),
    *("--eval-envs", "10", "--algo.batch-size", "32", "--algo.discount", "0.9", "--algo.lr", "5e-4"),
    *(
        "--algo.encoder-lr",
        "5e-4",
        "--algo.num-samples",
        "64",
        "--algo.num-policy-samples",
        "8",
        "--algo.num-elites",
        "8",
    ),
    *("--algo.iterations", "3"),
)
"""Of a small TD-MPC2 whose pictures tell what to do at once."""
FEWER = MappingProxyType(
    {
        "dreamer_v3": ("--replay-ratio", "0.1"), "r2dreamer": ("--replay-ratio", "0.1"), "tdmpc2": ("--env.num", "4"),
        "discrete_sac": ("--replay-ratio", "0.25", "--algo.batch-size", "64"),
    }
)  # fmt: skip
"""100,000 steps in half an hour of one core: fewer updates than the presets make, and plans of four at once."""
TASKS = {
    "cartpole": Task("CartPole-v1", ("dreamer_v2",), 15_000, 500, goal=475),
    "minigrid": Task("MiniGrid-Empty-5x5-v0", ("dreamer_v2",), 15_000, 500, goal=0.93),
    "minigrid_r2": Task("MiniGrid-Empty-5x5-v0", ("dreamer_v3", "r2dreamer", "discrete_sac"), 6000, 500, goal=0.92),
    "pendulum": Task("Pendulum-v1", ("dreamer_v1",), 8000, 2000),
    "models_pendulum": Task("Pendulum-v1", MODELS, 5000, 1000),
    "models_walker": Task("dm_control/walker-walk-v0", MODELS, 50_000, 25_000, ("--env.action-repeat", "2"), FEWER),
    "models_cheetah": Task("HalfCheetah-v5", MODELS, 100_000, 50_000, own=FEWER),
    "models_breakout": Task(
        "MinAtar/Breakout-v1", ("dreamer_v3", "r2dreamer", "discrete_sac", "qr_dqn"), 100_000, 20_000, own=FEWER
    ),
    "bar": Task("bar:Bar-v0", ("tdmpc2",), 3000, 500, PIXELS),
    "maze": Task("maze:Maze-v0", ("plan2explore_v3", "plan2explore_v1", "dreamer_v3"), 4000, 500),
    **{
        f"workshop_{tell}": Task(f"workshop:Workshop-{tell}-v0", ("dreamer_v3", "dqn", "discrete_sac"), 4000, 500)
        for tell in ("mask", "penalty", "nothing")
    },
}
EPISODES = 10


def visited(cells: np.ndarray, every: int) -> list[list[int]]:
    """How many of ``cells`` ``[n, 2]`` differ, up to each multiple of ``every``."""
    return [[n, len(np.unique(cells[:n], axis=0))] for n in range(every, len(cells) + 1, every)]


def random_cells(seed: int, steps: int) -> np.ndarray:
    """Where random actions lead, ``[steps, 2]``."""
    env, rng, found = Maze(), np.random.default_rng(seed), []
    env.reset(seed=seed)
    for _ in range(steps):
        seen, _, _, truncated, _ = env.step(rng.uniform(-1, 1, 2))
        found.append(seen)
        if truncated:
            env.reset()
    return cells(np.array(found))


def stored(run: Path) -> np.ndarray:
    """What was observed in a run, ``[rows, n]``, in the order of time."""
    from reverie.store.store import ReplayStore, iter_store_episodes

    streams: dict[int, list[np.ndarray]] = {}
    for episode in iter_store_episodes(ReplayStore(str(run / "replay"))):
        streams.setdefault(episode.stream, []).append(np.asarray(episode.rows["obs/observation"]))
    rows = [np.concatenate(parts) for parts in streams.values()]  # one environment each, which step together
    together = np.stack([x[: min(map(len, rows))] for x in rows], 1)  # [steps, environments, n]
    return together.reshape(-1, together.shape[-1])


def made(seen: np.ndarray, every: int) -> list[list[float]]:
    """How many items had been made in the rows ``seen``: the 90 % quantile of each ``every`` of them."""
    count = seen[:, 8:16].sum(1)
    return [[n, round(float(np.quantile(count[n - every : n], 0.9)), 2)] for n in range(every, len(count) + 1, every)]


def run_seed(task: str, name: str, seed: int) -> dict[str, Any]:
    """One seed, in a fresh process and folder."""
    what, started = TASKS[task], time.monotonic()
    row = {"task": task, "algorithm": name, "seed": seed, "steps": what.steps}
    if name == "random":
        return row | {"cells": visited(random_cells(seed, what.steps), what.every)}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = f"{sys.executable} -m reverie train {name} --env {what.env} --seed {seed} --run {run} --threads 1"
        command += f" --steps {what.steps} --schedule.eval-every {what.every} --eval-episodes {EPISODES}"
        command += f" --stop-score {what.goal}" if what.goal is not None else ""
        command += f" {' '.join((*what.flags, *what.own.get(name, ())))} --no-console --no-tensorboard"
        done = subprocess.run(command.split(), cwd=EXAMPLES, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr[-2000:]}")
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        final = json.loads((run / "eval.json").read_text())
        seen = stored(run) if task == "maze" or task.startswith("workshop") else np.zeros(0)
    row |= {"score": round(final["score"]["mean"], 3), "trained": lines[-1]["step"]}
    row |= {"seconds": round(time.monotonic() - started, 1)}
    row |= {"curve": [[line["step"], round(line["eval/score"], 3)] for line in lines if "eval/score" in line]}
    if task == "maze":
        row["cells"] = visited(cells(seen), what.every)
    return row | ({"made": made(seen, what.every)} if task.startswith("workshop") else {})


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean and the worst of all seeds of each algorithm in each task."""
    out = []
    for task, name in sorted({(row["task"], row["algorithm"]) for row in rows}):
        found = [row for row in rows if (row["task"], row["algorithm"]) == (task, name)]
        line: dict[str, Any] = {"task": task, "algorithm": name, "seeds": len(found)}
        scores = [row["score"] for row in found if "score" in row]
        if scores:
            line |= {"mean": round(sum(scores) / len(scores), 3), "worst": min(scores)}
        if "cells" in found[0]:
            line |= {"cells": [row["cells"][-1][1] for row in found], "of": CELLS}
        if "made" in found[0]:
            line |= {"made": [row["made"][-1][1] for row in found], "of": 8}
        out.append(line)
    return out


def main() -> int:
    """Train the seeds that the table lacks, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help="tasks; all unless given")
    parser.add_argument("--names", nargs="+", help="algorithms; those of the task unless given")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    rows = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
    names = {task: args.names or TASKS[task].names + ("random",) * (task == "maze") for task in args.tasks or TASKS}
    wanted = [(task, name, seed) for seed in range(1, args.seeds + 1) for task in names for name in names[task]]
    there = {(row["task"], row["algorithm"], row["seed"]) for row in rows}
    host = machine(1) | {"jobs": args.jobs}
    with ThreadPoolExecutor(args.jobs) as pool:
        for done in as_completed([pool.submit(run_seed, *case) for case in wanted if case not in there]):
            if done.exception():
                print(done.exception(), file=sys.stderr, flush=True)
                continue
            rows = sorted([*rows, done.result()], key=lambda r: (r["task"], r["algorithm"], r["seed"]))
            save(args.out, {"machine": host, "summary": summary(rows), "rows": rows})
            print(
                json.dumps({k: v for k, v in done.result().items() if k not in ("curve", "cells", "made")}), flush=True
            )
    return 0


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(EXAMPLES), os.environ.get("PYTHONPATH")]))
    sys.exit(main())

#!/usr/bin/env python3
"""Do DDPG, TD3, SAC, DQN and QR-DQN learn what they should?

    python bench/model_free.py --env Pendulum-v1 [ddpg td3 sac] [--steps N] [--seeds 5] [--jobs 2]
    python bench/model_free.py --env HalfCheetah-v5 [td3 sac] --seeds 3
    python bench/model_free.py --env CartPole-v1 [dqn qr_dqn]
    python bench/model_free.py --env MinAtar/Breakout-v1 [qr_dqn] --seeds 3
    python bench/model_free.py --env HalfCheetah-v5 sac --seeds 1 --keep FOLDER    (for offline_datasets.py)

Seeds train through the command line with the presets of their environment, each in a process and folder of its own; two
at a time have a core each. The curve is what evaluations during training said, the score that of episodes which decided
nothing. Rows are written as they come, so that an interrupted run loses none, and replace those of the same seed. The
curves are drawn beside the table. How many updates are made in a second, model_free_peers.py measures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from results import save


class Task(NamedTuple):
    """What is to be learned."""

    names: tuple[str, ...]
    goal: float
    """The mean of all seeds that is asked for."""
    steps: int
    """Env steps within which."""
    every: int
    """Env steps between evaluations."""


TASKS = {
    "Pendulum-v1": Task(("ddpg", "td3", "sac"), -200.0, 15_000, 1000),
    "HalfCheetah-v5": Task(("td3", "sac"), 3000.0, 100_000, 10_000),
    "CartPole-v1": Task(("dqn", "qr_dqn"), 475.0, 50_000, 2500),
    "MinAtar/Breakout-v1": Task(("qr_dqn",), 5.0, 500_000, 25_000),
}
EPISODES = 20


def folder_of(keep: Path, algorithm: str, env: str, seed: int) -> Path:
    """Where the run of a seed is kept."""
    return keep / f"{env.replace('/', '_')}-{algorithm}-{seed}"


def run_seed(algorithm: str, env: str, seed: int, steps: int, every: int, keep: Path | None) -> dict[str, Any]:
    """One seed, in a fresh process and folder.

    Args:
        algorithm: what learns.
        env: where.
        seed: of everything.
        steps: env steps.
        every: env steps between evaluations.
        keep: where the run is to stay, with a checkpoint of each evaluation; None: nowhere. A run found there goes on.

    Raises:
        RuntimeError: the run failed; with what it said.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run" if keep is None else folder_of(keep, algorithm, env, seed)
        command = f"{sys.executable} -m reverie train {algorithm} --env {env} --seed {seed} --run {run} --steps {steps}"
        command += f" --eval-episodes {EPISODES} --schedule.eval-every {every} --no-console --no-tensorboard"
        command += f" --threads 1 --keep-checkpoints {steps // every} --schedule.save-every {every}" if keep else ""
        started = time.monotonic()
        done = subprocess.run(command.split(), check=False, capture_output=True, text=True)
        seconds = time.monotonic() - started
        if done.returncode:
            raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr[-2000:]}")
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        final = json.loads((run / "eval.json").read_text())
    curve = [[line["step"], round(line["eval/score"], 1)] for line in lines if "eval/score" in line]
    return {"algorithm": algorithm, "env": env, "seed": seed, "steps": final["env_steps"],
            "score": round(final["score"]["mean"], 1), "seconds": round(seconds, 1), "curve": curve}  # fmt: skip


def learning(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of all seeds, as they come."""
    task = TASKS[args.env]
    names, steps, every = args.names or task.names, args.steps or task.steps, args.every or task.every
    with ThreadPoolExecutor(args.jobs) as pool:
        seeds = range(args.first, args.first + args.seeds)
        jobs = [
            pool.submit(run_seed, name, args.env, seed, steps, every, args.keep) for seed in seeds for name in names
        ]
        for done in as_completed(jobs):
            yield done.result()


def merged(old: list[dict[str, Any]], row: dict[str, Any]) -> list[dict[str, Any]]:
    """``old`` with ``row`` in the place of the one that it repeats."""
    names = ("algorithm", "env", "seed")
    key = [row[name] for name in names]
    kept = [other for other in old if [other[name] for name in names] != key]
    return sorted([*kept, row], key=lambda r: (r["env"], r["algorithm"], r["seed"]))


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean over the seeds of each algorithm on each environment, beside the goal."""
    out = []
    for env, name in sorted({(row["env"], row["algorithm"]) for row in rows}):
        scores = [row["score"] for row in rows if (row["env"], row["algorithm"]) == (env, name)]
        mean, goal = sum(scores) / len(scores), TASKS[env].goal
        out.append({"env": env, "algorithm": name, "seeds": len(scores), "mean": round(mean, 1),
                    "worst": min(scores), "goal": goal, "reached": mean >= goal})  # fmt: skip
    return out


def main() -> int:
    """Train, and write the table and the curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="algorithms; those of the environment unless given")
    parser.add_argument("--env", default="Pendulum-v1", choices=TASKS)
    parser.add_argument("--steps", type=int, help="env steps; those of the task unless given")
    parser.add_argument("--every", type=int, help="env steps between evaluations")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time")
    parser.add_argument("--keep", type=Path, help="folder that the runs stay in, with all their checkpoints")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    import torch

    machine = {"cores": os.cpu_count(), "jobs": args.jobs, "torch": torch.__version__}
    for row in learning(args):
        table = json.loads(args.out.read_text()) if args.out.exists() else {"learning": []}  # others may write as well
        rows = merged(table["learning"], row)
        table = {
            "learning_machine": machine | {"python": platform.python_version()},
            "summary": summary(rows),
            "learning": rows,
        }
        save(args.out, table)
        print(json.dumps({k: v for k, v in row.items() if k != "curve"}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

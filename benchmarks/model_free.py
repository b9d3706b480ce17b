#!/usr/bin/env python3
"""Do DDPG, TD3 and SAC learn what they should, and how many updates do they make in a second?

    python benchmarks/model_free.py [ddpg td3 sac] [--env Pendulum-v1] [--steps N] [--seeds 5] [--jobs 2]
    python benchmarks/model_free.py --updates [--threads 2]

Seeds train through the command line with the presets of their environment, each in a process and folder of its own; two
at a time have a core each. The curve is what evaluations during training said, the score that of episodes which decided
nothing. Rows are written as they come, so that an interrupted run loses none, and replace those of the same seed.

The speed is that of 17 observations, 6 actions, two layers of 256 and batches of 256, which lie in memory.
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
from typing import Any

from machine import machine, tidy

NAMES = ("ddpg", "td3", "sac")
GOALS = {"Pendulum-v1": -200.0, "HalfCheetah-v5": 3000.0}
EPISODES = 20


def run_seed(algorithm: str, env: str, seed: int, flags: list[str], every: int) -> dict[str, Any]:
    """One seed, in a fresh process and folder."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [
            sys.executable,
            "-m",
            "reverie",
            "train",
            algorithm,
            "--env",
            env,
            "--seed",
            str(seed),
            "--run",
            str(run),
        ]
        command += ["--eval-episodes", str(EPISODES), "--schedule.eval-every", str(every), *flags]
        started = time.monotonic()
        subprocess.run([*command, "--no-console", "--no-tensorboard"], check=True, capture_output=True, text=True)
        seconds = time.monotonic() - started
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        final = json.loads((run / "eval.json").read_text())
    curve = [[line["step"], round(line["eval/score"], 1)] for line in lines if "eval/score" in line]
    return {"algorithm": algorithm, "env": env, "seed": seed, "steps": final["env_steps"],
            "score": round(final["score"]["mean"], 1), "seconds": round(seconds, 1), "curve": curve}  # fmt: skip


def learning(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of all seeds, as they come."""
    flags = [] if args.steps is None else ["--steps", str(args.steps)]
    every = args.every or (1000 if args.env == "Pendulum-v1" else 10_000)
    with ThreadPoolExecutor(args.jobs) as pool:
        seeds = range(args.first, args.first + args.seeds)
        jobs = [pool.submit(run_seed, name, args.env, seed, flags, every) for seed in seeds for name in args.names]
        for done in as_completed(jobs):
            yield done.result()


def updates(names: list[str], threads: int, seconds: float = 3.0) -> Iterator[dict[str, Any]]:
    """Updates per second of each, on a batch that does not change."""
    import torch

    from reverie.core.discover import algorithm_config
    from reverie.core.specs import ActionPart, ActionSpec, ObsPart
    from reverie.core.types import Batch

    torch.set_num_threads(threads)
    obs = {"observation": ObsPart(kind="vector", shape=(17,), dtype="float32")}
    actions = ActionSpec(parts={"action": ActionPart(kind="continuous", size=6)})
    no = torch.zeros(256, 2, dtype=torch.bool)
    batch = Batch(
        obs={"observation": torch.randn(256, 2, 17)}, action=torch.rand(256, 2, 6) * 2 - 1, reward=torch.randn(256, 2),
        is_first=no, is_last=no, is_terminal=no, weight=torch.ones(256), index=torch.arange(256),
    )  # fmt: skip
    for name in names:
        learner = algorithm_config(name)().build(obs, actions)
        for _ in range(20):
            learner.update(batch)
        started, count = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            learner.update(batch)
            count += 1
        yield {"algorithm": name, "threads": threads, "updates_per_s": count / (time.perf_counter() - started)}


def merged(old: list[dict[str, Any]], row: dict[str, Any]) -> list[dict[str, Any]]:
    """``old`` with ``row`` in the place of the one that it repeats."""
    names = ("algorithm", "env", "seed", "threads")
    key = [row.get(name) for name in names]
    kept = [other for other in old if [other.get(name) for name in names] != key]
    return sorted([*kept, row], key=lambda r: [str(r.get(name)) for name in ("env", "algorithm", "seed", "threads")])


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean over the seeds of each algorithm on each environment, beside the goal."""
    out = []
    for env, name in sorted({(row["env"], row["algorithm"]) for row in rows if "env" in row}):
        scores = [row["score"] for row in rows if (row.get("env"), row["algorithm"]) == (env, name)]
        mean, goal = sum(scores) / len(scores), GOALS.get(env)
        out.append({"env": env, "algorithm": name, "seeds": len(scores), "mean": round(mean, 1),
                    "worst": min(scores), "goal": goal, "reached": goal is None or mean >= goal})  # fmt: skip
    return out


def main() -> int:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--steps", type=int, help="env steps; those of the preset unless given")
    parser.add_argument("--every", type=int, help="env steps between evaluations")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time")
    parser.add_argument("--updates", action="store_true", help="measure speed instead")
    parser.add_argument("--threads", type=int, default=2, help="for the speed")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    import torch

    table = json.loads(args.out.read_text()) if args.out.exists() else {"learning": [], "speed": []}
    part = "speed" if args.updates else "learning"
    table[f"{part}_machine"] = (
        tidy(machine(args.threads))
        if args.updates
        else {
            "cores": os.cpu_count(),
            "jobs": args.jobs,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
    )
    for row in updates(args.names, args.threads) if args.updates else learning(args):
        table[part] = merged(table[part], tidy(row) if args.updates else row)
        table["summary"] = summary(table["learning"])
        print(json.dumps({k: v for k, v in row.items() if k != "curve"}), flush=True)
        args.out.write_text(json.dumps(table, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

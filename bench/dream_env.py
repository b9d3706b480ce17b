#!/usr/bin/env python3
"""Learners trained inside the dreams of a DreamerV3 alone: what do they reach outside?

    python bench/dream_env.py [--env CartPole-v1] [--seeds 2] [--work DIR] [--out FILE]

DQN and discrete SAC in CartPole-v1, SAC in InvertedPendulum-v5, whose actions are continuous.
Each seed trains a world model by the preset ``cartpole``, and then each learner in 64 dreams of it at a time, which
begin from the rows that it collected and last 15 steps; in CartPole with both ways in which dreams end. Beside it is
the same learner with as many real env steps as the world model saw. The judging episodes are real ones, which no
training saw.
Rows that are there already are kept, and models in ``--work`` too.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
from results import save

import reverie

EPISODES, DREAMS = 20, 64
COMMON: dict[str, Any] = {"threads": 1, "console": False, "tensorboard": False}
SMALL: dict[str, Any] = {"algo": {"networks": {"units": (128, 128)}}, "eval_episodes": 0}


@dataclass(frozen=True)
class Task:
    """What is learned, and by whom."""

    model: dict[str, Any]  # settings of the world model's training
    dream_steps: int
    learners: dict[str, dict[str, Any]]
    ends: tuple[str, ...]
    out: str


TASKS = {
    "CartPole-v1": Task(
        {}, 64_000, {"dqn": {"preset": "dqn_cartpole", "eval_episodes": 0}, "discrete_sac": SMALL},
        ("sampled", "likely"), "dream_env.json",
    ),
    "InvertedPendulum-v5": Task(
        {"steps": 1400, "eval_episodes": 5}, 64_000,
        {"sac": SMALL | {"preset": "sac_pendulum", "learning_starts": 200, "random_steps": 200}},
        ("sampled",), "dream_env_continuous.json",
    ),
}  # fmt: skip


def outside(env: str, num_envs: int = 1, **_: Any) -> Any:
    """The real environments, for an agent that was trained in dreams: their ``run`` is not needed."""
    return gymnasium.make_vec(env, num_envs)


def judged(agent: reverie.Agent) -> dict[str, float]:
    """Scores of real episodes."""
    scores = agent.evaluate(EPISODES, seed=1000).scores
    return {"mean": round(sum(scores) / len(scores), 1), "worst": min(scores)}


def inside(env: str, name: str, ends: str, model: Path, run: Path, seed: int) -> dict[str, Any]:
    """Train in dreams, and judge outside."""
    dreams = {"vectorization": "native", "num": DREAMS, "kwargs": {"run": str(model), "ends": ends}}
    started = time.monotonic()
    settings = TASKS[env].learners[name] | COMMON
    result = reverie.train(name, env="reverie/Dream-v0", steps=TASKS[env].dream_steps, replay_ratio=0.1, seed=seed,
                           run=run, env_options=dreams, **settings)  # fmt: skip
    seconds = round(time.monotonic() - started, 1)
    agent = reverie.load(run, env=functools.partial(outside, env))
    return {"dream_steps": result.env_steps, "updates": result.updates, "seconds": seconds, "outside": judged(agent)}


def awake(env: str, name: str, run: Path, steps: int, seed: int) -> dict[str, float]:
    """Train with real steps only, an update for each, and judge."""
    settings = TASKS[env].learners[name] | COMMON
    reverie.train(name, env=env, steps=steps, replay_ratio=1, seed=seed, run=run, **settings)
    return judged(reverie.load(run))


def row_of(env: str, seed: int, work: Path) -> dict[str, Any]:
    """One world model, and what was learned in its dreams."""
    task, model = TASKS[env], work / f"model-{seed}"
    result = reverie.train("dreamer_v3", env=env, preset="cartpole", seed=seed, run=model, **task.model, **COMMON)
    row: dict[str, Any] = {"seed": seed, "real_steps": result.env_steps, "dreamer_v3": judged(reverie.load(model))}
    for name in task.learners:
        row[name] = {ends: inside(env, name, ends, model, work / f"{name}-{ends}-{seed}", seed) for ends in task.ends}
        row[name]["as_many_real_steps"] = awake(env, name, work / f"{name}-awake-{seed}", result.env_steps, seed)
    return row


def main() -> int:
    """Run the seeds and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=TASKS, default="CartPole-v1")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    out = args.out or Path(__file__).with_name(TASKS[args.env].out)
    work = args.work or Path("runs/dreams") / args.env
    import torch

    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    table = {
        "task": f"{args.env}: mean of {EPISODES} episodes, of learners that saw only dreams",
        "command": f"python bench/dream_env.py --env {args.env}",
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "torch": torch.__version__, "python": platform.python_version(), "rows": rows,
    }  # fmt: skip
    for seed in sorted(set(range(1, args.seeds + 1)) - {row["seed"] for row in rows}):
        rows.append(row_of(args.env, seed, work))
        save(out, table)
        print(json.dumps(rows[-1]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

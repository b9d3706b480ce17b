#!/usr/bin/env python3
"""DQN and discrete SAC trained inside the dreams of a DreamerV3 alone: what do they reach outside, in CartPole-v1?

    python benchmarks/dream_env.py [--seeds 2] [--work runs/dreams] [--out benchmarks/dream_env.json]

Each seed trains a world model by the preset ``cartpole``, and then each learner in 64 dreams of it at a time, which
begin from the rows that it collected and last 15 steps, with both ways in which dreams end. Beside it is the same
learner with as many real env steps as the world model saw. The judging episodes are real ones, which no training saw.
Rows that are there already are kept, and models in ``--work`` too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
from results import save

import reverie

EPISODES, DREAMS, DREAM_STEPS = 20, 64, 64_000
COMMON: dict[str, Any] = {"threads": 1, "console": False, "tensorboard": False}
ENDS = ("sampled", "likely")
LEARNERS: dict[str, dict[str, Any]] = {
    "dqn": {"preset": "dqn_cartpole", "eval_episodes": 0},
    "discrete_sac": {"algo": {"networks": {"units": (128, 128)}}, "eval_episodes": 0},
}


def outside(num_envs: int = 1, **_: Any) -> Any:
    """The real environments, for an agent that was trained in dreams: their ``run`` is not needed."""
    return gymnasium.make_vec("CartPole-v1", num_envs)


def judged(agent: reverie.Agent) -> dict[str, float]:
    """Scores of real episodes."""
    scores = agent.evaluate(EPISODES, seed=1000).scores
    return {"mean": round(sum(scores) / len(scores), 1), "worst": min(scores)}


def inside(name: str, ends: str, model: Path, run: Path, seed: int) -> dict[str, Any]:
    """Train in dreams, and judge outside."""
    dreams = {"vector": "native", "num": DREAMS, "kwargs": {"run": str(model), "ends": ends}}
    started = time.monotonic()
    result = reverie.train(name, env="reverie/Dream-v0", steps=DREAM_STEPS, replay_ratio=0.1, seed=seed, run=run,
                           env_options=dreams, **LEARNERS[name], **COMMON)  # fmt: skip
    seconds = round(time.monotonic() - started, 1)
    agent = reverie.load(run, env=outside)
    return {"dream_steps": result.env_steps, "updates": result.updates, "seconds": seconds, "outside": judged(agent)}


def awake(name: str, run: Path, steps: int, seed: int) -> dict[str, float]:
    """Train with real steps only, an update for each, and judge."""
    reverie.train(name, env="CartPole-v1", steps=steps, replay_ratio=1, seed=seed, run=run, **LEARNERS[name], **COMMON)
    return judged(reverie.load(run))


def row_of(seed: int, work: Path) -> dict[str, Any]:
    """One world model, and what was learned in its dreams."""
    model = work / f"model-{seed}"
    result = reverie.train("dreamer_v3", env="CartPole-v1", preset="cartpole", seed=seed, run=model, **COMMON)
    row: dict[str, Any] = {"seed": seed, "real_steps": result.env_steps, "dreamer_v3": judged(reverie.load(model))}
    for name in LEARNERS:
        row[name] = {ends: inside(name, ends, model, work / f"{name}-{ends}-{seed}", seed) for ends in ENDS}
        row[name]["as_many_real_steps"] = awake(name, work / f"{name}-awake-{seed}", result.env_steps, seed)
    return row


def main() -> int:
    """Run the seeds and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("runs/dreams"))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    import torch

    rows = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
    table = {
        "task": f"CartPole-v1: mean of {EPISODES} episodes, of learners that saw only dreams",
        "command": "python benchmarks/dream_env.py",
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "torch": torch.__version__, "python": platform.python_version(), "rows": rows,
    }  # fmt: skip
    for seed in sorted(set(range(1, args.seeds + 1)) - {row["seed"] for row in rows}):
        rows.append(row_of(seed, args.work))
        print(json.dumps(rows[-1]), flush=True)
        save(args.out, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())

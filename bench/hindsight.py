#!/usr/bin/env python3
"""How many env steps do agents need to reach goals, with hindsight experience replay here and in Stable-Baselines3?

    pip install -e ".[robotics]" stable-baselines3
    python bench/hindsight.py [--env FetchReach-v4] [--systems sac sb3_sac td3 plain_sac] [--seeds 1 2]

All agents have the same networks, batches, learning rates, discount and replay ratio. Every 1,000 env steps, 20
episodes with deterministic actions give the success rate. A run ends when the rate reaches 0.9 and 20 additional
episodes confirm it. ``cpu_seconds`` is the processor time of a run with its evaluations, without imports: one thread.
Each run is a separate process. Rows are written as they come, and replace those of the same seed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from machine import child
from results import save

from reverie.core.hardware import describe_machine

UNITS, BATCH, RATE, DISCOUNT, STARTS = 64, 256, 1e-3, 0.95, 1000
"""Those of RL Baselines3 Zoo for FetchReach."""
TEMPERATURE = 0.1
"""The initial temperature of SAC, chosen after 1, the default, had failed in both libraries: in 10,000 env steps, the
success rates were 0.05 and 0.1 (two runs of ours) and 0.3 (one of Stable-Baselines3)."""
EVERY, EPISODES, GOAL = 1000, 20, 0.9
SYSTEMS = ("sac", "sb3_sac", "td3", "plain_sac")
"""An algorithm of reverie, one of Stable-Baselines3, and one without hindsight."""
Curve = list[list[float]]
"""Env steps and success rates of the evaluations."""


def cpu_seconds() -> float:
    """Processor time of this process and of the children that have ended."""
    return sum(os.times()[:4])


def train_reverie(system: str, env: str, seed: int, steps: int) -> Curve:
    """Train with reverie."""
    import reverie
    from reverie.log.jsonl import read_metrics, split_evaluations

    name = system.removeprefix("plain_")
    algo = {"networks": {"units": (UNITS, UNITS)}, "batch_size": BATCH, "discount": DISCOUNT}
    algo |= {"actor_lr": RATE, "critic_lr": RATE}
    algo |= {"temperature_lr": RATE, "temperature": TEMPERATURE} if name == "sac" else {}
    with tempfile.TemporaryDirectory() as folder:
        reverie.train(
            name, env=env, seed=seed, steps=steps, run=folder, algo=algo, replay_ratio=1, learning_starts=STARTS,
            random_steps=STARTS, replay={} if system != name else {"hindsight": "future"}, threads=1, console=False,
            tensorboard=False, schedule={"eval_every": EVERY}, eval_episodes=EPISODES, stop_score=GOAL,
            score_metric="eval/success_rate",
        )  # fmt: skip
        rows = read_metrics(Path(folder) / "metrics.jsonl", ("eval/score", "eval/final", "eval/success_rate"))
    return [[row["step"], round(row["eval/success_rate"], 3)] for row in split_evaluations(rows)[0]]


def train_sb3(system: str, env: str, seed: int, steps: int) -> Curve:
    """Train with Stable-Baselines3."""
    import gymnasium
    import gymnasium_robotics
    import stable_baselines3
    from stable_baselines3.common.callbacks import BaseCallback, EveryNTimesteps

    gymnasium.register_envs(gymnasium_robotics)
    eval_env, curve = gymnasium.make(env), []
    eval_env.reset(seed=10_000 + seed)

    class Stop(BaseCallback):
        """Evaluates, and stops at a confirmed success rate."""

        def success_rate(self) -> float:
            """The share of the episodes that succeed in their last step."""
            successes = []
            for _ in range(EPISODES):
                obs, info, done = *eval_env.reset(), False
                while not done:
                    action, _ = self.model.predict(obs, deterministic=True)
                    obs, _, terminated, truncated, info = eval_env.step(action)
                    done = terminated or truncated
                successes.append(info.get("is_success", info.get("success")))
            return sum(map(float, successes)) / EPISODES

        def _on_step(self) -> bool:
            curve.append([self.num_timesteps, self.success_rate()])
            return curve[-1][1] < GOAL or self.success_rate() < GOAL

    model = getattr(stable_baselines3, system.removeprefix("sb3_").upper())(
        "MultiInputPolicy", gymnasium.make(env), seed=seed, learning_rate=RATE, batch_size=BATCH, gamma=DISCOUNT,
        learning_starts=STARTS, policy_kwargs={"net_arch": [UNITS, UNITS]}, device="cpu",
        replay_buffer_class=stable_baselines3.HerReplayBuffer,
        replay_buffer_kwargs={"n_sampled_goal": 4, "goal_selection_strategy": "future"},
        **({"ent_coef": f"auto_{TEMPERATURE}"} if system == "sb3_sac" else {}),
    )  # fmt: skip
    model.learn(steps, EveryNTimesteps(EVERY, Stop()))
    return curve


def run_seed(system: str, env: str, seed: int, steps: int) -> dict[str, Any]:
    """Train one seed in one thread; in the child."""
    for name in ("reverie.algos", "gymnasium_robotics", "stable_baselines3" if "sb3" in system else "torch"):
        importlib.import_module(name)  # imports do not count
    started = cpu_seconds()
    curve = (train_sb3 if "sb3" in system else train_reverie)(system, env, seed, steps)
    seconds, (env_steps, rate) = round(cpu_seconds() - started, 1), curve[-1]
    return {"env": env, "system": system, "seed": seed, "steps_to_goal": env_steps if rate >= GOAL else None,
            "env_steps": env_steps, "cpu_seconds": seconds, "curve": curve}  # fmt: skip


def main() -> int:
    """Train, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="FetchReach-v4")
    parser.add_argument("--systems", nargs="*", default=SYSTEMS, help="such as sac, sb3_td3 or plain_td3")
    parser.add_argument("--steps", type=int, default=10_000, help="env steps at most")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(run_seed(args.systems[0], args.env, args.seeds[0], args.steps)))
        return 0
    words = ["--child", "--env", args.env, "--steps", str(args.steps)]
    runs = [["--systems", system, "--seeds", str(seed)] for seed in args.seeds for system in args.systems]
    with ThreadPoolExecutor(args.jobs) as pool:
        jobs = [pool.submit(child, Path(__file__), *words, *run) for run in runs]
        for done in as_completed(jobs):
            row = done.result()
            rows = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
            rows = [old for old in rows if any(old[key] != row[key] for key in ("env", "system", "seed"))]
            rows = sorted([*rows, row], key=lambda r: (r["env"], r["system"], r["seed"]))
            machine = describe_machine(torch.device("cpu")) | {"stable_baselines3": version("stable-baselines3")}
            save(args.out, {"machine": machine, "rows": rows})
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

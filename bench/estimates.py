#!/usr/bin/env python3
"""How near fitted Q evaluation comes to what policies earn: estimates from data alone beside returns that were played.

    python bench/estimates.py [--folder datasets] [--env Pendulum-v1] [--jobs 1]

Policies of several algorithms learn from a dataset of `offline_datasets.py` as in `offline.py`. `reverie estimate` says
what each is worth by that dataset; then it is played, without the time limit, for so long that what comes after counts
less than a thousandth. Both are discounted returns from where episodes begin.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import gymnasium
import torch
from machine import machine
from offline import said
from offline_datasets import FOLDER, dataset_path
from offline_work import FIRST_SEED, WORK, flags
from results import save

import reverie

POLICIES = {
    "Pendulum-v1": (
        ("mixed", "bc"), ("mixed", "td3_bc"), ("mixed", "iql"), ("mixed", "crr"), ("medium", "bc"), ("expert", "td3"),
    ),
    "CartPole-v1": (
        ("mixed", "bc"), ("mixed", "discrete_bcq"), ("mixed", "discrete_cql"), ("medium", "bc"), ("random", "bc"),
    ),
}  # fmt: skip
"""Good ones and bad ones: the level of the data, and what learned from it."""
EPISODES = 400


def played(run: Path, env_id: str, discount: float) -> list[float]:
    """Discounted returns."""
    agent = reverie.load(run, device="cpu")
    env = gymnasium.make(env_id, max_episode_steps=math.ceil(math.log(1e-3) / math.log(discount)))
    returns = []
    for episode in range(EPISODES):
        obs, over, state, total, worth = env.reset(seed=FIRST_SEED + episode)[0], False, None, 0.0, 1.0
        while not over:
            action, state = agent.act(obs, state)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, worth, over = total + worth * float(reward), worth * discount, terminated or truncated
        returns.append(total)
    return returns


def compared(env: str, level: str, algorithm: str, args: argparse.Namespace) -> dict[str, Any]:
    """One policy."""
    with tempfile.TemporaryDirectory() as scratch:
        run, data = Path(scratch) / "run", dataset_path(args.folder, env, level)
        words = (algorithm, "--data", data, "--env", env, "--eval-episodes", 1, "--updates", args.updates)
        quiet = ("--no-console", "--no-tensorboard", "--schedule.eval-every", 0, "--threads", 1, "--seed", args.seed)
        said("-m", "reverie", "train", *words, *quiet, "--run", run, *flags(algorithm, env))
        said("-m", "reverie", "estimate", run, "--updates", args.updates)
        found = json.loads((run / "estimate.json").read_text())
        returns = played(run, env, WORK[env].discount)
    error = statistics.stdev(returns) / len(returns) ** 0.5
    row = {"env": env, "level": level, "algorithm": algorithm, "estimate": found["return"]}
    return row | {"played": statistics.mean(returns), "standard_error": error}


def main() -> int:
    """Train, estimate, play, and write rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", default=list(POLICIES), choices=POLICIES)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the datasets are")
    parser.add_argument("--updates", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="policies at a time")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(args.jobs) as pool:
        jobs = [pool.submit(compared, env, *policy, args) for env in args.env for policy in POLICIES[env]]
        for done in as_completed(jobs):
            rows.append(done.result())
            print(json.dumps(rows[-1]), flush=True)
            rows.sort(key=lambda row: (row["env"], row["level"], row["algorithm"]))
            save(args.out, {"machine": machine(), "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())

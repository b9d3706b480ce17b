#!/usr/bin/env python3
"""How much processor time does a whole short run take, here and in Stable-Baselines3?

    python bench/whole_runs.py [--cases a2c dqn_every_fourth ppo_lstm] [--pairs 3]

CartPole with the defaults of Stable-Baselines3 for both, one thread, without evaluations; the systems run by turns,
each run in a process of its own. Imports of the libraries do not count; ours logs and writes checkpoints as always.
Prints the seconds of each run and the median ratio. DQN makes an update in four env steps. The LSTM has 64 units, and
PPO 8 environments, rollouts of 128 rows and batches of 256: Stable-Baselines3 learns from whole sequences, ours from
sequences of 16 rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from defaults import SB3

ENV, SYSTEMS = "CartPole-v1", ("sb3", "reverie")
STEPS = {"a2c": 30_000, "dqn_every_fourth": 10_000, "ppo_lstm": 12_000}
OURS: dict[str, dict[str, Any]] = {
    "a2c": {"algorithm": "a2c", "preset": "a2c_sb3", "env.num": 8},
    "dqn_every_fourth": {
        "algorithm": "dqn", "preset": "dqn", "replay_ratio": 0.25, "learning_starts": 100, "random_steps": 0,
        "algo.batch_size": 32, "algo.networks.units": (64, 64), "algo.normalize_obs": None, "algo.reward_scale": None,
        "algo.value_estimator": "n_step(1)", "algo.batch_length": 2, "algo.double": False, "algo.lr": 1e-4,
        "algo.tau": 1.0, "algo.target_update_interval": 1000,
    },
    "ppo_lstm": {
        "algorithm": "ppo", "preset": "ppo_sb3", "env.num": 8, "algo.networks.memory": "lstm(64)",
        "algo.batch_length": 16, "algo.rollout": 128, "algo.batch_size": 256,
    },
}  # fmt: skip


def run_ours(case: str) -> float:
    """Return the processor time of a run."""
    import reverie
    import reverie.agent.agent  # imports do not count

    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        reverie.train(env=ENV, run=Path(folder, "run"), steps=STEPS[case], seed=1, threads=1, console=False,
                      eval_episodes=0, **OURS[case])  # fmt: skip
        return time.process_time() - started


def run_sb3(case: str) -> float:
    """Return the processor time of a run."""
    from sb3_contrib import RecurrentPPO
    from stable_baselines3 import A2C, DQN
    from stable_baselines3.common.env_util import make_vec_env

    started = time.process_time()
    envs = make_vec_env(ENV, n_envs=1 if case == "dqn_every_fourth" else 8, seed=1)
    words: dict[str, Any] = {"env": envs, "seed": 1, "device": "cpu"}
    if case == "a2c":
        model: Any = A2C("MlpPolicy", **words)
    elif case == "dqn_every_fourth":
        model = DQN("MlpPolicy", buffer_size=100_000, target_update_interval=1000, train_freq=4, **words)
    else:
        model = RecurrentPPO("MlpLstmPolicy", n_steps=128, batch_size=256, policy_kwargs={"lstm_hidden_size": 64},
                             **words)  # fmt: skip
    model.learn(STEPS[case])
    return time.process_time() - started


def main() -> int:
    """Measure pairs, or be one run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=[*STEPS], choices=[*STEPS])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--where", type=Path, help="folder of the environment of Stable-Baselines3")
    parser.add_argument("--child", choices=SYSTEMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        import torch

        torch.set_num_threads(1)
        print(json.dumps((run_ours if args.child == "reverie" else run_sb3)(args.cases[0])))
        return 0
    from machine import child
    from peers.installed import WHERE, installed

    pythons = installed({"sb3_defaults": SB3}, args.where or WHERE) | {"reverie": sys.executable}
    for case in args.cases:
        pairs = []
        for _ in range(args.pairs):
            words = ["--cases", case, "--child"]
            peer, ours = (
                child(Path(__file__), *words, system, python=python, setting={"OMP_NUM_THREADS": "1"})
                for system, python in zip(SYSTEMS, (pythons["sb3_defaults"], pythons["reverie"]), strict=True)
            )
            pairs.append((peer, ours))
            print(case, *(f"{seconds:.2f} s" for seconds in pairs[-1]), flush=True)
        print(case, f"{statistics.median(peer / ours for peer, ours in pairs):.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

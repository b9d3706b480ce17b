#!/usr/bin/env python3
"""What do the default settings learn, in environments that nobody has tuned settings for?

    python benchmarks/defaults.py [--tasks Thermostat Robot ...] [--algorithms sac ppo ...] [--seeds 3]

Trains each algorithm as `reverie train ALGO --env tasks:tasks/TASK-v0 --steps N` and nothing else, and as
Stable-Baselines3 with its defaults, in an environment of its own below `--where`; both with one thread. Row by row it
writes the mean return of 20 episodes, which begin from the same seeds for both, with deterministic and, where the
policy has a distribution, with sampled actions, and the processor time of training. Rows that are in `--out` are not
measured again. `random` and `heuristic` are played in the same episodes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from results import save

SB3 = ("stable-baselines3==2.9.2", "sb3-contrib==2.9.2", "gymnasium==1.4.0", "numpy==2.4.6")
EPISODES, FIRST = 20, 1000  # and the seed of the first of them
CONTINUOUS = ("Thermostat", "Robot", "Battery", "SwingUp", "Inventory", "Crane")
DISCRETE = ("Admission", "SparseRobot", "Cue", "Scheduling")
ALL = (*CONTINUOUS, *DISCRETE, "Allocation")
ALGORITHMS = {
    "sac": (CONTINUOUS, 5000), "td3": (CONTINUOUS, 5000), "dqn": (DISCRETE, 10_000), "ppo": (ALL, 50_000),
}  # fmt: skip
"""The tasks of each algorithm, and its env steps."""
MORE = {
    "ddpg": ALGORITHMS["td3"], "tqc": ALGORITHMS["sac"], "crossq": ALGORITHMS["sac"], "a2c": ALGORITHMS["ppo"],
    "discrete_sac": ALGORITHMS["dqn"],
} | dict.fromkeys(("c51", "qr_dqn", "iqn"), ALGORITHMS["dqn"])  # fmt: skip
"""Those that are only measured when they are named."""
STOCHASTIC = ("sac", "ppo", "tqc", "crossq", "a2c", "discrete_sac")
LIBRARIES = ("reverie", "sb3")


def cpu_seconds() -> float:
    """Processor time of this process and of the children that have ended."""
    return sum(os.times()[:4])


def play(task: str, choose: Callable[[Any, Any, Any, bool], Any]) -> float:
    """The mean return of all episodes; `choose(env, obs, mask, is_first)` returns an action."""
    import gymnasium

    importlib.import_module("tasks")
    env: Any = gymnasium.make(f"tasks/{task}-v0").unwrapped
    masks, total = getattr(env, "action_masks", lambda: None), 0.0
    for episode in range(EPISODES):
        (obs, _), done, first = env.reset(seed=FIRST + episode), False, True
        while not done:
            obs, reward, terminated, truncated, _ = env.step(choose(env, obs, masks(), first))
            total, done, first = total + reward, terminated or truncated, False
    return float(total / EPISODES)


def baselines(task: str) -> dict[str, Any]:
    """What random actions and the heuristic score."""
    import numpy as np

    def random(env: Any, obs: Any, mask: Any, first: bool) -> Any:
        if first:
            env.action_space.seed(env.np_random_seed)
        return env.action_space.sample(None if mask is None else mask.astype(np.int8))

    row = {"random": play(task, random), "heuristic": play(task, lambda env, obs, mask, first: env.heuristic(obs))}
    return {"task": task} | rounded(row)


def rounded(row: dict[str, float]) -> dict[str, float]:
    """The numbers with four digits."""
    return {name: float(f"{value:.4g}") for name, value in row.items()}


def train_reverie(task: str, algorithm: str, steps: int, seed: int, run: Path, settings: Any) -> dict[str, Any]:
    """Train with reverie's defaults, and play."""
    import reverie

    started = cpu_seconds()
    result = reverie.train(algorithm, env=f"tasks:tasks/{task}-v0", steps=steps, seed=seed, run=run,
                           threads=1, console=False, eval_episodes=0, **settings)  # fmt: skip
    seconds, agent = cpu_seconds() - started, result.agent

    def score(deterministic: bool) -> float:
        state: Any = None

        def choose(env: Any, obs: Any, mask: Any, first: bool) -> Any:
            nonlocal state
            before = None if first else state
            action, state = agent.act(obs, before, deterministic=deterministic, action_mask=mask)
            return action

        return play(task, choose)

    return {"cpu_seconds": seconds} | scores(score, algorithm)


def train_sb3(task: str, algorithm: str, steps: int, seed: int) -> dict[str, Any]:
    """Train with the defaults of Stable-Baselines3, and play."""
    import gymnasium
    import sb3_contrib
    import stable_baselines3

    importlib.import_module("tasks")
    env, started = gymnasium.make(f"tasks/{task}-v0"), cpu_seconds()
    masked = algorithm == "ppo" and hasattr(env.unwrapped, "action_masks")
    name = "MaskablePPO" if masked else algorithm.upper().replace("_", "").replace("CROSSQ", "CrossQ")
    kind = getattr(sb3_contrib, name, None) or getattr(stable_baselines3, name)
    model = kind("MlpPolicy", env, seed=seed, device="cpu").learn(steps)
    seconds = cpu_seconds() - started

    def score(deterministic: bool) -> float:
        def choose(env: Any, obs: Any, mask: Any, first: bool) -> Any:
            words = {"action_masks": mask} if masked else {}
            return model.predict(obs, deterministic=deterministic, **words)[0]

        return play(task, choose)

    return {"cpu_seconds": seconds} | scores(score, algorithm)


def scores(score: Callable[[bool], float], algorithm: str) -> dict[str, float]:
    """The score with deterministic actions, and that with sampled ones, if there are any."""
    return {"score": score(True)} | ({"sampled": score(False)} if algorithm in STOCHASTIC else {})


def run_seed(task: str, algorithm: str, library: str, seed: int, settings: Any) -> dict[str, Any]:
    """Train one seed in one thread; in the child."""
    importlib.import_module("stable_baselines3" if library == "sb3" else "reverie.algos")  # imports do not count
    importlib.import_module("torch").set_num_threads(1)
    steps = (ALGORITHMS | MORE)[algorithm][1]
    if library == "sb3":
        row = train_sb3(task, algorithm, steps, seed)
    else:
        with tempfile.TemporaryDirectory() as folder:
            row = train_reverie(task, algorithm, steps, seed, Path(folder) / "run", settings)
    about = {"task": task, "algorithm": algorithm, "library": library, "seed": seed, "steps": steps}
    return about | rounded(row)


def main() -> int:
    """Train, and write each row as it comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=[*ALL], choices=ALL)
    parser.add_argument("--algorithms", nargs="*", default=[*ALGORITHMS], choices=[*ALGORITHMS, *MORE])
    parser.add_argument("--libraries", nargs="*", default=[*LIBRARIES], choices=LIBRARIES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--where", type=Path, help="folder of the environment of Stable-Baselines3")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--settings", type=json.loads, default={}, help="in JSON, to look for better defaults")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(run_seed(args.tasks[0], args.algorithms[0], args.libraries[0], args.first, args.settings)))
        return 0
    import torch
    from machine import child
    from peers.installed import WHERE, installed

    from reverie.core.hardware import describe_machine

    table = json.loads(args.out.read_text()) if args.out.exists() else {"tasks": [], "rows": []}
    done = {(row["task"], row["algorithm"], row["library"], row["seed"]) for row in table["rows"]}
    wanted = [
        row for seed in range(args.first, args.first + args.seeds) for algorithm in args.algorithms
        for task in args.tasks for library in args.libraries if task in (ALGORITHMS | MORE)[algorithm][0]
        if (row := (task, algorithm, library, seed)) not in done
    ]  # fmt: skip
    needed = {"sb3_defaults": SB3} if any(library == "sb3" for _, _, library, _ in wanted) else {}
    python = installed(needed, args.where or WHERE).get("sb3_defaults")
    measured = {task["task"] for task in table["tasks"]}
    table["tasks"] += [baselines(task) for task in args.tasks if task not in measured]
    for task, algorithm, library, seed in wanted:
        if library == "sb3" and python is None:
            continue
        words = ["--child", "--tasks", task, "--algorithms", algorithm, "--libraries", library, "--first", str(seed)]
        interpreter = python if library == "sb3" and python else sys.executable
        row = child(Path(__file__), *words, "--settings", json.dumps(args.settings), python=interpreter,
                    setting={"OMP_NUM_THREADS": "1"})  # fmt: skip
        print(json.dumps(row), flush=True)
        table = {"machine": describe_machine(torch.device("cpu"))} | table
        table["rows"] = sorted(
            [*table["rows"], row], key=lambda r: (r["algorithm"], r["task"], r["library"], r["seed"])
        )
        save(args.out, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""What do the default settings learn, in environments that nobody has tuned settings for?

    python bench/defaults.py [--tasks Thermostat Robot ...] [--algorithms sac ppo iql ...] [--seeds 3]

Trains each algorithm as `reverie train ALGO --env tasks:tasks/TASK-v0 --steps N` and nothing else, and as
Stable-Baselines3 with its defaults, in an environment of its own below `--where`; both with one thread. Row by row it
writes the mean return of 20 episodes, which begin from the same seeds for both, with deterministic and, where the
policy has a distribution, with sampled actions, and the processor time of training. Rows that are in `--out` are not
measured again. `random` and `heuristic` are played in the same episodes.

Offline algorithms learn from a log of 40 episodes of an environment, in which three of ten actions are random and the
others the heuristic's with a little noise: as `reverie train ALGO --data LOG --env tasks:tasks/TASK-v0 --updates N`,
and as d3rlpy with its defaults, whose actions are in [-1, 1].
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
LOGGED, UPDATES = ("Thermostat", "Battery", "Inventory"), 2000
OFFLINE = dict.fromkeys(("iql", "crr", "cql", "td3_bc", "rebrac", "fql", "bcq"), (LOGGED, UPDATES)) | dict.fromkeys(
    ("discrete_bcq", "discrete_cql", "discrete_crr"), (("Admission",), UPDATES)
) | {"bc": ((*LOGGED, "Admission"), UPDATES)}  # fmt: skip
"""The logs of each offline algorithm, and its updates."""
EVERY = ALGORITHMS | MORE | OFFLINE
LOG_EPISODES, RANDOM_SHARE, NOISE, LOG_SEED = 40, 0.3, 0.1, 1
STOCHASTIC = ("sac", "ppo", "tqc", "crossq", "a2c", "discrete_sac")
LIBRARIES = ("reverie", "sb3", "d3rlpy")
D3RLPY = ("d3rlpy==2.8.1", "gymnasium==1.0.0", "numpy==2.4.6")
LEARNERS = {
    "bc": "BC", "iql": "IQL", "crr": "CRR", "cql": "CQL", "td3_bc": "TD3PlusBC", "rebrac": "ReBRAC", "bcq": "BCQ",
    "discrete_bcq": "DiscreteBCQ", "discrete_cql": "DiscreteCQL",
}  # fmt: skip
"""The algorithms of d3rlpy."""


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


def record_log(task: str) -> dict[str, Any]:
    """Return the arrays of a log under D4RL's names."""
    import gymnasium
    import numpy as np

    importlib.import_module("tasks")
    env: Any = gymnasium.make(f"tasks/{task}-v0").unwrapped
    rng, space = np.random.default_rng(LOG_SEED), env.action_space
    names = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
    rows: list[tuple[Any, ...]] = []
    for episode in range(LOG_EPISODES):
        (obs, _), ends = env.reset(seed=LOG_SEED * FIRST**2 + episode), (False, False)
        while not any(ends):
            is_random, action = rng.random() < RANDOM_SHARE, env.heuristic(obs)
            if isinstance(space, gymnasium.spaces.Discrete):
                action = rng.integers(space.n) if is_random else action
            else:
                noise = NOISE * (space.high - space.low) / 2 * rng.standard_normal(space.shape)
                action = (
                    rng.uniform(space.low, space.high) if is_random else np.clip(action + noise, space.low, space.high)
                )
            after, reward, *ends, _ = env.step(action)
            rows.append((obs, action, reward, *ends, after))
            obs = after
    log = {name: np.stack(values) for name, values in zip(names, map(list, zip(*rows, strict=True)), strict=True)}
    return {name: values.astype(np.float32) if values.dtype == np.float64 else values for name, values in log.items()}


def describe_log(task: str) -> dict[str, Any]:
    """Return the size of a log, and the mean return of its episodes."""
    rewards = record_log(task)["rewards"].astype(float)
    return {"task": task, "episodes": LOG_EPISODES, "steps": len(rewards)} | rounded(
        {"mean": rewards.sum() / LOG_EPISODES}
    )


def rounded(row: dict[str, float]) -> dict[str, float]:
    """The numbers with four digits."""
    return {name: float(f"{value:.4g}") for name, value in row.items()}


def train_reverie(task: str, algorithm: str, steps: int, seed: int, run: Path, settings: Any) -> dict[str, Any]:
    """Train with reverie's defaults, and play."""
    import reverie

    started = cpu_seconds()
    length = {"updates": steps, "data": record_log(task)} if algorithm in OFFLINE else {"steps": steps}
    result = reverie.train(algorithm, env=f"tasks:tasks/{task}-v0", seed=seed, run=run, threads=1, console=False,
                           eval_episodes=0, **length, **settings)  # fmt: skip
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


def train_d3rlpy(task: str, algorithm: str, updates: int, seed: int) -> dict[str, Any]:
    """Train with the defaults of d3rlpy on actions in [-1, 1], which they expect, and play."""
    import d3rlpy
    import gymnasium
    import numpy as np

    log, space = record_log(task), gymnasium.make(f"tasks/{task}-v0").action_space
    discrete = isinstance(space, gymnasium.spaces.Discrete)
    middle, half = (0, 1) if discrete else ((space.high + space.low) / 2, (space.high - space.low) / 2)
    actions = log["actions"].reshape(-1, 1) if discrete else (log["actions"] - middle) / half
    data = d3rlpy.dataset.MDPDataset(log["observations"], actions, log["rewards"], log["terminals"], log["timeouts"])
    d3rlpy.seed(seed)
    name = f"{'Discrete' if algorithm == 'bc' and discrete else ''}{LEARNERS[algorithm]}Config"
    started = cpu_seconds()
    model = getattr(d3rlpy.algos, name)().create(device="cpu:0")
    model.fit(data, n_steps=updates, n_steps_per_epoch=updates, show_progress=False, save_interval=2,
              logger_adapter=d3rlpy.logging.NoopAdapterFactory())  # fmt: skip
    seconds = cpu_seconds() - started

    def choose(env: Any, obs: Any, mask: Any, first: bool) -> Any:
        action = model.predict(np.asarray(obs, np.float32)[None])[0]
        return action if discrete else np.clip(action, -1, 1) * half + middle

    return {"cpu_seconds": seconds, "score": play(task, choose)}


def scores(score: Callable[[bool], float], algorithm: str) -> dict[str, float]:
    """The score with deterministic actions, and that with sampled ones, if there are any."""
    return {"score": score(True)} | ({"sampled": score(False)} if algorithm in STOCHASTIC else {})


def is_comparable(algorithm: str, library: str) -> bool:
    """Whether a library has an algorithm: Stable-Baselines3 those that collect rows, d3rlpy offline ones."""
    if library == "d3rlpy":
        return algorithm in LEARNERS
    return library == "reverie" or algorithm not in OFFLINE


def run_seed(task: str, algorithm: str, library: str, seed: int, settings: Any) -> dict[str, Any]:
    """Train one seed in one thread; in the child."""
    module = {"sb3": "stable_baselines3", "d3rlpy": "d3rlpy", "reverie": "reverie.algos"}[library]
    importlib.import_module(module)  # imports do not count
    importlib.import_module("torch").set_num_threads(1)
    steps = EVERY[algorithm][1]
    if library != "reverie":
        row = {"sb3": train_sb3, "d3rlpy": train_d3rlpy}[library](task, algorithm, steps, seed)
    else:
        with tempfile.TemporaryDirectory() as folder:
            row = train_reverie(task, algorithm, steps, seed, Path(folder) / "run", settings)
    unit = "updates" if algorithm in OFFLINE else "steps"
    about = {"task": task, "algorithm": algorithm, "library": library, "seed": seed, unit: steps}
    return about | rounded(row)


def main() -> int:
    """Train, and write each row as it comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=[*ALL], choices=ALL)
    parser.add_argument("--algorithms", nargs="*", default=[*ALGORITHMS], choices=[*EVERY])
    parser.add_argument("--libraries", nargs="*", default=[*LIBRARIES], choices=LIBRARIES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--where", type=Path, help="folder of the environments of other libraries")
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
        for task in args.tasks for library in args.libraries
        if task in EVERY[algorithm][0] and is_comparable(algorithm, library)
        if (row := (task, algorithm, library, seed)) not in done
    ]  # fmt: skip
    packages = {"sb3": SB3, "d3rlpy": D3RLPY}
    needed = {f"{name}_defaults": packages[name] for _, _, name, _ in wanted if name in packages}
    pythons = installed(needed, args.where or WHERE)
    measured = {task["task"] for task in table["tasks"]}
    table["tasks"] += [baselines(task) for task in args.tasks if task not in measured]
    logged = {task for task, algorithm, _, _ in wanted if algorithm in OFFLINE}
    logs = {log["task"]: log for log in table.get("logs", [])} | {task: describe_log(task) for task in logged}
    table["logs"] = [logs[task] for task in ALL if task in logs]
    for task, algorithm, library, seed in wanted:
        python = sys.executable if library == "reverie" else pythons.get(f"{library}_defaults")
        if python is None:
            continue
        words = ["--child", "--tasks", task, "--algorithms", algorithm, "--libraries", library, "--first", str(seed)]
        row = child(Path(__file__), *words, "--settings", json.dumps(args.settings), python=python,
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

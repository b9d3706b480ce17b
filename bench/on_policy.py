#!/usr/bin/env python3
"""What does PPO reach, and how fast is it, here and elsewhere?

    python bench/on_policy.py results [--tasks cartpole pendulum ...] [--first 0] [--seeds 5] [--peer-seeds 3]
    python bench/on_policy.py speed [--tasks cartpole pendulum cheetah] [--rounds 3]

Each run is a process of its own: a whole training, without evaluations, then episodes that decide
nothing. Ours logs and writes checkpoints, its defaults; the others write nothing. They have
the same settings, `peers/on_policy_*.py`, also of actions and rewards; details are their own. Scores are compared with
those of Stable-Baselines3 alone.

`results`: the mean score over seeds with reverie's own intervals, written after each run. Seeds are added to those that
the file has with the same settings, so a part can be done today and the rest tomorrow: `--first 3` begins at seed 3.
Tasks that need memory have other algorithms beside PPO, with and without it. `speed`: shorter runs of all in turn, with
`--threads 2` also with two threads; medians over the rounds, and ratios of runs of one round. An update is a minibatch
with its sampling. Times are of the whole process without its start. Rows of tasks that were not measured
stay as they are.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from machine import machine, write
from peers.installed import WHERE, installed

import reverie
import reverie.api
from reverie.agent.evaluating import evaluate_run
from reverie.algos.ppo import PPO
from reverie.core.openmp import limit_openmp_spinning
from reverie.envs.make import make_gym
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.settings import Request, merge_layers
from reverie.log.aggregate import aggregate_intervals, nan_to_none
from reverie.replay.rollout import RolloutBuffer

EPISODES = 20
OURS, PEER = "reverie", "Stable-Baselines3 2.9.2"
IMAGES = ("minatar==1.0.15", "ale-py==0.12.1", "opencv-python-headless==5.0.0.93")
MUJOCO = ("gymnasium[mujoco]==1.4.0", "mujoco==4.0.0", "numpy==2.4.6", *IMAGES)
GAMES = ("box2d==2.3.10", "pygame==2.6.1", "minigrid==3.2.0")
PEERS = {
    PEER: ("sb3", ("stable-baselines3==2.9.2", "sb3-contrib==2.9.2", *GAMES, *MUJOCO)),
    "TorchRL 0.14.1": ("torchrl", ("torchrl==0.14.1", "tensordict==0.14.3", *MUJOCO)),
    "Tianshou 2.0.1": ("tianshou", ("tianshou==2.0.1", *MUJOCO)),
    "RLlib 2.60.0": (
        "rllib",
        ("ray[rllib]==2.60.0", "gymnasium[mujoco]==1.2.2", "mujoco==4.0.0", "numpy==2.4.6", "pillow==12.1.0", *IMAGES),
    ),
    "a script like CleanRL's": ("script", MUJOCO),
}
"""Other systems: the end of their script's name, and what it needs."""
CUE = {"env.num": 8, "algo.rollout": 32, "algo.batch_size": 64, "algo.lr": 3e-3, "algo.epochs": 8}
RAW = {
    "env.num": 8, "algo.epochs": 10, "algo.value_estimator": "gae(0.95)", "algo.normalize_obs": None,
    "algo.reward_scale": None,
}  # fmt: skip
REPLAYED = {
    "env.num": 1, "replay_ratio": 0.5, "learning_starts": 200, "replay.capacity": 5000, "algo.batch_size": 64,
    "algo.lr": 3e-3, "algo.networks.units": (32,), "algo.batch_length": 8, "algo.tau": 0.01,
    "algo.target_update_interval": 1,
    "algo.exploration": "epsilon_greedy(1.0, 0.05, 1000)",
}  # fmt: skip


class Task(NamedTuple):
    """What is to be learned."""

    env: str
    steps: int
    """Env steps of a run that counts for results."""
    timed: int = 0
    """Env steps of a run that is timed; 0: none is."""
    own: Mapping[str, Any] = MappingProxyType({})
    """Settings beside those of the preset."""
    peer: bool = True
    """Whether the peer has the same."""
    algo: str = "ppo"


def remembering(memory: str) -> dict[str, Any]:
    """Settings of a memory that learns from sequences of 8 rows."""
    return {"algo.networks.memory": memory, "algo.batch_length": 8}


TASKS = {
    "cartpole": Task("CartPole-v1", 100_000, 51_200),
    "pendulum": Task("Pendulum-v1", 200_000, 24_576, {"algo.networks.log_std": 0.0}),
    "pendulum_half": Task("Pendulum-v1", 200_000),
    "acrobot": Task("Acrobot-v1", 100_000, 0, RAW),
    "acrobot_normalized": Task("Acrobot-v1", 300_000),
    "lunar_lander": Task("LunarLander-v3", 1_000_000),
    "cheetah": Task("HalfCheetah-v5", 1_000_000, 40_960),
    "breakout": Task("MinAtar/Breakout-v1", 1_000_000, 65_536),
    "pong": Task("ALE/Pong-v5", 0, 8192),
    "doors": Task("MiniGrid-DoorKey-6x6-v0", 300_000),
    "doors_memory": Task("MiniGrid-DoorKey-6x6-v0", 300_000, 0, remembering("lstm(128)")),
    "cue": Task("reverie/Cue-v0", 20_000, 0, CUE, peer=False),
    "cue_memory": Task("reverie/Cue-v0", 20_000, 0, CUE | remembering("lstm(16)"), peer=False),
    "cue_window": Task("reverie/Cue-v0", 20_000, 0, CUE | {"algo.networks.memory": "transformer(8, 16, 2)"},
                       peer=False),
    "cue_dqn": Task("reverie/Cue-v0", 3_000, 0, REPLAYED, peer=False, algo="dqn"),
    "cue_dqn_memory": Task("reverie/Cue-v0", 3_000, 0, REPLAYED | remembering("lstm(16)"), peer=False, algo="dqn"),
    "cue_dqn_window": Task("reverie/Cue-v0", 3_000, 0, REPLAYED | remembering("transformer(8, 16, 2)"), peer=False,
                           algo="dqn"),
}  # fmt: skip

FILTERS = {"Minatar": [[16, 3, 1]], "Nature": [[32, 8, 4], [64, 4, 2], [64, 3, 1]]}
"""Channels, kernel and stride of the convolutions of images."""

Numbers = dict[str, Any]
"""What a run prints: steps, wall_s, cpu_s, update_ms (of PPO), and the score of its episodes."""


# ---------------------------------------------------------------- one run, in its own process


def settings_of(task: Task, config: ExperimentConfig, seed: int, steps: int, episodes: int) -> dict[str, Any]:
    """The same settings for the peer."""
    c: Any = config.algo
    lr, clip = (getattr(value, "points", value) for value in (c.lr, c.clip_range))
    filters = FILTERS.get(type(c.networks.encoder).__name__)
    images = {"filters": filters, "units": c.networks.units, "atari": task.env.startswith("ALE/")} if filters else {}
    images |= {"activation": c.networks.activation, "lstm": getattr(c.networks.memory, "units", 0)} if filters else {}
    return {
        "env": task.env, "envs": config.env.num, "seed": seed, "steps": steps, "episodes": episodes,
        "rollout": c.rollout, "batch_size": c.batch_size, "epochs": c.epochs, "discount": c.discount,
        "lambda": c.value_estimator.lam, "lr": lr, "clip": clip, "normalize": c.normalize_obs is not None,
        "factor": getattr(c.reward_scale, "factor", 1.0), "entropy": c.entropy_coef, "log_std": c.networks.log_std,
    } | images  # fmt: skip


class Stopwatch:
    """Seconds of this thread in watched methods, and how often the last of them was called."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0

    def watch(self, owner: type, method: str) -> None:
        """Count ``owner.method``."""
        call: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any) -> Any:
            started = time.thread_time()
            value = call(*args)
            self.seconds += time.thread_time() - started
            self.calls += 1
            return value

        setattr(owner, method, timed)


def ours(task: Task, seed: int, steps: int, episodes: int) -> Numbers:
    """One training in this process."""
    sampling, learning = Stopwatch(), Stopwatch()
    sampling.watch(RolloutBuffer, "sample")
    learning.watch(PPO, "update")
    train = reverie.train
    make_gym(resolved(task).env, None, False).close()  # what is imported once is no part of a long run
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        wall, cpu = time.perf_counter(), time.process_time()
        result = train(
            task.algo,
            env=task.env,
            run=run,
            steps=steps,
            seed=seed,
            eval_episodes=0,
            threads=torch.get_num_threads(),
            console=False,
            **task.own,
        )
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        update = 1e3 * (sampling.seconds + learning.seconds) / max(1, learning.calls)
        found = {"steps": result.env_steps, "wall_s": wall, "cpu_s": cpu, "update_ms": update}
        if not episodes:
            return found
        scores = evaluate_run(reverie.load(run), episodes=episodes).evaluation.scores
    return found | {"score": sum(scores) / len(scores)}


# ---------------------------------------------------------------- all runs


class Runs:
    """Runs of both systems, each in a fresh process."""

    def __init__(self, args: argparse.Namespace) -> None:
        wanted = [name for name in PEERS if args.part == "speed" or name == PEER]
        found = installed({PEERS[name][0]: PEERS[name][1] for name in wanted}, args.where)
        self.threads = str(args.threads)
        self.pythons = {name: found[PEERS[name][0]] for name in wanted if PEERS[name][0] in found}

    def systems(self, task: Task) -> list[str]:
        """Those that can do it."""
        return [OURS, *(self.pythons if task.peer else ())]

    def run(self, system: str, name: str, seed: int, steps: int, episodes: int) -> Numbers:
        """What one of them prints.

        Raises:
            RuntimeError: it failed; with what it said.
        """
        command = [sys.executable, __file__, "one", name, seed, steps, episodes]
        if system != OURS:
            task = TASKS[name]
            said = settings_of(task, resolved(task), seed, steps, episodes)
            script = Path(__file__).parent / "peers" / f"on_policy_{PEERS[system][0]}.py"
            command = [self.pythons[system], script, json.dumps(said)]
        env = os.environ | {"OMP_NUM_THREADS": self.threads, "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
        if system == OURS:
            limit_openmp_spinning(env)  # as `reverie train` does; here PyTorch is imported first
        done = subprocess.run([str(word) for word in command], env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{system}, {name}, seed {seed}: {done.stderr[-2000:]}")
        numbers: Numbers = json.loads(done.stdout.splitlines()[-1])
        print(system, name, seed, numbers, flush=True)
        return numbers


def resolved(task: Task) -> ExperimentConfig:
    """All settings of ours."""
    return merge_layers(Request(algorithm=task.algo, env=task.env)).merge(task.own)


def mark(system: str, task: Task) -> str:
    """What changes with any setting of the runs, so that only seeds with the same ones are put together."""
    said: Any = [system, task.steps, EPISODES]
    config = resolved(task)
    said.append(repr((config.algo, config.env)) if system == OURS else settings_of(task, config, 0, task.steps, 0))
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:8]


def results(runs: Runs, name: str, args: argparse.Namespace, add: Callable[[dict[str, Any]], None]) -> None:
    """Add a row for each run, with its seed."""
    task = TASKS[name]
    with ThreadPoolExecutor(args.jobs) as pool:
        jobs: dict[Future[Numbers], tuple[str, int]] = {}
        for system in runs.systems(task):
            for seed in range(args.first, args.first + (args.seeds if system == OURS else args.peer_seeds)):
                jobs[pool.submit(runs.run, system, name, seed, task.steps, EPISODES)] = system, seed
        for job in as_completed(jobs):
            system, seed = jobs[job]
            run = job.result()
            add({"part": "results", "task": name, "env": task.env, "system": system, "mark": mark(system, task),
                 "steps": run["steps"], "seeds": [seed], "cpu_s": [round(run["cpu_s"], 1)],
                 "scores": [round(run["score"], 1)]})  # fmt: skip


def together(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The row of the seeds of both; where both have one, the new run counts."""
    lists = ("seeds", "cpu_s", "scores")
    known = old if old.get("mark") == new["mark"] else {key: [] for key in lists}
    rows = [*zip(*(new[key] for key in lists), strict=True)]
    rows += [run for run in zip(*(known[key] for key in lists), strict=True) if run[0] not in new["seeds"]]
    row = dict(new) | dict(zip(lists, map(list, zip(*sorted(rows), strict=True)), strict=True))
    found = aggregate_intervals(row["scores"])
    return row | {what: nan_to_none(found[what]._asdict()) for what in ("iqm", "mean")}


def speed(runs: Runs, name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each system: medians over the rounds, and how many times as fast ours was in the same round."""
    task, steps = TASKS[name], TASKS[name].timed // args.share
    runs.run(OURS, name, 0, steps // 4, 0)  # compiles what is not there yet
    found: dict[str, list[Numbers]] = {system: [] for system in runs.systems(task)}
    for number in range(args.rounds):
        for system, each in found.items():
            each.append(rates(runs.run(system, name, number, steps, 0)))
    more = {"steps": steps, "threads": args.threads}
    return [speed_row(name, system, each, found[OURS]) | more for system, each in found.items()]


def rates(run: Numbers) -> Numbers:
    """Of a run: env steps a second of processor time and of wall time, updates a second."""
    steps = run["steps"]
    return {"per_cpu_s": steps / run["cpu_s"], "per_s": steps / run["wall_s"], "updates_per_s": 1e3 / run["update_ms"]}


def speed_row(name: str, system: str, found: Sequence[Numbers], first: Sequence[Numbers]) -> dict[str, Any]:
    """The row of these rounds, beside those of ours."""
    row = {"part": "speed", "task": name, "env": TASKS[name].env, "system": system}
    for what in ("per_cpu_s", "per_s", "updates_per_s"):
        row[what] = statistics.median(run[what] for run in found)
        row[f"ratio_{what}"] = statistics.median(a[what] / b[what] for a, b in zip(first, found, strict=True))
    return row | {"rounds": [round(run["per_cpu_s"]) for run in found]}


def merged(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """``old`` with ``new`` in the place of the rows of its part, task and system, in the order of the tasks."""

    def key(row: Mapping[str, Any]) -> tuple[str, int, int, int]:
        order = list(TASKS).index(row["task"]), [OURS, *PEERS].index(row["system"])
        return row["part"], row.get("threads", 1), *order

    found = {key(row): row for row in old if row["task"] in TASKS}
    for row in new:
        place = key(row)
        found[place] = together(found.get(place, {}), row) if row["part"] == "results" else row
    return [found[place] for place in sorted(found)]


def main() -> int:
    """Measure and write, or be one run."""
    if sys.argv[1:2] == ["one"]:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        print(json.dumps(ours(TASKS[sys.argv[2]], *map(int, sys.argv[3:]))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("results", "speed"))
    parser.add_argument("--tasks", nargs="*", choices=TASKS, help="all of the part unless given")
    parser.add_argument("--first", type=int, default=0, help="the first seed, for results")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--peer-seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, for results")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--share", type=int, default=1, help="take one part of so many of the env steps, for speed")
    parser.add_argument("--where", type=Path, default=WHERE, help="folder of the others' environments")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    runs, here = Runs(args), machine(1)
    asked = args.tasks or [name for name, task in TASKS.items() if (task.steps, task.timed)[args.part == "speed"]]

    def add(*new: dict[str, Any]) -> None:
        rows = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
        write(args.out, here, merged(rows, new))

    for name in asked:
        if args.part == "results":
            results(runs, name, args, add)
        else:
            add(*speed(runs, name, args))
    return 0


if __name__ == "__main__":
    sys.exit(main())

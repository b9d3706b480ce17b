#!/usr/bin/env python3
"""What does PPO reach, and how fast is it, here and in Stable-Baselines3?

    python benchmarks/on_policy.py results [--tasks cartpole pendulum ...] [--seeds 5] [--peer-seeds 3] [--jobs 2]
    python benchmarks/on_policy.py speed [--tasks cartpole pendulum cheetah] [--rounds 3]

Each run is a process of its own with one thread: a whole training, without evaluations, then episodes that decide
nothing. Ours keeps every row for good, logs and writes checkpoints, its defaults; Stable-Baselines3 writes nothing. It
has the same settings, `peers/on_policy_sb3.py`, also of actions and rewards; weights and details are its own.

`results`: the mean score over seeds with reverie's own intervals. `speed`: shorter runs of both in turn; medians over
the rounds, and ratios of runs of one round. An update is a minibatch with its sampling. Processor time is of the whole
process without its start. Rows of tasks that were not measured stay as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from installed import WHERE, installed
from machine import machine, write

import reverie
from reverie.agent.evaluation import evaluate_run
from reverie.algos.ppo import PPO
from reverie.experiment import ExperimentConfig
from reverie.log.aggregate import intervals_of, plain
from reverie.presets.layers import layered
from reverie.replay.rollout import Rollout

EPISODES = 20
OURS, PEER = "reverie", "Stable-Baselines3 2.9.2"
PACKAGES = ("stable-baselines3==2.9.2", "gymnasium[mujoco]==1.4.0", "mujoco==4.0.0", "numpy==2.4.6")
CUE = {"env.num": 8, "algo.rollout": 32, "algo.batch_size": 64, "algo.lr": 3e-3, "algo.epochs": 8}


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


TASKS = {
    "cartpole": Task("CartPole-v1", 100_000, 51_200),
    "pendulum": Task("Pendulum-v1", 200_000, 24_576),
    "acrobot": Task("Acrobot-v1", 100_000, 0, {"env.num": 8, "algo.rollout": 256}),
    "cue_memory": Task("reverie/Cue-v0", 20_000, 0, CUE | {"algo.networks.memory": "lstm(16)", "algo.batch_length": 8},
                       peer=False),
    "cue": Task("reverie/Cue-v0", 20_000, 0, CUE, peer=False),
    "cheetah": Task("HalfCheetah-v5", 0, 12_288),
}  # fmt: skip

Numbers = dict[str, Any]
"""What a run prints: steps, wall_s, cpu_s, update_ms, and the score of its episodes."""


# ---------------------------------------------------------------- one run, in its own process


def settings_of(task: Task, config: ExperimentConfig, seed: int, steps: int, episodes: int) -> dict[str, Any]:
    """The same settings for the peer."""
    c: Any = config.algo
    lr, clip = (getattr(value, "points", value) for value in (c.lr, c.clip))
    return {
        "env": task.env, "envs": config.env.num, "seed": seed, "steps": steps, "episodes": episodes,
        "rollout": c.rollout, "batch_size": c.batch_size, "epochs": c.epochs, "discount": c.discount,
        "lambda": c.value_estimator.lam, "lr": lr, "clip": clip, "normalise": c.normalise is not None,
        "factor": getattr(c.reward_scale, "factor", 1.0),
    }  # fmt: skip


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
    sampling.watch(Rollout, "sample")
    learning.watch(PPO, "update")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        wall, cpu = time.perf_counter(), time.process_time()
        result = reverie.train(
            "ppo", env=task.env, run=run, steps=steps, seed=seed, eval_episodes=0, threads=1, console=False, **task.own
        )
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        update = 1e3 * (sampling.seconds + learning.seconds) / learning.calls
        found = {"steps": result.env_steps, "wall_s": wall, "cpu_s": cpu, "update_ms": update}
        if not episodes:
            return found
        scores = evaluate_run(reverie.load(run), episodes).evaluation.scores
    return found | {"score": sum(scores) / len(scores)}


# ---------------------------------------------------------------- all runs


class Runs:
    """Runs of both systems, each in a fresh process with one thread."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.peer = installed({"sb3": PACKAGES}, args.where).get("sb3")

    def systems(self, task: Task) -> list[str]:
        """Those that can do it."""
        return [OURS, PEER] if task.peer and self.peer is not None else [OURS]

    def run(self, system: str, name: str, seed: int, steps: int, episodes: int) -> Numbers:
        """What one of them prints.

        Raises:
            RuntimeError: it failed; with what it said.
        """
        command = [sys.executable, __file__, "one", name, seed, steps, episodes]
        if system == PEER:
            task = TASKS[name]
            said = settings_of(task, layered("ppo", env=task.env).merge(task.own), seed, steps, episodes)
            command = [self.peer, Path(__file__).parent / "peers" / "on_policy_sb3.py", json.dumps(said)]
        env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
        done = subprocess.run([str(word) for word in command], env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{system}, {name}, seed {seed}: {done.stderr[-2000:]}")
        numbers: Numbers = json.loads(done.stdout.splitlines()[-1])
        print(system, name, seed, numbers, flush=True)
        return numbers


def results(runs: Runs, name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each system: its scores over the seeds."""
    task, out = TASKS[name], []
    with ThreadPoolExecutor(args.jobs) as pool:
        for system in runs.systems(task):
            count = args.seeds if system == OURS else args.peer_seeds
            jobs = [pool.submit(runs.run, system, name, seed, task.steps, EPISODES) for seed in range(count)]
            out.append((system, jobs))
    return [results_row(name, system, [job.result() for job in jobs]) for system, jobs in out if jobs]


def results_row(name: str, system: str, found: Sequence[Numbers]) -> dict[str, Any]:
    """The row of these runs."""
    scores = [round(run["score"], 1) for run in found]
    row = {"part": "results", "task": name, "env": TASKS[name].env, "system": system, "steps": found[0]["steps"]}
    measures = {what: plain(estimate._asdict()) for what, estimate in intervals_of(scores).items() if what != "median"}
    return row | {"cpu_s": statistics.median(run["cpu_s"] for run in found), "scores": scores, **measures}


def speed(runs: Runs, name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each system: medians over the rounds, and how many times as fast ours was in the same round."""
    task = TASKS[name]
    runs.run(OURS, name, 0, task.timed // 4, 0)  # compiles what is not there yet
    found: dict[str, list[Numbers]] = {system: [] for system in runs.systems(task)}
    for number in range(args.rounds):
        for system, each in found.items():
            each.append(rates(runs.run(system, name, number, task.timed, 0)))
    return [speed_row(name, system, each, found[OURS]) for system, each in found.items()]


def rates(run: Numbers) -> Numbers:
    """Of a run: env steps a second of processor time and of wall time, updates a second."""
    steps = run["steps"]
    return {"per_cpu_s": steps / run["cpu_s"], "per_s": steps / run["wall_s"], "updates_per_s": 1e3 / run["update_ms"]}


def speed_row(name: str, system: str, found: Sequence[Numbers], first: Sequence[Numbers]) -> dict[str, Any]:
    """The row of these rounds, beside those of ours."""
    row = {"part": "speed", "task": name, "env": TASKS[name].env, "system": system, "steps": TASKS[name].timed}
    for what in ("per_cpu_s", "per_s", "updates_per_s"):
        row[what] = statistics.median(run[what] for run in found)
        row[f"ratio_{what}"] = statistics.median(a[what] / b[what] for a, b in zip(first, found, strict=True))
    return row | {"rounds": [round(run["per_cpu_s"]) for run in found]}


def merged(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """``old`` with ``new`` in the place of the rows of its part and task, in the order of the tasks."""
    fresh = {(row["part"], row["task"]) for row in new}
    rows = [row for row in old if (row["part"], row["task"]) not in fresh] + list(new)
    return sorted(rows, key=lambda row: (row["part"], list(TASKS).index(row["task"])))


def main() -> int:
    """Measure and write, or be one run."""
    if sys.argv[1:2] == ["one"]:
        torch.set_num_threads(1)
        print(json.dumps(ours(TASKS[sys.argv[2]], *map(int, sys.argv[3:]))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("results", "speed"))
    parser.add_argument("--tasks", nargs="*", choices=TASKS, help="all of the part unless given")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--peer-seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, for results")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--where", type=Path, default=WHERE, help="folder of the peer's environment")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    runs, here = Runs(args), machine(1)
    asked = args.tasks or [name for name, task in TASKS.items() if (task.steps, task.timed)[args.part == "speed"]]
    for name in asked:
        new = (results if args.part == "results" else speed)(runs, name, args)
        rows = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
        write(args.out, here, merged(rows, new))
    return 0


if __name__ == "__main__":
    sys.exit(main())

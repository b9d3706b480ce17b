#!/usr/bin/env python3
"""Which algorithm learns most from few env steps, and which from few seconds, on tasks that one core finishes?

    python bench/sample_efficiency.py [--tasks hopper breakout ...] [--methods sac simba ...] [--seeds 5]

Every method has its preset for a machine without a GPU, except for the number of steps, and one thread. Runs stay in
`--runs` until they have ended: the same command continues where it was stopped, and skips seeds that have a row.
`curve` has env steps, the mean return of ten deterministic episodes, and the processor seconds until then; `score` is
the mean return of twenty other episodes at the end. Methods whose name begins with `sb3_` are those of
Stable-Baselines3 and its contrib package with their defaults, in environments of their own below `--where`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from results import save

SB3 = ("stable-baselines3==2.9.2", "sb3-contrib==2.9.2", "gymnasium[mujoco]==1.4.0", "numpy==2.4.6")
ENVIRONMENTS = {
    "sb3_tasks": (*SB3, "mujoco==4.0.0", "minatar==1.0.15"),
    "sb3_dm_control": (*SB3, "mujoco==3.17.0", "dm-control==1.0.50", "shimmy==2.0.1"),  # which does not know MuJoCo 4
}
EVALUATIONS, EPISODES, LAST_EPISODES = 10, 10, 20
Settings = Mapping[str, Any]
NONE: Settings = MappingProxyType({})
TWICE: Settings = MappingProxyType({"env.action_repeat": 2})


class Method(NamedTuple):
    """What learns."""

    algorithm: str
    settings: Settings = NONE


METHODS = {
    name: Method(name)
    for name in ("sac", "tqc", "crossq", "xqc", "td3", "ppo", "dqn", "qr_dqn", "discrete_sac", "tdmpc2", "dreamer_v3")
} | {name: Method("sac", {"preset": name}) for name in ("redq", "droq", "simba")}
CONTINUOUS, IMAGES = ("sac", "td3", "ppo"), ("dqn", "ppo")  # of those that one core trains in an hour


class Task(NamedTuple):
    """Where."""

    env: str
    steps: int
    methods: Sequence[str]
    settings: Settings = NONE


TASKS = {
    "cheetah": Task("HalfCheetah-v5", 100_000, (*CONTINUOUS, "sb3_ppo")),
    "hopper": Task("Hopper-v5", 100_000, (*CONTINUOUS, "sb3_ppo", "sb3_sac", "sb3_td3")),
    "walker": Task("Walker2d-v5", 100_000, (*CONTINUOUS, "sb3_ppo")),
    "walker_walk": Task("dm_control/walker-walk-v0", 50_000, (*CONTINUOUS, "tdmpc2"), TWICE),
    "cheetah_run": Task("dm_control/cheetah-run-v0", 50_000, CONTINUOUS, TWICE),
    "reacher_easy": Task("dm_control/reacher-easy-v0", 50_000, (*CONTINUOUS, "sb3_sac", "sb3_td3"), TWICE),
    "breakout": Task("MinAtar/Breakout-v1", 100_000, (*IMAGES, "qr_dqn", "sb3_ppo", "sb3_dqn", "sb3_qr_dqn")),
    "asterix": Task("MinAtar/Asterix-v1", 100_000, (*IMAGES, "qr_dqn", "sb3_dqn", "sb3_qr_dqn")),
    "door_key": Task("MiniGrid-DoorKey-6x6-v0", 100_000, IMAGES),
    "key_corridor": Task("MiniGrid-KeyCorridorS3R1-v0", 100_000, IMAGES),
}


def cpu_seconds() -> float:
    """Processor time of this process and of the children that have ended."""
    return sum(os.times()[:4])


def train_reverie(task: Task, name: str, seed: int, run: Path) -> dict[str, Any]:
    """Train with reverie; a run that is in the folder goes on."""
    import reverie

    class Curve(reverie.Callback):
        """Keeps scores and processor time, also over interruptions."""

        def __init__(self) -> None:
            self.spent, self.points, self.started = 0.0, list[list[float]](), cpu_seconds()

        def on_evaluation(self, run: reverie.TrainingRun, values: Mapping[str, Any]) -> None:
            self.points.append([run.env_steps, round(values["eval/score"], 2), round(self.seconds(), 1)])

        def seconds(self) -> float:
            return self.spent + cpu_seconds() - self.started

        def state_dict(self) -> dict[str, Any]:
            return {"spent": self.seconds(), "points": self.points}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.spent, self.points = state["spent"], [list(point) for point in state["points"]]

    method, curve = METHODS[name], Curve()
    settings = {
        "steps": task.steps, "threads": 1, "console": False, "tensorboard": False, "eval_episodes": EPISODES,
        "schedule.eval_every": task.steps // EVALUATIONS, "schedule.save_every": task.steps // EVALUATIONS,
    }  # fmt: skip
    result = reverie.train(method.algorithm, env=task.env, seed=seed, run=run, callbacks=[curve],
                           **settings | dict(task.settings) | dict(method.settings))  # fmt: skip
    if result.reason != "finished":
        sys.exit(f"{run} was interrupted")
    seconds = curve.seconds()
    last = result.agent.evaluate(LAST_EPISODES)
    return {"score": round(last.score, 2), "cpu_seconds": round(seconds, 1), "curve": curve.points}


def train_sb3(task: Task, name: str, seed: int, run: Path) -> dict[str, Any]:
    """Train with Stable-Baselines3 and its defaults."""
    import gymnasium
    import numpy as np
    import sb3_contrib
    import stable_baselines3
    from gymnasium.wrappers import FlattenObservation
    from stable_baselines3.common.callbacks import BaseCallback, EveryNTimesteps
    from stable_baselines3.common.evaluation import evaluate_policy

    points, started = list[list[float]](), cpu_seconds()
    if task.env.startswith("MinAtar/"):
        importlib.import_module("minatar.gym").register_envs()
    elif task.env.startswith("dm_control/"):
        gymnasium.register_envs(importlib.import_module("shimmy"))

    class Evaluate(BaseCallback):
        def _on_step(self) -> bool:
            score = np.mean(evaluate_policy(self.model, make(), EPISODES, return_episode_rewards=True)[0])
            points.append([self.num_timesteps, round(float(score), 2), round(cpu_seconds() - started, 1)])
            return True

    class Repeat(gymnasium.Wrapper):
        """Takes each action several times, and adds up the rewards."""

        def step(self, action: Any) -> Any:
            total = 0.0
            for _ in range(task.settings["env.action_repeat"]):
                obs, reward, terminated, truncated, info = self.env.step(action)
                total += float(reward)
                if terminated or truncated:
                    break
            return obs, total, terminated, truncated, info

    def make() -> gymnasium.Env:
        env = gymnasium.make(task.env)
        return FlattenObservation(Repeat(env)) if task.settings else env

    kind = name.removeprefix("sb3_").upper().replace("_", "").replace("CROSSQ", "CrossQ")
    model = getattr(sb3_contrib, kind, None) or getattr(stable_baselines3, kind)
    learner = model("MlpPolicy", make(), seed=seed, device="cpu")
    learner.learn(task.steps, EveryNTimesteps(task.steps // EVALUATIONS, Evaluate()))
    seconds = cpu_seconds() - started
    scores = evaluate_policy(learner, make(), LAST_EPISODES, return_episode_rewards=True)[0]
    return {"score": round(float(np.mean(scores)), 2), "cpu_seconds": round(seconds, 1), "curve": points}


def run_seed(task: str, name: str, seed: int, runs: Path) -> dict[str, Any]:
    """Train one seed in one thread; in the child."""
    run, peer = runs / f"{task}-{name}-{seed}", name.startswith("sb3_")
    importlib.import_module("stable_baselines3" if peer else "reverie.algos")  # imports do not count
    importlib.import_module("torch").set_num_threads(1)
    row = (train_sb3 if peer else train_reverie)(TASKS[task], name, seed, run)
    shutil.rmtree(run, ignore_errors=True)
    return {"task": task, "method": name, "seed": seed, "steps": TASKS[task].steps} | row


def main() -> int:
    """Train, and write each row as it comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=[*TASKS], choices=TASKS)
    parser.add_argument("--methods", nargs="*", help="any of METHODS, or sb3_NAME; those of each task unless given")
    parser.add_argument("--seeds", type=int, help="5, and 3 for Stable-Baselines3, unless given")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--runs", type=Path, default=Path("build/sample_efficiency"), help="where unfinished runs stay")
    parser.add_argument("--where", type=Path, help="folder of the environment of Stable-Baselines3")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(run_seed(args.tasks[0], args.methods[0], args.first, args.runs)))
        return 0
    import torch
    from machine import child
    from peers.installed import WHERE, installed

    from reverie.core.hardware import describe_machine

    table = json.loads(args.out.read_text()) if args.out.exists() else {"rows": []}
    done = {(row["task"], row["method"], row["seed"]) for row in table["rows"]}
    wanted = [
        (task, name, args.first + index)
        for index in range(args.seeds or 5) for task in args.tasks for name in args.methods or TASKS[task].methods
        if (task, name, args.first + index) not in done and (args.seeds or index < 3 or not name.startswith("sb3_"))
    ]  # fmt: skip
    hosts = {task: "sb3_dm_control" if TASKS[task].env.startswith("dm_control/") else "sb3_tasks" for task in TASKS}
    needed = {hosts[task] for task, name, _ in wanted if name.startswith("sb3_")}
    pythons = installed({host: ENVIRONMENTS[host] for host in needed}, args.where or WHERE)
    args.runs.mkdir(parents=True, exist_ok=True)

    def start(task: str, name: str, seed: int) -> dict[str, Any]:
        words = ["--child", "--tasks", task, "--methods", name, "--first", str(seed), "--runs", str(args.runs)]
        interpreter = pythons[hosts[task]] if name.startswith("sb3_") else sys.executable
        return child(Path(__file__), *words, python=interpreter, setting={"OMP_NUM_THREADS": "1"})

    with ThreadPoolExecutor(args.jobs) as pool:
        for job in as_completed(pool.submit(start, *one) for one in wanted):
            if job.exception() is not None:  # the others go on
                print(job.exception(), file=sys.stderr, flush=True)
                continue
            row = job.result()
            rows = (json.loads(args.out.read_text()) if args.out.exists() else {"rows": []})["rows"]
            rows = sorted([*rows, row], key=lambda r: (r["task"], r["method"], r["seed"]))
            save(args.out, {"machine": describe_machine(torch.device("cpu")), "rows": rows})
            print(json.dumps({key: value for key, value in row.items() if key != "curve"}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Does a person who takes over help where success alone is rewarded? A script helps in two rooms.

    python bench/human.py [--systems alone uniform half penalty ...] [--seeds 0 1 2]

The environment and the script are those of examples/helped.py: it takes over for up to 32 steps after 8 steps without
progress. ``uniform``: batches of all rows; ``half``: half of each batch begins with its actions; ``penalty``: a reward
of -1 where it takes over, and nothing else (RLIF). Every 500 env steps, 20 episodes without it give the success rate. A
run ends when the rate reaches 0.9 and 20 additional episodes confirm it, or after 10,000 env steps (``steps`` is null).
``helped``: the script's steps. ``dqn``, ``dqn_alone``: DQN with nine directions instead of numbers. ``hill``,
``hill_alone``: SAC in MountainCarContinuous-v0 with a reward at the flag alone. ``bc``, ``bc_alone``: ``success`` of 50
episodes after 3,000 updates on one demonstration, with help of HG-DAgger for 2,000 env steps, or alone. ``ppo``,
``ppo_stored``, ``ppo_unreported``, ``ppo_alone``: ``score`` of PPO on a line after 20,000 steps with a clumsy person,
whose steps are in no loss; are in the losses like others; whom nothing reports, so that the policy's actions are
stored; and with nobody. Each run is a separate process; rows replace those of the same seed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
from gymnasium import spaces
from machine import child
from results import save

import reverie
from reverie.algos import on_policy

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from helped import Helper, Rooms, learn

SYSTEMS: dict[str, dict[str, Any]] = {
    "alone": {}, "uniform": {"human.fraction": 0.0}, "half": {},
    "penalty": {"human.intervention_reward": -1.0, "human.reward": "only"},
    "dqn": {}, "dqn_alone": {}, "hill": {}, "hill_alone": {}, "bc": {}, "bc_alone": {},
    "ppo": {}, "ppo_stored": {}, "ppo_unreported": {}, "ppo_alone": {},
}  # fmt: skip
DIRECTIONS = np.array([(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1)], np.float32)


class Directions(gymnasium.ActionWrapper[Any, Any, Any]):
    """Nine directions instead of two numbers."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = spaces.Discrete(len(DIRECTIONS))

    def action(self, action: int) -> np.ndarray:
        """Return the step of a direction."""
        return DIRECTIONS[action]


class DirectionHelper(Helper):
    """Takes the direction that is nearest to what the script would do."""

    def __call__(self, obs: np.ndarray, action: Any) -> Any:
        """Return the number of a direction; None: the agent's."""
        taken = super().__call__(obs, action)
        return None if taken is None else int(np.square(DIRECTIONS - taken).sum(1).argmin())


class Hill(gymnasium.Wrapper[Any, Any, Any, Any]):
    """MountainCarContinuous-v0 with a reward of 1 at the flag, else 0."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("MountainCarContinuous-v0", max_episode_steps=200))

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, is_there, truncated, _ = self.env.step(action)
        return obs, float(is_there), is_there, truncated, {"is_success": is_there}


class HillHelper(Helper):
    """Gains speed in both directions, for 64 steps after 16 without a new highest place."""

    def __call__(self, obs: np.ndarray, action: np.ndarray) -> np.ndarray | None:
        """Return the action to take instead of ``action``; None: the agent's."""
        is_better = -obs[0] < self.best - 1e-3
        self.best, self.waited = min(self.best, -float(obs[0])), 0 if is_better else self.waited + 1
        if self.left == 0 and self.waited >= 16:
            self.left = 64
        if self.left == 0:
            return None
        self.left, self.waited, self.budget = self.left - 1, 0, self.budget - 1
        push = (1.0 if obs[1] >= 0 else -1.0) + self.rng.normal(0, 0.2, 1)
        return np.clip(push, -1, 1).astype(np.float32)


class Line(gymnasium.Env[np.ndarray, np.ndarray]):
    """A dot earns -|x|, and so -0.6 in 20 steps at best. In a ``share`` of steps, a clumsy person goes right."""

    observation_space, action_space = spaces.Box(-10, 10, (1,), np.float32), spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, share: float = 0.0, reports: bool = True) -> None:
        self.share, self.reports = share, reports

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.time, self.left = self.np_random.uniform(-1.5, 1.5), 0, 0
        return np.float32([self.x]), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.left == 0 and self.np_random.random() < self.share / 4 / (1 - self.share):
            self.left = 4
        executed = np.float32([1.0]) if self.left else np.clip(action, -1, 1)
        info = {"intervene_action": executed} if self.left and self.reports else {}
        self.left, self.time = max(0, self.left - 1), self.time + 1
        self.x = float(np.clip(self.x + 0.4 * executed[0], -10, 10))
        return np.float32([self.x]), -abs(self.x), False, self.time == 20, info


def learn_line(share: float, reports: bool, seed: int) -> dict[str, Any]:
    """Return the score of PPO without the clumsy person."""
    with tempfile.TemporaryDirectory() as folder:
        result = reverie.train(
            "ppo", lambda: Line(share, reports), eval_env=Line, run=f"{folder}/run", steps=20_000, seed=seed, threads=1,
            console=False, tensorboard=False, eval_episodes=50,
            **{"env.num": 8, "env.vectorization": "sync", "eval_envs": 50, "schedule.eval_every": 0,
               "algo.discount": 0.9, "algo.rollout": 32, "algo.batch_size": 64, "algo.lr": 3e-3, "algo.epochs": 8},
        )  # fmt: skip
    assert result.evaluation is not None
    return {"score": float(np.mean(result.evaluation.scores))}


def learn_until_success(algorithm: str, env: Any, helper: Helper | None, seed: int, **settings: Any) -> dict[str, Any]:
    """Train until 90 % of 20 episodes succeed without the helper, twice in a row; return the steps, or None."""
    with tempfile.TemporaryDirectory() as folder:
        result = reverie.train(
            algorithm, env, steps=10_000, seed=seed, run=f"{folder}/run", eval_episodes=20, console=False,
            human=None if helper is None else reverie.Person(helper), score_metric="eval/success_rate", stop_score=0.9,
            tensorboard=False, threads=1, **{"schedule.eval_every": 500, **settings},
        )  # fmt: skip
    helped = 0 if helper is None else 10**9 - helper.budget
    return {"steps": result.env_steps if result.stop_reason else None, "helped": helped}


def imitate(helper: Helper | None, seed: int) -> dict[str, Any]:
    """Return the success of BC after one demonstration by the script, with its help or alone."""
    teacher = Helper(seed + 1000)
    teacher.left = 10**6

    def demonstrate(obs: np.ndarray) -> Any:
        teacher.left = 10**6
        return teacher(obs, np.zeros(2))

    options = {"seed": seed, "console": False, "eval_episodes": 50, "tensorboard": False, "threads": 1}
    with tempfile.TemporaryDirectory() as folder:
        reverie.record(Rooms, demonstrate, out=f"{folder}/demo", episodes=1, seed=seed)
        options |= {"data": f"{folder}/demo", "env": Rooms, "run": f"{folder}/run"}
        if helper is None:
            result = reverie.train("bc", updates=3000, **options)
        else:
            result = reverie.train("bc", steps=2000, human=reverie.Person(helper), replay_ratio=1.5, **options)
        assert result.evaluation is not None
        success = float(np.mean([info["success_rate"] for info in result.evaluation.info]))
    return {"success": success, "helped": 0 if helper is None else 10**9 - helper.budget}


def run(system: str, seed: int) -> dict[str, Any]:
    """Train once, in this process."""
    name, _, alone = system.partition("_")
    if name == "dqn":
        helper = None if alone else DirectionHelper(seed)
        row = learn_until_success("dqn", lambda: Directions(Rooms()), helper, seed, learning_starts=500)
    elif name == "hill":
        helper, settings = None if alone else HillHelper(seed), {"algo.networks.units": (128, 128)}
        row = learn_until_success("sac", Hill, helper, seed, preset="hil", **settings)
    elif name == "bc":
        row = imitate(None if alone else Helper(seed), seed)
    elif name == "ppo":
        with mock.patch.object(
            on_policy, "exclude_takeovers", on_policy.exclude_takeovers if alone != "stored" else lambda batch: batch
        ):
            row = learn_line(0.0 if alone == "alone" else 0.25, alone != "unreported", seed)
    else:
        row = learn(None if system == "alone" else Helper(seed), seed, **SYSTEMS[system])
    return {"system": system, "seed": seed, **row, "cpu_seconds": round(sum(os.times()[:2]), 1)}


def main() -> None:
    """Run all, each in a process of its own, and write the rows as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", default=[*SYSTEMS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(run(arguments.systems[0], arguments.seeds[0])))
        return
    path = Path(__file__).with_suffix(".json")
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    for seed in arguments.seeds:
        for system in arguments.systems:
            row = child(Path(__file__), "--one", "--systems", system, "--seeds", str(seed))
            print(row, flush=True)
            others = [x for x in rows if (x["system"], x["seed"]) != (system, seed)]
            rows = sorted([*others, row], key=lambda x: (list(SYSTEMS).index(x["system"]), x["seed"]))
            save(path, {"rows": rows})


if __name__ == "__main__":
    main()

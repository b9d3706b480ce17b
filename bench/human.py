#!/usr/bin/env python3
"""Does a person who takes over help where success alone is rewarded? A script helps in two rooms.

    python bench/human.py [--systems alone uniform half penalty ...] [--seeds 0 1 2]

The environment and the script are those of examples/helped.py: it takes over for up to 32 steps after 8 steps without
progress. ``uniform``: batches of all rows; ``half``: half of each batch begins with its actions; ``penalty``: a reward
of -1 where it takes over, and nothing else (RLIF). Every 500 env steps, 20 episodes without it give the success rate. A
run ends when the rate reaches 0.9 and 20 additional episodes confirm it, or after 10,000 env steps (``steps`` is null).
``helped``: the script's steps. ``dqn``, ``dqn_alone``: DQN with nine directions instead of numbers. ``hill``,
``hill_alone``: SAC in MountainCarContinuous-v0 with a reward at the flag alone. ``bc``, ``bc_alone``: ``success`` of 50
episodes after 3,000 updates on one demonstration, with help of HG-DAgger for 2,000 env steps, or alone. ``reach``,
``reach_alone``, ``reach_dqn``, ...: the same three learners in FetchReach-v4 (reverie-rl[robotics]), where the gripper
at its goal is rewarded by 1 and ends the episode. SAC and DQN have a reward of -0.1 where the script takes over;
``unpenalized``: none. ``ppo``, ``ppo_stored``, ``ppo_unreported``, ``ppo_alone``: ``score`` of PPO on a line after
20,000 steps with a clumsy person, whose steps are in no loss; are in the losses like others; whom nothing reports, so
that the policy's actions are stored; and with nobody. Each run is a separate process; rows replace those of the same
seed.
"""

from __future__ import annotations

import argparse
import itertools
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
    "reach": {}, "reach_unpenalized": {"human.intervention_reward": 0.0}, "reach_alone": {},
    "reach_dqn": {}, "reach_dqn_alone": {}, "reach_bc": {}, "reach_bc_alone": {},
    "ppo": {}, "ppo_stored": {}, "ppo_unreported": {}, "ppo_alone": {},
}  # fmt: skip
REACH: dict[str, Any] = {"algo.normalize_obs": "running", "human.intervention_reward": -0.1}
REACH_DQN: dict[str, Any] = {
    "algo.lr": 1e-3, "algo.batch_size": 128, "algo.discount": 0.95, "algo.exploration": "epsilon_greedy(0.1)",
    "replay_ratio": 1.0,
}  # fmt: skip


class Directions(gymnasium.ActionWrapper[Any, Any, Any]):
    """Nine directions instead of two numbers, 27 instead of three; other numbers of an action are 0."""

    def __init__(self, env: gymnasium.Env[Any, Any], axes: int = 2) -> None:
        super().__init__(env)
        steps = np.array([*itertools.product((-1, 0, 1), repeat=axes)], np.float32)
        self.directions = np.pad(steps, ((0, 0), (0, env.action_space.shape[0] - axes)))
        self.action_space = spaces.Discrete(len(steps))

    def action(self, action: int) -> np.ndarray:
        """Return the step of a direction."""
        return self.directions[action]


class DirectionHelper:
    """Takes the direction that is nearest to what ``helper`` would do."""

    def __init__(self, helper: Helper, directions: np.ndarray) -> None:
        self.helper, self.directions = helper, directions

    def __call__(self, obs: Any, action: Any) -> int | None:
        """Return the number of a direction; None: the agent's."""
        taken = self.helper(obs, action)
        return None if taken is None else int(np.square(self.directions - taken).sum(1).argmin())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.helper, name)


class SuccessAlone(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Rewards success by 1, and nothing else; success ends the episode."""

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = self.env.step(action)
        is_success = bool(info.get("is_success", terminated))
        return obs, float(is_success), is_success, truncated, {"is_success": is_success}


def make_hill() -> gymnasium.Env[Any, Any]:
    """Return MountainCarContinuous-v0 with a reward at the flag alone."""
    return SuccessAlone(gymnasium.make("MountainCarContinuous-v0", max_episode_steps=200))


def make_reach() -> gymnasium.Env[Any, Any]:
    """Return FetchReach-v4 with a reward at the goal alone."""
    import gymnasium_robotics

    gymnasium.register_envs(gymnasium_robotics)
    return SuccessAlone(gymnasium.make("FetchReach-v4"))


class HillHelper(Helper):
    """Gains speed in both directions, for 64 steps after 16 without a new highest place."""

    patience, turn = 16, 64

    def measure(self, obs: np.ndarray) -> float:
        """Return the place; the flag is at 0.45."""
        return -float(obs[0])

    def act(self, obs: np.ndarray) -> np.ndarray:
        """Return a push with the motion."""
        return np.float32([1 if obs[1] >= 0 else -1])


class ReachHelper(Helper):
    """Moves the gripper of FetchReach-v4 to its goal, for 16 steps after 8 without progress."""

    turn = 16

    def measure(self, obs: dict[str, np.ndarray]) -> float:
        """Return the distance to the goal in meters."""
        return float(np.linalg.norm(obs["desired_goal"] - obs["achieved_goal"]))

    def act(self, obs: dict[str, np.ndarray]) -> np.ndarray:
        """Return the action, in steps of 5 cm."""
        return np.append((obs["desired_goal"] - obs["achieved_goal"]) / 0.05, 0).clip(-1, 1)


PLACES: dict[str, tuple[type[Helper], Any]] = {"reach": (ReachHelper, make_reach), "hill": (HillHelper, make_hill)}


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


def imitate(env: Any, teacher: Helper, helper: Helper | None, seed: int) -> dict[str, Any]:
    """Return the success of BC after one demonstration by ``teacher``, with help or alone."""
    teacher.patience = 0

    def demonstrate(obs: Any) -> Any:
        return teacher(obs, None)

    options = {"seed": seed, "console": False, "eval_episodes": 50, "tensorboard": False, "threads": 1}
    with tempfile.TemporaryDirectory() as folder:
        reverie.record(env, demonstrate, out=f"{folder}/demo", episodes=1, seed=seed)
        options |= {"data": f"{folder}/demo", "env": env, "run": f"{folder}/run"}
        if helper is None:
            result = reverie.train("bc", updates=3000, **options)
        else:
            result = reverie.train("bc", steps=2000, human=reverie.Person(helper), replay_ratio=1.5, **options)
        assert result.evaluation is not None
        success = float(np.mean([info["success_rate"] for info in result.evaluation.info]))
    return {"success": success, "helped": 0 if helper is None else 10**9 - helper.budget}


def run(system: str, seed: int) -> dict[str, Any]:
    """Train once, in this process."""
    words = system.split("_")
    is_reach, is_alone = words[0] == "reach", words[-1] == "alone"
    helper_class, env = PLACES.get(words[0], (Helper, Rooms))
    helper = None if is_alone else helper_class(seed)
    settings = REACH if is_reach else {}
    if "dqn" in words:
        axes, settings = (3, settings | REACH_DQN) if is_reach else (2, {})
        person = None if helper is None else DirectionHelper(helper, Directions(env(), axes).directions)
        row = learn_until_success("dqn", lambda: Directions(env(), axes), person, seed, learning_starts=500, **settings)
    elif "bc" in words:
        row = imitate(env, helper_class(seed + 1000), helper, seed)
    elif words[0] in PLACES:
        settings = settings | {"algo.networks.units": (128, 128)} | SYSTEMS[system]
        row = learn_until_success("sac", env, helper, seed, preset="hil", **settings)
    elif words[0] == "ppo":
        way = words[-1]
        with mock.patch.object(
            on_policy, "exclude_takeovers", on_policy.exclude_takeovers if way != "stored" else lambda batch: batch
        ):
            row = learn_line(0.0 if is_alone else 0.25, way != "unreported", seed)
    else:
        row = learn(helper, seed, **SYSTEMS[system])
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

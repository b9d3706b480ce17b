"""Stable-Baselines3: one whole training of PPO, in the manner of its users, with the settings of ours.

    python on_policy_sb3.py SETTINGS

`SETTINGS` is the JSON of `benchmarks/on_policy.py: settings_of`. Prints one line of JSON: steps, seconds, the
time of an update, the mean score of episodes at the end.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize


class Timed(PPO):
    """Counts the seconds of this thread that `train` takes: minibatches and their updates."""

    learning = 0.0

    def train(self) -> None:
        started = time.thread_time()
        super().train()
        self.learning += time.thread_time() - started


def wrapped(env: gymnasium.Env, factor: float) -> gymnasium.Env:
    """Actions of [-1, 1] and smaller rewards, as our policy and learner see them."""
    if isinstance(env.action_space, gymnasium.spaces.Box):
        env = gymnasium.wrappers.RescaleAction(env, -1.0, 1.0)
    return env if factor == 1 else gymnasium.wrappers.TransformReward(env, lambda reward: factor * reward)


def ramp(points: Any, steps: int) -> float | Callable[[float], float]:
    """A number, or what falls with the steps taken; it is asked with the part of the steps that is left."""
    if isinstance(points, float):
        return points
    at, values = zip(*points, strict=True)
    return lambda left: float(np.interp((1 - left) * steps, at, values))


def main(s: dict[str, Any]) -> dict[str, Any]:
    """Train and evaluate."""
    wall, cpu = time.perf_counter(), time.process_time()
    kinds = {"wrapper_class": wrapped, "wrapper_kwargs": {"factor": s["factor"]}}
    envs = make_vec_env(s["env"], n_envs=s["envs"], seed=s["seed"], **kinds)
    if s["normalise"]:
        envs = VecNormalize(envs, gamma=s["discount"])
    model = Timed(
        "MlpPolicy", envs, n_steps=s["rollout"], batch_size=s["batch_size"], n_epochs=s["epochs"], gamma=s["discount"],
        gae_lambda=s["lambda"], learning_rate=ramp(s["lr"], s["steps"]), clip_range=ramp(s["clip"], s["steps"]),
        seed=s["seed"], device="cpu",
    ).learn(s["steps"])  # fmt: skip
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    taken = model.num_timesteps
    updates = taken // s["batch_size"] * s["epochs"]
    found = {"steps": taken, "wall_s": wall, "cpu_s": cpu, "update_ms": 1e3 * model.learning / updates}
    if not s["episodes"]:
        return found
    fresh = make_vec_env(
        s["env"], n_envs=1, seed=10_000 + s["seed"], wrapper_class=wrapped, wrapper_kwargs={"factor": 1}
    )
    scores, _ = evaluate_policy(model, fresh, n_eval_episodes=s["episodes"], return_episode_rewards=True)
    return found | {"score": float(np.mean(scores))}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main(json.loads(sys.argv[1]))))

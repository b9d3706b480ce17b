"""Stable-Baselines3: one whole training of PPO, in the manner of its users, with the settings of ours.

    python on_policy_sb3.py SETTINGS

`SETTINGS` is the JSON of `bench/on_policy.py: settings_of`. Prints one line of JSON: steps, seconds, the
time of an update, the mean score of episodes at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import minigrid  # noqa: F401  # registers its environments
import numpy as np
import torch
from on_policy_wrapped import Pictures, ramp, raw, wrapped
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecNormalize


class Stopwatch:
    """Counts the seconds of this thread that `train` takes: minibatches and their updates."""

    learning = 0.0

    def train(self) -> None:
        started = time.thread_time()
        super().train()  # type: ignore[misc]
        self.learning += time.thread_time() - started


class Timed(Stopwatch, PPO):
    """With its stopwatch."""


class TimedRecurrent(Stopwatch, RecurrentPPO):
    """With its stopwatch."""


class Features(BaseFeaturesExtractor):
    """The convolutions of ours, which policy and value share."""

    def __init__(self, space: Any, filters: Any) -> None:
        pictures = Pictures(space, filters)
        super().__init__(space, pictures.size)
        self.pictures = pictures

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.pictures(obs)


def main(s: dict[str, Any]) -> dict[str, Any]:
    """Train and evaluate."""
    wall, cpu = time.perf_counter(), time.process_time()
    kinds = {"wrapper_class": wrapped, "env_kwargs": raw(s)}
    given = {"factor": s["factor"], "atari": s.get("atari", False)}
    envs = make_vec_env(s["env"], n_envs=s["envs"], seed=s["seed"], wrapper_kwargs=given, **kinds)
    if s["normalize"]:
        envs = VecNormalize(envs, gamma=s["discount"])
    nets: dict[str, Any] = {"log_std_init": s["log_std"]}
    if s.get("filters"):
        nets = {"features_extractor_class": Features, "features_extractor_kwargs": {"filters": s["filters"]}}
        nets |= {"net_arch": list(s["units"]), "normalize_images": False}
        nets["activation_fn"] = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh}[s["activation"]]
    nets |= {"lstm_hidden_size": s["lstm"]} if s.get("lstm") else {}
    kind, policy = (TimedRecurrent, "MlpLstmPolicy") if s.get("lstm") else (Timed, "MlpPolicy")
    model = kind(
        policy, envs, n_steps=s["rollout"], batch_size=s["batch_size"], n_epochs=s["epochs"], gamma=s["discount"],
        gae_lambda=s["lambda"], learning_rate=ramp(s["lr"], s["steps"]), clip_range=ramp(s["clip"], s["steps"]),
        ent_coef=s["entropy"], policy_kwargs=nets, seed=s["seed"], device="cpu",
    ).learn(s["steps"])  # fmt: skip
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    taken = model.num_timesteps
    updates = taken // s["batch_size"] * s["epochs"]
    found = {"steps": taken, "wall_s": wall, "cpu_s": cpu, "update_ms": 1e3 * model.learning / updates}
    if not s["episodes"]:
        return found
    given = {"factor": 1, "atari": s.get("atari", False)}
    fresh = make_vec_env(s["env"], n_envs=1, seed=10_000 + s["seed"], wrapper_kwargs=given, **kinds)
    if s["normalize"]:
        fresh = VecNormalize(fresh, training=False, norm_reward=False)
        fresh.obs_rms = envs.obs_rms
    scores, _ = evaluate_policy(model, fresh, n_eval_episodes=s["episodes"], return_episode_rewards=True)
    return found | {"score": float(np.mean(scores))}


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    print(json.dumps(main(json.loads(sys.argv[1]))))

"""RLlib: PPO as its users configure it, with the settings of ours, all in one process.

    python on_policy_rllib.py SETTINGS

See `on_policy_sb3.py`. It neither evaluates nor logs. Its clip range cannot fall with the steps: it has the first one.
Ray's own processes beside it are not counted.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import ray
import torch
from on_policy_wrapped import made
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env


class Timed(PPOTorchLearner):
    """Counts the seconds of this thread in its updates: all epochs over a batch, with its advantages."""

    learning = 0.0

    def update(self, *args: Any, **kwargs: Any) -> Any:
        started = time.thread_time()
        found = super().update(*args, **kwargs)
        Timed.learning += time.thread_time() - started
        return found


def channels_last(env: gymnasium.Env) -> gymnasium.Env:
    """Images as its convolutions want them, of at most 1."""
    seen = env.observation_space
    if len(seen.shape) != 3:
        return env
    scale = 255.0 if seen.dtype == np.uint8 else 1.0
    space = gymnasium.spaces.Box(0, 1, np.roll(seen.shape, -1), np.float32)
    return gymnasium.wrappers.TransformObservation(
        env, lambda obs: np.asarray(obs, np.float32).transpose(1, 2, 0) / scale, space
    )


def config(s: dict[str, Any]) -> PPOConfig:
    """The settings."""
    register_env("task", lambda _: channels_last(made(s)))
    continuous = isinstance(made(s).action_space, gymnasium.spaces.Box)
    rows = s["envs"] * s["rollout"]
    clip = s["clip"] if isinstance(s["clip"], float) else s["clip"][0][1]
    rate = s["lr"] if isinstance(s["lr"], float) else [[int(at), value] for at, value in s["lr"]]
    images = {"vf_share_layers": True, "conv_filters": s.get("filters"), "conv_activation": "relu"}
    images |= {"head_fcnet_hiddens": s.get("units"), "head_fcnet_activation": "relu"}
    model = DefaultModelConfig(**images) if s.get("filters") else DefaultModelConfig(
        fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False, free_log_std=continuous,
        fcnet_kernel_initializer="orthogonal_",
    )  # fmt: skip
    return (
        PPOConfig()
        .environment("task")
        .env_runners(
            num_env_runners=0, num_envs_per_env_runner=s["envs"], rollout_fragment_length=s["rollout"],
            batch_mode="truncate_episodes",
        )
        .learners(num_learners=0, num_gpus_per_learner=0)
        .training(
            learner_class=Timed, gamma=s["discount"], lambda_=s["lambda"], lr=rate, train_batch_size_per_learner=rows,
            minibatch_size=s["batch_size"], num_epochs=s["epochs"], clip_param=clip, entropy_coeff=s["entropy"],
            vf_loss_coeff=0.5, vf_clip_param=float("inf"), use_kl_loss=False, grad_clip=0.5,
            grad_clip_by="global_norm",
        )
        .rl_module(model_config=model)
        .debugging(seed=s["seed"], log_level="ERROR")
    )  # fmt: skip


def main(s: dict[str, Any]) -> dict[str, Any]:
    """Train."""
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    wall, cpu, taken = time.perf_counter(), time.process_time(), 0
    algorithm = config(s).build_algo()
    while taken < s["steps"]:
        taken = int(algorithm.train()["num_env_steps_sampled_lifetime"])
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    updates = taken // s["batch_size"] * s["epochs"]
    return {"steps": taken, "wall_s": wall, "cpu_s": cpu, "update_ms": 1e3 * Timed.learning / updates}


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    print(json.dumps(main(json.loads(sys.argv[1]))))

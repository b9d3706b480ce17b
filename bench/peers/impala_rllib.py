"""RLlib beside ``impala.py``: IMPALA with two env runners and the settings of ours.

python impala_rllib.py SETTINGS
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # of Ray's workers

import gymnasium
import numpy as np
import ray
import torch
from acting import family_seconds
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune import register_env


def made(name: str) -> gymnasium.Env[Any, Any]:
    """The environment, whose planes its convolutions want as float32."""
    import minatar.gym

    minatar.gym.register_envs()
    env = gymnasium.make(name)
    space = gymnasium.spaces.Box(0, 1, env.observation_space.shape, np.float32)
    return gymnasium.wrappers.TransformObservation(env, lambda obs: np.asarray(obs, np.float32), space)


def main(s: dict[str, Any]) -> None:
    """Train, and print the rates after the first tenth of the steps, and the return of the last episodes."""
    torch.set_num_threads(1)
    ray.init(num_cpus=s["actors"] + 1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    register_env("task", lambda _: made(s["env"]))
    model = DefaultModelConfig(
        vf_share_layers=True, conv_filters=[[16, 3, 1]], conv_activation="relu", head_fcnet_hiddens=[128],
        head_fcnet_activation="relu",
    )  # fmt: skip
    config = (
        IMPALAConfig()
        .environment("task")
        .env_runners(
            num_env_runners=s["actors"], num_envs_per_env_runner=s["envs"], rollout_fragment_length=s["rollout"]
        )
        .learners(num_learners=0, num_gpus_per_learner=0)
        .training(
            lr=s["lr"], gamma=0.99, train_batch_size_per_learner=s["batch_size"] * s["rollout"], entropy_coeff=0.01,
            vf_loss_coeff=0.5, grad_clip=0.5, grad_clip_by="global_norm", opt_type="rmsprop", decay=0.99, epsilon=1e-5,
        )
        .rl_module(model_config=model)
        .debugging(seed=s["seed"], log_level="ERROR")
        .reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=2000)
    )  # fmt: skip
    algorithm, begun, result = config.build_algo(), (0.0, 0.0, 0), {}
    while (taken := int(result.get("env_runners", {}).get("num_env_steps_sampled_lifetime", 0))) < s["steps"]:
        if not begun[2] and taken >= s["steps"] / 10:
            begun = (time.perf_counter(), family_seconds(), taken)
        result = algorithm.train()
    wall, processor, steps = time.perf_counter() - begun[0], family_seconds() - begun[1], taken - begun[2]
    rates = {"env_steps_per_second": steps / wall, "env_steps_per_processor_second": steps / processor}
    print(json.dumps(rates | {"return": float(result["env_runners"].get("episode_return_mean", np.nan))}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

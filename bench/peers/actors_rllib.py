"""RLlib beside ``actors.py``: SAC with two env runners. It waits for both before it learns, and they for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # of Ray's workers

import ray
import torch
from acting import BATCH, BLOCK, RATE, ROWS, STARTS, UNITS, Count, made
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune import register_env

RUNNERS = 2
INTENSITY = BLOCK * BATCH / (BLOCK // RUNNERS * (RUNNERS + 1))
"""One update per env step: RLlib divides as if there were a runner more."""


def main(case: str) -> None:
    """Measure, and print the rates."""
    torch.set_num_threads(1)
    ray.init(num_cpus=RUNNERS + 1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    register_env(case, lambda _: made(case))
    config = (
        SACConfig()
        .environment(case)
        .env_runners(num_env_runners=RUNNERS, rollout_fragment_length=BLOCK // RUNNERS)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=list(UNITS), fcnet_activation="relu"))
        .training(
            actor_lr=RATE, critic_lr=RATE, alpha_lr=RATE, gamma=0.99, tau=0.005, train_batch_size_per_learner=BATCH,
            num_steps_sampled_before_learning_starts=STARTS, training_intensity=INTENSITY,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": ROWS},
        )
        .reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=4 * BLOCK)
    )  # fmt: skip
    algo = config.build_algo()
    updates, update = [0], algo.learner_group.update

    def counted(*args: Any, **more: Any) -> Any:
        updates[0] += 1
        return update(*args, **more)

    algo.learner_group.update = counted
    count = Count()
    while not count.over(int(algo.train()["env_runners"]["num_env_steps_sampled_lifetime"]), updates[0]):
        pass


if __name__ == "__main__":
    main(sys.argv[1])

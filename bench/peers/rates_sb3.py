"""Stable-Baselines3, QR-DQN, TQC and CrossQ from sb3-contrib: `train` of its algorithms, `learn` for the loop."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from rates import (
    BATCH,
    CHOICES,
    COPY_EVERY,
    DISCRETE,
    ENVS,
    EPOCHS,
    IMAGE_ROWS,
    IMAGE_TASKS,
    QUANTILES,
    RATE,
    ROLLOUT,
    ROWS,
    START,
    UNITS,
    ImageTask,
    Update,
    experience,
    image_experience,
    main,
    spaces,
)
from sb3_contrib import QRDQN, TQC, CrossQ
from stable_baselines3 import DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv

STEPS = 10
"""Updates in each call of `train`, which also writes its means into the logger."""

ALGORITHMS: dict[str, type[OffPolicyAlgorithm]] = {
    "td3": TD3, "sac": SAC, "ddpg": DDPG, "dqn": DQN, "qr_dqn": QRDQN, "tqc": TQC, "crossq": CrossQ,
}  # fmt: skip
NETWORKS: dict[str, dict[str, Any]] = {
    "qr_dqn": {"n_quantiles": QUANTILES},
    "tqc": {"net_arch": {"pi": UNITS, "qf": [512, 512, 512]}, "n_critics": 5},
    "crossq": {"net_arch": {"pi": UNITS, "qf": [2048, 2048]}},
}
"""What differs in their networks."""


class Still(gymnasium.Env):
    """Spaces alone."""

    def __init__(self, task: str):
        self.observation_space, self.action_space = spaces(task)


def model(task: str, env: gymnasium.Env, **settings: Any) -> OffPolicyAlgorithm:
    """Its algorithm, which is its own but for the sizes."""
    if task in ("dqn", "qr_dqn"):
        settings["target_update_interval"] = COPY_EVERY
    policy = {"net_arch": UNITS} | NETWORKS.get(task, {})
    common = {"learning_rate": RATE, "buffer_size": ROWS, "batch_size": BATCH, "device": "cpu", "policy_kwargs": policy}
    return ALGORITHMS[task]("MlpPolicy", env, **common, **settings)


def image_env(task: ImageTask) -> gymnasium.Env:
    """An environment with these images."""
    env = Still("dqn" if task.algorithm == "ppo" else task.algorithm)
    env.observation_space = gymnasium.spaces.Box(0, 255, (task.side, task.side, task.channels), np.uint8)
    return env


def rollouts(task: ImageTask) -> Update:
    """Updates of PPO: the minibatches of a rollout."""
    envs, rows, steps = DummyVecEnv([lambda: image_env(task)] * ENVS), image_experience(task), ENVS * ROLLOUT
    learner = PPO(
        "CnnPolicy", envs, RATE, n_steps=ROLLOUT, batch_size=task.batch, n_epochs=EPOCHS, ent_coef=0.01, device="cpu"
    )
    learner.set_logger(Logger(folder=None, output_formats=[]))
    buffer = learner.rollout_buffer
    obs, action, reward = (
        x[:steps].reshape(ROLLOUT, ENVS, *x.shape[1:])
        for x in (rows.obs.transpose(0, 3, 1, 2), rows.action, rows.reward)
    )
    buffer.observations[:], buffer.actions[..., 0], buffer.advantages[:], buffer.returns[:] = (
        obs,
        action,
        reward,
        reward,
    )
    buffer.log_probs[:], buffer.full = -np.log(CHOICES), True

    def update() -> int:
        learner.train()
        return EPOCHS * steps // task.batch

    return update


def image_model(task: ImageTask) -> OffPolicyAlgorithm:
    """Its algorithm with its own convolutions."""
    env = image_env(task)
    settings: dict[str, Any] = {"buffer_size": IMAGE_ROWS, "batch_size": task.batch, "learning_rate": RATE}
    if task.algorithm in DISCRETE:
        settings["target_update_interval"] = COPY_EVERY
    if task.algorithm == "qr_dqn":
        settings["policy_kwargs"] = {"n_quantiles": QUANTILES}
    return ALGORITHMS[task.algorithm]("CnnPolicy", env, device="cpu", **settings)


def build(task: str, variant: str) -> Update:
    """With its replay filled."""
    if task == "ppo_image":
        return rollouts(IMAGE_TASKS[task])
    if task in IMAGE_TASKS:
        learner, rows, batch = (
            image_model(IMAGE_TASKS[task]),
            image_experience(IMAGE_TASKS[task]),
            IMAGE_TASKS[task].batch,
        )
        obs, next_obs = (x.transpose(0, 3, 1, 2) for x in (rows.obs, rows.next_obs))
    else:
        learner, rows, batch = model(task, Still(task)), experience(task), BATCH
        obs, next_obs = rows.obs, rows.next_obs
    learner.set_logger(Logger(folder=None, output_formats=[]))
    replay = learner.replay_buffer
    replay.observations[:, 0], replay.next_observations[:, 0] = obs, next_obs
    replay.actions[:, 0] = rows.action.reshape(len(rows.obs), -1)
    replay.rewards[:, 0] = rows.reward
    replay.dones[:, 0], replay.timeouts[:, 0] = rows.terminated | rows.truncated, rows.truncated
    replay.full = True

    def update() -> int:
        learner.train(gradient_steps=STEPS, batch_size=batch)
        return STEPS

    return update


def loop(env: gymnasium.Env, steps: int) -> None:
    """`learn`, which writes nothing unless asked to."""
    model("td3", env, learning_starts=START, train_freq=1, gradient_steps=1).learn(steps)


if __name__ == "__main__":
    main(build, loop, ("stable-baselines3", "sb3-contrib"))

"""d3rlpy: `update` of its algorithms with batches of its replay buffer, as its `fit` does."""

from __future__ import annotations

import dataclasses

import numpy as np
from d3rlpy.algos import DDPGConfig, DQNConfig, SACConfig, TD3Config
from d3rlpy.algos.qlearning.base import QLearningAlgoBase
from d3rlpy.base import LearnableConfig
from d3rlpy.constants import ActionSpace
from d3rlpy.dataset import MDPDataset
from d3rlpy.models import QRQFunctionFactory, VectorEncoderFactory
from rates import (
    ACTIONS,
    BATCH,
    CHOICES,
    COPY_EVERY,
    DISCOUNT,
    DISCRETE,
    OBS,
    OFFLINE,
    QUANTILES,
    RATE,
    UNITS,
    Experience,
    Update,
    experience,
    main,
    repeated,
)

ALGORITHMS: dict[str, type[LearnableConfig]] = {
    "td3": TD3Config, "sac": SACConfig, "ddpg": DDPGConfig, "dqn": DQNConfig, "qr_dqn": DQNConfig,
}  # fmt: skip


def learner(task: str) -> QLearningAlgoBase:
    """Its algorithm, which is its own but for the sizes."""
    encoder = VectorEncoderFactory(UNITS)
    kind = ALGORITHMS[task]
    sizes = {f.name: encoder for f in dataclasses.fields(kind) if f.name.endswith("encoder_factory")}
    rates = {f.name: RATE for f in dataclasses.fields(kind) if f.name.endswith("learning_rate")}
    if task in DISCRETE:
        sizes["target_update_interval"] = COPY_EVERY
    if task == "qr_dqn":
        sizes["q_func_factory"] = QRQFunctionFactory(n_quantiles=QUANTILES)
    made = kind(batch_size=BATCH, **sizes, **rates).create(device="cpu:0")
    made.create_impl((OBS,), CHOICES if task in DISCRETE else ACTIONS)
    return made


def filled(task: str, rows: Experience) -> MDPDataset:
    """Its replay with all of them."""
    discrete = task in DISCRETE
    return MDPDataset(
        rows.obs, rows.action.reshape(len(rows.action), -1), rows.reward, rows.terminated.astype(np.float32),
        timeouts=rows.truncated.astype(np.float32), action_size=CHOICES if discrete else ACTIONS,
        action_space=ActionSpace.DISCRETE if discrete else ActionSpace.CONTINUOUS,
    )  # fmt: skip


def offline(task: str) -> QLearningAlgoBase:
    """As in `offline_d3rlpy.py`."""
    import offline_d3rlpy
    from offline_task import Work

    discrete, sizes = task in DISCRETE, tuple(UNITS)
    work = Work(task, sizes, RATE, BATCH, DISCOUNT, vae=sizes, quantiles=QUANTILES)
    made: QLearningAlgoBase = offline_d3rlpy.learner(work, OBS, CHOICES if discrete else ACTIONS, discrete)
    return made


def build(task: str, variant: str) -> Update:
    """With its replay filled."""
    made, replay = (offline if task in OFFLINE else learner)(task), filled(task, experience(task))
    return repeated(lambda: made.update(replay.sample_transition_batch(BATCH)))


if __name__ == "__main__":
    main(build, packages=("d3rlpy",))

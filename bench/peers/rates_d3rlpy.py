"""d3rlpy: `update` of its algorithms with batches of its replay buffer, as its `fit` does."""

from __future__ import annotations

import dataclasses

import numpy as np
from d3rlpy.algos import (
    DDPGConfig,
    DecisionTransformerConfig,
    DiscreteBCConfig,
    DiscreteCQLConfig,
    DQNConfig,
    SACConfig,
    TD3Config,
)
from d3rlpy.algos.qlearning.base import QLearningAlgoBase
from d3rlpy.base import LearnableConfig
from d3rlpy.constants import ActionSpace
from d3rlpy.dataset import MDPDataset
from d3rlpy.models import PixelEncoderFactory, QRQFunctionFactory, VectorEncoderFactory
from d3rlpy.optimizers import AdamFactory
from d3rlpy.preprocessing import PixelObservationScaler
from rates import (
    ACTIONS,
    BATCH,
    CHOICES,
    COPY_EVERY,
    DISCOUNT,
    DISCRETE,
    EPISODE,
    IMAGE_TASKS,
    OBS,
    OFFLINE,
    QUANTILES,
    RATE,
    SEQUENCE,
    UNITS,
    Experience,
    ImageTask,
    Update,
    experience,
    image_experience,
    main,
    repeated,
)

ALGORITHMS: dict[str, type[LearnableConfig]] = {
    "td3": TD3Config, "sac": SACConfig, "ddpg": DDPGConfig, "dqn": DQNConfig, "qr_dqn": DQNConfig,
}  # fmt: skip
ON_IMAGES: dict[str, type[LearnableConfig]] = ALGORITHMS | {"discrete_cql": DiscreteCQLConfig, "bc": DiscreteBCConfig}


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


def image_learner(task: ImageTask) -> QLearningAlgoBase:
    """Its algorithm with its convolutions of Mnih et al. 2015 and a layer of 512."""
    settings: dict[str, object] = {"encoder_factory": PixelEncoderFactory(), "learning_rate": RATE}
    if task.algorithm in DISCRETE:
        settings["target_update_interval"] = COPY_EVERY
    if task.algorithm in ("qr_dqn", "discrete_cql"):
        settings["q_func_factory"] = QRQFunctionFactory(n_quantiles=QUANTILES)
    kind = ON_IMAGES[task.algorithm]
    made = kind(batch_size=task.batch, observation_scaler=PixelObservationScaler(), **settings).create(device="cpu:0")
    made.create_impl((task.channels, task.side, task.side), CHOICES)
    return made


def image_update(task: ImageTask) -> Update:
    """As :func:`build`, with images."""
    rows = image_experience(task)
    obs = np.ascontiguousarray(rows.obs.transpose(0, 3, 1, 2))
    made, replay = image_learner(task), filled("dqn", dataclasses.replace(rows, obs=obs))
    return repeated(lambda: made.update(replay.sample_transition_batch(task.batch)))


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


def sequences(task: str) -> Update:
    """As :func:`build`, with sequences of rows."""
    s = SEQUENCE
    config = DecisionTransformerConfig(
        batch_size=s.batch, context_size=s.rows, max_timestep=EPISODE + 1, learning_rate=s.lr, num_heads=s.heads,
        num_layers=s.layers, encoder_factory=VectorEncoderFactory([s.units], exclude_last_activation=True),
        optim_factory=AdamFactory(clip_grad_norm=s.max_grad_norm),
    )  # fmt: skip
    made, replay = config.create(device="cpu:0"), filled(task, experience(task))
    made.create_impl((OBS,), ACTIONS)
    return repeated(lambda: made.update(replay.sample_trajectory_batch(s.batch, length=s.rows)))


def build(task: str, variant: str) -> Update:
    """With its replay filled."""
    if task in IMAGE_TASKS:
        return image_update(IMAGE_TASKS[task])
    if task == "decision_transformer":
        return sequences(task)
    made, replay = (offline if task in OFFLINE else learner)(task), filled(task, experience(task))
    return repeated(lambda: made.update(replay.sample_transition_batch(BATCH)))


if __name__ == "__main__":
    main(build, packages=("d3rlpy",))

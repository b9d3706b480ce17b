"""d3rlpy: `update` of its offline algorithms with batches of its replay buffer, as its `fit` does.

Settings are its own but for the work that everybody has; for hard targets, which its defaults for Atari copy once in
8000 updates; and for BCQ's samples.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from d3rlpy import dataset
from d3rlpy.algos import (
    BCConfig,
    BCQConfig,
    CQLConfig,
    CRRConfig,
    DiscreteBCConfig,
    DiscreteBCQConfig,
    DiscreteCQLConfig,
    IQLConfig,
    ReBRACConfig,
    TD3PlusBCConfig,
)
from d3rlpy.algos.qlearning.base import QLearningAlgoBase
from d3rlpy.base import LearnableConfig
from d3rlpy.constants import ActionSpace
from d3rlpy.models import QRQFunctionFactory, VectorEncoderFactory
from offline_task import COPY_EVERY, SAMPLES, Act, Episode, Recorded, Update, Work, main

CONTINUOUS: dict[str, type[LearnableConfig]] = {
    "bc": BCConfig, "td3_bc": TD3PlusBCConfig, "bcq": BCQConfig, "cql": CQLConfig, "iql": IQLConfig, "crr": CRRConfig,
    "rebrac": ReBRACConfig,
}  # fmt: skip
DISCRETE: dict[str, type[LearnableConfig]] = {
    "bc": DiscreteBCConfig, "discrete_bcq": DiscreteBCQConfig, "discrete_cql": DiscreteCQLConfig,
}  # fmt: skip
RATES = ("learning_rate", "actor_learning_rate", "critic_learning_rate", "imitator_learning_rate")


def learner(work: Work, width: int, actions: int, discrete: bool) -> QLearningAlgoBase:
    """Its algorithm with these networks, rates and batches."""
    kind = (DISCRETE if discrete else CONTINUOUS)[work.algorithm]
    known = {f.name for f in dataclasses.fields(kind)}
    made: dict[str, object] = {
        name: VectorEncoderFactory(list(work.units)) for name in known if name.endswith("encoder_factory")
    }
    made |= {name: work.lr for name in RATES if name in known}
    made |= {"gamma": work.discount} if "gamma" in known else {}
    if work.algorithm == "bcq":
        made |= {"imitator_encoder_factory": VectorEncoderFactory(list(work.vae)), "n_action_samples": SAMPLES}
    if work.algorithm == "rebrac":  # as the authors do
        made["critic_encoder_factory"] = VectorEncoderFactory(list(work.units), use_layer_norm=True)
    if discrete and "target_update_interval" in known:
        made["target_update_interval"] = COPY_EVERY
    if work.algorithm == "discrete_cql":
        made["q_func_factory"] = QRQFunctionFactory(n_quantiles=work.quantiles)
    out = kind(batch_size=work.batch, **made).create(device="cpu:0")
    out.create_impl((width,), actions)
    return out


def episode(found: Episode, discrete: bool) -> dataset.Episode:
    """With what was seen last where time ran out: a row more, whose action and reward are never learned from.

    It takes T observations for T actions, and learns from all T steps of an episode that terminated, but from T - 1 of
    any other.
    """
    obs, action, reward = found.obs, found.action, found.reward
    if found.terminated:
        obs = obs[:-1]
    else:
        action, reward = np.concatenate([action, action[-1:]]), np.concatenate([reward, reward[-1:] * 0])
    kind = np.int32 if discrete else np.float32
    return dataset.Episode(
        obs, action.reshape(len(action), -1).astype(kind), reward.reshape(-1, 1), terminated=found.terminated
    )


def filled(recorded: Recorded) -> dataset.ReplayBuffer:
    """Its replay with all of it."""
    discrete = recorded.discrete
    return dataset.ReplayBuffer(
        dataset.InfiniteBuffer(),
        episodes=[episode(each, discrete) for each in recorded.episodes],
        action_space=ActionSpace.DISCRETE if discrete else ActionSpace.CONTINUOUS,
        action_size=recorded.actions,
    )


def build(work: Work, recorded: Recorded) -> tuple[Update, Act]:
    """With its replay filled."""
    made = learner(work, len(recorded.mean), recorded.actions, recorded.discrete)
    replay = filled(recorded)
    return lambda: made.update(replay.sample_transition_batch(work.batch)), made.predict


if __name__ == "__main__":
    main(build, "d3rlpy")

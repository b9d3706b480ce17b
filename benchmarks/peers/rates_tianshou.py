"""Tianshou: `update` of its algorithms, put together as its examples do, and its trainer for the loop."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
import numpy as np
from rates import (
    ACTIONS,
    BATCH,
    CHOICES,
    CLIP,
    COPY_EVERY,
    DELAY,
    DISCOUNT,
    DISCRETE,
    NOISE,
    OBS,
    OFFLINE,
    QUANTILES,
    RATE,
    ROWS,
    START,
    TAU,
    UNITS,
    Experience,
    Update,
    experience,
    main,
    repeated,
    spaces,
)
from tianshou.algorithm import DDPG, DQN, QRDQN, SAC, TD3
from tianshou.algorithm.algorithm_base import OffPolicyAlgorithm
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.qrdqn import QRDQNPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, ReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.exploration import GaussianNoise
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorDeterministic, ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.torch_utils import policy_within_training_step

ADAM = AdamOptimizerFactory(lr=RATE)


def critic() -> ContinuousCritic:
    """Q(s, a)."""
    body = Net(state_shape=OBS, action_shape=ACTIONS, hidden_sizes=UNITS, concat=True)
    return ContinuousCritic(preprocess_net=body)


def deterministic() -> ContinuousDeterministicPolicy:
    """mu(s), with noise."""
    actor = ContinuousActorDeterministic(
        preprocess_net=Net(state_shape=OBS, hidden_sizes=UNITS), action_shape=ACTIONS, max_action=1.0
    )
    seen, act = spaces("td3")
    noise = GaussianNoise(sigma=0.1)
    return ContinuousDeterministicPolicy(actor=actor, exploration_noise=noise, action_space=act, observation_space=seen)


def ddpg() -> OffPolicyAlgorithm:
    """DDPG."""
    return DDPG(policy=deterministic(), policy_optim=ADAM, critic=critic(), critic_optim=ADAM, tau=TAU, gamma=DISCOUNT)


def td3() -> OffPolicyAlgorithm:
    """TD3."""
    return TD3(
        policy=deterministic(), policy_optim=ADAM, critic=critic(), critic_optim=ADAM, critic2=critic(),
        critic2_optim=ADAM, tau=TAU, gamma=DISCOUNT, policy_noise=NOISE, update_actor_freq=DELAY, noise_clip=CLIP,
    )  # fmt: skip


def sac() -> OffPolicyAlgorithm:
    """SAC with its temperature learned."""
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=OBS, hidden_sizes=UNITS), action_shape=ACTIONS, unbounded=True,
        conditioned_sigma=True,
    )  # fmt: skip
    alpha = AutoAlpha(target_entropy=-float(ACTIONS), log_alpha=0.0, optim=ADAM)
    return SAC(
        policy=SACPolicy(actor=actor, action_space=spaces("sac")[1]), policy_optim=ADAM, critic=critic(),
        critic_optim=ADAM, critic2=critic(), critic2_optim=ADAM, tau=TAU, gamma=DISCOUNT, alpha=alpha,
    )  # fmt: skip


def dqn() -> OffPolicyAlgorithm:
    """DQN that is neither double nor dueling."""
    net = Net(state_shape=OBS, action_shape=CHOICES, hidden_sizes=UNITS)
    policy = DiscreteQLearningPolicy(model=net, action_space=spaces("dqn")[1])
    return DQN(policy=policy, optim=ADAM, gamma=DISCOUNT, target_update_freq=COPY_EVERY, is_double=False)


def qr_dqn() -> OffPolicyAlgorithm:
    """QR-DQN."""
    net = Net(state_shape=OBS, action_shape=CHOICES, hidden_sizes=UNITS, num_atoms=QUANTILES)
    policy = QRDQNPolicy(model=net, action_space=spaces("qr_dqn")[1])
    return QRDQN(
        policy=policy, optim=ADAM, gamma=DISCOUNT, num_quantiles=QUANTILES, target_update_freq=COPY_EVERY
    )  # fmt: skip


ALGORITHMS: dict[str, Callable[[], OffPolicyAlgorithm]] = {
    "td3": td3, "sac": sac, "ddpg": ddpg, "dqn": dqn, "qr_dqn": qr_dqn,
}  # fmt: skip


def filled(rows: Experience) -> ReplayBuffer:
    """Its replay with all of them."""
    replay = ReplayBuffer(ROWS)
    replay.set_batch(
        Batch(
            obs=rows.obs, act=rows.action, rew=rows.reward.astype(np.float64), terminated=rows.terminated,
            truncated=rows.truncated, done=rows.terminated | rows.truncated, obs_next=rows.next_obs,
        )
    )  # fmt: skip
    replay._size = ROWS  # as its from_data does
    return replay


def offline(task: str) -> OffPolicyAlgorithm:
    """As in `offline_tianshou.py`."""
    import offline_tianshou
    from offline_task import Work

    discrete, sizes = task in DISCRETE, tuple(UNITS)
    work = Work(task, sizes, RATE, BATCH, DISCOUNT, vae=sizes, quantiles=QUANTILES)
    parts = offline_tianshou.Parts(work, OBS, CHOICES if discrete else ACTIONS, discrete)
    made: OffPolicyAlgorithm = offline_tianshou.ALGORITHMS[task](parts)
    return made


def build(task: str, variant: str) -> Update:
    """With its replay filled."""
    learner = offline(task) if task in OFFLINE else ALGORITHMS[task]()
    replay = filled(experience(task))
    replay = learner.process_buffer(replay) if task in OFFLINE else replay

    def update() -> None:
        with policy_within_training_step(learner.policy):
            learner.update(replay, BATCH)

    return repeated(update)


def loop(env: gymnasium.Env, steps: int) -> None:
    """Its trainer, with neither tests nor a logger."""
    learner = td3()
    collector = Collector(learner, DummyVectorEnv([lambda: env]), ReplayBuffer(ROWS), exploration_noise=True)
    collector.reset()
    collector.collect(n_step=START, random=True)
    params = OffPolicyTrainerParams(
        training_collector=collector, max_epochs=1, epoch_num_steps=steps - START, batch_size=BATCH,
        collection_step_num_env_steps=1, update_step_num_gradient_steps_per_sample=1.0, verbose=False,
        show_progress=False,
    )  # fmt: skip
    learner.run_training(params)


if __name__ == "__main__":
    main(build, loop, ("tianshou",))

"""Tianshou: `update` of its algorithms, put together as its examples do, and its trainer for the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import rates_tianshou_images as images
from rates import (
    ACTIONS,
    BATCH,
    CHOICES,
    CLIP,
    COPY_EVERY,
    DELAY,
    DISCOUNT,
    DISCRETE,
    IMAGE_TASKS,
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
    image_experience,
    main,
    repeated,
    spaces,
)
from tianshou.algorithm import DDPG, DQN, QRDQN, SAC, TD3
from tianshou.algorithm.algorithm_base import Algorithm, OfflineAlgorithm, OffPolicyAlgorithm
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


class Networks:
    """Networks of vectors; those of images have the same methods."""

    def body(self) -> Net:
        """Hidden layers of an actor."""
        return Net(state_shape=OBS, hidden_sizes=UNITS)

    def critic(self) -> ContinuousCritic:
        """Q(s, a)."""
        body = Net(state_shape=OBS, action_shape=ACTIONS, hidden_sizes=UNITS, concat=True)
        return ContinuousCritic(preprocess_net=body)

    def values(self, quantiles: int = 1) -> Net:
        """Q(s, .), or quantiles of it."""
        return Net(state_shape=OBS, action_shape=CHOICES, hidden_sizes=UNITS, num_atoms=quantiles)


def deterministic(networks: Any) -> ContinuousDeterministicPolicy:
    """mu(s), with noise."""
    actor = ContinuousActorDeterministic(preprocess_net=networks.body(), action_shape=ACTIONS, max_action=1.0)
    noise = GaussianNoise(sigma=0.1)
    return ContinuousDeterministicPolicy(actor=actor, exploration_noise=noise, action_space=spaces("td3")[1])


def ddpg(networks: Any) -> OffPolicyAlgorithm:
    """DDPG."""
    return DDPG(
        policy=deterministic(networks), policy_optim=ADAM, critic=networks.critic(), critic_optim=ADAM, tau=TAU,
        gamma=DISCOUNT,
    )  # fmt: skip


def td3(networks: Any) -> OffPolicyAlgorithm:
    """TD3."""
    return TD3(
        policy=deterministic(networks), policy_optim=ADAM, critic=networks.critic(), critic_optim=ADAM,
        critic2=networks.critic(), critic2_optim=ADAM, tau=TAU, gamma=DISCOUNT, policy_noise=NOISE,
        update_actor_freq=DELAY, noise_clip=CLIP,
    )  # fmt: skip


def sac(networks: Any) -> OffPolicyAlgorithm:
    """SAC with its temperature learned."""
    actor = ContinuousActorProbabilistic(
        preprocess_net=networks.body(), action_shape=ACTIONS, unbounded=True, conditioned_sigma=True
    )
    alpha = AutoAlpha(target_entropy=-float(ACTIONS), log_alpha=0.0, optim=ADAM)
    return SAC(
        policy=SACPolicy(actor=actor, action_space=spaces("sac")[1]), policy_optim=ADAM, critic=networks.critic(),
        critic_optim=ADAM, critic2=networks.critic(), critic2_optim=ADAM, tau=TAU, gamma=DISCOUNT, alpha=alpha,
    )  # fmt: skip


def dqn(networks: Any) -> OffPolicyAlgorithm:
    """DQN that is neither double nor dueling."""
    policy = DiscreteQLearningPolicy(model=networks.values(), action_space=spaces("dqn")[1])
    return DQN(policy=policy, optim=ADAM, gamma=DISCOUNT, target_update_freq=COPY_EVERY, is_double=False)


def qr_dqn(networks: Any) -> OffPolicyAlgorithm:
    """QR-DQN."""
    policy = QRDQNPolicy(model=networks.values(QUANTILES), action_space=spaces("qr_dqn")[1])
    return QRDQN(policy=policy, optim=ADAM, gamma=DISCOUNT, num_quantiles=QUANTILES, target_update_freq=COPY_EVERY)


ALGORITHMS: dict[str, Callable[[Any], Algorithm]] = {
    "td3": td3, "sac": sac, "ddpg": ddpg, "dqn": dqn, "qr_dqn": qr_dqn,
}  # fmt: skip
ON_IMAGES = ALGORITHMS | {
    "c51": images.c51,
    "rainbow": images.rainbow,
    "iqn": images.iqn,
    "discrete_cql": images.discrete_cql,
    "bc": images.bc,
}


def filled(rows: Experience) -> ReplayBuffer:
    """Its replay with all of them."""
    replay = ReplayBuffer(len(rows.obs))
    replay.set_batch(
        Batch(
            obs=rows.obs, act=rows.action, rew=rows.reward.astype(np.float64), terminated=rows.terminated,
            truncated=rows.truncated, done=rows.terminated | rows.truncated, obs_next=rows.next_obs,
        )
    )  # fmt: skip
    replay._size = len(rows.obs)  # as its from_data does
    return replay


def offline(task: str) -> OfflineAlgorithm:
    """As in `offline_tianshou.py`."""
    import offline_tianshou
    from offline_task import Work

    discrete, sizes = task in DISCRETE, tuple(UNITS)
    work = Work(task, sizes, RATE, BATCH, DISCOUNT, vae=sizes, quantiles=QUANTILES)
    parts = offline_tianshou.Parts(work, OBS, CHOICES if discrete else ACTIONS, discrete)
    made: OfflineAlgorithm = offline_tianshou.ALGORITHMS[task](parts)
    return made


def build(task: str, variant: str) -> Update:
    """With its replay filled."""
    if task not in IMAGE_TASKS:
        rows, size = experience(task), BATCH
        learner: Any = offline(task) if task in OFFLINE else ALGORITHMS[task](Networks())
    else:
        image, rows = IMAGE_TASKS[task], image_experience(IMAGE_TASKS[task])
        obs, next_obs = (np.ascontiguousarray(x.transpose(0, 3, 1, 2)) for x in (rows.obs, rows.next_obs))
        rows, size = replace(rows, obs=obs, next_obs=next_obs), image.batch
        if image.algorithm == "ppo":
            return images.rollouts(image, rows)
        learner = ON_IMAGES[image.algorithm](images.ImageNetworks(image))
    replay = filled(rows)
    if isinstance(learner, OfflineAlgorithm):
        replay = learner.process_buffer(replay)

    def update() -> None:
        with policy_within_training_step(learner.policy):
            learner.update(replay, size)

    return repeated(update)


def loop(env: gymnasium.Env, steps: int) -> None:
    """Its trainer, with neither tests nor a logger."""
    learner = td3(Networks())
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

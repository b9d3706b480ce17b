"""Tianshou beside ``actors.py``: two environments in processes, and SAC with one update per env step.

With its AsyncCollector, version 2.0.1 raises an error for SAC: it has room for actions of one number only, and expects
policies that add columns. So its collector here is the plain one, which waits for both, and for updates.
"""

from __future__ import annotations

import functools
import sys

import torch
from acting import BATCH, BLOCK, RATE, ROWS, STARTS, UNITS, Count, made
from tianshou.algorithm import SAC
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import SubprocVectorEnv
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.torch_utils import policy_within_training_step

ENVS = 2


def learner(case: str) -> SAC:
    """SAC with its temperature learned, as in `rates_tianshou.py`."""
    env, adam = made(case), AdamOptimizerFactory(lr=RATE)
    obs, acts, units = env.observation_space.shape, env.action_space.shape, list(UNITS)
    assert obs is not None
    assert acts is not None
    body = Net(state_shape=obs, hidden_sizes=units)
    actor = ContinuousActorProbabilistic(
        preprocess_net=body, action_shape=acts, unbounded=True, conditioned_sigma=True
    )  # fmt: skip
    critics = [
        ContinuousCritic(preprocess_net=Net(state_shape=obs, action_shape=acts, hidden_sizes=units, concat=True))
        for _ in range(2)
    ]
    return SAC(
        policy=SACPolicy(actor=actor, action_space=env.action_space), policy_optim=adam, critic=critics[0],
        critic_optim=adam, critic2=critics[1], critic2_optim=adam, tau=0.005, gamma=0.99,
        alpha=AutoAlpha(target_entropy=-float(acts[0]), log_alpha=0.0, optim=adam),
    )  # fmt: skip


def main(case: str) -> None:
    """Measure, and print the rates."""
    torch.set_num_threads(1)
    sac, replay = learner(case), VectorReplayBuffer(ROWS, ENVS)
    envs = SubprocVectorEnv([functools.partial(made, case)] * ENVS)
    collector, count = Collector(sac, envs, replay, exploration_noise=True), Count()
    collector.reset()
    rows = collector.collect(n_step=STARTS, random=True).n_collected_steps
    updates = 0
    while not count.over(rows, updates):
        with policy_within_training_step(sac.policy):
            taken = collector.collect(n_step=BLOCK).n_collected_steps
            for _ in range(taken):
                sac.update(replay, BATCH)
        rows, updates = rows + taken, updates + taken
    envs.close()


if __name__ == "__main__":
    main(sys.argv[1])

"""Tianshou: `update` of its offline algorithms with its replay buffer, put together as its examples do.

Settings are its own but for the work that everybody has; its examples' automatic temperature for CQL; and targets that
are copied where its default is to have none.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gymnasium.spaces import Box, Discrete
from offline_task import COPY_EVERY, SAMPLES, Act, Recorded, Update, Work, main
from tianshou.algorithm import BCQ, CQL, TD3BC, DiscreteBCQ, DiscreteCQL, DiscreteCRR
from tianshou.algorithm.algorithm_base import OfflineAlgorithm
from tianshou.algorithm.imitation.bcq import BCQPolicy
from tianshou.algorithm.imitation.discrete_bcq import DiscreteBCQPolicy
from tianshou.algorithm.imitation.imitation_base import ImitationPolicy, OfflineImitationLearning
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.modelfree.qrdqn import QRDQNPolicy
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, ReplayBuffer
from tianshou.utils.net.common import MLP, Net
from tianshou.utils.net.continuous import (
    VAE,
    ContinuousActorDeterministic,
    ContinuousActorProbabilistic,
    ContinuousCritic,
    Perturbation,
)
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from tianshou.utils.torch_utils import policy_within_training_step

TEMPERATURE_RATE = 1e-4
"""Of CQL: its example."""


class Parts:
    """Networks, spaces and optimizers of these sizes."""

    def __init__(self, work: Work, width: int, actions: int, discrete: bool) -> None:
        self.work, self.width, self.actions = work, width, actions
        self.adam = AdamOptimizerFactory(lr=work.lr)
        self.space = Discrete(actions) if discrete else Box(-1, 1, (actions,), np.float32)
        self.gamma = work.discount

    def body(self) -> Net:
        """Hidden layers over observations."""
        return Net(state_shape=self.width, hidden_sizes=self.work.units)

    def critic(self) -> ContinuousCritic:
        """Q(s, a)."""
        body = Net(state_shape=self.width, action_shape=self.actions, hidden_sizes=self.work.units, concat=True)
        return ContinuousCritic(preprocess_net=body)

    def deterministic(self) -> ContinuousActorDeterministic:
        """mu(s)."""
        return ContinuousActorDeterministic(preprocess_net=self.body(), action_shape=self.actions, max_action=1.0)

    def scores(self) -> DiscreteActor:
        """A number for each choice."""
        return DiscreteActor(preprocess_net=self.body(), action_shape=self.actions, softmax_output=False)


def bc(p: Parts) -> OfflineAlgorithm:
    """Behavior cloning."""
    actor = p.scores() if isinstance(p.space, Discrete) else p.deterministic()
    bound = None if isinstance(p.space, Discrete) else "clip"
    policy = ImitationPolicy(actor=actor, action_space=p.space, action_bound_method=bound)
    return OfflineImitationLearning(policy=policy, optim=p.adam)


def td3_bc(p: Parts) -> OfflineAlgorithm:
    """TD3+BC."""
    policy = ContinuousDeterministicPolicy(actor=p.deterministic(), action_space=p.space)
    return TD3BC(
        policy=policy, policy_optim=p.adam, critic=p.critic(), critic_optim=p.adam, critic2=p.critic(),
        critic2_optim=p.adam, gamma=p.gamma,
    )  # fmt: skip


def bcq(p: Parts) -> OfflineAlgorithm:
    """BCQ."""
    units, both, latent = p.work.vae, p.width + p.actions, 2 * p.actions
    vae = VAE(
        encoder=MLP(input_dim=both, hidden_sizes=units),
        decoder=MLP(input_dim=p.width + latent, output_dim=p.actions, hidden_sizes=units),
        hidden_dim=units[-1], latent_dim=latent, max_action=1.0,
    )  # fmt: skip
    moves = Net(state_shape=both, action_shape=p.actions, hidden_sizes=p.work.units)
    policy = BCQPolicy(
        actor_perturbation=Perturbation(preprocess_net=moves, max_action=1.0), action_space=p.space,
        critic=p.critic(), vae=vae,
    )  # fmt: skip
    return BCQ(
        policy=policy, actor_perturbation_optim=p.adam, critic_optim=p.adam, vae_optim=p.adam, critic2=p.critic(),
        critic2_optim=p.adam, gamma=p.gamma, num_sampled_action=SAMPLES,
    )  # fmt: skip


def cql(p: Parts) -> OfflineAlgorithm:
    """CQL, as by default with a multiplier that is learned, and calibrated."""
    actor = ContinuousActorProbabilistic(
        preprocess_net=p.body(), action_shape=p.actions, unbounded=True, conditioned_sigma=True
    )
    rate = AdamOptimizerFactory(lr=TEMPERATURE_RATE)
    return CQL(
        policy=SACPolicy(actor=actor, action_space=p.space), policy_optim=p.adam, critic=p.critic(),
        critic_optim=p.adam, critic2=p.critic(), critic2_optim=p.adam, gamma=p.gamma,
        alpha=AutoAlpha(target_entropy=-float(p.actions), log_alpha=0.0, optim=rate),
    )  # fmt: skip


def discrete_bcq(p: Parts) -> OfflineAlgorithm:
    """Discrete BCQ."""
    policy = DiscreteBCQPolicy(
        model=p.scores(), imitator=p.scores(), target_update_freq=COPY_EVERY, action_space=p.space
    )
    return DiscreteBCQ(policy=policy, optim=p.adam, gamma=p.gamma, target_update_freq=COPY_EVERY)


def discrete_cql(p: Parts) -> OfflineAlgorithm:
    """CQL on quantiles."""
    net = Net(state_shape=p.width, action_shape=p.actions, hidden_sizes=p.work.units, num_atoms=p.work.quantiles)
    policy = QRDQNPolicy(model=net, action_space=p.space)
    return DiscreteCQL(
        policy=policy, optim=p.adam, gamma=p.gamma, num_quantiles=p.work.quantiles, target_update_freq=COPY_EVERY
    )


def discrete_crr(p: Parts) -> OfflineAlgorithm:
    """Discrete CRR, as by default with the term of CQL."""
    policy = DiscreteActorPolicy(actor=p.scores(), action_space=p.space, deterministic_eval=True)
    critic = DiscreteCritic(preprocess_net=p.body(), last_size=p.actions)
    return DiscreteCRR(policy=policy, critic=critic, optim=p.adam, gamma=p.gamma, target_update_freq=COPY_EVERY)


ALGORITHMS: dict[str, Callable[[Parts], OfflineAlgorithm]] = {
    "bc": bc, "td3_bc": td3_bc, "bcq": bcq, "cql": cql, "discrete_bcq": discrete_bcq, "discrete_cql": discrete_cql,
    "discrete_crr": discrete_crr,
}  # fmt: skip


def filled(recorded: Recorded) -> ReplayBuffer:
    """Its replay with all of it; what ended by the clock is truncated."""
    found = recorded.episodes
    sizes = [len(each.reward) for each in found]
    last = np.zeros(sum(sizes), bool)
    last[np.cumsum(sizes) - 1] = True
    terminated = last & np.repeat([each.terminated for each in found], sizes)
    replay = ReplayBuffer(len(last))
    replay.set_batch(
        Batch(
            obs=np.concatenate([each.obs[:-1] for each in found]),
            act=np.concatenate([each.action for each in found]),
            rew=np.concatenate([each.reward for each in found]).astype(np.float64),
            terminated=terminated, truncated=last & ~terminated, done=last,
            obs_next=np.concatenate([each.obs[1:] for each in found]),
        )
    )  # fmt: skip
    replay._size = len(last)  # as its from_data does
    return replay


def build(work: Work, recorded: Recorded) -> tuple[Update, Act]:
    """With its replay filled."""
    learner = ALGORITHMS[work.algorithm](Parts(work, len(recorded.mean), recorded.actions, recorded.discrete))
    replay = learner.process_buffer(filled(recorded))

    def update() -> None:
        with policy_within_training_step(learner.policy):
            learner.update(replay, work.batch)

    def act(obs: np.ndarray) -> np.ndarray:
        found = learner.policy(Batch(obs=obs, info=[{}] * len(obs))).act
        return found if isinstance(found, np.ndarray) else found.detach().numpy()

    return update, act


if __name__ == "__main__":
    main(build, "tianshou")

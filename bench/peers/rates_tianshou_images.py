"""Tianshou on images: its networks for Atari, and for continuous actions the convolutions of the plain script.

Actor and critics of SAC and TD3 share nothing, as its algorithms have an optimizer for each of them. Policy and value
of PPO share convolutions and a layer of 512, as in its example for Atari.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from rates import (
    ACTIONS,
    CHOICES,
    COPY_EVERY,
    DISCOUNT,
    ENVS,
    EPOCHS,
    QUANTILES,
    RATE,
    ROLLOUT,
    UNITS,
    Experience,
    ImageTask,
    Update,
)
from rates_script_images import build_encoder, mlp, trunk
from tianshou.algorithm import C51, IQN, PPO, DiscreteCQL, RainbowDQN
from tianshou.algorithm.algorithm_base import OfflineAlgorithm
from tianshou.algorithm.imitation.imitation_base import ImitationPolicy, OfflineImitationLearning
from tianshou.algorithm.modelfree.c51 import C51Policy
from tianshou.algorithm.modelfree.iqn import IQNPolicy
from tianshou.algorithm.modelfree.qrdqn import QRDQNPolicy
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, VectorReplayBuffer
from tianshou.env.atari.atari_network import C51Net, DQNet, QRDQNet, RainbowNet, ScaledObsInputActionReprNet
from tianshou.utils.net.common import MLP, ModuleWithVectorOutput
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic, ImplicitQuantileNetwork
from tianshou.utils.torch_utils import policy_within_training_step
from torch import Tensor, nn

ADAM = AdamOptimizerFactory(lr=RATE)


class Body(ModuleWithVectorOutput):
    """Convolutions, the trunk of DrQ-v2 if the task has it, and hidden layers."""

    def __init__(self, task: ImageTask) -> None:
        super().__init__(UNITS[-1])
        encoder = build_encoder(task)
        above, width = trunk(task, encoder.width)
        self.body = nn.Sequential(encoder, above, MLP(input_dim=width, hidden_sizes=UNITS))

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[Tensor, Any]:
        return self.body(torch.as_tensor(obs)), state


class Critic(nn.Module):
    """Q(s, a)."""

    def __init__(self, task: ImageTask) -> None:
        super().__init__()
        encoder = build_encoder(task)
        above, width = trunk(task, encoder.width)
        self.features, self.body = nn.Sequential(encoder, above), mlp(width + ACTIONS, 1)

    def forward(self, obs: Any, act: Any, info: Any = None) -> Tensor:
        return self.body(torch.cat([self.features(torch.as_tensor(obs)), torch.as_tensor(act)], 1))


class ImageNetworks:
    """Networks of one task."""

    def __init__(self, task: ImageTask) -> None:
        self.task = task

    def body(self) -> Body:
        """Hidden layers of an actor."""
        return Body(self.task)

    def critic(self) -> Critic:
        """Q(s, a)."""
        return Critic(self.task)

    def values(self, quantiles: int = 1) -> ScaledObsInputActionReprNet:
        """Q(s, .), or quantiles of it."""
        size = {"c": self.task.channels, "h": self.task.side, "w": self.task.side}
        net = (
            DQNet(**size, action_shape=CHOICES)
            if quantiles == 1
            else QRDQNet(**size, action_shape=CHOICES, num_quantiles=quantiles)
        )
        return ScaledObsInputActionReprNet(net)


def c51(networks: ImageNetworks) -> C51:
    """C51."""
    task = networks.task
    net = C51Net(c=task.channels, h=task.side, w=task.side, action_shape=CHOICES)
    policy = C51Policy(model=ScaledObsInputActionReprNet(net), action_space=Discrete(CHOICES))
    return C51(policy=policy, optim=ADAM, gamma=DISCOUNT, target_update_freq=COPY_EVERY)


def rainbow(networks: ImageNetworks) -> RainbowDQN:
    """Rainbow with a uniform replay."""
    task = networks.task
    net = RainbowNet(c=task.channels, h=task.side, w=task.side, action_shape=CHOICES)
    policy = C51Policy(model=ScaledObsInputActionReprNet(net), action_space=Discrete(CHOICES))
    return RainbowDQN(policy=policy, optim=ADAM, gamma=DISCOUNT, n_step_return_horizon=3, target_update_freq=COPY_EVERY)


def iqn(networks: ImageNetworks) -> IQN:
    """IQN with eight quantiles each."""
    task = networks.task
    size = {"c": task.channels, "h": task.side, "w": task.side}
    features = ScaledObsInputActionReprNet(DQNet(**size, action_shape=CHOICES, features_only=True))
    net = ImplicitQuantileNetwork(preprocess_net=features, action_shape=CHOICES, hidden_sizes=[512])
    policy = IQNPolicy(model=net, action_space=Discrete(CHOICES))
    return IQN(policy=policy, optim=ADAM, gamma=DISCOUNT, target_update_freq=COPY_EVERY)


def discrete_cql(networks: ImageNetworks) -> OfflineAlgorithm:
    """CQL on quantiles."""
    policy = QRDQNPolicy(model=networks.values(QUANTILES), action_space=Discrete(CHOICES))
    return DiscreteCQL(
        policy=policy, optim=ADAM, gamma=DISCOUNT, num_quantiles=QUANTILES, target_update_freq=COPY_EVERY
    )


def bc(networks: ImageNetworks) -> OfflineAlgorithm:
    """Behavior cloning."""
    policy = ImitationPolicy(actor=networks.values(), action_space=Discrete(CHOICES), action_bound_method=None)
    return OfflineImitationLearning(policy=policy, optim=ADAM)


def ppo(task: ImageTask) -> PPO:
    """PPO with the settings of all systems."""
    size = {"c": task.channels, "h": task.side, "w": task.side}
    shared = ScaledObsInputActionReprNet(
        DQNet(**size, action_shape=CHOICES, features_only=True, output_dim_added_layer=512)
    )
    actor = DiscreteActor(preprocess_net=shared, action_shape=CHOICES, softmax_output=False)
    return PPO(
        policy=DiscreteActorPolicy(actor=actor, action_space=Discrete(CHOICES)),
        critic=DiscreteCritic(preprocess_net=shared), optim=AdamOptimizerFactory(lr=RATE, eps=1e-5),
        gamma=DISCOUNT, gae_lambda=0.95, eps_clip=0.2, vf_coef=0.5, ent_coef=0.01, max_grad_norm=0.5,
    )  # fmt: skip


def rollouts(task: ImageTask, rows: Experience) -> Update:
    """Updates of PPO: the minibatches of a rollout, with its advantages; images are channels first."""
    learner, replay = ppo(task), VectorReplayBuffer(ENVS * ROLLOUT, ENVS)
    done = rows.terminated | rows.truncated
    for step in range(ROLLOUT):
        i = np.arange(ENVS) * ROLLOUT + step
        replay.add(
            Batch(
                obs=rows.obs[i], act=rows.action[i], rew=rows.reward[i].astype(np.float64),
                terminated=rows.terminated[i], truncated=rows.truncated[i], done=done[i], obs_next=rows.next_obs[i],
                info=Batch(),
            )
        )  # fmt: skip

    def update() -> int:
        with policy_within_training_step(learner.policy):
            learner.update(replay, task.batch, EPOCHS)
        return ENVS * ROLLOUT // task.batch * EPOCHS

    return update

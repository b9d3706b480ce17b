"""TorchRL on images: its convolutions for Atari, and for continuous actions those of the plain script.

Actor and critics of SAC and TD3 share nothing. Policy and value of PPO share convolutions and a layer of 512, as in
its example for Atari.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from rates import ACTIONS, CHOICES, DISCOUNT, ENVS, EPOCHS, RATE, ROLLOUT, UNITS, Experience, ImageTask, Update
from rates_script_images import build_encoder, mlp, trunk
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.data import LazyTensorStorage, OneHot, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.modules import MLP, ActorValueOperator, ConvNet, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import BCLoss, ClipPPOLoss
from torchrl.objectives.value import GAE


class Scale(nn.Module):
    """Images in [0, 1]."""

    def forward(self, image: Tensor) -> Tensor:
        return image / 255.0


def convolutions(task: ImageTask) -> tuple[nn.Sequential, int]:
    """Its convolutions of Mnih et al. 2015, and how many features they have."""
    sizes = {"num_cells": [32, 64, 64], "kernel_sizes": [8, 4, 3], "strides": [4, 2, 1]}
    body = nn.Sequential(Scale(), ConvNet(in_features=task.channels, activation_class=nn.ReLU, **sizes))
    return body, body(torch.zeros(1, task.channels, task.side, task.side)).shape[1]


class Critic(nn.Module):
    """Q(s, a)."""

    def __init__(self, task: ImageTask) -> None:
        super().__init__()
        encoder = build_encoder(task)
        above, width = trunk(task, encoder.width)
        self.features, self.body = nn.Sequential(encoder, above), mlp(width + ACTIONS, 1)

    def forward(self, action: Tensor, image: Tensor) -> Tensor:
        return self.body(torch.cat([self.features(image), action], -1))


class ImageNetworks:
    """Networks of one task."""

    def __init__(self, task: ImageTask) -> None:
        self.task = task

    def actor(self, outputs: int) -> nn.Module:
        """Numbers of a policy."""
        encoder = build_encoder(self.task)
        above, width = trunk(self.task, encoder.width)
        head = MLP(in_features=width, out_features=outputs, num_cells=UNITS, activation_class=nn.ReLU)
        return nn.Sequential(encoder, above, head)

    def critic(self) -> nn.Module:
        """Q(s, a) of actions and observations."""
        return Critic(self.task)

    def values(self) -> nn.Module:
        """Q(s, .)."""
        body, width = convolutions(self.task)
        head = MLP(in_features=width, out_features=CHOICES, num_cells=[512], activation_class=nn.ReLU)
        return nn.Sequential(body, head)


def bc(networks: ImageNetworks) -> Callable[[TensorDict], object]:
    """Behavior cloning: cross entropy."""
    actor = TensorDictModule(networks.values(), in_keys=["observation"], out_keys=["action"])
    loss = BCLoss(actor, loss_function="cross_entropy")
    optim = torch.optim.Adam(loss.parameters(), lr=RATE)

    def step(sample: TensorDict) -> None:
        loss(sample)["loss_bc"].backward()
        optim.step()
        optim.zero_grad(set_to_none=True)

    return step


def rollouts(task: ImageTask, rows: Experience) -> Update:
    """Updates of PPO: the minibatches of a rollout, with its advantages; images are channels first."""
    body, width = convolutions(task)
    shared = nn.Sequential(body, nn.Linear(width, 512), nn.ReLU())
    actor = ProbabilisticActor(
        TensorDictModule(nn.Linear(512, CHOICES), in_keys=["hidden"], out_keys=["logits"]), in_keys=["logits"],
        distribution_class=OneHotCategorical, return_log_prob=True, spec=OneHot(CHOICES),
    )  # fmt: skip
    value = ValueOperator(nn.Linear(512, 1), in_keys=["hidden"])
    both = ActorValueOperator(TensorDictModule(shared, in_keys=["observation"], out_keys=["hidden"]), actor, value)
    policy, critic = both.get_policy_operator(), both.get_value_operator()
    advantages = GAE(gamma=DISCOUNT, lmbda=0.95, value_network=critic)
    loss = ClipPPOLoss(
        policy, critic, clip_epsilon=0.2, entropy_coeff=0.01, critic_coeff=0.5, loss_critic_type="l2",
        normalize_advantage=True,
    )  # fmt: skip
    optim = torch.optim.Adam(loss.parameters(), lr=RATE, eps=1e-5)
    count = ENVS * ROLLOUT
    replay = TensorDictReplayBuffer(
        storage=LazyTensorStorage(count), sampler=SamplerWithoutReplacement(), batch_size=task.batch
    )
    collected = rollout(rows)

    def update() -> int:
        with torch.no_grad():
            data = advantages(collected.clone(recurse=False))
        replay.empty()
        replay.extend(data.reshape(-1))
        for _ in range(EPOCHS):
            for batch in replay:
                found = loss(batch)
                optim.zero_grad()
                (found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optim.step()
        return count // task.batch * EPOCHS

    return update


def rollout(rows: Experience) -> TensorDict:
    """What its collector would hand over: ``[ENVS, ROLLOUT]``."""

    def column(x: np.ndarray) -> Tensor:
        return torch.from_numpy(x[: ENVS * ROLLOUT]).view(ENVS, ROLLOUT, *x.shape[1:])

    flags = {"terminated": rows.terminated, "truncated": rows.truncated, "done": rows.terminated | rows.truncated}
    after = {key: column(flag).unsqueeze(-1) for key, flag in flags.items()}
    after |= {"observation": column(rows.next_obs), "reward": column(rows.reward).unsqueeze(-1)}
    action = nn.functional.one_hot(column(rows.action), CHOICES)
    log_prob = torch.full(action.shape[:2], -np.log(CHOICES), dtype=torch.float32)
    before = {"observation": column(rows.obs), "action": action, "action_log_prob": log_prob}
    return TensorDict({**before, "next": TensorDict(after, [ENVS, ROLLOUT])}, [ENVS, ROLLOUT])

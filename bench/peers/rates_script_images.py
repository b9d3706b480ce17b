"""Plain scripts on images: CleanRL's DQN and PPO, the authors' DrQ-v2 encoder for SAC and TD3, and nothing clever.

Each is one file's worth of PyTorch: images are stored channels first as uint8 and scaled in the network. Actor and
critics of SAC and TD3 share an encoder that the critics' loss trains. `--variant compiled` puts each step through
`torch.compile`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rates import (
    ACTIONS,
    CHOICES,
    CLIP,
    COPY_EVERY,
    DELAY,
    DISCOUNT,
    IMAGE_TASKS,
    NOISE,
    QUANTILES,
    RATE,
    TAU,
    ImageTask,
    Update,
    image_experience,
    repeated,
)
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
Step = Callable[[Batch], object]

FEATURES, UNITS = 50, 256
"""Widths of DrQ-v2's trunk, and of the two layers above it."""


class Nature(nn.Module):
    """The convolutions of Mnih et al. 2015."""

    def __init__(self, channels: int, side: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, 32, 8, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
            nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.width = self.body(torch.zeros(1, channels, side, side)).shape[1]

    def forward(self, image: Tensor) -> Tensor:
        return self.body(image / 255.0)


class DrQ(nn.Module):
    """The convolutions of Yarats et al. 2022."""

    def __init__(self, channels: int, side: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, 32, 3, stride=2), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(),
            nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.width = self.body(torch.zeros(1, channels, side, side)).shape[1]

    def forward(self, image: Tensor) -> Tensor:
        return self.body(image / 255.0 - 0.5)


ENCODERS: dict[str, type[Nature] | type[DrQ]] = {"nature": Nature, "drq": DrQ}


def build_encoder(task: ImageTask) -> Nature | DrQ:
    """The convolutions of a task."""
    return ENCODERS[task.encoder](task.channels, task.side)


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, UNITS), nn.ReLU(), nn.Linear(UNITS, UNITS), nn.ReLU(), nn.Linear(UNITS, outputs)
    )


def trunk(task: ImageTask, inputs: int) -> tuple[nn.Module, int]:
    """What each network puts above the shared convolutions, and its width: DrQ-v2's trunk, or nothing."""
    if task.encoder == "nature":
        return nn.Identity(), inputs
    return nn.Sequential(nn.Linear(inputs, FEATURES), nn.LayerNorm(FEATURES), nn.Tanh()), FEATURES


class Actor(nn.Module):
    """mu(s), or mean and ln sigma."""

    def __init__(self, task: ImageTask, inputs: int, outputs: int) -> None:
        super().__init__()
        self.trunk, width = trunk(task, inputs)
        self.body = mlp(width, outputs)

    def forward(self, features: Tensor) -> Tensor:
        return self.body(self.trunk(features))


class Critics(nn.Module):
    """Q_1(s, a) and Q_2(s, a) above one trunk."""

    def __init__(self, task: ImageTask, inputs: int) -> None:
        super().__init__()
        self.trunk, width = trunk(task, inputs)
        self.first, self.second = mlp(width + ACTIONS, 1), mlp(width + ACTIONS, 1)

    def forward(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        inputs = torch.cat([self.trunk(features), action], 1)
        return self.first(inputs).squeeze(1), self.second(inputs).squeeze(1)


def adam(*modules: nn.Module) -> torch.optim.Adam:
    """One optimizer of these modules."""
    return torch.optim.Adam([p for module in modules for p in module.parameters()], lr=RATE)


def learn(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def follow(module: nn.Module, target: nn.Module) -> None:
    """A soft update of a target, parameter by parameter."""
    for p, slow in zip(module.parameters(), target.parameters(), strict=True):
        slow.data.copy_(TAU * p.data + (1 - TAU) * slow.data)


def sample_action(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """An action of SAC and ln pi of it."""
    mean, log_std = outputs.chunk(2, -1)
    normal = torch.distributions.Normal(mean, (-5 + 3.5 * (torch.tanh(log_std) + 1)).exp())
    raw = normal.rsample()
    action = torch.tanh(raw)
    return action, (normal.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)).sum(1)


def wrap(function: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
    """The function, compiled or not."""
    return torch.compile(function) if compiled else function


def sac(task: ImageTask, compiled: bool) -> Step:
    """Soft actor-critic: the encoder sees each image once."""
    encoder = build_encoder(task)
    actor, critics = Actor(task, encoder.width, 2 * ACTIONS), Critics(task, encoder.width)
    log_alpha, slow = torch.zeros(1, requires_grad=True), deepcopy(critics)
    of_actor, of_critics, of_alpha = adam(actor), adam(critics, encoder), torch.optim.Adam([log_alpha], lr=RATE)

    def critic_loss(batch: Batch, alpha: Tensor) -> tuple[Tensor, Tensor]:
        obs, action, reward, next_obs, terminated = batch
        with torch.no_grad():
            next_features = encoder(next_obs)
            next_action, log_pi = sample_action(actor(next_features))
            value = torch.min(*slow(next_features, next_action)) - alpha * log_pi
            target = reward + (1 - terminated) * DISCOUNT * value
        features = encoder(obs)
        first, second = critics(features, action)
        return F.mse_loss(first, target) + F.mse_loss(second, target), features.detach()

    def actor_loss(features: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        action, log_pi = sample_action(actor(features))
        return (alpha * log_pi - torch.min(*critics(features, action))).mean(), log_pi.detach()

    critic_loss, actor_loss = wrap(critic_loss, compiled), wrap(actor_loss, compiled)

    def step(batch: Batch) -> None:
        alpha = log_alpha.detach().exp()
        loss, features = critic_loss(batch, alpha)
        learn(of_critics, loss)
        loss, log_pi = actor_loss(features, alpha)
        learn(of_actor, loss)
        learn(of_alpha, (-log_alpha.exp() * (log_pi - ACTIONS)).mean())
        follow(critics, slow)

    return step


def td3(task: ImageTask, compiled: bool) -> Step:
    """Clipped double Q-learning with a delayed actor: the encoder sees each image once."""
    encoder = build_encoder(task)
    actor, critics = Actor(task, encoder.width, ACTIONS), Critics(task, encoder.width)
    slow_actor, slow, steps = deepcopy(actor), deepcopy(critics), [0]
    of_actor, of_critics = adam(actor), adam(critics, encoder)

    def critic_loss(batch: Batch) -> tuple[Tensor, Tensor]:
        obs, action, reward, next_obs, terminated = batch
        with torch.no_grad():
            next_features = encoder(next_obs)
            noise = (torch.randn_like(action) * NOISE).clamp(-CLIP, CLIP)
            next_action = (torch.tanh(slow_actor(next_features)) + noise).clamp(-1, 1)
            target = reward + (1 - terminated) * DISCOUNT * torch.min(*slow(next_features, next_action))
        features = encoder(obs)
        first, second = critics(features, action)
        return F.mse_loss(first, target) + F.mse_loss(second, target), features.detach()

    def actor_loss(features: Tensor) -> Tensor:
        return -critics(features, torch.tanh(actor(features)))[0].mean()

    critic_loss, actor_loss = wrap(critic_loss, compiled), wrap(actor_loss, compiled)

    def step(batch: Batch) -> None:
        steps[0] += 1
        loss, features = critic_loss(batch)
        learn(of_critics, loss)
        if steps[0] % DELAY == 0:
            learn(of_actor, actor_loss(features))
            follow(actor, slow_actor)
            follow(critics, slow)

    return step


def q_network(task: ImageTask, outputs: int) -> nn.Sequential:
    """Convolutions and one layer of 512."""
    encoder = build_encoder(task)
    return nn.Sequential(encoder, nn.Linear(encoder.width, 512), nn.ReLU(), nn.Linear(512, outputs))


def learn_values(net: nn.Module, loss_of: Callable[[nn.Module, Batch], Tensor], compiled: bool) -> Step:
    """Steps of a network with a target that is copied now and then."""
    slow, optimizer, steps = deepcopy(net), adam(net), [0]
    loss_of = wrap(loss_of, compiled)

    def step(batch: Batch) -> None:
        learn(optimizer, loss_of(slow, batch))
        steps[0] += 1
        if steps[0] % COPY_EVERY == 0:
            slow.load_state_dict(net.state_dict())

    return step


def dqn(task: ImageTask, compiled: bool) -> Step:
    """CleanRL's dqn_atari.py."""
    net = q_network(task, CHOICES)

    def loss_of(slow: nn.Module, batch: Batch) -> Tensor:
        obs, action, reward, next_obs, terminated = batch
        with torch.no_grad():
            target = reward + (1 - terminated) * DISCOUNT * slow(next_obs).max(1).values
        return F.smooth_l1_loss(net(obs).gather(1, action.unsqueeze(1)).squeeze(1), target)

    return learn_values(net, loss_of, compiled)


def quantile_loss(net: nn.Module, slow: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """The loss of QR-DQN, and the quantiles of all actions."""
    obs, action, reward, next_obs, terminated = batch
    with torch.no_grad():
        future = slow(next_obs).view(-1, CHOICES, QUANTILES)
        best = future.mean(2).argmax(1)
        target = reward.unsqueeze(1) + DISCOUNT * (1 - terminated).unsqueeze(1) * future[torch.arange(len(best)), best]
    quantiles = net(obs).view(-1, CHOICES, QUANTILES)
    chosen = quantiles[torch.arange(len(action)), action]
    fraction = (torch.arange(QUANTILES) + 0.5) / QUANTILES
    error = target.unsqueeze(1) - chosen.unsqueeze(2)  # [B, i, j]
    huber = F.smooth_l1_loss(
        chosen.unsqueeze(2).expand_as(error), target.unsqueeze(1).expand_as(error), reduction="none"
    )
    weight = (fraction.view(1, -1, 1) - (error.detach() < 0).float()).abs()
    return (weight * huber).mean(2).sum(1).mean(), quantiles


def qr_dqn(task: ImageTask, compiled: bool) -> Step:
    """Quantile regression."""
    net = q_network(task, CHOICES * QUANTILES)
    return learn_values(net, lambda slow, batch: quantile_loss(net, slow, batch)[0], compiled)


def discrete_cql(task: ImageTask, compiled: bool) -> Step:
    """QR-DQN with the penalty of CQL."""
    net = q_network(task, CHOICES * QUANTILES)

    def loss_of(slow: nn.Module, batch: Batch) -> Tensor:
        loss, quantiles = quantile_loss(net, slow, batch)
        values = quantiles.mean(2)
        return loss + 10 * (values.logsumexp(1) - values.gather(1, batch[1].unsqueeze(1)).squeeze(1)).mean()

    return learn_values(net, loss_of, compiled)


def bc(task: ImageTask, compiled: bool) -> Step:
    """Cross entropy of the actions."""
    net = q_network(task, CHOICES)
    optimizer = adam(net)
    loss_of = wrap(lambda batch: F.cross_entropy(net(batch[0]), batch[1]), compiled)
    return lambda batch: learn(optimizer, loss_of(batch))


def ppo(task: ImageTask, compiled: bool) -> Step:
    """CleanRL's ppo_atari.py; rewards stand for advantages and returns."""
    net = q_network(task, CHOICES + 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE, eps=1e-5)

    def loss_of(obs: Tensor, action: Tensor, earned: Tensor) -> Tensor:
        outputs = net(obs)
        log_probs, value = outputs[:, :-1].log_softmax(1), outputs[:, -1]
        ratio = (log_probs.gather(1, action.unsqueeze(1)).squeeze(1) + np.log(CHOICES)).exp()
        advantage = (earned - earned.mean()) / (earned.std() + 1e-8)
        policy = -torch.min(advantage * ratio, advantage * ratio.clamp(0.8, 1.2)).mean()
        entropy = -(log_probs.exp() * log_probs).sum(1).mean()
        return policy + 0.5 * F.mse_loss(value, earned) - 0.01 * entropy

    loss_of = wrap(loss_of, compiled)

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        loss_of(*batch[:3]).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()

    return step


ALGORITHMS: dict[str, Callable[[ImageTask, bool], Step]] = {
    "sac": sac, "td3": td3, "dqn": dqn, "qr_dqn": qr_dqn, "discrete_cql": discrete_cql, "bc": bc, "ppo": ppo,
}  # fmt: skip


def build_image_update(name: str, variant: str) -> Update:
    """An update with its replay filled."""
    task = IMAGE_TASKS[name]
    step = ALGORITHMS[task.algorithm](task, variant == "compiled")
    rows = image_experience(task)
    obs, next_obs = (np.ascontiguousarray(x.transpose(0, 3, 1, 2)) for x in (rows.obs, rows.next_obs))
    columns = (obs, rows.action, rows.reward, next_obs, rows.terminated.astype(np.float32))

    def update() -> None:
        i = np.random.randint(0, len(obs), task.batch)  # noqa: NPY002  # as such scripts do
        step(tuple(torch.from_numpy(column[i]) for column in columns))

    return repeated(update)

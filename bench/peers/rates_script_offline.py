"""A plain script of FQL, of QC-FQL if a chunk has several actions: separate modules, Adam, and nothing clever.

`--variant compiled` puts each loss through `torch.compile`.
"""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import torch
from rates import ACTIONS, BATCH, CHUNK, DISCOUNT, OBS, RATE, TAU, UNITS, Experience, Update, repeated
from torch import Tensor, nn

ALPHA, FLOW_STEPS = 10.0, 10
"""Weight of the imitation, and steps of Euler's method: the authors' defaults."""
Chunks = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""obs, action, reward, next_obs, continues and taken: see :class:`Replay`."""


def perceptron(inputs: int, outputs: int, norm: bool = False) -> nn.Sequential:
    """Two hidden layers with GELU, of critics with layer norm."""
    first, second = UNITS
    between = [nn.LayerNorm(first), nn.LayerNorm(second)] if norm else [nn.Identity(), nn.Identity()]
    hidden = [nn.Linear(inputs, first), nn.GELU(approximate="tanh"), between[0]]
    hidden += [nn.Linear(first, second), nn.GELU(approximate="tanh"), between[1]]
    return nn.Sequential(*hidden, nn.Linear(second, outputs))


class Critic(nn.Module):
    """Q(s, a)."""

    def __init__(self, width: int):
        super().__init__()
        self.body = perceptron(OBS + width, 1, norm=True)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.body(torch.cat([obs, action], 1)).squeeze(1)


class Replay:
    """Arrays; chunks begin at uniform rows, and what lies behind the end of an episode is masked."""

    def __init__(self, rows: Experience, size: int):
        self.rows, self.size = rows, size
        self.ends = rows.terminated | rows.truncated
        self.discounts = (DISCOUNT ** np.arange(size)).astype(np.float32)

    def sample(self) -> Chunks:
        """Return obs ``[B, D]``, action ``[B, h A]``, the sum of rewards, next_obs and continues.

        ``continues`` is gamma^h, or 0 behind a terminal row; ``taken`` ``[B, h]``: which actions are of the episode.
        """
        rows = self.rows
        start = np.random.randint(0, len(rows.obs) - self.size + 1, BATCH)  # noqa: NPY002  # as such scripts do
        each = start[:, None] + np.arange(self.size)
        ended = np.cumsum(self.ends[each], 1) - self.ends[each] > 0
        taken = (~ended).astype(np.float32)
        action = (rows.action[each] * taken[..., None]).reshape(BATCH, -1)
        reward = (rows.reward[each] * taken * self.discounts).sum(1)
        terminated = (rows.terminated[each] & ~ended).any(1)
        continues = (DISCOUNT**self.size * ~terminated).astype(np.float32)
        columns = (rows.obs[start], action, reward, rows.next_obs[each[:, -1]], continues, taken)
        found = [torch.from_numpy(column) for column in columns]
        return found[0], found[1], found[2], found[3], found[4], found[5]


class FQL(nn.Module):
    """Flow Q-learning: its networks and losses, of chunks of ``size`` actions."""

    def __init__(self, size: int):
        super().__init__()
        width = size * ACTIONS
        self.size = size
        self.flow, self.actor = perceptron(OBS + width + 1, width), perceptron(OBS + width, width)
        self.critics = nn.ModuleList([Critic(width), Critic(width)])
        self.targets = deepcopy(self.critics)

    def critic_loss(self, batch: Chunks) -> Tensor:
        """E[sum_i (Q_i - y)^2]."""
        obs, action, reward, next_obs, continues, taken = batch
        with torch.no_grad():
            further = self.act(next_obs, torch.randn_like(action)).clamp(-1, 1)
            target = reward + continues * sum(critic(next_obs, further) for critic in self.targets) / 2
        error = sum((critic(obs, action) - target) ** 2 for critic in self.critics)
        return (error * taken[:, -1]).mean()

    def flow_loss(self, batch: Chunks) -> Tensor:
        """E[|v(s, x_t, t) - (a - x_0)|^2]."""
        obs, action, *_, taken = batch
        noise, time = torch.randn_like(action), torch.rand(len(obs), 1)
        error = (self.velocity(obs, (1 - time) * noise + time * action, time) - (action - noise)) ** 2
        return (error.view(len(obs), self.size, -1).mean(2) * taken).mean()

    def actor_loss(self, batch: Chunks) -> Tensor:
        """E[alpha |pi(s, z) - flow(s, z)|^2 - Q(s, pi(s, z))]."""
        obs = batch[0]
        noise = torch.randn_like(batch[1])
        with torch.no_grad():
            clone = noise
            for i in range(FLOW_STEPS):
                clone = clone + self.velocity(obs, clone, torch.full((len(obs), 1), i / FLOW_STEPS)) / FLOW_STEPS
            clone = clone.clamp(-1, 1)
        action = self.act(obs, noise)
        value = sum(critic(obs, action.clamp(-1, 1)) for critic in self.critics) / 2
        return ALPHA * ((action - clone) ** 2).mean() - value.mean()

    def act(self, obs: Tensor, noise: Tensor) -> Tensor:
        """The chunk of the one-step policy."""
        return self.actor(torch.cat([obs, noise], 1))

    def velocity(self, obs: Tensor, action: Tensor, time: Tensor) -> Tensor:
        """v(s, x, t)."""
        return self.flow(torch.cat([obs, action, time], 1))


def fql(rows: Experience, task: str, compiled: bool) -> Update:
    """Updates of FQL, or of QC-FQL."""
    learner = FQL(CHUNK if task == "qc_fql" else 1)
    replay = Replay(rows, learner.size)
    steps = [(learner.critic_loss, learner.critics), (learner.flow_loss, learner.flow),
             (learner.actor_loss, learner.actor)]  # fmt: skip
    wrap = torch.compile if compiled else lambda loss: loss
    losses = [(wrap(loss), torch.optim.Adam(net.parameters(), lr=RATE)) for loss, net in steps]

    def step() -> None:
        batch = replay.sample()
        for loss, optim in losses:
            optim.zero_grad()
            loss(batch).backward()
            optim.step()
        for p, slow in zip(learner.critics.parameters(), learner.targets.parameters(), strict=True):
            slow.data.copy_(TAU * p.data + (1 - TAU) * slow.data)

    return repeated(step)

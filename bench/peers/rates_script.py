"""A plain script in the style of CleanRL, written for this comparison: separate modules, Adam, and nothing clever.

REDQ, DroQ and SimBa have a module for each critic, as in the code of REDQ's and DroQ's authors. `--variant compiled`
puts the steps of TD3 through `torch.compile`, as LeanRL does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rates import (
    ACTIONS,
    BATCH,
    CHOICES,
    CLIP,
    COPY_EVERY,
    DELAY,
    DISCOUNT,
    IMAGE_TASKS,
    NOISE,
    OBS,
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
)
from rates_script_images import build_image_update
from rates_script_offline import fql
from torch import Tensor, nn
from torch.optim import Optimizer

Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
Step = Callable[[Batch], object]


def perceptron(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    first, second = UNITS
    return nn.Sequential(
        nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, outputs)
    )


class Actor(nn.Module):
    """mu(s)."""

    def __init__(self):
        super().__init__()
        self.body = perceptron(OBS, ACTIONS)

    def forward(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.body(obs))


class Gaussian(nn.Module):
    """pi(a | s)."""

    def __init__(self, body: nn.Module | None = None):
        super().__init__()
        self.body = body or perceptron(OBS, 2 * ACTIONS)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """An action and ln pi of it."""
        mean, log_std = self.body(obs).chunk(2, -1)
        normal = torch.distributions.Normal(mean, (-5 + 3.5 * (torch.tanh(log_std) + 1)).exp())
        before = normal.rsample()
        action = torch.tanh(before)
        return action, (normal.log_prob(before) - torch.log(1 - action.pow(2) + 1e-6)).sum(1)


class Critic(nn.Module):
    """Q(s, a)."""

    def __init__(self, body: nn.Module | None = None):
        super().__init__()
        self.body = body or perceptron(OBS + ACTIONS, 1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.body(torch.cat([obs, action], 1)).squeeze(1)


def adam(*modules: nn.Module) -> torch.optim.Adam:
    """One optimizer of these."""
    return torch.optim.Adam([p for module in modules for p in module.parameters()], lr=RATE)


def learn(optim: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step."""
    optim.zero_grad()
    loss.backward()
    optim.step()


def follow(pairs: Iterable[tuple[nn.Module, nn.Module]]) -> None:
    """Soft updates of targets, parameter by parameter."""
    for module, target in pairs:
        for p, slow in zip(module.parameters(), target.parameters(), strict=True):
            slow.data.copy_(TAU * p.data + (1 - TAU) * slow.data)


def td3(actor: Actor, compiled: bool = False) -> Step:
    """Clipped double Q-learning with a delayed actor."""
    first, second = Critic(), Critic()
    slow_actor, slow_first, slow_second = deepcopy(actor), deepcopy(first), deepcopy(second)
    of_actor, of_critics, steps = adam(actor), adam(first, second), [0]

    def critics(batch: Batch) -> None:
        obs, action, reward, next_obs, terminated = batch
        with torch.no_grad():
            noise = (torch.randn_like(action) * NOISE).clamp(-CLIP, CLIP)
            further = (slow_actor(next_obs) + noise).clamp(-1, 1)
            value = torch.min(slow_first(next_obs, further), slow_second(next_obs, further))
            target = reward + (1 - terminated) * DISCOUNT * value
        loss = F.mse_loss(first(obs, action), target) + F.mse_loss(second(obs, action), target)
        learn(of_critics, loss)

    def policy(batch: Batch) -> None:
        learn(of_actor, -first(batch[0], actor(batch[0])).mean())
        follow([(actor, slow_actor), (first, slow_first), (second, slow_second)])

    if compiled:
        critics, policy = torch.compile(critics), torch.compile(policy)

    def step(batch: Batch) -> None:
        steps[0] += 1
        critics(batch)
        if steps[0] % DELAY == 0:
            policy(batch)

    return step


def ddpg() -> Step:
    """The deterministic policy gradient."""
    actor, critic = Actor(), Critic()
    slow_actor, slow_critic = deepcopy(actor), deepcopy(critic)
    of_actor, of_critic = adam(actor), adam(critic)

    def step(batch: Batch) -> None:
        obs, action, reward, next_obs, terminated = batch
        with torch.no_grad():
            target = reward + (1 - terminated) * DISCOUNT * slow_critic(next_obs, slow_actor(next_obs))
        learn(of_critic, F.mse_loss(critic(obs, action), target))
        learn(of_actor, -critic(obs, actor(obs)).mean())
        follow([(actor, slow_actor), (critic, slow_critic)])

    return step


def sac() -> Step:
    """Soft actor-critic with its temperature learned."""
    actor, first, second, log_alpha = Gaussian(), Critic(), Critic(), torch.zeros(1, requires_grad=True)
    slow_first, slow_second = deepcopy(first), deepcopy(second)
    of_actor, of_critics, of_alpha = adam(actor), adam(first, second), torch.optim.Adam([log_alpha], lr=RATE)

    def step(batch: Batch) -> None:
        obs, action, reward, next_obs, terminated = batch
        alpha = log_alpha.exp().item()
        with torch.no_grad():
            further, log_pi = actor(next_obs)
            value = torch.min(slow_first(next_obs, further), slow_second(next_obs, further)) - alpha * log_pi
            target = reward + (1 - terminated) * DISCOUNT * value
        loss = F.mse_loss(first(obs, action), target) + F.mse_loss(second(obs, action), target)
        learn(of_critics, loss)
        chosen, log_pi = actor(obs)
        learn(of_actor, (alpha * log_pi - torch.min(first(obs, chosen), second(obs, chosen))).mean())
        learn(of_alpha, (-log_alpha.exp() * (log_pi.detach() - ACTIONS)).mean())
        follow([(first, slow_first), (second, slow_second)])

    return step


def dqn() -> Step:
    """Q-learning with a target that is copied now and then."""
    net = perceptron(OBS, CHOICES)
    slow, optim, steps = deepcopy(net), adam(net), [0]

    def step(batch: Batch) -> None:
        obs, action, reward, next_obs, terminated = batch
        with torch.no_grad():
            target = reward + (1 - terminated) * DISCOUNT * slow(next_obs).max(1).values
        learn(optim, F.mse_loss(net(obs).gather(1, action.unsqueeze(1)).squeeze(1), target))
        steps[0] += 1
        if steps[0] % COPY_EVERY == 0:
            slow.load_state_dict(net.state_dict())

    return step


def dropout_perceptron(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers of DroQ."""
    hidden = [
        layer
        for i, o in pairwise((inputs, *UNITS))
        for layer in (nn.Linear(i, o), nn.Dropout(0.01), nn.LayerNorm(o), nn.ReLU())
    ]
    return nn.Sequential(*hidden, nn.Linear(UNITS[-1], outputs))


class Block(nn.Module):
    """A residual block of SimBa."""

    def __init__(self, width: int):
        super().__init__()
        self.change = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.change(x)


def residual(inputs: int, width: int, blocks: int, outputs: int) -> nn.Sequential:
    """A network of SimBa."""
    layers = [Block(width) for _ in range(blocks)]
    return nn.Sequential(nn.Linear(inputs, width), *layers, nn.LayerNorm(width), nn.Linear(width, outputs))


def ensemble(
    actor: Gaussian, critics: Sequence[Critic], of_actor: Optimizer, of_critics: Optimizer, delay: int
) -> Step:
    """REDQ: the lowest of two critics is the target, the mean of all for the actor, which learns every so often."""
    slow, log_alpha, steps = deepcopy(critics), torch.zeros(1, requires_grad=True), [0]
    of_alpha = torch.optim.Adam([log_alpha], lr=RATE)

    def step(batch: Batch) -> None:
        obs, action, reward, next_obs, terminated = batch
        alpha = log_alpha.exp().item()
        with torch.no_grad():
            further, log_pi = actor(next_obs)
            first, second = random.sample(slow, 2)
            value = torch.min(first(next_obs, further), second(next_obs, further)) - alpha * log_pi
            target = reward + (1 - terminated) * DISCOUNT * value
        learn(of_critics, sum(F.mse_loss(critic(obs, action), target) for critic in critics))
        steps[0] += 1
        if steps[0] % delay == 0:
            chosen, log_pi = actor(obs)
            learn(of_actor, (alpha * log_pi - torch.stack([critic(obs, chosen) for critic in critics]).mean(0)).mean())
            learn(of_alpha, (-log_alpha.exp() * (log_pi.detach() - ACTIONS)).mean())
        follow(zip(critics, slow, strict=True))

    return step


def redq() -> Step:
    """Ten critics, and an actor that learns at every 20th step."""
    actor, critics = Gaussian(), [Critic() for _ in range(10)]
    return ensemble(actor, critics, adam(actor), adam(*critics), 20)


def droq() -> Step:
    """Two critics with dropout and layer norm, and an actor that learns at every 20th step."""
    actor, critics = Gaussian(), [Critic(dropout_perceptron(OBS + ACTIONS, 1)) for _ in range(2)]
    return ensemble(actor, critics, adam(actor), adam(*critics), 20)


def simba() -> Step:
    """Residual networks, AdamW and observations normalized by running statistics."""
    actor = Gaussian(residual(OBS, 128, 1, 2 * ACTIONS))
    critics = [Critic(residual(OBS + ACTIONS, 512, 2, 1)) for _ in range(2)]
    mean, std = torch.zeros(OBS), torch.ones(OBS)
    of_actor, of_critics = (
        torch.optim.AdamW([p for module in modules for p in module.parameters()], lr=RATE)
        for modules in ([actor], critics)
    )
    learn_from = ensemble(actor, critics, of_actor, of_critics, 1)

    def step(batch: Batch) -> None:
        obs, action, reward, next_obs, terminated = batch
        learn_from(((obs - mean) / std, action, reward, (next_obs - mean) / std, terminated))

    return step


class Replay:
    """Arrays; batches are drawn uniformly."""

    def __init__(self, rows: int):
        self.obs, self.next_obs = np.zeros((rows, OBS), np.float32), np.zeros((rows, OBS), np.float32)
        self.action = np.zeros((rows, ACTIONS), np.float32)
        self.reward, self.terminated = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
        self.size, self.end = 0, 0

    def take(self, rows: Experience) -> None:
        """All of these and nothing else."""
        self.obs, self.next_obs, self.action, self.reward = rows.obs, rows.next_obs, rows.action, rows.reward
        self.terminated, self.size = rows.terminated.astype(np.float32), len(rows.obs)

    def add(self, obs: np.ndarray, action: np.ndarray, reward: float, next_obs: np.ndarray, terminated: bool) -> None:
        """One transition."""
        i = self.end
        self.obs[i], self.action[i], self.reward[i] = obs, action, reward
        self.next_obs[i], self.terminated[i] = next_obs, terminated
        self.end = (i + 1) % len(self.obs)
        self.size = max(self.size, i + 1)

    def sample(self) -> Batch:
        """Copies."""
        i = np.random.randint(0, self.size, BATCH)  # noqa: NPY002  # as such scripts do
        columns = (self.obs, self.action, self.reward, self.next_obs, self.terminated)
        return tuple(torch.from_numpy(column[i]) for column in columns)


ALGORITHMS: dict[str, Callable[[], Step]] = {
    "sac": sac, "ddpg": ddpg, "dqn": dqn, "redq": redq, "droq": droq, "simba": simba,
}  # fmt: skip


def build(task: str, variant: str) -> Update:
    """With its replay filled."""
    if task in IMAGE_TASKS:
        return build_image_update(task, variant)
    if task in ("fql", "qc_fql"):
        return fql(experience(task), task, variant == "compiled")
    step = td3(Actor(), variant == "compiled") if task == "td3" else ALGORITHMS[task]()
    replay = Replay(1)
    replay.take(experience(task))
    return repeated(lambda: step(replay.sample()))


def loop(env: Any, steps: int) -> None:
    """One environment, an update after each step; no logs."""
    actor, replay = Actor(), Replay(ROWS)
    step = td3(actor)
    obs, _ = env.reset(seed=0)
    for count in range(steps):
        if count < START:
            action = env.action_space.sample()
        else:
            with torch.no_grad():
                mean = actor(torch.as_tensor(obs, dtype=torch.float32).unsqueeze(0))[0]
                action = (mean + 0.1 * torch.randn(ACTIONS)).clamp(-1, 1).numpy()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        replay.add(obs, action, reward, next_obs, terminated)
        obs = env.reset()[0] if terminated or truncated else next_obs
        if count >= START:
            step(replay.sample())


if __name__ == "__main__":
    main(build, loop, ("gymnasium", "mujoco"))

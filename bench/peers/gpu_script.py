"""Plain PyTorch scripts for a GPU in the manner of LeanRL: TD3, SAC, DQN and PPO, whose updates are CUDA graphs.

    python gpu_script.py TASK ... --variant captured --device cuda --seconds 3

`plain` runs eagerly, with Adam's defaults. `captured` records the whole update in a CUDA graph: sampling from a replay
on the GPU, losses, gradients, fused Adam, soft updates of targets. `compiled` also puts the losses through
`torch.compile`. On a CPU nothing is captured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from gpu_graphs import adam, captured, compiled, learn, nature
from gpu_script_ppo import HALF_LOG, measure_ppo, measure_ppo_loop
from gpu_timing import IMAGE_BATCH, LoopClock, Task, check_learned, main, make_cheetah, random_rows
from rates import ACTIONS, BATCH, CHOICES, CLIP, COPY_EVERY, DELAY, DISCOUNT, NOISE, OBS, TAU, UNITS
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""obs, action, reward, next obs, terminated."""
WIDTHS = [OBS, ACTIONS, 1, OBS, 1]
"""Columns of a replay of vectors, which is one table; a discrete action is in the first of its columns."""

# ---------------------------------------------------------------- networks


def perceptron(inputs: int, outputs: int, *last: nn.Module) -> nn.Sequential:
    """Two hidden layers."""
    first, second = UNITS
    layers = [nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, outputs)]
    return nn.Sequential(*layers, *last)


@torch.no_grad()
def follow(task: Task, params: list[Tensor], slow: list[Tensor]) -> None:
    """A soft update of targets."""
    if task.variant == "plain":
        for p, target in zip(params, slow, strict=True):
            target.copy_(TAU * p + (1 - TAU) * target)
    else:
        torch._foreach_lerp_(slow, params, TAU)


class Critics(nn.Module):
    """Q_1(s, a) and Q_2(s, a), ``[2, B]``: each layer of both is one batched product, as LeanRL's `vmap` computes."""

    def __init__(self) -> None:
        super().__init__()
        pair = [perceptron(OBS + ACTIONS, 1)[::2] for _ in range(2)]
        self.weights = nn.ParameterList(
            torch.stack([x.weight.detach().T for x in one]) for one in zip(*pair, strict=True)
        )
        self.biases = nn.ParameterList(
            torch.stack([x.bias.detach()[None] for x in one]) for one in zip(*pair, strict=True)
        )

    def forward(self, obs: Tensor, action: Tensor, count: int = 2, frozen: bool = False) -> Tensor:
        """``frozen``: gradients reach the action alone."""
        x = torch.cat([obs, action], 1).expand(count, -1, -1)
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            w, b = (weight.detach(), bias.detach()) if frozen else (weight, bias)
            x = torch.baddbmm(b[:count], x if i == 0 else x.relu(), w[:count])
        return x.squeeze(-1)


# ---------------------------------------------------------------- learners from a replay


class Learner(NamedTuple):
    """Updates, taken in turn, and what they change."""

    steps: list[Callable[[Batch], None]]
    act: Callable[[Tensor], Tensor]
    trained: list[Tensor]
    optim: torch.optim.Optimizer
    """Steps with every update."""
    copy: Callable[[], None] | None = None
    """Called at each `COPY_EVERY`-th update."""


def td3(task: Task) -> Learner:
    """Clipped double Q-learning with a delayed actor: an update with the actor and one without have a graph each."""
    actor, critics = perceptron(OBS, ACTIONS, nn.Tanh()).to(task.device), Critics().to(task.device)
    slow_actor, slow = deepcopy(actor).requires_grad_(False), deepcopy(critics).requires_grad_(False)
    of_actor, of_critics = adam(task, actor.parameters()), adam(task, critics.parameters())
    trained, targets = [*actor.parameters(), *critics.parameters()], [*slow_actor.parameters(), *slow.parameters()]

    def critic_loss(obs: Tensor, action: Tensor, reward: Tensor, next_obs: Tensor, terminated: Tensor) -> Tensor:
        with torch.no_grad():
            noise = (torch.randn_like(action) * NOISE).clamp(-CLIP, CLIP)
            value = slow(next_obs, (slow_actor(next_obs) + noise).clamp(-1, 1)).amin(0)
            target = reward + (1 - terminated) * DISCOUNT * value
        return (critics(obs, action) - target).square().mean(1).sum()

    def actor_loss(obs: Tensor) -> Tensor:
        return -critics(obs, actor(obs), count=1, frozen=True).mean()

    def act(obs: Tensor) -> Tensor:
        action = actor(obs)
        return (action + 0.1 * torch.randn_like(action)).clamp(-1, 1)

    critic_loss, actor_loss = compiled(task, critic_loss), compiled(task, actor_loss)

    def critics_alone(batch: Batch) -> None:
        learn(of_critics, critic_loss(*batch))

    def both(batch: Batch) -> None:
        critics_alone(batch)
        learn(of_actor, actor_loss(batch[0]))
        follow(task, trained, targets)

    return Learner([critics_alone] * (DELAY - 1) + [both], compiled(task, act), trained, of_critics)


def sac(task: Task) -> Learner:
    """Soft actor-critic with its temperature learned, which stays on the GPU."""
    actor, critics = perceptron(OBS, 2 * ACTIONS).to(task.device), Critics().to(task.device)
    log_alpha, slow = torch.zeros(1, requires_grad=True, device=task.device), deepcopy(critics).requires_grad_(False)
    of_actor, of_critics = adam(task, actor.parameters()), adam(task, critics.parameters())
    of_alpha, followed, targets = adam(task, [log_alpha]), list(critics.parameters()), list(slow.parameters())

    def sample(obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = actor(obs).chunk(2, -1)
        log_std, noise = -5 + 3.5 * (torch.tanh(log_std) + 1), torch.randn_like(mean)
        action = torch.tanh(mean + log_std.exp() * noise)
        log_pi = -0.5 * noise.square() - log_std - HALF_LOG - torch.log(1 - action.square() + 1e-6)
        return action, log_pi.sum(1)

    def critic_loss(obs: Tensor, action: Tensor, reward: Tensor, next_obs: Tensor, terminated: Tensor) -> Tensor:
        with torch.no_grad():
            further, log_pi = sample(next_obs)
            value = slow(next_obs, further).amin(0) - log_alpha.exp() * log_pi
            target = reward + (1 - terminated) * DISCOUNT * value
        return (critics(obs, action) - target).square().mean(1).sum()

    def actor_loss(obs: Tensor) -> tuple[Tensor, Tensor]:
        action, log_pi = sample(obs)
        value = critics(obs, action, frozen=True).amin(0)
        return (log_alpha.detach().exp() * log_pi - value).mean(), log_pi.detach()

    critic_loss, actor_loss = compiled(task, critic_loss), compiled(task, actor_loss)

    def step(batch: Batch) -> None:
        learn(of_critics, critic_loss(*batch))
        loss, log_pi = actor_loss(batch[0])
        learn(of_actor, loss)
        learn(of_alpha, (-log_alpha.exp() * (log_pi - ACTIONS)).mean())
        follow(task, followed, targets)

    trained = [*actor.parameters(), *followed, log_alpha]
    return Learner([step], compiled(task, lambda obs: sample(obs)[0]), trained, of_critics)


def dqn(task: Task) -> Learner:
    """Q-learning with a target that is copied now and then, outside of the graph."""
    images = task.name == "dqn_atari"
    net = nn.Sequential(nature(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, CHOICES)) if images else None
    net = (net or perceptron(OBS, CHOICES)).to(task.device)
    slow, optim = deepcopy(net).requires_grad_(False), adam(task, net.parameters())
    trained, targets = list(net.parameters()), list(slow.parameters())

    def loss(obs: Tensor, action: Tensor, reward: Tensor, next_obs: Tensor, terminated: Tensor) -> Tensor:
        if images:
            obs, next_obs = obs / 255.0, next_obs / 255.0
        with torch.no_grad():
            target = reward + (1 - terminated) * DISCOUNT * slow(next_obs).amax(1)
        value = net(obs).gather(1, action[:, :1].long()).squeeze(1)
        return F.smooth_l1_loss(value, target) if images else F.mse_loss(value, target)

    loss = compiled(task, loss)

    @torch.no_grad()
    def copy() -> None:
        torch._foreach_copy_(targets, trained)

    return Learner([lambda batch: learn(optim, loss(*batch))], lambda obs: net(obs), trained, optim, copy)


LEARNERS: dict[str, Callable[[Task], Learner]] = {"td3": td3, "sac": sac, "dqn": dqn, "dqn_atari": dqn}


class Table:
    """A replay of vectors on the device: a table, sampled by numbers drawn there, without a wait."""

    def __init__(self, rows: Tensor, count: int) -> None:
        self.rows, self.count = rows, count
        self.size = torch.full((), float(count), device=rows.device)

    def add(self, *columns: Any) -> None:
        """One transition, in one copy."""
        row = np.concatenate([np.atleast_1d(x) for x in columns]).astype(np.float32)
        self.rows[self.count % len(self.rows)].copy_(torch.from_numpy(row), non_blocking=True)
        self.count += 1
        self.size.fill_(min(self.count, len(self.rows)))

    def sample(self) -> Batch:
        """A batch."""
        return split(self.rows[(torch.rand(BATCH, device=self.rows.device) * self.size).long()])


def split(rows: Tensor) -> Batch:
    """The columns of rows."""
    obs, action, reward, next_obs, terminated = rows.split(WIDTHS, 1)
    return obs, action, reward.squeeze(1), next_obs, terminated.squeeze(1)


def joined(kind: str, count: int) -> np.ndarray:
    """A table of noise."""
    rows = random_rows(kind, count)
    action = rows["action"].reshape(count, -1)
    action = np.concatenate([action, np.zeros((count, ACTIONS - action.shape[1]))], 1)
    columns = (rows["obs"][:-1], action, rows["reward"][:, None], rows["obs"][1:], rows["end"][:, None])
    return np.concatenate(columns, 1).astype(np.float32)


def image_sampler(task: Task) -> Callable[[], Batch]:
    """Samples batches of images on the device."""
    rows = {
        name: torch.from_numpy(x).to(task.device) for name, x in random_rows(task.name, task.sizes.image_rows).items()
    }
    obs, action, end = rows["obs"], rows["action"][:, None], rows["end"].float()

    def sample() -> Batch:
        i = torch.randint(0, len(action), (IMAGE_BATCH,), device=task.device)
        return obs[i], action[i], rows["reward"][i], obs[i + 1], end[i]

    return sample


class Updates:
    """Samples and learns."""

    def __init__(self, task: Task, sample: Callable[[], Batch]) -> None:
        self.learner = LEARNERS[task.name.removesuffix("_loop")](task)
        self.before = [x.detach().clone() for x in self.learner.trained]
        self.calls = [captured(task, lambda step=step: step(sample())) for step in self.learner.steps]
        self.count = 0

    def __call__(self) -> None:
        self.calls[self.count % len(self.calls)]()
        self.count += 1
        if self.learner.copy is not None and self.count % COPY_EVERY == 0:
            self.learner.copy()

    def check(self) -> None:
        """Fail unless each update was a step of the optimizer, and the parameters have learned."""
        steps = {int(state["step"]) for state in self.learner.optim.state.values()}
        assert steps == {self.count}, f"{self.count} updates, but steps {steps}"
        check_learned(self.before, self.learner.trained)


def measure_replay(task: Task) -> dict[str, Any]:
    """Updates from rows on the device, and for TD3 and SAC from rows of the host too."""
    started = time.perf_counter()
    if task.name == "dqn_atari":
        sample = image_sampler(task)
    else:
        rows = joined(task.name, task.sizes.rows)
        sample = Table(torch.from_numpy(rows).to(task.device), len(rows)).sample
    update = Updates(task, sample)
    update()
    task.wait()
    result = {"first_update_s": time.perf_counter() - started} | task.time_updates(update)
    if task.name in ("td3", "sac"):
        result |= measure_host(task, rows)
    update.check()
    return result


def measure_host(task: Task, rows: np.ndarray) -> dict[str, float]:
    """Updates from rows of the host: a pinned copy of each batch goes to the device while the host works on."""
    into = torch.zeros(BATCH, rows.shape[1], device=task.device)
    learn_from = Updates(task, lambda: split(into))

    def update() -> None:
        chosen = torch.from_numpy(rows[np.random.randint(0, len(rows), BATCH)])  # noqa: NPY002  # as scripts do
        into.copy_(chosen.pin_memory() if task.on_gpu else chosen, non_blocking=True)
        learn_from()

    result = task.time_updates(update, "update_host")
    learn_from.check()
    return result


def measure_loop(task: Task) -> dict[str, Any]:
    """TD3 or SAC in an environment: an action of the network and an update for each step."""
    started, first = time.perf_counter(), 0.0
    env, name = make_cheetah()
    table = Table(torch.zeros(task.sizes.rows, sum(WIDTHS), device=task.device), 0)
    update, clock = Updates(task, table.sample), LoopClock(task, task.sizes.start + task.sizes.warm)
    shown, seen = torch.zeros(1, OBS, pin_memory=task.on_gpu), torch.zeros(1, OBS, device=task.device)
    act = captured(task, torch.no_grad()(lambda: update.learner.act(seen)))
    noise, obs, count = np.random.default_rng(0), env.reset()[0], 0
    while not clock.is_over(count):
        if count < task.sizes.start:
            action = noise.uniform(-1, 1, ACTIONS).astype(np.float32)
        else:
            shown[0] = torch.from_numpy(obs)
            seen.copy_(shown, non_blocking=True)
            action = act()[0].cpu().numpy()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        table.add(obs, action, reward, next_obs, terminated)
        obs = env.reset()[0] if terminated or truncated else next_obs
        if count >= task.sizes.start:
            update()
            first = first or time.perf_counter() - started
        count += 1
    update.check()
    return {"env": name, "env_steps_per_s": clock.steps_per_s, "first_update_s": first}


def measure(task: Task) -> dict[str, Any]:
    """One task."""
    if task.name == "ppo_atari_loop":
        return measure_ppo_loop(task)
    if task.name.startswith("ppo"):
        return measure_ppo(task)
    return measure_loop(task) if task.name.endswith("_loop") else measure_replay(task)


if __name__ == "__main__":
    main(measure, ("captured", "plain", "compiled"))

"""PPO of the plain scripts for a GPU: acting, advantages and minibatches of a rollout on the device are CUDA graphs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gpu_graphs import adam, captured, compiled, nature
from gpu_timing import IMAGE, LoopClock, Task, check_learned, make_breakout
from rates import ACTIONS, CHOICES, DISCOUNT, OBS
from torch import Tensor, nn

LAMBDA, HALF_LOG = 0.95, 0.5 * math.log(2 * math.pi)


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    """Orthogonal weights, biases of 0."""
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


def tanh_layers(outputs: int, gain: float) -> nn.Sequential:
    """Two hidden layers of 64."""
    return nn.Sequential(layer(OBS, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, outputs, gain))


class Agent(nn.Module):
    """Policy and value: of images above shared convolutions, with a layer of 512 each."""

    def __init__(self, images: bool) -> None:
        super().__init__()
        self.images = images
        if images:
            self.body: nn.Module = nature()
            self.actor = nn.Sequential(layer(3136, 512), nn.ReLU(), layer(512, CHOICES, 0.01))
            self.value = nn.Sequential(layer(3136, 512), nn.ReLU(), layer(512, 1, 1.0))
        else:
            self.body, self.actor, self.value = nn.Identity(), tanh_layers(ACTIONS, 0.01), tanh_layers(1, 1.0)
            self.log_std = nn.Parameter(torch.zeros(ACTIONS))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits or means, and values."""
        features = self.body(obs / 255.0) if self.images else obs
        return self.actor(features), self.value(features).squeeze(-1)

    def sample(self, outputs: Tensor) -> Tensor:
        """Actions; by hand, as `torch.distributions` waits for the device."""
        noise = torch.empty_like(outputs)
        if self.images:
            return (outputs.softmax(-1) / noise.exponential_()).argmax(-1)
        return outputs + self.log_std.exp() * noise.normal_()

    def judge(self, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of actions, and entropies."""
        if self.images:
            logs = outputs.log_softmax(-1)
            return logs.gather(-1, action.unsqueeze(-1)).squeeze(-1), -(logs.exp() * logs).sum(-1)
        scaled = (action - outputs) * (-self.log_std).exp()
        return (-0.5 * scaled.square() - self.log_std - HALF_LOG).sum(-1), (self.log_std + HALF_LOG + 0.5).sum()


class PPO:
    """The learner and its rollout, ``[T, N]``."""

    def __init__(self, task: Task, images: bool) -> None:
        self.task, self.sizes = task, task.sizes.atari if images else task.sizes.continuous
        t, n, device = self.sizes.steps, self.sizes.envs, task.device
        shape, dtype = (IMAGE, torch.uint8) if images else ((OBS,), torch.float32)
        self.agent = Agent(images).to(device)
        self.optim = adam(task, self.agent.parameters(), self.sizes.rate, eps=1e-5)
        self.obs = torch.zeros(t, n, *shape, dtype=dtype, device=device)
        self.action = torch.zeros((t, n) if images else (t, n, ACTIONS), device=device)
        self.action = self.action.long() if images else self.action
        columns = [torch.zeros(t, n, device=device) for _ in range(6)]
        self.log_prob, self.value, self.reward, self.over, self.advantage, self.target = columns
        self.seen = torch.zeros(n, *shape, dtype=dtype, device=device)
        self.shown = torch.zeros(n, *shape, dtype=dtype, pin_memory=task.on_gpu)
        self.row = torch.zeros(1, dtype=torch.long, device=device)
        self.index = torch.zeros(self.sizes.minibatch, dtype=torch.long, device=device)
        self.loss = compiled(task, self._loss)
        self.act, self.estimate = captured(task, self._act), captured(task, self._estimate)
        self.learn = captured(task, self._learn)

    def show(self, obs: np.ndarray) -> None:
        """Send observations to the device. The copy is over once the next action is read."""
        self.shown.copy_(torch.from_numpy(obs))
        self.seen.copy_(self.shown, non_blocking=True)

    @torch.no_grad()
    def _act(self) -> Tensor:
        """Act on `seen`, and write the next row of the rollout."""
        outputs, value = self.agent(self.seen)
        action = self.agent.sample(outputs)
        row = (self.seen, action, self.agent.judge(outputs, action)[0], value)
        for column, x in zip((self.obs, self.action, self.log_prob, self.value), row, strict=True):
            column.index_copy_(0, self.row, x.unsqueeze(0))
        self.row.add_(1).remainder_(len(self.obs))
        return action

    @torch.no_grad()
    def _estimate(self) -> None:
        """Generalized advantages: A_t = delta_t + decay_t A_{t+1}, in log2(T) steps instead of T."""
        following = torch.cat([self.value[1:], self.agent(self.seen)[1].unsqueeze(0)])
        alive = DISCOUNT * (1 - self.over)
        sums, decay, shift = self.reward + alive * following - self.value, LAMBDA * alive, 1
        while shift < len(sums):
            sums = sums + decay * F.pad(sums[shift:], (0, 0, 0, shift))
            decay = decay * F.pad(decay[shift:], (0, 0, 0, shift))
            shift *= 2
        self.advantage.copy_(sums)
        self.target.copy_(sums + self.value)

    def _loss(self, obs: Tensor, action: Tensor, before: Tensor, advantage: Tensor, target: Tensor) -> Tensor:
        outputs, value = self.agent(obs)
        log_prob, entropy = self.agent.judge(outputs, action)
        ratio, clip = (log_prob - before).exp(), self.sizes.clip
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gain = torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
        return -gain + 0.5 * (value - target).square().mean() - self.sizes.entropy * entropy.mean()

    def _learn(self) -> None:
        """An update from the minibatch `index`."""
        columns = (self.obs, self.action, self.log_prob, self.advantage, self.target)
        self.optim.zero_grad(set_to_none=True)
        self.loss(*(x.flatten(0, 1)[self.index] for x in columns)).backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), 0.5)
        self.optim.step()

    def learn_all(self) -> None:
        """All updates of a rollout."""
        self.estimate()
        for _ in range(self.sizes.epochs):
            for index in self.minibatches():
                self.index.copy_(index)
                self.learn()

    def minibatches(self) -> Iterator[Tensor]:
        """The numbers of their rows."""
        count = self.sizes.steps * self.sizes.envs
        return iter(torch.randperm(count, device=self.task.device).split(self.sizes.minibatch))

    def collect_noise(self) -> None:
        """A rollout of random observations and rewards with the policy's actions."""
        for _ in range(self.sizes.steps):
            self.seen.random_(256) if self.agent.images else self.seen.normal_()
            self.act()
        self.reward.normal_()
        self.over.bernoulli_(0.01)


def measure_ppo(task: Task) -> dict[str, Any]:
    """Updates of minibatches, and of whole rollouts with their advantages."""
    started = time.perf_counter()
    ppo = PPO(task, images=task.name == "ppo_atari")
    before = [x.detach().clone() for x in ppo.agent.parameters()]
    ppo.collect_noise()
    ppo.estimate()
    order = iter(())

    def update() -> None:
        nonlocal order
        index = next(order, None)
        if index is None:
            order = ppo.minibatches()
            index = next(order)
        ppo.index.copy_(index)
        ppo.learn()

    update()
    task.wait()
    result = {"first_update_s": time.perf_counter() - started} | task.time_updates(update)
    for _ in range(4):
        ppo.learn_all()
    result["rollout_update_s"] = task.time_singly(ppo.learn_all, 5)
    check_learned(before, list(ppo.agent.parameters()))
    return result


def measure_ppo_loop(task: Task) -> dict[str, Any]:
    """PPO on Breakout."""
    started, first = time.perf_counter(), 0.0
    ppo = PPO(task, images=True)
    before = [x.detach().clone() for x in ppo.agent.parameters()]
    t, n = ppo.sizes.steps, ppo.sizes.envs
    envs, reward, over = make_breakout(n), np.zeros((t, n), np.float32), np.zeros((t, n), np.float32)
    obs, count, clock = envs.reset(seed=0)[0], 0, LoopClock(task, 3 * t * n)
    while not clock.is_over(count, t * n):
        for i in range(t):
            ppo.show(obs)
            obs, reward[i], terminated, truncated, _ = envs.step(ppo.act().cpu().numpy())
            over[i] = terminated | truncated
        ppo.show(obs)
        ppo.reward.copy_(torch.from_numpy(np.sign(reward)))
        ppo.over.copy_(torch.from_numpy(over))
        ppo.learn_all()
        first = first or time.perf_counter() - started
        count += t * n
    check_learned(before, list(ppo.agent.parameters()))
    return {"env": "Breakout", "env_steps_per_s": clock.steps_per_s, "first_update_s": first}

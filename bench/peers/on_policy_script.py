"""PPO as one file, in the manner of CleanRL: vectors of Gymnasium, loops over steps and minibatches, plain PyTorch.

    python on_policy_script.py SETTINGS

See `on_policy_sb3.py`. It neither evaluates nor logs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from on_policy_wrapped import Pictures, made, ramp
from torch import Tensor, nn


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    """Orthogonal weights, biases of 0."""
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


def perceptron(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    """Two hidden layers of 64."""
    return nn.Sequential(layer(inputs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, outputs, gain))


def head(inputs: int, units: int, outputs: int, gain: float) -> nn.Sequential:
    """One hidden layer above convolutions."""
    return nn.Sequential(layer(inputs, units), nn.ReLU(), layer(units, outputs, gain))


class Agent(nn.Module):
    """Policy and value."""

    def __init__(self, seen: gymnasium.spaces.Box, actions: gymnasium.Space[Any], s: dict[str, Any]) -> None:
        super().__init__()
        self.discrete = isinstance(actions, gymnasium.spaces.Discrete)
        outputs = int(actions.n) if self.discrete else int(np.prod(actions.shape))
        self.body: nn.Module = nn.Identity()
        if s.get("filters"):
            self.body = pictures = Pictures(seen, s["filters"])
            units = s["units"][0]
            self.actor, self.value = head(pictures.size, units, outputs, 0.01), head(pictures.size, units, 1, 1.0)
        else:
            inputs = int(np.prod(seen.shape))
            self.actor, self.value = perceptron(inputs, outputs, 0.01), perceptron(inputs, 1, 1.0)
        self.log_std = nn.Parameter(torch.full((outputs,), s["log_std"])) if not self.discrete else None

    def critic(self, obs: Tensor) -> Tensor:
        """The value."""
        return self.value(self.body(obs))

    def act(self, obs: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Action, its log-probability, the entropy, the value."""
        body = self.body(obs)
        found = self.actor(body)
        if self.log_std is None:
            policy: Any = torch.distributions.Categorical(logits=found)
        else:
            policy = torch.distributions.Independent(torch.distributions.Normal(found, self.log_std.exp()), 1)
        action = policy.sample() if action is None else action
        return action, policy.log_prob(action), policy.entropy(), self.value(body).squeeze(-1)


def main(s: dict[str, Any]) -> dict[str, Any]:
    """Train."""
    wall, cpu, learning = time.perf_counter(), time.process_time(), 0.0
    torch.manual_seed(s["seed"])
    same = gymnasium.vector.AutoresetMode.SAME_STEP
    envs = gymnasium.vector.SyncVectorEnv([lambda: made(s) for _ in range(s["envs"])], autoreset_mode=same)
    agent = Agent(envs.single_observation_space, envs.single_action_space, s)
    optim = torch.optim.Adam(agent.parameters(), lr=1.0, eps=1e-5)
    n, t, size = s["envs"], s["rollout"], s["batch_size"]
    shape = envs.single_action_space.shape
    obs, actions = torch.zeros(t, n, *envs.single_observation_space.shape), torch.zeros(t, n, *shape)
    logs, rewards, dones, values = (torch.zeros(t, n) for _ in range(4))
    now, done, taken = torch.as_tensor(envs.reset(seed=s["seed"])[0], dtype=torch.float32), torch.zeros(n), 0
    rate, clips = ramp(s["lr"], s["steps"]), ramp(s["clip"], s["steps"])
    while taken < s["steps"]:
        left = 1 - taken / s["steps"]
        optim.param_groups[0]["lr"], clip = rate(left), clips(left)
        for i in range(t):
            obs[i], dones[i] = now, done
            with torch.no_grad():
                action, logs[i], _, values[i] = agent.act(now)
            actions[i] = action
            given = action.numpy() if agent.discrete else action.numpy().clip(-1, 1)
            found, reward, terminated, truncated, info = envs.step(given)
            over = terminated | truncated
            reward = reward.astype(np.float32)
            for k in np.flatnonzero(truncated & ~terminated):  # CleanRL leaves this out
                last = torch.as_tensor(info["final_obs"][k], dtype=torch.float32)
                with torch.no_grad():
                    reward[k] += s["discount"] * agent.critic(last).item()
            rewards[i] = torch.from_numpy(reward)
            now, done = torch.as_tensor(found, dtype=torch.float32), torch.as_tensor(over, dtype=torch.float32)
        taken += n * t
        started = time.thread_time()
        with torch.no_grad():
            advantages, last, value, alive = torch.zeros(t, n), torch.zeros(n), agent.critic(now).squeeze(-1), 1 - done
            for i in reversed(range(t)):
                delta = rewards[i] + s["discount"] * value * alive - values[i]
                last = delta + s["discount"] * s["lambda"] * alive * last
                advantages[i], value, alive = last, values[i], 1 - dones[i]
        rows = [x.flatten(0, 1) for x in (obs, actions, logs, advantages, advantages + values)]
        for _ in range(s["epochs"]):
            for places in torch.randperm(n * t).split(size):
                seen, action, before, advantage, target = (x[places] for x in rows)
                _, log, entropy, value = agent.act(seen, action)
                ratio = (log - before).exp()
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                gain = torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
                loss = -gain - s["entropy"] * entropy.mean() + 0.5 * (value - target).square().mean()
                optim.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optim.step()
        learning += time.thread_time() - started
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    updates = taken // size * s["epochs"]
    return {"steps": taken, "wall_s": wall, "cpu_s": cpu, "update_ms": 1e3 * learning / updates}


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    print(json.dumps(main(json.loads(sys.argv[1]))))

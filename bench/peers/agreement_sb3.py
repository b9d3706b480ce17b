"""Stable-Baselines3 and sb3-contrib: `train` of their algorithms on a replay buffer that holds our batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from sb3_contrib import QRDQN
from side_by_side import Layers, Learner, Linears, Net, Number, Ours, Stream, Transitions, drawing, draws, main
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.buffers import NStepReplayBuffer, RolloutBuffer
from stable_baselines3.common.logger import Logger
from torch import Tensor

TAU = 0.1
Noise = Callable[[int], Sequence[Tensor]]


class Spaces(gymnasium.Env):
    """An environment that nobody steps."""

    def __init__(self, ours: Ours, discrete: bool):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (ours["obs"],), np.float32)
        box = gymnasium.spaces.Box(-1, 1, (ours["actions"],), np.float32)
        self.action_space = gymnasium.spaces.Discrete(ours["actions"]) if discrete else box


def made(kind: Any, ours: Ours, policy: Mapping[str, Any] | None = None, **settings: Any) -> Any:
    """One of its algorithms, with our sizes and learning rate, and a buffer that always gives all of its rows."""
    usual = {"net_arch": ours["units"], "optimizer_class": torch.optim.Adam, "optimizer_kwargs": {"eps": 1e-8}}
    rows, sizes = ours["rows"], {"learning_rate": ours["lr"], "gamma": ours["discount"]}
    found = kind(
        "MlpPolicy", Spaces(ours, kind in (DQN, QRDQN)), buffer_size=rows, batch_size=rows, device="cpu",
        policy_kwargs=usual | dict(policy or {}), **sizes, **settings,
    )  # fmt: skip
    found.set_logger(Logger(folder=None, output_formats=[]))
    buffer = found.replay_buffer
    buffer.sample = lambda number, env=None: buffer._get_samples(np.arange(number), env=env)
    return found


def fill(buffer: Any, t: Transitions) -> None:
    """With one batch."""
    rows = len(t["rew"])
    buffer.observations[:, 0], buffer.next_observations[:, 0] = t["obs"].numpy(), t["next_obs"].numpy()
    buffer.actions[:, 0], buffer.rewards[:, 0] = t["act"].numpy().reshape(rows, -1), t["rew"].numpy()
    buffer.dones[:, 0], buffer.timeouts[:, 0] = (t["term"] | t["trunc"]).numpy(), t["trunc"].numpy()
    buffer.full = True


def updating(
    model: Any, names: Mapping[str, str], noise: Noise, after: Callable[[], None] = lambda: None
) -> Callable[[int, Transitions], dict[str, float]]:
    """Its update with our draws."""

    def update(k: int, t: Transitions) -> dict[str, float]:
        fill(model.replay_buffer, t)
        with drawing(noise(k)):
            model.train(gradient_steps=1, batch_size=len(t["rew"]))
        after()
        said = model.logger.name_to_value
        return {name: said[f"train/{its}"] for its, name in names.items() if f"train/{its}" in said}

    return update


LOSSES = {"critic_loss": "loss/critic", "actor_loss": "loss/actor"}


def acting(model: Any, copies: int) -> dict[str, list[Net]]:
    """Its critics and their targets, and an actor without noise."""
    policy = model.policy
    critics, targets = policy.critic.q_networks[:copies], policy.critic_target.q_networks[:copies]
    return {
        "actor.body": [Linears([policy.actor], policy.actor.optimizer)],
        "critic.body": [Linears([q], policy.critic.optimizer) for q in critics],
        "target_critic.model.body": [Linears([q]) for q in targets],
    }


def ddpg(ours: Ours, kind: Any = DDPG, copies: int = 1) -> Learner:
    """As it is."""
    model, rows, size = made(kind, ours, tau=TAU), ours["rows"], ours["actions"]
    noise: Noise = lambda k: draws(k, ("n", (rows, 1, size))) if kind is TD3 else [torch.zeros(rows, size)]  # noqa: E731
    targets = {"target_actor.model.body": [Linears([model.policy.actor_target])]}
    return Learner(acting(model, copies) | targets, updating(model, LOSSES, noise))


def td3(ours: Ours) -> Learner:
    """As it is."""
    return ddpg(ours, TD3, 2)


def sac(ours: Ours) -> Learner:
    """Its temperature's loss is another function with the same gradient at 1; it is not compared."""
    model, shape = made(SAC, ours, tau=TAU, ent_coef="auto_1.0"), ("n", (ours["rows"], 1, ours["actions"]))
    actor = model.policy.actor
    actor.action_dist.epsilon = 0.0  # patch: no 1e-6 in the logarithm of tanh's derivative
    nets = acting(model, 2) | {"log_temperature": [Number(model.log_ent_coef, model.ent_coef_optimizer)]}
    nets["actor.body"] = [Linears([actor.latent_pi, actor.mu, actor.log_std], actor.optimizer)]

    def noise(k: int) -> list[Tensor]:
        following, here = draws(k, shape, shape)
        return [here, following]

    update = updating(model, LOSSES | {"ent_coef": "train/temperature"}, noise)
    return Learner(nets, update, "no 1e-6 in the logarithm of tanh's derivative; not the temperature's loss")


def dqn(ours: Ours) -> Learner:
    """Without a bound of gradients."""
    model = made(DQN, ours, target_update_interval=2, max_grad_norm=float("inf"))
    return _values(model, model.policy.q_net, model.policy.q_net_target, list)


def qr_dqn(ours: Ours) -> Learner:
    """Its outputs are [quantiles, actions], ours [actions, quantiles]."""
    number, actions = ours["quantiles"], ours["actions"]
    model = made(QRDQN, ours, {"n_quantiles": number}, target_update_interval=2, max_grad_norm=float("inf"))

    def turned(layers: Layers) -> Layers:
        w, b = (x.unflatten(0, (actions, number)).transpose(0, 1).flatten(0, 1) for x in layers[-1])
        return [*layers[:-1], (w, b)]

    return _values(model, model.policy.quantile_net, model.policy.quantile_net_target, turned)


def _values(model: Any, net: Any, target: Any, turned: Callable[[Layers], Layers]) -> Learner:
    nets = {"network.body": [Linears([net], model.policy.optimizer, turned=turned)],
            "target_network.model.body": [Linears([target], turned=turned)]}  # fmt: skip
    return Learner(nets, updating(model, {"loss": "loss/critic"}, lambda _: [], model._on_step), "gradients unbounded")


BOX = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
NOTHING = np.zeros((1, 1))


def gae(s: Stream, discount: float, lam: float) -> dict[str, Any]:
    """In float32, its buffer's. At time limits the reward gets the next value, as its collection does."""
    steps, start = len(s["reward"]), True
    rows = RolloutBuffer(steps, BOX, BOX, gae_lambda=lam, gamma=discount, n_envs=1)
    reward = s["reward"] + discount * s["nextv"] * (s["done"] & ~s["term"])
    for t in range(steps):
        rows.add(NOTHING, NOTHING, reward[t : t + 1].numpy(), np.array([start]), s["value"][t].view(1), torch.zeros(1))
        start = bool(s["done"][t])
    rows.compute_returns_and_advantage(s["nextv"][-1].view(1), np.array([start]))
    return {"advantage": rows.advantages, "target": rows.returns}


def n_step(s: Stream, discount: float, lam: float) -> dict[str, Tensor]:
    """In float32; its targets are made where it samples."""
    return {str(n): _n_step(s, discount, n) for n in (1, 2, 3, 5)}


def _n_step(s: Stream, discount: float, n: int) -> Tensor:
    steps = len(s["reward"])
    rows = NStepReplayBuffer(steps + 1, BOX, BOX, n_envs=1, n_steps=n, gamma=discount, handle_timeout_termination=True)
    for t in range(steps):
        obs, done = np.array([[t]], np.float32), bool(s["done"][t])
        info = {"TimeLimit.truncated": done and not bool(s["term"][t])}
        rows.add(obs, obs + 0.5, NOTHING, np.array([s["reward"][t].item()]), np.array([done]), [info])
    found = rows._get_samples(np.arange(steps))
    value = s["nextv"][(found.next_observations.view(-1) - 0.5).long()]
    return found.rewards.view(-1).double() + found.discounts.view(-1) * (1 - found.dones.view(-1)) * value


LEARNERS: dict[str, Callable[[Ours], Learner]] = {"ddpg": ddpg, "td3": td3, "sac": sac, "dqn": dqn, "qr_dqn": qr_dqn}

if __name__ == "__main__":
    main(LEARNERS, {"gae": gae, "n_step": n_step}, ["stable-baselines3", "sb3-contrib"])

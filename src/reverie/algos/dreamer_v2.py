"""DreamerV2: Hafner, Lillicrap, Norouzi, Ba, "Mastering Atari with discrete world models", ICLR 2021.

It computes what the authors' code computes (github.com/danijar/dreamerv2, version 2.2.0). Where that code and the paper
differ, it follows the code: ``docs/dreamer_v1_v2.md`` lists where.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from reverie.algos.imagination import Dream, Picker, imagine, imagine_through_time
from reverie.algos.world_model import (
    Context,
    DenseDreamer,
    DenseDreamerConfig,
    DenseDreamerStats,
    LatentPolicy,
    Posterior,
    WorldModel,
    starts,
)
from reverie.core.checks import at_least
from reverie.core.config import Config
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Metrics, Update
from reverie.nn.heads import Actor, NumberHead
from reverie.nn.normalise import MagnitudeScale
from reverie.nn.optim import GlobalAdamConfig, Optim, descend
from reverie.nn.rssm import Chooser, Latent
from reverie.nn.target import LateTarget
from reverie.objectives.policy import ActorGradient, Dynamics, Reinforce
from reverie.objectives.returns import lambda_return_of_states

PARTS = ("decoder", "reward", "cont")


@dataclass(frozen=True, kw_only=True)
class RewardNormConfig(Config):
    """Division of imagined rewards by their average magnitude."""

    momentum: float = 1.0
    """Share that the average keeps at each update, in [0, 1]; 1 does not normalise."""
    scale: float = 1.0
    """Factor of the normalised rewards."""
    eps: float = 1e-8
    """Added to the magnitude, 0 or more."""

    def __post_init__(self) -> None:
        at_least(self, eps=0)

    def build(self) -> MagnitudeScale:
        """Return the norm."""
        return MagnitudeScale(self.momentum, self.scale, self.eps)


@dataclass(frozen=True, kw_only=True)
class DreamerV2Config(DenseDreamerConfig):
    """Settings of DreamerV2; the defaults are those of the authors' code."""

    rewards: Literal["identity", "sign", "tanh", "log1p"] = "tanh"
    """Transform of the rewards that are learned from. Stored rows and scores keep the original ones."""
    grad_heads: tuple[str, ...] = PARTS
    """Those of decoder, reward and cont whose losses train the latents as well."""
    actor_gradient: ActorGradient | None = None
    """reinforce, dynamics or mixed(mix=0.1). None: dynamics, or reinforce if a part of the action is discrete."""
    entropy: float = 2e-3
    """Weight of the policy's entropy in nats, summed over the parts of an action."""
    slow_every: int = 100
    """Updates from one move of the slow critic to the next; 0: the critic itself gives the targets."""
    slow_rate: float = 1.0
    """Step of the slow critic towards the critic at each move, in (0, 1]."""
    reward_norm: RewardNormConfig = field(default_factory=RewardNormConfig)
    """Normalisation of imagined rewards; off by default."""
    model_optim: GlobalAdamConfig = field(default_factory=lambda: GlobalAdamConfig(lr=1e-4, decay=1e-6))
    """Optimiser of the world model."""
    actor_optim: GlobalAdamConfig = field(default_factory=lambda: GlobalAdamConfig(lr=8e-5, decay=1e-6))
    """Optimiser of the policy."""
    critic_optim: GlobalAdamConfig = field(default_factory=lambda: GlobalAdamConfig(lr=2e-4, decay=1e-6))
    """Optimiser of the value head."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, entropy=0, slow_every=0)
        if unknown := [part for part in self.grad_heads if part not in PARTS]:
            raise ConfigError(f"grad_heads = {self.grad_heads}: {unknown[0]!r} is none of {', '.join(PARTS)}.")
        if not 0 < self.slow_rate <= 1:
            raise ConfigError(f"slow_rate = {self.slow_rate}: expected a number in (0, 1].")
        if self.slow_every == 0 and self.slow_rate != 1:
            raise ConfigError(f"slow_every = 0, slow_rate = {self.slow_rate}: without a slow critic leave slow_rate 1.")


@dataclass(frozen=True, kw_only=True)
class DreamerV2Stats(DenseDreamerStats):
    """Metrics of an update of DreamerV2."""

    train_reward_std: Tensor
    """Standard deviation of imagined rewards."""
    train_normed_reward: Tensor
    """Mean imagined reward after its norm."""
    train_normed_reward_std: Tensor
    """Its standard deviation."""
    train_slow_value: Tensor
    """Mean value by the slow critic."""
    train_entropy: Mapping[str, Tensor]
    """Entropy of the policy in nats, by part of the action."""


class BehaviourLosses(NamedTuple):
    """What one imagination says about a policy and its critic."""

    actor: Tensor  # [H - 1, M]
    critic: Tensor  # [H, M]
    metrics: Metrics
    dream: Dream
    terms: dict[str, Tensor]  # [H + 1, M] or [H, M] each, to look inside


Reward = Callable[[WorldModel, Dream], Tensor]
"""A function from imagined trajectories to the rewards of their states ``[H + 1, M]``."""


def predicted_reward(world: WorldModel, dream: Dream) -> Tensor:
    """Return the rewards that the world model predicts."""
    reward: Tensor = world.reward(dream.feature).mean()
    return reward


class Behaviour(nn.Module):
    """A policy and its critics, trained on what a world model imagines."""

    def __init__(self, inputs: int, action_spec: ActionSpec, cfg: DreamerV2Config) -> None:
        super().__init__()
        self.cfg = cfg
        self.actor, self.critic = Actor(inputs, action_spec, cfg.actor), NumberHead(inputs, cfg.critic)
        self.slow_critic = LateTarget(self.critic, cfg.slow_rate, cfg.slow_every) if cfg.slow_every else None
        self.reward_norm = cfg.reward_norm.build()
        discrete = any(part.kind == "categorical" for part in action_spec.parts.values())
        self.gradient = cfg.actor_gradient or (Reinforce() if discrete else Dynamics())

    def make_optims(self) -> None:
        """Create the optimisers: call it when the networks are on their device."""
        self.optims: dict[str, Optim] = {
            "actor": self.cfg.actor_optim.build(self.actor.parameters()),
            "critic": self.cfg.critic_optim.build(self.critic.parameters()),
        }

    def learn(
        self,
        world: WorldModel,
        start: Latent,
        terminal: Tensor,
        choose: Chooser | None,
        pick: Picker | None,
        reward: Reward = predicted_reward,
    ) -> Metrics:
        """Train on what ``world`` imagines from latents ``[M, ...]``, of which ``terminal`` ``[M]`` say their ends."""
        losses = self.losses(world, start, terminal, choose, pick, reward)
        metrics = losses.metrics | descend({"actor": losses.actor.mean(), "critic": losses.critic.mean()}, self.optims)
        if self.slow_critic is not None:
            self.slow_critic.update()
        return metrics

    def losses(
        self,
        world: WorldModel,
        start: Latent,
        terminal: Tensor,
        choose: Chooser | None = None,
        pick: Picker | None = None,
        reward: Reward = predicted_reward,
    ) -> BehaviourLosses:
        """Imagine, and compute the losses of actor and critic. Updates the reward norm.

        In the authors' order, t counts states: reward, discount and value at t belong to state t, whose value includes
        its own reward. So the action at state t leads to the return of state t + 1, while its baseline is the value of
        state t.
        """
        through = self.gradient.through_time
        picked = {} if pick is None else {"pick": pick}
        dream = (imagine_through_time if through else imagine)(
            world.rssm, self.actor, start, self.cfg.horizon, choose, **picked
        )
        with torch.set_grad_enabled(through):
            raw = reward(world, dream)  # [H+1, M]
            self.reward_norm.update(raw)
            normed = self.reward_norm(raw)  # [H+1, M]
            discount = self.discounts(world, dream.feature, terminal)  # [H+1, M]
            slow = self.slow(dream.feature)  # [H+1, M]
            target = lambda_return_of_states(
                reward=normed.T, discount=discount.T, value=slow.T, lam=self.cfg.lam
            ).T  # [H, M]
        weight = torch.cat([torch.ones_like(discount[:1]), discount[:-1]]).cumprod(0).detach()  # [H+1, M]
        policy = self.actor.heads(dream.hidden[:-1])  # of states 0 ... H-2
        objective = self.gradient(policy.log_prob(dream.action[:-2]), target[1:] - slow[:-2], target[1:])
        entropies = policy.entropies()
        actor = -weight[:-2] * (objective + self.cfg.entropy * torch.stack(list(entropies.values())).sum(0))
        value = self.critic(dream.feature[:-1].detach())
        critic = weight[:-1] * value.loss(target.detach())  # [H, M]
        means = {"reward": raw, "normed_reward": normed, "value": value.mean(), "slow_value": slow, "target": target}
        means |= {f"entropy/{k}": v for k, v in entropies.items()}
        metrics = {f"train/{k}": v.detach().mean() for k, v in means.items()}
        metrics |= {f"train/{k}_std": means[k].detach().std(correction=0) for k in ("reward", "normed_reward")}
        metrics |= {"loss/actor": actor.detach().mean(), "loss/critic": critic.detach().mean()}
        return BehaviourLosses(actor, critic, metrics, dream, means | {"discount": discount, "weight": weight})

    def discounts(self, world: WorldModel, feature: Tensor, terminal: Tensor) -> Tensor:
        """Return the discount of each imagined state ``[H + 1, M]``; whether the first is terminal is known."""
        predicted: Tensor = world.cont(feature).prob()
        if not self.cfg.learn_cont:
            return predicted
        known = (~terminal).to(predicted.dtype) * self.cfg.discount  # [M]
        return torch.cat([known[None], predicted[1:]])

    def slow(self, feature: Tensor) -> Tensor:
        """Return values ``[...]`` by the slow critic, with their gradient with respect to ``feature``."""
        critic = self.critic if self.slow_critic is None else self.slow_critic.model
        value: Tensor = critic(feature).mean()
        return value


class DreamerV2(DenseDreamer):
    """The learner of DreamerV2: first the world model, then the behaviour in the updated world model."""

    stats: ClassVar[type[DenseDreamerStats]] = DreamerV2Stats
    cfg: DreamerV2Config

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: DreamerV2Config, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        self.world = cfg.world(obs_spec, action_spec, set(PARTS) - set(cfg.grad_heads))
        self.behaviour = Behaviour(self.world.rssm.feature_width, action_spec, cfg)
        self.to(device)
        self.behaviour.make_optims()
        self.optims = {"model": cfg.model_optim.build(self.world.parameters()), **self.behaviour.optims}
        self._policy = LatentPolicy(self, cfg.noise)

    @property
    def actor(self) -> Actor:  # type: ignore[override]  # others have it as an attribute
        """The policy's head."""
        return self.behaviour.actor

    @property
    def critic(self) -> NumberHead:  # type: ignore[override]
        """The value head."""
        return self.behaviour.critic

    def train_step(self, batch: Batch) -> Update:
        """Take one gradient step of each optimiser on a batch ``[B, T]``."""
        terms, metrics, _ = self.learn(batch)
        return Update(metrics=metrics, priority=self.surprise(terms))

    def learn(
        self,
        rows: Batch,
        context: Context | None = None,
        choose: Chooser | None = None,
        pick: Picker | None = None,
    ) -> tuple[dict[str, Tensor], Metrics, Posterior]:
        """Take one gradient step of each optimiser on rows ``[B, T]``; return losses, metrics and the posterior.

        The behaviour imagines with the updated world model, from latents that were computed before.
        """
        post = self.world.observe(rows, context, choose)
        terms, metrics = self.world_losses(rows, post)
        metrics |= descend({"model": self.total(terms)}, self.optims)
        metrics |= self.behaviour.learn(self.world, starts(post.latent), rows.is_terminal.flatten(), choose, pick)
        return terms, metrics, post


DreamerV2Config.learner = DreamerV2

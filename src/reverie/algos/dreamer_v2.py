"""DreamerV2: Hafner, Lillicrap, Norouzi, Ba, "Mastering Atari with discrete world models", ICLR 2021.

It computes what the authors' code computes (github.com/danijar/dreamerv2, version 2.2.0). Where that code and the paper
differ, it follows the code: ``docs/dreamer_v1_v2.md`` lists where.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from reverie.algos.dense_dreamer import DenseDreamer, DenseDreamerConfig
from reverie.algos.dreamer import LatentPolicy
from reverie.algos.imagination import RewardFn, Trajectory, imagine
from reverie.algos.world_model import Context, Posterior, WorldModel, repeat_windows
from reverie.core.bounds import AtLeast, ScheduledFloat, Within
from reverie.core.config import Config
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Metrics, State, Update, Window
from reverie.nn.actor import DreamerActor
from reverie.nn.adam import GlobalAdamConfig
from reverie.nn.heads import DenseHeadConfig, ScalarHead
from reverie.nn.normalization import MagnitudeScale
from reverie.nn.optim import Optimizer, gradient_steps, register_scheduled
from reverie.nn.probe import Probe, ProbeConfig
from reverie.nn.state_space import Latent
from reverie.nn.target_network import DelayedTargetNetwork
from reverie.objectives.policy import ActorGradient, Dynamics, Reinforce
from reverie.objectives.returns import ImaginedReturn, NextReward, StateReward

# ---------------------------------------------------------------------- losses


def imagination_loss_v2(
    behavior: Behavior, world: WorldModel, start: Latent, terminal: Tensor, reward: RewardFn | None = None
) -> BehaviorLosses:
    """Imagine, and compute the losses of actor and critic: equations 4 to 6. Updates the reward norm.

    Reward, discount and value at t belong to state t; ``cfg.return_estimator`` computes the targets. ``reward``: the
    reward of imagined states; None: the world model's prediction.
    """
    b, c, dream = behavior, behavior.cfg, behavior.imagine(world, start)
    with torch.set_grad_enabled(b.gradient.through_time):
        raw = world.reward(dream.feature).mean() if reward is None else reward(dream)  # [H+1, B, T]
        b.reward_norm.update(raw)
        normed = b.reward_norm(raw)  # [H+1, B, T]
        discount = b.discounts(world, dream.feature, terminal)  # [H+1, B, T]
        slow = b.slow(dream.feature)  # [H+1, B, T]
        returns = c.return_estimator(normed, discount, slow, c.discount, c.lam)
    target, weight, count = returns.target, returns.weight, len(returns.outcome)
    objective = b.gradient(dream.policy.log_prob(dream.action[:count]), returns.advantage, returns.outcome)
    entropies = dream.policy.entropies()
    actor = -weight[:count] * (objective + b.entropy_scale * torch.stack(list(entropies.values())).sum(0))
    value = b.critic(dream.feature[:-1].detach())
    critic = weight[:-1] * value.loss(target.detach())  # [H, B, T]
    means = {"reward": raw, "normalized_reward": normed, "value": value.mean(), "slow_value": slow, "target": target}
    means |= {f"entropy/{k}": v for k, v in entropies.items()}
    metrics = {f"train/{k}": v.detach().mean() for k, v in means.items()}
    metrics |= {f"train/{k}_std": means[k].detach().std(correction=0) for k in ("reward", "normalized_reward")}
    metrics |= {"loss/actor": actor.detach().mean(), "loss/critic": critic.detach().mean()}
    means |= {"discount": discount, "weight": weight, "advantage": returns.advantage}
    return BehaviorLosses(actor, critic, metrics, dream, means)


class BehaviorLosses(NamedTuple):
    """The losses of policy and critic on one imagined trajectory."""

    actor: Tensor  # [K, B, T], K actions that count
    critic: Tensor  # [H, B, T]
    metrics: Metrics
    dream: Trajectory
    terms: dict[str, Tensor]  # [H + 1, B, T], [H, B, T] or [K, B, T] each, to look inside


# ---------------------------------------------------------------------- learner


class AuxCritic(nn.Module):
    """PyDreamer's auxiliary critic of recorded rewards, whose loss also trains the world model.

    Rows after a terminal row of their window have no weight, even those of the next episode.
    """

    def __init__(self, inputs: int, cfg: AuxCriticConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.critic: ScalarHead = ScalarHead(inputs, cfg.head)
        self.slow: DelayedTargetNetwork = DelayedTargetNetwork(self.critic, 1.0, cfg.slow_update_interval)

    def loss(self, feature: Tensor, reward: Tensor, is_terminal: Tensor) -> Tensor:
        """Return the loss ``[T - 1, B]`` of features ``[B, T, F]``, rewards ``[B, T]`` and ends ``[B, T]``."""
        c, feature = self.cfg, feature.transpose(0, 1)  # [T, B, F]
        with torch.no_grad():
            value = self.slow.model(feature).mean()  # [T, B]
            returns = NextReward()(reward.T, (~is_terminal.T).to(value.dtype), value, c.discount, c.lam)
        return returns.weight[:-1] * self.critic(feature[:-1]).loss(returns.target)


class Behavior(nn.Module):
    """A policy and its critics, trained on imagined trajectories."""

    entropy_scale: float | Tensor

    def __init__(self, inputs: int, action_spec: ActionSpec, cfg: DreamerV2Config) -> None:
        super().__init__()
        self.cfg = cfg
        self.actor: DreamerActor = DreamerActor(inputs, action_spec, cfg.actor)
        self.critic: ScalarHead = cfg.build_critic(inputs)
        self.slow_critic: DelayedTargetNetwork | None = (
            DelayedTargetNetwork(self.critic, cfg.slow_rate, cfg.slow_update_interval)
            if cfg.slow_update_interval
            else None
        )
        self.reward_norm: MagnitudeScale = cfg.reward_norm.build()
        register_scheduled(self, "entropy_scale", cfg.entropy_coef)
        discrete = any(part.kind == "categorical" for part in action_spec.parts.values())
        usual = Reinforce() if discrete else Dynamics()
        self.gradient: ActorGradient = cfg.actor_gradient or usual

    def make_optims(self) -> None:
        """Create the optimizers: call it when the networks are on their device."""
        self.optims: dict[str, Optimizer] = {
            "actor": self.cfg.actor_optim.build(self.actor.parameters()),
            "critic": self.cfg.critic_optim.build(self.critic.parameters()),
        }

    def learn(self, world: WorldModel, start: Latent, terminal: Tensor, reward: RewardFn | None = None) -> Metrics:
        """Train on trajectories that ``world`` imagines from latents ``[B, T, ...]``.

        ``terminal`` marks terminal latents.
        """
        if self.slow_critic is not None and self.cfg.slow_update_order == "before":
            self.slow_critic.update()
        losses = imagination_loss_v2(self, world, start, terminal, reward)
        means = {"actor": losses.actor.mean(), "critic": losses.critic.mean()}
        metrics = losses.metrics | gradient_steps(means, self.optims)
        if self.slow_critic is not None and self.cfg.slow_update_order == "after":
            self.slow_critic.update()
        return metrics

    def imagine(self, world: WorldModel, start: Latent) -> Trajectory:
        """Imagine from latents ``[B, T, ...]``, with the gradient that the actor needs."""
        c, gradient = self.cfg, self.gradient
        count = c.return_estimator.num_policies(c.horizon)
        through = {"through_time": gradient.through_time, "through_policy": gradient.through_policy}
        return imagine(world, self.actor, start, c.horizon, count, **through)

    def discounts(self, world: WorldModel, feature: Tensor, terminal: Tensor) -> Tensor:
        """Return the discount of each imagined state ``[H + 1, ...]``; the first from ``terminal`` if needed."""
        predicted: Tensor = world.cont(feature).prob()
        if not (self.cfg.learn_cont and self.cfg.return_estimator.own_reward):
            return predicted
        cont = (~terminal).to(predicted.dtype) * self.cfg.discount  # [B, T]
        return torch.cat([cont[None], predicted[1:]])

    def slow(self, feature: Tensor) -> Tensor:
        """Return values ``[...]`` by the slow critic, with their gradient with respect to ``feature``."""
        critic = self.critic if self.slow_critic is None else self.slow_critic.model
        return critic(feature).mean()


CARRIED_BUFFERS = ("carried_deter", "carried_stoch", "carried_action")
"""Names of the buffers that carry the state from batch to batch."""


class DreamerV2(DenseDreamer):
    """The learner of DreamerV2: first the world model, then the behavior in the updated world model."""

    cfg: DreamerV2Config

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: DreamerV2Config, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        self.world: WorldModel = WorldModel(cfg.probe.model_parts(obs_spec), action_spec, cfg)
        width = self.world.rssm.feature_width
        self.samples: int = cfg.posterior_samples
        self.behavior: Behavior = Behavior(width, action_spec, cfg)
        self.probe: Probe | None = Probe(obs_spec, width, cfg.probe) if cfg.probe.heads else None
        self.aux: AuxCritic | None = AuxCritic(width, cfg.aux) if cfg.aux.weight else None
        self.to(device)
        if cfg.carry_state:
            self.window: Window = replace(self.window, carries=True)
            rows = cfg.batch_size * cfg.posterior_samples
            start = Context(self.world.rssm.initial(rows, self.world.dtype), torch.zeros(rows, action_spec.width))
            for name, x in zip(CARRIED_BUFFERS, (*start.latent, start.action), strict=True):
                self.register_buffer(name, x.to(device), persistent=False)
        self.behavior.make_optims()
        trained = [*self.world.parameters(), *(self.aux.parameters() if self.aux else ())]
        if self.probe is not None and cfg.probe.gradients:
            trained += self.probe.parameters()
        self.optims: dict[str, Optimizer] = {"model": cfg.model_optim.build(trained), **self.behavior.optims}
        if self.probe is not None and not cfg.probe.gradients:
            self.optims["probe"] = cfg.probe.optim.build(self.probe.parameters())
        self._policy = LatentPolicy(self, noisy=bool(cfg.exploration_noise))

    @property
    def actor(self) -> DreamerActor:  # type: ignore[override]  # others have it as an attribute
        return self.behavior.actor

    @property
    def critic(self) -> ScalarHead:  # type: ignore[override]
        return self.behavior.critic

    def train_step(self, batch: Batch) -> Update:
        terms, metrics, post = self.learn(batch, self.carried_context())
        self.store_carried_state(batch, post)
        return Update(metrics=metrics, priority=self.window_priority(terms))

    def carried_context(self) -> Context | None:
        """The context of the next batch's windows, ``[B * samples, ...]``; None without ``carry_state``."""
        if not self.cfg.carry_state:
            return None
        deter, stoch, action = (self.get_buffer(name).clone() for name in CARRIED_BUFFERS)
        return Context(Latent(deter, stoch), action)

    @torch.no_grad()
    def store_carried_state(self, rows: Batch, post: Posterior) -> None:
        """Store the latent at the end of the windows, and the action there, for the next batch."""
        if self.cfg.carry_state:
            ends = (*post.latent.map(lambda x: x[:, -1]), repeat_windows(rows, self.samples).action[:, -1])
            for name, x in zip(CARRIED_BUFFERS, ends, strict=True):
                self.get_buffer(name).copy_(x)

    def extra_state(self) -> dict[str, Any]:
        return {"carried": {name: self.get_buffer(name) for name in CARRIED_BUFFERS}} if self.cfg.carry_state else {}

    def load_extra_state(self, state: State) -> None:
        """Restore the carried state, unless the number of windows has changed: then all cursors start over."""
        for name, x in state.get("carried", {}).items() if self.cfg.carry_state else ():
            if (buffer := self.get_buffer(name)).shape == x.shape:
                buffer.copy_(x)

    def learn(self, rows: Batch, context: Context | None = None) -> tuple[dict[str, Tensor], Metrics, Posterior]:
        """Take one gradient step of each optimizer on rows ``[B, T]``; return losses, metrics and the posterior.

        The behavior imagines from latents that were computed before the update of the world model. With several
        samples, ``context`` and the result repeat each row ``samples`` times.
        """
        post = self.world.observe(rows, context, self.samples)
        rows = repeat_windows(rows, self.samples)
        terms, metrics = self.world_model_loss(rows, post)
        losses, loss_metrics = self.losses(rows, post, terms)

        def dream() -> Metrics:
            return self.behavior.learn(self.world, post.latent.detach(), rows.is_terminal)

        metrics |= loss_metrics | (dream() if self.cfg.imagine_with == "same" else {})
        metrics |= gradient_steps(losses, self.optims)
        metrics |= dream() if self.cfg.imagine_with == "updated" else {}
        return terms, metrics, post

    def losses(self, rows: Batch, post: Posterior, terms: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """Return the losses of the world model and of the probes, and additional metrics."""
        losses, metrics = {"model": self.total(terms)}, {}
        if self.aux is not None:
            self.aux.slow.update()
            first_samples = slice(None, None, self.samples)  # the first sample of each row
            reward = self.world.transform.forward(rows.reward[first_samples])
            aux = self.aux.loss(post.latent.feature[first_samples], reward, rows.is_terminal[first_samples]).mean()
            losses["model"] = losses["model"] + self.cfg.aux.weight * aux
            metrics["loss/aux"] = aux.detach()
        if self.probe is not None:
            name = "model" if self.cfg.probe.gradients else "probe"
            loss, probe_metrics = self.probe.loss(post.latent.feature, rows.obs, self.samples)
            losses[name] = losses.get(name, torch.zeros(())) + loss
            metrics |= probe_metrics
        return losses, metrics


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class RewardNormConfig(Config):
    """Division of imagined rewards by their average magnitude."""

    momentum: Annotated[float, Within("[0, 1]")] = 1.0
    """Decay rate of the running average; 1: no normalization."""
    scale: float = 1.0
    """Factor of the normalized rewards."""
    eps: Annotated[float, AtLeast(0)] = 1e-8
    """Epsilon that is added to the magnitude."""

    def build(self) -> MagnitudeScale:
        """Return the norm."""
        return MagnitudeScale(self.momentum, self.scale, self.eps)


@dataclass(frozen=True, kw_only=True)
class AuxCriticConfig(Config):
    """A critic of recorded rewards, whose loss trains the world model."""

    weight: Annotated[float, AtLeast(0)] = 0.0
    """Weight of its loss; 0: no such critic."""
    discount: Annotated[float, Within("[0, 1]")] = 0.99
    """Discount factor gamma per agent step."""
    lam: Annotated[float, Within("[0, 1]")] = 0.95
    """Lambda."""
    slow_update_interval: Annotated[int, AtLeast(1)] = 1000
    """Gradient updates between two updates of its slow critic."""
    head: DenseHeadConfig = field(default_factory=DenseHeadConfig)
    """Its layers."""


@dataclass(frozen=True, kw_only=True)
class DreamerV2Config(DenseDreamerConfig):
    """Settings of DreamerV2, with the defaults of the authors' code."""

    reward_transform: Literal["identity", "sign", "tanh", "log1p"] = "tanh"
    grad_heads: tuple[str, ...] = ("decoder", "reward", "cont")
    """Heads among decoder, reward and cont whose losses also train the latents."""
    actor_gradient: ActorGradient | None = None
    """reinforce, dynamics or mixed(mix=0.1). None: dynamics, or reinforce if a part of the action is discrete."""
    entropy_coef: Annotated[ScheduledFloat, AtLeast(0)] = 2e-3
    """Weight of the policy's entropy in nats, summed over the parts of an action."""
    slow_update_interval: Annotated[int, AtLeast(0)] = 100
    """Gradient updates between two updates of the slow critic; 0: the critic itself gives the targets."""
    slow_rate: Annotated[float, Within("(0, 1]")] = 1.0
    """Share of the critic's weights in each update of the slow critic; 1 copies them."""
    slow_update_order: Literal["after", "before"] = "after"
    """Update the slow critic after a gradient update has used it, or before."""
    return_estimator: ImaginedReturn = field(default_factory=StateReward)
    """The return of imagined states: state_reward, or next_reward of PyDreamer."""
    imagine_with: Literal["updated", "same"] = "updated"
    """World model that imagines: updated, after its gradient step, or same, the one before that step."""
    posterior_samples: Annotated[int, AtLeast(1)] = 1
    """Number of posterior samples per time step. Above 1, the model minimizes the importance-weighted bound of Burda et
    al. (2016), with ln q(z) - ln p(z) of each sample instead of ``kl``."""
    carry_state: bool = False
    """Start each window from the final state of the previous window: truncated backpropagation through time over whole
    episodes. It needs ``replay.sequential``. False: windows start from the zero latent."""
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    """Additional heads that show the information in the latents. Default: none."""
    aux: AuxCriticConfig = field(default_factory=AuxCriticConfig)
    """A critic of recorded rewards that shapes the latents; off by default."""
    reward_norm: RewardNormConfig = field(default_factory=RewardNormConfig)
    """Normalization of imagined rewards; off by default."""
    model_optim: GlobalAdamConfig = field(default_factory=lambda: GlobalAdamConfig(lr=1e-4, weight_decay=1e-6))
    actor_optim: GlobalAdamConfig = field(default_factory=lambda: GlobalAdamConfig(lr=8e-5, weight_decay=1e-6))
    critic_optim: GlobalAdamConfig = field(default_factory=lambda: GlobalAdamConfig(lr=2e-4, weight_decay=1e-6))

    @property
    def min_horizon(self) -> int:
        """The smallest H: values that include a state's own reward need one more state."""
        return 2 if self.return_estimator.own_reward else 1

    @property
    def learned_discount(self) -> float:
        return self.discount if self.return_estimator.own_reward else 1.0


DreamerV2Config.learner = DreamerV2

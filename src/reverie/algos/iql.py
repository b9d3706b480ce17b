"""IQL: Kostrikov, Nair, Levine, "Offline reinforcement learning with implicit Q-learning", ICLR 2022.

The value of a state is an expectile of the values of the dataset's actions there, so the critic is never evaluated at
actions outside the dataset. The policy imitates the dataset's actions, weighted by their advantage. None of this
depends on the kind of actions, so discrete actions are supported too: the critics read them one-hot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.model_free import ModelFree, OfflineConfig
from reverie.algos.td import TDConfig, TDObjective
from reverie.core.bounds import Above, AtLeast, ScheduledFloat, Within
from reverie.core.specs import ActionSpec, ObsSpec, action_kind, num_classes_per_choice
from reverie.core.types import Batch, Update
from reverie.nn.actors import CategoricalActor, FixedStdGaussianActor, HybridActor
from reverie.nn.adam import Adam
from reverie.nn.exploration import SampledPolicy
from reverie.nn.network import MemoryNetworkConfig, Network, share_encoder, unshared_parameters
from reverie.nn.target_network import TargetNetwork
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, masked_mean, obs_before, squared_error, whole_obs
from reverie.objectives.transforms import exp

# ---------------------------------------------------------------------- losses


class IQLObjective(TDObjective):
    """The losses of IQL, with an additional term ``value``.

    ``actor(obs)`` gives a distribution with ``log_prob(action)`` ``[...]``, ``critic(obs, action)`` the values
    ``[2, ...]`` of both critics and ``value(obs)`` a value ``[...]``.
    """

    cfg: IQLConfig

    def __init__(self, actor: nn.Module, critic: nn.Module, value: nn.Module, cfg: IQLConfig) -> None:
        super().__init__(cfg)
        self.actor = actor
        self.critic = critic
        self.value = value
        self.target_critic: TargetNetwork = TargetNetwork(critic, cfg.tau)

    def forward(self, batch: Batch) -> Losses:
        """Return the terms ``value``, ``actor`` and ``critic`` of a batch ``[B, T]``."""
        q_value, values = self.action_value(batch), self.state_values(batch)
        value, actor = self.value_loss(batch, q_value), self.actor_loss(batch, q_value, values)
        critic = self.critic_loss(batch, values)
        metrics = value.metrics | actor.metrics | critic.metrics
        return Losses(value.terms | actor.terms | critic.terms, metrics, critic.priority)

    @torch.no_grad()
    def action_value(self, batch: Batch) -> Tensor:
        """min_i Q'_i(s, a) of the dataset's actions, ``[B, T - 1]``."""
        values: Tensor = self.target_critic(obs_before(batch.obs), batch.action[:, :-1])  # [2, B, T-1]
        return values.amin(0)

    @torch.no_grad()
    def state_values(self, batch: Batch) -> Tensor:
        """V(s) of all rows, ``[B, T]``."""
        return self.value(whole_obs(batch.obs))

    def value_loss(self, batch: Batch, q_value: Tensor) -> Losses:
        """L_V = E[L_2^tau(min_i Q'_i(s, a) - V(s))]: equation 5. ``q_value`` is returned by :meth:`action_value`."""
        value = self.value(obs_before(batch.obs))  # [B, T-1]
        mask = transition_mask(batch.is_last)
        loss = masked_mean(_expectile_loss(q_value - value, self.cfg.expectile), mask)
        return Losses({"value": loss}, {"train/state_value": masked_mean(value.detach(), mask)})

    def actor_loss(self, batch: Batch, q_value: Tensor, values: Tensor) -> Losses:  # type: ignore[override]  # of shared values
        """L_pi = E[-exp(beta (min_i Q'_i(s, a) - V(s))) ln pi(a | s)]: equation 7. ``values``: all V(s)."""
        mask = transition_mask(batch.is_last)
        advantage = q_value - values[:, :-1]  # [B, T-1]
        weight = exp(self.cfg.beta * advantage).clamp(max=self.cfg.max_weight)
        log_pi = self.actor(obs_before(batch.obs)).log_prob(batch.action[:, :-1])  # [B, T-1]
        metrics = {"train/advantage": masked_mean(advantage, mask), "train/weight": masked_mean(weight, mask)}
        return Losses({"actor": -masked_mean(weight * log_pi, mask)}, metrics)

    def critic_loss(self, batch: Batch, values: Tensor) -> Losses:  # type: ignore[override]
        """L_Q = sum_i E[(r + gamma (1 - terminal) V(s') - Q_i(s, a))^2]: equation 6. ``values``: all V(s)."""
        q, c = self.critic(obs_before(batch.obs), batch.action[:, :-1]), self.cfg  # [2, B, T-1]
        return squared_error(q, c.value_estimator(batch, values[:, 1:], self.discount), batch)


def _expectile_loss(error: Tensor, tau: float) -> Tensor:
    """L_2^tau(u) = abs(tau - 1(u < 0)) u^2, ``[...]``: below equation 4."""
    return (tau - (error < 0).to(error.dtype)).abs() * error.square()


# ---------------------------------------------------------------------- learner


class IQL(ModelFree):
    """The learner of IQL: actor, two critics and a value network, their update and the policy."""

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: IQLConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        spec = self.preprocess.spec
        actor = self.build_actor(spec, action_spec)
        critic = self.build_critic(spec, action_spec)
        value = Network(spec, None, cfg.networks, cfg.dtype)
        self.objective: IQLObjective = IQLObjective(actor, critic, value, cfg)
        self.to(device)
        share_encoder(critic, actor, value, self.objective.target_critic.model)
        actor_parameters = unshared_parameters(actor, critic)
        self.optims["value"] = Adam(unshared_parameters(value, critic), cfg.value_lr)
        self.optims["actor"] = Adam(actor_parameters, cfg.actor_lr, cosine=cfg.actor_lr_cosine_updates)
        self.optims["critic"] = Adam(critic.parameters(), cfg.critic_lr)
        self._policy = self.with_memory(SampledPolicy(actor, device, cfg.graph))

    def build_actor(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> nn.Module:
        """Build the actor: a normal distribution, class probabilities, or both.

        The standard deviation is independent of the state, as in the authors' code, unless actions are mixed.
        """
        c, kind = self.cfg, action_kind(action_spec)
        if kind == "continuous":
            return FixedStdGaussianActor(obs_spec, action_spec.width, c.networks, c.dtype)
        if kind == "mixed":
            return HybridActor(obs_spec, action_spec, c.networks, c.dtype)
        return CategoricalActor(obs_spec, num_classes_per_choice(action_spec), c.networks, c.dtype)

    def train_step(self, batch: Batch) -> Update:
        """Take one step of the value network, of the actor and the critics with the new values, and of the targets.

        The order follows the authors' code; the paper's Algorithm 1 extracts the policy afterwards. All networks
        share the critics' encoder, as with ``share_encoder`` in jaxrl2's PixelIQLLearner, here the target critics too.
        """
        o, (for_critic, for_others) = self.objective, self.encode(batch)
        q_value = o.action_value(for_others)
        metrics = self.minimize(o.value_loss(for_others, q_value))
        values = o.state_values(for_others)
        metrics |= self.minimize(o.actor_loss(for_others, q_value, values))
        critic = o.critic_loss(for_critic, values)
        metrics |= self.minimize(critic)
        o.target_critic.update()
        return Update(metrics=metrics, priority=critic.priority, extras=self.memory_states(batch))


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class IQLConfig(OfflineConfig, TDConfig):
    """Settings of IQL, with the defaults of the paper for MuJoCo (section 5.1, appendix B) and of its authors' code.

    For MuJoCo, their code also multiplies rewards by 1000 and divides them by the range of the dataset's returns: set
    reward_scale = factor(1000 / range).
    """

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous", "discrete", "multi_discrete", "mixed"})

    networks: MemoryNetworkConfig = field(default_factory=MemoryNetworkConfig)
    """Layers of the networks, optionally with a memory."""
    expectile: Annotated[float, Within("(0, 1)")] = 0.7
    """Tau: V(s) is this expectile of the values of the dataset's actions. At 0.5 it is their mean; near 1 it approaches
    their maximum. The paper uses 0.9 for AntMaze."""
    beta: Annotated[float, Within("[0, inf]")] = 3.0
    """Inverse temperature of the actor's weights exp(beta A): 0 imitates all actions equally. The paper uses 10 for
    AntMaze."""
    max_weight: Annotated[float, Within("(0, inf]")] = 100.0
    """Upper bound of the weights exp(beta A): the authors' code."""
    actor_lr: Annotated[ScheduledFloat, Above(0)] = 3e-4
    """Learning rate of the actor."""
    actor_lr_cosine_updates: Annotated[int, AtLeast(0)] = 0
    """Updates over which the actor's learning rate decays to 0 along half a cosine; 0: constant. The authors use
    1000000, all updates of a run."""
    critic_lr: Annotated[ScheduledFloat, Above(0)] = 3e-4
    """Learning rate of the critics."""
    value_lr: Annotated[ScheduledFloat, Above(0)] = 3e-4
    """Learning rate of the value network."""


IQLConfig.learner = IQL

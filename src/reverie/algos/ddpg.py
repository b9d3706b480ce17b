"""DDPG: Lillicrap et al., "Continuous control with deep reinforcement learning", ICLR 2016.

:class:`DDPGObjective` is the paper's two losses and two target networks over any networks, usable on its own.
:class:`DDPG` adds networks, optimizers and exploration.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.model_free import DelayedActorLearner
from reverie.algos.td import CriticConfig, TDObjective
from reverie.core.bounds import Above, AtLeast, ScheduledFloat
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Update
from reverie.nn.actor_critic import DeterministicActor
from reverie.nn.adam import Adam
from reverie.nn.exploration import ActionNoise, NoisyPolicy, OrnsteinUhlenbeck
from reverie.nn.network import share_encoder, unshared_parameters
from reverie.nn.optim import frozen
from reverie.nn.target_network import TargetNetwork
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, masked_mean, obs_after, obs_before

# ---------------------------------------------------------------------- losses


class DDPGObjective(TDObjective):
    """The losses of DDPG over any ``actor(obs) -> [..., A]`` and ``critic(obs, action) -> [...]``."""

    cfg: DDPGConfig

    def __init__(self, actor: nn.Module, critic: nn.Module, cfg: DDPGConfig) -> None:
        super().__init__(cfg)
        self.actor = actor
        self.critic = critic
        self.target_actor: TargetNetwork = TargetNetwork(actor, cfg.tau, cfg.target_update_interval)
        self.target_critic: TargetNetwork = TargetNetwork(critic, cfg.tau, cfg.target_update_interval)

    def actor_loss(self, batch: Batch) -> Losses:
        """E[-Q(s, mu(s))], whose gradient is equation 6."""
        obs = obs_before(batch.obs)
        with frozen(self.critic):
            value = self.critic(obs, self.actor(obs))  # [B, T-1]
        return Losses({"actor": -masked_mean(value, transition_mask(batch.is_last))})

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """Y = r + gamma (1 - terminal) Q'(s', mu'(s')): Algorithm 1.  ``[B, T - 1]``."""
        obs, c = obs_after(batch.obs), self.cfg
        value = self.target_critic(obs, self.target_actor(obs))  # [B, T-1]
        return c.value_estimator(batch, value, self.discount)


# ---------------------------------------------------------------------- learner


class DDPG(DelayedActorLearner):
    """The learner of DDPG: actor and critic, their update and the policy that explores."""

    losses: type[Any] = DDPGObjective

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: Any, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        spec, width = self.preprocess.spec, action_spec.width
        actor = DeterministicActor(spec, width, cfg.networks, cfg.dtype)
        critic = self.build_critic(spec, action_spec)
        self.objective: Any = self.losses(actor, critic, cfg)
        self.to(device)
        share_encoder(critic, actor, self.objective.target_actor.model, self.objective.target_critic.model)
        self.optims["actor"] = Adam(unshared_parameters(actor, critic), cfg.actor_lr, **cfg.adam)
        self.optims["critic"] = Adam(
            critic.parameters(), cfg.critic_lr, weight_decay=cfg.critic_weight_decay, **cfg.adam
        )
        self._policy = NoisyPolicy(actor, cfg.exploration, width, device, cfg.graph)

    def train_step(self, batch: Batch) -> Update:
        """Take one step of the critic, of the actor through the new critic, and of the targets: Algorithm 1."""
        o, (for_critic, for_actor) = self.objective, self.encode(batch)
        critic = o.critic_loss(for_critic)
        metrics = self.minimize(critic) | self.minimize(o.actor_loss(for_actor))
        o.target_critic.update()
        o.target_actor.update()
        return Update(metrics=metrics, priority=critic.priority)

    def critic_step(self, batch: Batch) -> Update:
        critic = self.objective.critic_loss(self.encode(batch)[0])
        return Update(metrics=self.minimize(critic), priority=critic.priority)


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class DDPGConfig(CriticConfig):
    """Settings of DDPG: the paper's (section 7), unless noted otherwise.

    The paper uses batches of 64, tau = 0.001, weight decay of the critic and layers of 400 and 300 units. Its actions
    enter the critic's second layer.
    """

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous"})
    policy_delay: ClassVar[int] = 1
    num_critics: ClassVar[int | None] = None
    """A single critic, with values ``[...]`` instead of ``[K, ...]``."""

    actor_lr: Annotated[ScheduledFloat, Above(0)] = 1e-4
    """Learning rate of the actor."""
    critic_lr: Annotated[ScheduledFloat, Above(0)] = 1e-3
    """Learning rate of the critic."""
    target_update_interval: Annotated[int, AtLeast(1)] = 1
    """Gradient updates between two updates of the target networks. For hard updates: tau = 1, and 1000 here."""
    exploration: ActionNoise = field(default_factory=OrnsteinUhlenbeck)
    """Noise on actions while exploring, in units of the policy's range [-1, 1]: an Ornstein-Uhlenbeck process with
    theta 0.15 and sigma 0.2."""


DDPGConfig.learner = DDPG

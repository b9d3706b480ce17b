"""DDPG: Lillicrap et al., "Continuous control with deep reinforcement learning", ICLR 2016.

:class:`DDPGObjective` is the paper's two losses and two target networks over any networks, usable on its own.
:class:`DDPG` adds networks, optimisers and exploration.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.base import PRECISIONS, ModelFree, ValueConfig
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.stats import Stats
from reverie.core.types import Batch, Obs, Update
from reverie.nn.actor_critic import DeterministicActor, NetworkConfig, QEnsemble, continuous_width
from reverie.nn.exploration import Noise, NoisyPolicy, OrnsteinUhlenbeck
from reverie.nn.optim import Adam, frozen
from reverie.nn.target import Target
from reverie.objectives.estimators import TD0, ValueEstimator, check_estimator
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, after, before, check_td, mean_over, squared_error, td_targets


@dataclass(frozen=True, kw_only=True)
class DDPGConfig(ValueConfig):
    """Settings of DDPG: the paper's (section 7), unless noted otherwise."""

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous"})

    batch_size: int = 256
    """B, windows in a batch. The paper has 64; 256 is what the authors of TD3 and SAC use for all three."""
    batch_length: int = 2
    """T, rows of each window. The losses cover its T - 1 transitions; 2 is one transition."""
    value_estimator: ValueEstimator = field(default_factory=TD0)
    """How the critic's targets are computed from the rows of a window. The paper uses TD(0)."""
    actor_lr: float = 1e-4
    """Learning rate of the actor."""
    critic_lr: float = 1e-3
    """Learning rate of the critic. Without the paper's weight decay, as in later work."""
    tau: float = 0.005
    """Step of the targets towards their networks at each target update, in (0, 1]; 1 copies them. The paper has 0.001,
    TD3 0.005."""
    target_every: int = 1
    """Updates between two updates of the targets. Hard updates: tau = 1 and 1000 here."""
    exploration: Noise = field(default_factory=OrnsteinUhlenbeck)
    """Noise on actions while exploring, in units of the policy's range [-1, 1]: an Ornstein-Uhlenbeck process with
    theta 0.15 and sigma 0.2."""
    networks: NetworkConfig = field(default_factory=NetworkConfig)
    """Layers of the actor and the critic. The paper has 400 and 300 units, and actions enter the critic's second
    layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_td(self.discount, self.tau, self.target_every)
        check_estimator(self.value_estimator, algorithm=self.algorithm, rows=self.batch_length)


@dataclass(frozen=True, kw_only=True)
class DDPGStats(Stats):
    """Metrics of an update of DDPG."""

    loss_critic: Tensor
    """E[w (Q(s, a) - y)^2]."""
    train_value: Tensor
    """Mean Q of the taken actions."""
    train_target: Tensor
    """Mean target y."""
    loss_actor: Tensor
    """-E[Q(s, mu(s))]."""


class DDPGObjective(nn.Module):
    """The losses of DDPG. ``objective(batch)`` is their terms by name; nothing else of this library is needed.

    ``actor(obs)`` gives an action ``[..., A]`` and ``critic(obs, action)`` a value ``[...]``; any modules will do.
    ``obs`` is the batch's dictionary. The gradient of each term reaches its own network alone.
    """

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        *,
        discount: float = 0.99,
        value_estimator: ValueEstimator | None = None,
        tau: float = 0.005,
        target_every: int = 1,
    ) -> None:
        """``value_estimator``: TD(0) by default. ``tau``, ``target_every``: how targets follow their networks."""
        super().__init__()
        check_td(discount, tau, target_every, value_estimator)
        self.actor, self.critic = actor, critic
        self.target_actor = Target(actor, tau, target_every)
        self.target_critic = Target(critic, tau, target_every)
        self.discount = discount
        self.value_estimator = value_estimator or TD0()

    def forward(self, batch: Batch) -> Losses:
        """The terms ``critic`` and ``actor`` of a batch ``[B, T]``."""
        return self.critic_loss(batch).joined(self.actor_loss(batch))

    def critic_loss(self, batch: Batch) -> Losses:
        """E[(Q(s, a) - y)^2]: Algorithm 1, the critic's line."""
        value = self.critic(before(batch.obs), batch.action[:, :-1])  # [B, T-1]
        return squared_error(value, self.targets(batch), batch)

    def actor_loss(self, batch: Batch) -> Losses:
        """E[-Q(s, mu(s))], whose gradient is that of equation 6."""
        obs = before(batch.obs)
        with frozen(self.critic):
            value = self.critic(obs, self.actor(obs))  # [B, T-1]
        loss = -mean_over(value, transition_mask(batch.is_last))
        return Losses({"actor": loss}, {"loss/actor": loss.detach()})

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """The y ``[B, T - 1]``; of one transition, r + gamma (1 - terminal) Q'(s', mu'(s')): Algorithm 1."""
        return td_targets(batch, self.next_value(after(batch.obs)), self.value_estimator, self.discount)

    @torch.no_grad()
    def next_value(self, obs: Obs) -> Tensor:
        """Return the value of states for the targets, Q'(s, mu'(s)), ``[...]``."""
        value: Tensor = self.target_critic(obs, self.target_actor(obs))
        return value

    def update_targets(self) -> None:
        """Update the targets, after every update: theta' <- tau theta + (1 - tau) theta' at every n-th call."""
        self.target_actor.update()
        self.target_critic.update()


class DDPG(ModelFree):
    """The learner of DDPG: actor and critic, their update and the policy that explores."""

    stats = DDPGStats

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: DDPGConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        self.cfg = cfg
        seen, dtype = self.preprocess.spec, PRECISIONS[cfg.precision]
        width = continuous_width(cfg.algorithm, action_spec)
        actor = DeterministicActor(seen, width, cfg.networks, dtype)
        critic = QEnsemble(seen, width, cfg.networks, dtype=dtype)
        self.objective = DDPGObjective(
            actor,
            critic,
            discount=cfg.discount,
            value_estimator=cfg.value_estimator,
            tau=cfg.tau,
            target_every=cfg.target_every,
        )
        self.to(device)
        self.optims = {
            "actor": Adam(actor.parameters(), cfg.actor_lr),
            "critic": Adam(critic.parameters(), cfg.critic_lr),
        }
        self._policy = self.preprocess.policy(NoisyPolicy(actor, cfg.exploration, width, device), device)

    def train_step(self, batch: Batch) -> Update:
        """Take one step of the critic, of the actor through the new critic, and of the targets: Algorithm 1."""
        batch = self.preprocess(batch)
        critic = self.minimise(self.objective.critic_loss, batch)
        actor = self.minimise(self.objective.actor_loss, batch)
        self.objective.update_targets()
        return Update(metrics={**critic.metrics, **actor.metrics}, priority=critic.priority)


DDPGConfig.learner = DDPG

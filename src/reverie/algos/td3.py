"""TD3: Fujimoto, van Hoof, Meger, "Addressing function approximation error in actor-critic methods", ICML 2018.

DDPG with three changes: targets from the minimum of two critics (section 4.2), less frequent updates of the actor and
the targets (5.2), and noise on the actions of targets (5.3).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.base import PRECISIONS, ModelFree, ValueConfig
from reverie.core.checks import at_least
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.stats import Stats
from reverie.core.types import Batch, Obs, State, Update
from reverie.nn.actor_critic import DeterministicActor, NetworkConfig, QEnsemble, continuous_width, first
from reverie.nn.exploration import Gaussian, Noise, NoisyPolicy
from reverie.nn.optim import Adam, frozen
from reverie.nn.target import Target
from reverie.objectives.estimators import TD0, ValueEstimator, check_estimator
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, after, before, check_td, mean_over, squared_error, td_targets


@dataclass(frozen=True, kw_only=True)
class TD3Config(ValueConfig):
    """Settings of TD3: those of section 6.1, or of the authors' code (github.com/sfujim/TD3) where they differ."""

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous"})

    batch_size: int = 256
    """B, windows in a batch: the authors' code. The paper has 100."""
    batch_length: int = 2
    """T, rows of each window. The losses cover its T - 1 transitions; 2 is one transition."""
    value_estimator: ValueEstimator = field(default_factory=TD0)
    """How the critics' targets are computed from the rows of a window. The paper uses TD(0)."""
    actor_lr: float = 3e-4
    """Learning rate of the actor: the authors' code. The paper has 0.001."""
    critic_lr: float = 3e-4
    """Learning rate of the critics: the authors' code. The paper has 0.001."""
    tau: float = 0.005
    """Step of the targets towards their networks at each update of the actor, in (0, 1]; 1 copies them."""
    policy_delay: int = 2
    """d: the actor and the targets are updated at every d-th update of the critics."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the actions of targets, in units of the policy's range [-1, 1]."""
    noise_clip: float = 0.5
    """c, largest absolute value of that noise, in units of the policy's range [-1, 1]; inf does not clip."""
    exploration: Noise = field(default_factory=Gaussian)
    """Noise on actions while exploring, in units of the policy's range [-1, 1]: Gaussian with a standard deviation of
    0.1."""
    networks: NetworkConfig = field(default_factory=NetworkConfig)
    """Layers of the actor and the critics: the authors' code. The paper has 400 and 300 units."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_td(self.discount, self.tau)
        check_estimator(self.value_estimator, algorithm=self.algorithm, rows=self.batch_length)
        if self.policy_delay < 1:
            raise ConfigError(f"policy_delay = {self.policy_delay}: expected at least 1 update.")
        at_least(self, target_noise=0)
        if not self.noise_clip >= 0:
            raise ConfigError(f"noise_clip = {self.noise_clip}: expected 0 or more; inf clips nothing.")

    def common(self) -> dict[str, Any]:
        """Return the settings that the objective takes unchanged, by name."""
        names = ("discount", "value_estimator", "tau", "target_noise", "noise_clip")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class TD3Stats(Stats):
    """Metrics of an update of TD3."""

    loss_critic: Tensor
    """E[w (Q - y)^2], summed over both critics."""
    train_value: Tensor
    """Mean Q of the taken actions over both critics."""
    train_target: Tensor
    """Mean target y."""
    loss_actor: Tensor | None = None
    """-E[Q_1(s, pi(s))]; only in updates of the actor."""


class TD3Objective(nn.Module):
    """The losses of TD3. ``objective(batch)`` is their terms by name; nothing else of this library is needed.

    ``actor(obs)`` gives an action ``[..., A]`` within [-1, 1] and ``critic(obs, action)`` the values ``[2, ...]`` of
    both critics; any modules will do, and ``nn/actor_critic.py: Stacked`` combines two. The gradient of each term
    reaches its own networks alone. The caller decides when to step the actor: at every ``policy_delay``-th step of the
    critics, and the targets with it.
    """

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        *,
        discount: float = 0.99,
        value_estimator: ValueEstimator | None = None,
        tau: float = 0.005,
        target_noise: float = 0.2,
        noise_clip: float = 0.5,
    ) -> None:
        """``value_estimator``: TD(0) by default. ``target_noise``, ``noise_clip``: noise on the actions of targets."""
        super().__init__()
        check_td(discount, tau, value_estimator=value_estimator)
        self.actor, self.critic = actor, critic
        self.target_actor, self.target_critic = Target(actor, tau), Target(critic, tau)
        self.discount = discount
        self.value_estimator = value_estimator or TD0()
        self.target_noise, self.noise_clip = target_noise, noise_clip

    def forward(self, batch: Batch) -> Losses:
        """The terms ``critic`` and ``actor`` of a batch ``[B, T]``."""
        return self.critic_loss(batch).joined(self.actor_loss(batch))

    def critic_loss(self, batch: Batch) -> Losses:
        """sum_i E[(Q_i(s, a) - y)^2]: Algorithm 1, "Update critics"."""
        values = self.critic(before(batch.obs), batch.action[:, :-1])  # [2, B, T-1]
        return squared_error(values, self.targets(batch), batch)

    def actor_loss(self, batch: Batch) -> Losses:
        """E[-Q_1(s, pi(s))]: Algorithm 1, "Update phi by the deterministic policy gradient"."""
        obs = before(batch.obs)
        with frozen(self.critic):
            value = first(self.critic, obs, self.actor(obs))  # [B, T-1]
        loss = -mean_over(value, transition_mask(batch.is_last))
        return Losses({"actor": loss}, {"loss/actor": loss.detach()})

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """The y ``[B, T - 1]``; of one transition, r + gamma (1 - terminal) min_i Q'_i(s', a~): algorithm 1."""
        return td_targets(batch, self.next_value(after(batch.obs)), self.value_estimator, self.discount)

    @torch.no_grad()
    def next_value(self, obs: Obs) -> Tensor:
        """Return the value of states for the targets, min_i Q'_i(s, a~), ``[...]``."""
        action: Tensor = self.target_actor(obs)  # [B, T-1, A]
        noise = (self.target_noise * torch.randn_like(action)).clamp(-self.noise_clip, self.noise_clip)
        values: Tensor = self.target_critic(obs, (action + noise).clamp(-1, 1))  # [2, B, T-1]
        return values.amin(0)

    def update_targets(self) -> None:
        """Update the targets, after a step of the actor: theta' <- tau theta + (1 - tau) theta'."""
        self.target_actor.update()
        self.target_critic.update()


class TD3(ModelFree):
    """The learner of TD3: actor and two critics, their updates and the policy that explores."""

    losses: type[TD3Objective] = TD3Objective
    stats: type[Stats] = TD3Stats

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: TD3Config, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        self.cfg = cfg
        seen, dtype = self.preprocess.spec, PRECISIONS[cfg.precision]
        width = continuous_width(cfg.algorithm, action_spec)
        actor = DeterministicActor(seen, width, cfg.networks, dtype)
        critic = QEnsemble(seen, width, cfg.networks, copies=2, dtype=dtype)
        self.objective = self.losses(actor, critic, **cfg.common())
        self.to(device)
        self.optims = {
            "actor": Adam(actor.parameters(), cfg.actor_lr),
            "critic": Adam(critic.parameters(), cfg.critic_lr),
        }
        self._policy = self.preprocess.policy(NoisyPolicy(actor, cfg.exploration, width, device), device)
        self.updates = 0

    def update(self, batch: Batch) -> Update:
        """Take one update of the critics, every d-th time with one of the actor and the targets: Algorithm 1.

        Python counts the updates and chooses between two methods, so that updates without the actor do not pay for it.
        Each method does the same work every time, and has a CUDA graph of its own.
        """
        self.updates += 1
        late = self.updates % self.cfg.policy_delay == 0
        return self.run_step(self.train_step if late else self.critic_step, batch)

    def critic_step(self, batch: Batch) -> Update:
        """Take one step of the critics alone."""
        critic = self.minimise(self.objective.critic_loss, self.preprocess(batch))
        return Update(metrics=critic.metrics, priority=critic.priority)

    def train_step(self, batch: Batch) -> Update:
        """Take one step of the critics, one of the actor through the new first critic, and one of the targets."""
        batch = self.preprocess(batch)
        critic = self.minimise(self.objective.critic_loss, batch)
        actor = self.minimise(self.objective.actor_loss, batch)
        self.objective.update_targets()
        return Update(metrics={**critic.metrics, **actor.metrics}, priority=critic.priority)

    def extra_state(self) -> dict[str, Any]:
        """Return the moments of both optimisers, and the number of updates."""
        return {**super().extra_state(), "updates": self.updates}

    def load_extra_state(self, state: State) -> None:
        """Restore them."""
        super().load_extra_state(state)
        self.updates = int(state["updates"])


TD3Config.learner = TD3

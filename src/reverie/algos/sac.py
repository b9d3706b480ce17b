"""SAC: Haarnoja et al., "Soft actor-critic algorithms and applications", arXiv:1812.05905, 2018.

It is the version with two critics, no value network and a learned temperature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.algos.base import PRECISIONS, ModelFree, ValueConfig
from reverie.core.checks import above, at_least, finite
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.stats import Stats
from reverie.core.types import Batch, Obs, Update
from reverie.nn.actor_critic import NetworkConfig, QEnsemble, TanhGaussianActor, continuous_width
from reverie.nn.exploration import SampledPolicy
from reverie.nn.optim import Adam, frozen
from reverie.nn.target import Target
from reverie.objectives.estimators import TD0, ValueEstimator, check_estimator
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, after, before, check_td, mean_over, squared_error, td_targets


@dataclass(frozen=True, kw_only=True)
class SACConfig(ValueConfig):
    """Settings of SAC: the paper's table 1 (appendix D)."""

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous"})

    batch_size: int = 256
    """B, windows in a batch."""
    batch_length: int = 2
    """T, rows of each window. The losses cover its T - 1 transitions; 2 is one transition."""
    value_estimator: ValueEstimator = field(default_factory=TD0)
    """How the critics' targets are computed from the rows of a window. The paper uses TD(0)."""
    actor_lr: float = 3e-4
    """Learning rate of the actor."""
    critic_lr: float = 3e-4
    """Learning rate of the critics."""
    temperature_lr: float = 3e-4
    """Learning rate of the temperature; 0 keeps the temperature constant."""
    tau: float = 0.005
    """Step of the target critics towards the critics at each target update, in (0, 1]; 1 copies them."""
    target_every: int = 1
    """Updates between two updates of the target critics."""
    temperature: float = 1.0
    """Initial temperature alpha, above 0: the authors' code (github.com/rail-berkeley/softlearning), as the paper gives
    none."""
    target_entropy: float | None = None
    """Entropy of the policy, in nats, that the temperature is learned to reach; None: -A, A dimensions of actions."""
    networks: NetworkConfig = field(default_factory=NetworkConfig)
    """Layers of the actor and the critics."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_td(self.discount, self.tau, self.target_every)
        check_estimator(self.value_estimator, algorithm=self.algorithm, rows=self.batch_length)
        above(self, temperature=0)
        at_least(self, temperature_lr=0)
        finite(self, "target_entropy")

    def common(self) -> dict[str, Any]:
        """Return the settings that the objective takes unchanged, by name."""
        names = ("temperature", "discount", "value_estimator", "tau", "target_every")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class SACStats(Stats):
    """Metrics of an update of SAC, discrete or not."""

    loss_critic: Tensor
    """E[w (Q - y)^2] / 2, summed over both critics."""
    train_value: Tensor
    """Mean Q of the taken actions over both critics."""
    train_target: Tensor
    """Mean target y."""
    loss_actor: Tensor
    """E[alpha ln pi(a | s) - min_i Q_i(s, a)]."""
    loss_temperature: Tensor
    """E[-alpha (ln pi(a | s) + target entropy)]."""
    train_entropy: Tensor
    """-E[ln pi(a | s)], in nats."""
    train_temperature: Tensor
    """Alpha, the weight of the entropy."""


class SACObjective(nn.Module):
    """The losses of SAC. ``objective(batch)`` is their terms by name; nothing else of this library is needed.

    ``actor(obs)`` gives a distribution with a differentiable ``sample() -> (action [..., A], log pi [...])``, such as
    ``nn/distributions.py: SquashedNormal``. ``critic(obs, action)`` gives the values ``[2, ...]`` of both critics;
    ``nn/actor_critic.py: Stacked`` combines two modules. The gradient of each term reaches its own parameters alone,
    that of ``temperature`` the one parameter ``log_temperature``.
    """

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        *,
        target_entropy: float,
        temperature: float = 1.0,
        discount: float = 0.99,
        value_estimator: ValueEstimator | None = None,
        tau: float = 0.005,
        target_every: int = 1,
    ) -> None:
        """``target_entropy``: in nats, -A in the paper. ``value_estimator``: TD(0) by default."""
        super().__init__()
        check_td(discount, tau, target_every, value_estimator)
        self.actor, self.critic = actor, critic
        self.target_critic = Target(critic, tau, target_every)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        self.target_entropy = target_entropy
        self.discount = discount
        self.value_estimator = value_estimator or TD0()

    @property
    def temperature(self) -> Tensor:
        """Alpha ``[]``, the weight of the entropy; without gradient."""
        return self.log_temperature.detach().exp()

    def forward(self, batch: Batch) -> Losses:
        """The terms ``critic``, ``actor`` and ``temperature`` of a batch ``[B, T]``."""
        return self.critic_loss(batch).joined(self.actor_loss(batch))

    def critic_loss(self, batch: Batch) -> Losses:
        """J_Q = sum_i E[(Q_i(s, a) - y)^2 / 2]: equation 5."""
        values = self.values(before(batch.obs), batch.action[:, :-1])  # [2, B, T-1]
        return squared_error(values, self.targets(batch), batch, scale=0.5)

    def values(self, obs: Obs, action: Tensor) -> Tensor:
        """Q_1 and Q_2 of the actions that were taken, ``[2, ...]``."""
        values: Tensor = self.critic(obs, action)
        return values

    def actor_loss(self, batch: Batch) -> Losses:
        """The terms ``actor`` and ``temperature``: equations 9 and 18, from the same actions.

        J_pi = E[alpha ln pi(a | s) - min_i Q_i(s, a)],  J_alpha = E[-alpha (ln pi(a | s) + target entropy)].
        """
        value, entropy = self.policy_value(before(batch.obs))  # [B, T-1]
        mask = transition_mask(batch.is_last)
        actor = -mean_over(value + self.temperature * entropy, mask)
        entropy = mean_over(entropy.detach(), mask)
        temperature = self.log_temperature.exp() * (entropy - self.target_entropy)
        metrics = {
            "loss/actor": actor.detach(),
            "loss/temperature": temperature.detach(),
            "train/entropy": entropy,
            "train/temperature": self.temperature,
        }
        return Losses({"actor": actor, "temperature": temperature}, metrics)

    def policy_value(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """min_i Q_i(s, a) and -ln pi(a | s) of sampled actions, ``[...]`` each, with the actor's gradient."""
        action, log_pi = self.actor(obs).sample()  # [..., A], [...]
        with frozen(self.critic):
            values: Tensor = self.critic(obs, action)  # [2, ...]
        return values.amin(0), -log_pi

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """The y ``[B, T - 1]``; of one transition, r + gamma (1 - terminal) V(s'): equations 2 and 3.

        Estimators of several steps include the entropy bonus -alpha ln pi of each row that they pass. The bonus of row
        t is added to the reward of row t + 1 and subtracted from the target of row t, since the value of an action
        includes the entropy of the states that it leads to, but not of the state that it is taken in.
        """
        value, entropy = self.next_value(after(batch.obs))  # [B, T-1]
        bonus = self.temperature * entropy  # [B, T-1]
        value = value + bonus  # [B, T-1]: V of rows 1 ... T-1
        bonus = F.pad(bonus, (1, 0))[:, :-1]  # [B, T-1], of rows 0 ... T-2; that of row 0 cancels, so 0 will do
        earned = torch.cat([batch.reward[:, :1], batch.reward[:, 1:] + bonus], 1)  # [B, T]
        return td_targets(batch, value, self.value_estimator, self.discount, reward=earned) - bonus

    @torch.no_grad()
    def next_value(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """min_i Q'_i(s, a) and -ln pi(a | s) of sampled actions, ``[...]`` each: the two terms of V(s), equation 3."""
        action, log_pi = self.actor(obs).sample()  # [..., A], [...]
        values: Tensor = self.target_critic(obs, action)  # [2, ...]
        return values.amin(0), -log_pi

    def update_targets(self) -> None:
        """Update the targets, after every update: theta' <- tau theta + (1 - tau) theta' at every n-th call."""
        self.target_critic.update()


class SAC(ModelFree):
    """The learner of SAC: actor, two critics and a temperature, their update and the policy."""

    losses: type[SACObjective] = SACObjective
    stats: type[Stats] = SACStats

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: SACConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        self.cfg = cfg
        self.objective = self.build_objective(self.preprocess.spec, action_spec)
        self.to(device)
        actor, critic = self.objective.actor, self.objective.critic
        self.optims = {
            "actor": Adam(actor.parameters(), cfg.actor_lr),
            "critic": Adam(critic.parameters(), cfg.critic_lr),
        }
        if cfg.temperature_lr:
            self.optims["temperature"] = Adam([self.objective.log_temperature], cfg.temperature_lr)
        else:
            self.objective.log_temperature.requires_grad_(False)
        self._policy = self.preprocess.policy(SampledPolicy(actor, device), device)

    def build_objective(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> SACObjective:
        """Build the networks for these specs and the losses over them."""
        c = self.cfg
        width, dtype = continuous_width(c.algorithm, action_spec), PRECISIONS[c.precision]
        actor = TanhGaussianActor(obs_spec, width, c.networks, dtype)
        critic = QEnsemble(obs_spec, width, c.networks, copies=2, dtype=dtype)
        entropy = -float(width) if c.target_entropy is None else c.target_entropy
        return self.losses(actor, critic, target_entropy=entropy, **c.common())

    def train_step(self, batch: Batch) -> Update:
        """Take one step of the critics, of the actor through the new critics, of the temperature and the targets."""
        return self.learn(self.preprocess(batch))

    def learn(self, batch: Batch) -> Update:
        """Do what :meth:`train_step` does, on a batch that has been preprocessed."""
        critic = self.minimise(self.objective.critic_loss, batch)
        rest = self.minimise(self.objective.actor_loss, batch)
        self.objective.update_targets()
        return Update(metrics={**critic.metrics, **rest.metrics}, priority=critic.priority)


SACConfig.learner = SAC

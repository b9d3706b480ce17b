"""IQL: Kostrikov, Nair, Levine, "Offline reinforcement learning with implicit Q-learning", ICLR 2022.

The value of a state is an expectile of the values of the dataset's actions there, so the critic is never evaluated at
actions outside the dataset. The policy imitates the dataset's actions, weighted by their advantage.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.base import PRECISIONS, ModelFree, ValueConfig
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.stats import Stats
from reverie.core.types import Batch, Obs, Update
from reverie.nn.actor_critic import FixedStdGaussianActor, Inputs, NetworkConfig, QEnsemble, continuous_width
from reverie.nn.exploration import SampledPolicy
from reverie.nn.normalise import Normalise, Running
from reverie.nn.optim import Adam
from reverie.nn.perceptron import ReluMLP
from reverie.nn.target import Target
from reverie.objectives.estimators import TD0, ValueEstimator, check_estimator
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, before, check_td, mean_over, squared_error, td_targets
from reverie.objectives.transforms import exp


@dataclass(frozen=True, kw_only=True)
class IQLConfig(ValueConfig):
    """Settings of IQL: those of the paper for MuJoCo (section 5.1, appendix B) and of its authors' code."""

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous"})
    needs_data: ClassVar[bool] = True
    in_units_of_values: ClassVar[str] = "beta"

    batch_size: int = 256
    """B, windows in a batch."""
    batch_length: int = 2
    """T, rows of each window. The losses cover its T - 1 transitions; 2 is one transition."""
    value_estimator: ValueEstimator = field(default_factory=TD0)
    """How the critics' targets are computed from the rows of a window. The paper uses TD(0)."""
    expectile: float = 0.7
    """Tau in (0, 1): V(s) is this expectile of the values of the dataset's actions. 0.5 is their mean, towards 1 their
    maximum. The paper has 0.9 for AntMaze."""
    beta: float = 3.0
    """Inverse temperature of the actor's weights exp(beta A): 0 imitates all actions alike. The paper has 10 for
    AntMaze."""
    max_weight: float = 100.0
    """Upper bound of the weights exp(beta A): the authors' code."""
    actor_lr: float = 3e-4
    """Learning rate of the actor."""
    actor_cosine: int = 0
    """Updates over which the actor's learning rate decays to 0 along half a cosine; 0: constant. The authors' 1000000
    are all updates of a run."""
    critic_lr: float = 3e-4
    """Learning rate of the critics."""
    value_lr: float = 3e-4
    """Learning rate of the value network."""
    tau: float = 0.005
    """Step of the target critics towards the critics at each target update, in (0, 1]; 1 copies them."""
    networks: NetworkConfig = field(default_factory=NetworkConfig)
    """Layers of the actor, the critics and the value network."""
    normalise: Normalise | None = field(default_factory=Running)
    """Normalise vectors: (x - mean) / std, over all rows of the dataset. The paper does not (None)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_td(self.discount, self.tau)
        check_estimator(self.value_estimator, algorithm=self.algorithm, rows=self.batch_length)
        check_regression(self.expectile, self.beta, self.max_weight)
        if self.actor_cosine < 0:
            raise ConfigError(f"actor_cosine = {self.actor_cosine}: expected a number of updates, 0 or more.")


def check_regression(expectile: float, beta: float, max_weight: float) -> None:
    """Raise ConfigError if one of these is out of range."""
    if not 0 < expectile < 1:
        raise ConfigError(f"expectile = {expectile}: expected a number in (0, 1).")
    if not (beta >= 0 and max_weight > 0):
        raise ConfigError(f"beta = {beta}, max_weight = {max_weight}: expected beta >= 0 and max_weight > 0.")


@dataclass(frozen=True, kw_only=True)
class IQLStats(Stats):
    """Metrics of an update of IQL."""

    loss_value: Tensor
    """Expectile loss of the value network: equation 5."""
    loss_actor: Tensor
    """E[-min(exp(beta A), max_weight) ln pi(a | s)]."""
    loss_critic: Tensor
    """E[w (Q - y)^2], summed over both critics."""
    train_state_value: Tensor
    """Mean V(s)."""
    train_advantage: Tensor
    """Mean advantage A = min_i Q'_i(s, a) - V(s)."""
    train_weight: Tensor
    """Mean weight min(exp(beta A), max_weight) in the actor's loss."""
    train_value: Tensor
    """Mean Q of the dataset's actions over both critics."""
    train_target: Tensor
    """Mean target y."""


class IQLObjective(nn.Module):
    """The losses of IQL. ``objective(batch)`` is their terms by name; nothing else of this library is needed.

    ``actor(obs)`` gives a distribution with ``log_prob(action)`` ``[...]``, ``critic(obs, action)`` the values
    ``[2, ...]`` of both critics and ``value(obs)`` a value ``[...]``. The gradient of each term reaches its own network
    alone.
    """

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        value: nn.Module,
        *,
        expectile: float = 0.7,
        beta: float = 3.0,
        max_weight: float = 100.0,
        discount: float = 0.99,
        value_estimator: ValueEstimator | None = None,
        tau: float = 0.005,
    ) -> None:
        """``value_estimator``: TD(0) by default. ``beta``, ``max_weight``: of the weights in the actor's loss."""
        super().__init__()
        check_td(discount, tau, value_estimator=value_estimator)
        check_regression(expectile, beta, max_weight)
        self.actor, self.critic, self.value = actor, critic, value
        self.target_critic = Target(critic, tau)
        self.expectile, self.beta, self.max_weight = expectile, beta, max_weight
        self.discount = discount
        self.value_estimator = value_estimator or TD0()

    def forward(self, batch: Batch) -> Losses:
        """Return the terms ``value``, ``actor`` and ``critic`` of a batch ``[B, T]``."""
        taken = self.taken_value(batch)
        losses = self.value_loss(batch, taken)
        values = self.state_values(batch)
        return losses.joined(self.actor_loss(batch, taken, values)).joined(self.critic_loss(batch, values))

    @torch.no_grad()
    def taken_value(self, batch: Batch) -> Tensor:
        """min_i Q'_i(s, a) of the dataset's actions, ``[B, T - 1]``."""
        values: Tensor = self.target_critic(before(batch.obs), batch.action[:, :-1])  # [2, B, T-1]
        return values.amin(0)

    @torch.no_grad()
    def state_values(self, batch: Batch) -> Tensor:
        """V(s) of all rows, ``[B, T]``."""
        values: Tensor = self.value(batch.obs)
        return values

    def value_loss(self, batch: Batch, taken: Tensor) -> Losses:
        """L_V = E[L_2^tau(min_i Q'_i(s, a) - V(s))]: equation 5. ``taken`` is that of :meth:`taken_value`."""
        value = self.value(before(batch.obs))  # [B, T-1]
        mask = transition_mask(batch.is_last)
        loss = mean_over(expectile_loss(taken - value, self.expectile), mask)
        metrics = {"loss/value": loss.detach(), "train/state_value": mean_over(value.detach(), mask)}
        return Losses({"value": loss}, metrics)

    def actor_loss(self, batch: Batch, taken: Tensor, values: Tensor) -> Losses:
        """L_pi = E[-exp(beta (min_i Q'_i(s, a) - V(s))) ln pi(a | s)]: equation 7. ``values``: all V(s)."""
        mask = transition_mask(batch.is_last)
        advantage = taken - values[:, :-1]  # [B, T-1]
        weight = exp(self.beta * advantage).clamp(max=self.max_weight)
        log_pi = self.actor(before(batch.obs)).log_prob(batch.action[:, :-1])  # [B, T-1]
        loss = -mean_over(weight * log_pi, mask)
        metrics = {
            "loss/actor": loss.detach(),
            "train/advantage": mean_over(advantage, mask),
            "train/weight": mean_over(weight, mask),
        }
        return Losses({"actor": loss}, metrics)

    def critic_loss(self, batch: Batch, values: Tensor) -> Losses:
        """L_Q = sum_i E[(r + gamma (1 - terminal) V(s') - Q_i(s, a))^2]: equation 6. ``values``: all V(s)."""
        predicted = self.critic(before(batch.obs), batch.action[:, :-1])  # [2, B, T-1]
        targets = td_targets(batch, values[:, 1:], self.value_estimator, self.discount)  # [B, T-1]
        return squared_error(predicted, targets, batch)

    def update_targets(self) -> None:
        """Update the targets, after every update: theta' <- tau theta + (1 - tau) theta'."""
        self.target_critic.update()


def expectile_loss(error: Tensor, tau: float) -> Tensor:
    """L_2^tau(u) = abs(tau - 1(u < 0)) u^2, ``[...]``: below equation 4."""
    return (tau - (error < 0).to(error.dtype)).abs() * error.square()


class StateValue(nn.Module):
    """V(s): an MLP."""

    def __init__(self, obs_spec: ObsSpec, cfg: NetworkConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.inputs = Inputs(obs_spec, cfg, dtype)
        self.body = ReluMLP(self.inputs.width, cfg.units, 1)

    def forward(self, obs: Obs) -> Tensor:
        """Return values ``[...]`` of observations ``[..., *shape]``."""
        y: Tensor = self.body(self.inputs(obs))
        return y.float().squeeze(-1)


class IQL(ModelFree):
    """The learner of IQL: actor, two critics and a value network, their update and the policy."""

    stats = IQLStats

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: IQLConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        self.cfg = cfg
        seen, dtype = self.preprocess.spec, PRECISIONS[cfg.precision]
        width = continuous_width(cfg.algorithm, action_spec)
        actor = FixedStdGaussianActor(seen, width, cfg.networks, dtype)
        critic = QEnsemble(seen, width, cfg.networks, copies=2, dtype=dtype)
        value = StateValue(seen, cfg.networks, dtype)
        self.objective = IQLObjective(
            actor,
            critic,
            value,
            expectile=cfg.expectile,
            beta=cfg.beta,
            max_weight=cfg.max_weight,
            discount=cfg.discount,
            value_estimator=cfg.value_estimator,
            tau=cfg.tau,
        )
        self.to(device)
        self.optims = {
            "value": Adam(value.parameters(), cfg.value_lr),
            "actor": Adam(actor.parameters(), cfg.actor_lr, cosine=cfg.actor_cosine),
            "critic": Adam(critic.parameters(), cfg.critic_lr),
        }
        self._policy = self.preprocess.policy(SampledPolicy(actor, device), device)

    def train_step(self, batch: Batch) -> Update:
        """Take one step of the value network, of the actor and the critics with the new values, and of the targets.

        The order is that of the authors' code; the paper's Algorithm 1 extracts the policy afterwards.
        """
        batch = self.preprocess(batch)
        taken = self.objective.taken_value(batch)
        losses = self.minimise(self.objective.value_loss, batch, taken)
        values = self.objective.state_values(batch)
        losses = losses.joined(self.minimise(self.objective.actor_loss, batch, taken, values))
        losses = losses.joined(self.minimise(self.objective.critic_loss, batch, values))
        self.objective.update_targets()
        return Update(metrics=losses.metrics, priority=losses.priority)


IQLConfig.learner = IQL

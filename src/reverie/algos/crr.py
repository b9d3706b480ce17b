"""CRR: Wang et al., "Critic regularized regression", NeurIPS 2020.

The policy imitates the dataset's actions, weighted by their advantage over the policy's own actions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.base import PRECISIONS, ModelFree, ValueConfig
from reverie.core.config import Choice
from reverie.core.errors import ConfigError, unwritten
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.stats import Stats
from reverie.core.types import Batch, Obs, Update
from reverie.nn.actor_critic import GaussianActor, NetworkConfig, QEnsemble, continuous_width, draws, several
from reverie.nn.exploration import SampledPolicy
from reverie.nn.normalise import Normalise, Running
from reverie.nn.optim import Adam
from reverie.nn.target import Target
from reverie.objectives.estimators import TD0, ValueEstimator, check_estimator
from reverie.objectives.filters import Exp, Filter
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, after, before, check_td, mean_over, squared_error, td_targets


@dataclass(frozen=True)
class Baseline(Choice):
    """The baseline of the advantage, computed from the values of m actions sampled from the policy."""

    def __call__(self, values: Tensor) -> Tensor:
        """Return the baseline ``[...]`` of values ``[..., m]``."""
        raise unwritten(self, "__call__")


@dataclass(frozen=True)
class Mean(Baseline):
    """Mean of the values: table 1."""

    def __call__(self, values: Tensor) -> Tensor:
        """Return the mean ``[...]`` of values ``[..., m]``."""
        return values.mean(-1)


@dataclass(frozen=True)
class Max(Baseline):
    """Maximum of the values: table 1."""

    def __call__(self, values: Tensor) -> Tensor:
        """Return the maximum ``[...]`` of values ``[..., m]``."""
        return values.amax(-1)


@dataclass(frozen=True, kw_only=True)
class CRRConfig(ValueConfig):
    """Settings of CRR: those of the paper and, for vector observations, of DeepMind's code (Acme).

    The paper's critic predicts a distribution and its policy is a mixture. Here, as in Acme and d3rlpy, the critic
    predicts a scalar and the policy is one normal distribution.
    """

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous"})
    needs_data: ClassVar[bool] = True
    in_units_of_values: ClassVar[str] = "filter"

    batch_size: int = 256
    """B, windows in a batch."""
    batch_length: int = 2
    """T, rows of each window. The losses cover its T - 1 transitions; 2 is one transition."""
    value_estimator: ValueEstimator = field(default_factory=TD0)
    """How the critic's targets are computed from the rows of a window. The paper uses TD(0)."""
    filter: Filter = field(default_factory=Exp)
    """Weight f(A) of an action in the actor's loss, by its advantage A: exp(1, 20), binary, or all."""
    baseline: Baseline = field(default_factory=Mean)
    """Baseline of the advantage: mean or max of the values of the policy's actions."""
    samples: int = 4
    """m, actions sampled from the policy for the baseline."""
    critics: int = 1
    """Number of critics; their minimum is used. The paper has one."""
    actor_lr: float = 3e-4
    """Learning rate of the actor: Acme. The paper has 0.0001."""
    critic_lr: float = 3e-4
    """Learning rate of the critic: Acme. The paper has 0.0001."""
    tau: float = 1.0
    """Step of the targets towards their networks at each target update, in (0, 1]; 1 copies them."""
    target_every: int = 100
    """Updates between two updates of the targets."""
    bound_values: bool = True
    """Clip the values that targets bootstrap from to the returns that the rewards seen so far allow. Errors at actions
    that the data lack are never corrected and may diverge. The paper does not clip. Ignored with reward_scale =
    return_std."""
    networks: NetworkConfig = field(default_factory=NetworkConfig)
    """Layers of the actor and the critic: Acme. The paper has residual networks."""
    normalise: Normalise | None = field(default_factory=Running)
    """Normalise vectors: (x - mean) / std, over all rows of the dataset. The paper does not (None)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_td(self.discount, self.tau, self.target_every)
        check_estimator(self.value_estimator, algorithm=self.algorithm, rows=self.batch_length)
        if self.samples < 1 or self.critics < 1:
            raise ConfigError(f"samples = {self.samples}, critics = {self.critics}: expected at least 1.")


@dataclass(frozen=True, kw_only=True)
class CRRStats(Stats):
    """Metrics of an update of CRR."""

    loss_critic: Tensor
    """E[w (Q - y)^2], summed over the critics."""
    train_value: Tensor
    """Mean Q of the dataset's actions."""
    train_target: Tensor
    """Mean target y."""
    loss_actor: Tensor
    """E[-f ln pi(a | s)]."""
    train_advantage: Tensor
    """Mean advantage A of the dataset's actions over the policy's."""
    train_weight: Tensor
    """Mean weight f of these actions in the actor's loss."""


class CRRObjective(nn.Module):
    """The losses of CRR. ``objective(batch)`` is their terms by name; nothing else of this library is needed.

    ``actor(obs)`` is a distribution with ``sample() -> (action [..., A], log pi [...])`` and ``log_prob(action)``;
    ``critic(obs, action)`` gives the values ``[K, ...]`` of K critics. The gradient of each term reaches its own
    network alone. For other kinds of actions, override :meth:`critic_loss`, :meth:`advantage` and :meth:`next_value`.
    """

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        *,
        filter: Filter | None = None,
        baseline: Baseline | None = None,
        samples: int = 4,
        discount: float = 0.99,
        value_estimator: ValueEstimator | None = None,
        tau: float = 1.0,
        target_every: int = 100,
        within: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Defaults: ``filter`` exp, ``baseline`` mean, ``value_estimator`` TD(0). ``samples`` is m.

        ``within`` clips the values that targets bootstrap from.
        """
        super().__init__()
        check_td(discount, tau, target_every, value_estimator)
        self.actor, self.critic = actor, critic
        self.target_actor, self.target_critic = Target(actor, tau, target_every), Target(critic, tau, target_every)
        self.filter, self.baseline, self.samples = filter or Exp(), baseline or Mean(), samples
        self.discount = discount
        self.value_estimator, self.within = value_estimator or TD0(), within

    def forward(self, batch: Batch) -> Losses:
        """The terms ``critic`` and ``actor`` of a batch ``[B, T]``."""
        return self.critic_loss(batch).joined(self.actor_loss(batch))

    def critic_loss(self, batch: Batch) -> Losses:
        """sum_i E[(Q_i(s, a) - y)^2], y = r + gamma (1 - terminal) Q'(s', a'), a' ~ pi'(s'): Algorithm 1."""
        values = self.taken_value(before(batch.obs), batch.action[:, :-1])  # [K, B, T-1]
        return squared_error(values, self.targets(batch), batch)

    def actor_loss(self, batch: Batch) -> Losses:
        """E[-f(A) ln pi(a | s)], where f has no gradient: equation 2."""
        obs, action, mask = before(batch.obs), batch.action[:, :-1], transition_mask(batch.is_last)
        policy = self.actor(obs)
        with torch.no_grad():
            advantage = self.advantage(obs, action, policy)  # [B, T-1]
            weight = self.filter(advantage)
        loss = -mean_over(weight * policy.log_prob(action), mask)
        metrics = {
            "loss/actor": loss.detach(),
            "train/advantage": mean_over(advantage, mask),
            "train/weight": mean_over(weight, mask),
        }
        return Losses({"actor": loss}, metrics)

    def taken_value(self, obs: Obs, action: Tensor) -> Tensor:
        """Q_i of given actions ``[..., A]``, ``[K, ...]``."""
        values: Tensor = self.critic(obs, action)
        return values

    @torch.no_grad()
    def advantage(self, obs: Obs, action: Tensor, policy: Any) -> Tensor:
        """Advantage A ``[...]`` of actions ``[..., A]`` over the policy's: table 1."""
        return self.taken_value(obs, action).amin(0) - self.policy_value(obs, policy)

    @torch.no_grad()
    def policy_value(self, obs: Obs, policy: Any) -> Tensor:
        """Baseline over min_i Q_i of m actions sampled from the policy, ``[...]``: table 1."""
        actions, _ = draws(policy, self.samples)  # [..., m, A]
        return self.baseline(several(self.critic, obs, actions).amin(0))

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """The y ``[B, T - 1]``; of one transition, r + gamma (1 - terminal) Q'(s', a'): Algorithm 1."""
        value = self.next_value(after(batch.obs))  # [B, T-1]
        return td_targets(batch, value, self.value_estimator, self.discount, within=self.within)

    @torch.no_grad()
    def next_value(self, obs: Obs) -> Tensor:
        """min_i Q'_i(s, a), a ~ pi'(s), ``[...]``."""
        action, _ = self.target_actor(obs).sample()
        values: Tensor = self.target_critic(obs, action)  # [K, ...]
        return values.amin(0)

    def update_targets(self) -> None:
        """Update the targets, after every update: theta' <- tau theta + (1 - tau) theta' at every n-th call."""
        self.target_actor.update()
        self.target_critic.update()


class CRR(ModelFree):
    """The learner of CRR: actor and critic, their update and the policy."""

    stats = CRRStats

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: CRRConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        self.cfg = cfg
        self.objective = self.build_objective(self.preprocess.spec, action_spec)
        self.to(device)
        actor, critic = self.objective.actor, self.objective.critic
        self.optims = {
            "actor": Adam(actor.parameters(), cfg.actor_lr),
            "critic": Adam(critic.parameters(), cfg.critic_lr),
        }
        self._policy = self.preprocess.policy(SampledPolicy(actor, device), device)

    def build_objective(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> CRRObjective:
        """Build the networks for these specs and the losses over them."""
        c = self.cfg
        width, dtype = continuous_width(c.algorithm, action_spec), PRECISIONS[c.precision]
        actor = GaussianActor(obs_spec, width, c.networks, dtype)
        critic = QEnsemble(obs_spec, width, c.networks, copies=c.critics, dtype=dtype)
        names = ("filter", "baseline", "samples", "discount", "value_estimator", "tau", "target_every")
        settings = {name: getattr(c, name) for name in names}
        return CRRObjective(actor, critic, **settings, within=self.within_range)

    def train_step(self, batch: Batch) -> Update:
        """Take one step of the critic, of the actor with the new critic, and of the targets."""
        batch = self.preprocess(batch)
        critic = self.minimise(self.objective.critic_loss, batch)
        actor = self.minimise(self.objective.actor_loss, batch)
        self.objective.update_targets()
        return Update(metrics={**critic.metrics, **actor.metrics}, priority=critic.priority)


CRRConfig.learner = CRR

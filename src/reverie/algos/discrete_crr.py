"""Discrete CRR: Wang et al., "Critic regularized regression", NeurIPS 2020, arXiv:2006.15134.

CRR for a single discrete action. The critic gives the values of all actions at once, so expectations over actions are
exact sums and no actions are sampled in updates. The CQL penalty (arXiv:2006.04779) may be added, which Tianshou found
to help on Atari.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.base import PRECISIONS, ModelFree, ValueConfig
from reverie.algos.crr import CRRObjective
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.stats import Stats
from reverie.core.types import Batch, Obs, Update
from reverie.nn.actor_critic import ChoicesActor, DiscreteQEnsemble, NetworkConfig, single_choice
from reverie.nn.distributions import Choices
from reverie.nn.exploration import SampledPolicy
from reverie.nn.normalise import Normalise, Running
from reverie.nn.optim import Adam
from reverie.objectives.categorical import expected_min_q
from reverie.objectives.conservative import check_min_q_weight, choice_gap, pressed
from reverie.objectives.estimators import TD0, ValueEstimator, check_estimator
from reverie.objectives.filters import Exp, Filter
from reverie.objectives.td import Losses, before, check_td, squared_error


@dataclass(frozen=True, kw_only=True)
class DiscreteCRRConfig(ValueConfig):
    """Settings of discrete CRR: those of CRR, and of Tianshou for what CRR does not have.

    For Atari, Tianshou has batches of 32, a learning rate of 0.0001, targets that are copied every 500 updates, and
    min_q_weight = 10.
    """

    action_kinds: ClassVar[frozenset[str]] = frozenset({"discrete"})
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
    min_q_weight: float = 0.0
    """Weight alpha of the CQL penalty, 0 or more: 0 is the paper, Tianshou has 10."""
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
        check_min_q_weight(self.min_q_weight)
        if self.critics < 1:
            raise ConfigError(f"critics = {self.critics}: expected at least 1.")


@dataclass(frozen=True, kw_only=True)
class DiscreteCRRStats(Stats):
    """Metrics of an update of discrete CRR."""

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
    train_gap: Tensor | None = None
    """E[ln sum_a' exp Q(s, a') - Q(s, a)], summed over the critics; only with min_q_weight above 0."""
    loss_conservative: Tensor | None = None
    """CQL penalty: min_q_weight times the gap; only with min_q_weight above 0."""


class DiscreteCRRObjective(CRRObjective):
    """The losses of discrete CRR, with the terms and targets of :class:`~reverie.algos.crr.CRRObjective`.

    ``actor(obs)`` gives :class:`~reverie.nn.actor_critic.Choices` of one action and ``critic(obs)`` the values of all
    actions, ``[K, ..., A]``. Actions of the batch are one-hot.
    """

    def __init__(self, actor: nn.Module, critic: nn.Module, *, min_q_weight: float = 0.0, **settings: Any) -> None:
        """``min_q_weight``: weight of the CQL penalty. The rest is as in CRR; ``samples`` is not used."""
        super().__init__(actor, critic, **settings)
        check_min_q_weight(min_q_weight)
        self.min_q_weight = min_q_weight

    def critic_loss(self, batch: Batch) -> Losses:
        """sum_i E[(Q_i(s, a) - y)^2] + alpha E[ln sum_a' exp Q_i(s, a') - Q_i(s, a)].

        y = r + gamma (1 - terminal) sum_a' pi'(a' | s') Q'(s', a'): Algorithm 1, whose expectation is exact here.
        """
        values: Tensor = self.critic(before(batch.obs))  # [K, B, T-1, A]
        taken = (values * batch.action[:, :-1]).sum(-1)  # [K, B, T-1]
        losses = squared_error(taken, self.targets(batch), batch)
        if not self.min_q_weight:
            return losses
        return pressed(losses, choice_gap(values, batch), self.min_q_weight)

    @torch.no_grad()
    def advantage(self, obs: Obs, action: Tensor, policy: Any) -> Tensor:
        """A = Q(s, a) - sum_b pi(b | s) Q(s, b), ``[...]``, of actions ``[..., A]``: table 1, "mean"."""
        values: Tensor = self.critic(obs)  # [K, ..., A]
        taken = (values * action).sum(-1).amin(0)  # [...]
        own: Tensor = policy.mean(values.amin(0))  # [...]
        return taken - own

    @torch.no_grad()
    def next_value(self, obs: Obs) -> Tensor:
        """sum_a pi'(a | s) min_i Q'_i(s, a), ``[...]``."""
        policy: Choices = self.target_actor(obs)
        values: Tensor = self.target_critic(obs)  # [K, ..., A]
        return expected_min_q(policy.logits, values)


class DiscreteCRR(ModelFree):
    """The learner of discrete CRR: actor and critic over one discrete action, their update and the policy."""

    stats = DiscreteCRRStats

    def __init__(
        self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: DiscreteCRRConfig, device: torch.device
    ) -> None:
        super().__init__(obs_spec, cfg, device)
        self.cfg = cfg
        classes = single_choice(cfg.algorithm, action_spec)
        seen, dtype = self.preprocess.spec, PRECISIONS[cfg.precision]
        actor = ChoicesActor(seen, (classes,), cfg.networks, dtype)
        critic = DiscreteQEnsemble(seen, classes, cfg.networks, cfg.critics, dtype)
        names = ("filter", "min_q_weight", "discount", "value_estimator", "tau", "target_every")
        settings = {name: getattr(cfg, name) for name in names}
        self.objective = DiscreteCRRObjective(actor, critic, **settings, within=self.within_range)
        self.to(device)
        self.optims = {
            "actor": Adam(actor.parameters(), cfg.actor_lr),
            "critic": Adam(critic.parameters(), cfg.critic_lr),
        }
        self._policy = self.preprocess.policy(SampledPolicy(actor, device), device)

    def train_step(self, batch: Batch) -> Update:
        """Take one step of the critic, of the actor with the new critic, and of the targets."""
        batch = self.preprocess(batch)
        critic = self.minimise(self.objective.critic_loss, batch)
        actor = self.minimise(self.objective.actor_loss, batch)
        self.objective.update_targets()
        return Update(metrics={**critic.metrics, **actor.metrics}, priority=critic.priority)


DiscreteCRRConfig.learner = DiscreteCRR

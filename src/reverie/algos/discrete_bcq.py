"""Discrete BCQ: Fujimoto, Conti, Ghavamzadeh, Pineau, "Benchmarking batch deep RL algorithms", arXiv:1910.01708, 2019.

Double Q-learning among the actions that a clone of the dataset's policy finds likely enough, in targets and acting.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.base import PRECISIONS, ModelFree, ValueConfig
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.stats import Stats
from reverie.core.types import Batch, Obs, Update
from reverie.nn.actor_critic import DiscreteQEnsemble, NetworkConfig, single_choice
from reverie.nn.exploration import EpsilonGreedy, EpsilonSchedule, GreedyPolicy
from reverie.nn.normalise import Normalise, Running
from reverie.nn.optim import Adam
from reverie.nn.target import Target
from reverie.objectives.categorical import likely_values, masked_argmax_value
from reverie.objectives.estimators import TD0, ValueEstimator, check_estimator
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, after, before, check_td, huber_error, mean_over, td_targets


def check_settings(threshold: float, logit_weight: float, kappa: float) -> None:
    """Raise ConfigError if one of these is out of range."""
    if not 0 <= threshold <= 1:
        raise ConfigError(
            f"threshold = {threshold}: expected a number in [0, 1]; 0 is double Q-learning, 1 behaviour cloning."
        )
    if not 0 <= logit_weight < math.inf:
        raise ConfigError(f"logit_weight = {logit_weight}: expected a finite number, 0 or more.")
    if not kappa > 0:
        raise ConfigError(f"kappa = {kappa}: expected a number above 0; inf gives the squared error.")


@dataclass(frozen=True, kw_only=True)
class DiscreteBCQConfig(ValueConfig):
    """Settings of discrete BCQ: those of the authors' code for vector observations (github.com/sfujim/BCQ).

    For Atari their code has batches of 32, a learning rate of 0.0000625, adam_eps = 0.00015, tau = 1 and target_every =
    8000.
    """

    action_kinds: ClassVar[frozenset[str]] = frozenset({"discrete"})
    needs_data: ClassVar[bool] = True

    batch_size: int = 256
    """B, windows in a batch. The authors' code has 64."""
    batch_length: int = 2
    """T, rows of each window. The losses cover its T - 1 transitions; 2 is one transition."""
    value_estimator: ValueEstimator = field(default_factory=TD0)
    """How targets are computed from the rows of a window. The paper uses TD(0)."""
    threshold: float = 0.3
    """Smallest probability of an action relative to the likeliest one, in [0, 1] (tau in the paper); others are
    excluded. 0 allows all actions, 1 only the likeliest."""
    logit_weight: float = 0.01
    """Weight of the mean squared logit of the clone, a regulariser: the authors' code."""
    kappa: float = 1.0
    """Threshold of the Huber loss: errors are squared up to kappa and linear beyond; inf: always squared."""
    lr: float = 3e-4
    """Learning rate of Adam."""
    adam_eps: float = 1e-8
    """Adam's epsilon, added to the root of the second moment."""
    tau: float = 0.005
    """Step of the target towards the network at each target update, in (0, 1]; 1 copies it."""
    target_every: int = 1
    """Updates between two updates of the target."""
    exploration: EpsilonSchedule = field(default_factory=lambda: EpsilonGreedy(0.05))
    """Random actions while exploring: when recording data, or when training online after offline."""
    bound_values: bool = True
    """Clip the values that targets bootstrap from to the returns that the rewards seen so far allow. Errors at actions
    that the data lack are never corrected and may diverge. The paper does not clip. Ignored with reward_scale =
    return_std."""
    networks: NetworkConfig = field(default_factory=NetworkConfig)
    """Layers of the values and of the clone: an MLP each, and one CNN for both."""
    normalise: Normalise | None = field(default_factory=Running)
    """Normalise vectors: (x - mean) / std, over all rows of the dataset. The paper does not (None)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_td(self.discount, self.tau, self.target_every)
        check_estimator(self.value_estimator, algorithm=self.algorithm, rows=self.batch_length)
        check_settings(self.threshold, self.logit_weight, self.kappa)


@dataclass(frozen=True, kw_only=True)
class DiscreteBCQStats(Stats):
    """Metrics of an update of discrete BCQ."""

    loss_critic: Tensor
    """E[w L(Q(s, a) - y)]."""
    train_value: Tensor
    """Mean Q of the dataset's actions."""
    train_target: Tensor
    """Mean target y."""
    loss_imitation: Tensor
    """E[-ln G(a | s)], the cross entropy of the clone, plus the regulariser of its logits."""


class DiscreteBCQObjective(nn.Module):
    """The losses of discrete BCQ. ``objective(batch)`` is its terms by name; nothing else of this library is needed.

    ``network(obs)`` gives the values of all actions and the clone's logits, ``[2, ..., A]``. Actions of the batch are
    one-hot.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        threshold: float = 0.3,
        logit_weight: float = 0.01,
        discount: float = 0.99,
        value_estimator: ValueEstimator | None = None,
        kappa: float = 1.0,
        tau: float = 0.005,
        target_every: int = 1,
        within: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """``value_estimator``: TD(0) by default. ``tau``, ``target_every``: how the target follows the network.

        ``within`` clips the values that targets bootstrap from.
        """
        super().__init__()
        check_td(discount, tau, target_every, value_estimator)
        check_settings(threshold, logit_weight, kappa)
        self.network, self.target_network = network, Target(network, tau, target_every)
        self.log_threshold = math.log(threshold) if threshold else -math.inf
        self.logit_weight, self.discount, self.kappa = logit_weight, discount, kappa
        self.value_estimator, self.within = value_estimator or TD0(), within

    def forward(self, batch: Batch) -> Losses:
        """The terms ``critic`` and ``imitation`` of a batch ``[B, T]``: Algorithm 1.

        E[L(Q(s, a) - y)], and E[-ln G(a | s)] + logit_weight E[i^2] with the clone's logits i, averaged over the
        actions too: the authors' code. The gradients of both reach a shared CNN.
        """
        values, logits = self.network(before(batch.obs)).unbind()  # [B, T-1, A]
        action = batch.action[:, :-1]  # [B, T-1, A]
        losses = huber_error((values * action).sum(-1), self.targets(batch), batch, self.kappa)
        unlikely = torch.logsumexp(logits, -1) - (logits * action).sum(-1)  # [B, T-1]
        wide = logits.square().mean(-1)  # [B, T-1]
        imitation = mean_over(unlikely + self.logit_weight * wide, transition_mask(batch.is_last))
        return losses.joined(Losses({"imitation": imitation}, {"loss/imitation": imitation.detach()}))

    def loss(self, batch: Batch) -> Losses:
        """The single term ``network`` that is minimised: the sum of both terms."""
        losses = self(batch)
        return Losses({"network": losses.terms["critic"] + losses.terms["imitation"]}, losses.metrics, losses.priority)

    def values(self, obs: Obs) -> Tensor:
        """Q of the actions that are likely enough, ``[..., A]``, and -inf for all others."""
        values, logits = self.network(obs).unbind()  # [..., A]
        return likely_values(values, logits, self.log_threshold)

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """The y ``[B, T - 1]``; of one transition, r + gamma (1 - terminal) Q'(s', a'): Algorithm 1."""
        value = self.next_value(after(batch.obs))  # [B, T-1]
        return td_targets(batch, value, self.value_estimator, self.discount, within=self.within)

    @torch.no_grad()
    def next_value(self, obs: Obs) -> Tensor:
        """Q'(s, a*) ``[...]``, where a* is the network's best action among the likely ones: double Q-learning."""
        (values, logits), target = self.network(obs).unbind(), first(self.target_network.model, obs)  # [..., A]
        return masked_argmax_value(values, logits, target, self.log_threshold)

    def update_targets(self) -> None:
        """Update the target, after every update: theta' <- tau theta + (1 - tau) theta' at every n-th call."""
        self.target_network.update()


def first(network: nn.Module, obs: Obs) -> Tensor:
    """Return the values ``[..., A]`` of a network that also has logits, without computing these if it can."""
    ask = getattr(network, "first", None)
    values: Tensor = network(obs)[0] if ask is None else ask(obs)
    return values


class DiscreteBCQ(ModelFree):
    """The learner of discrete BCQ: values and a clone, their update, and the policy, greedy among likely actions."""

    stats = DiscreteBCQStats

    def __init__(
        self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: DiscreteBCQConfig, device: torch.device
    ) -> None:
        super().__init__(obs_spec, cfg, device)
        self.cfg = cfg
        classes, dtype = single_choice(cfg.algorithm, action_spec), PRECISIONS[cfg.precision]
        network = DiscreteQEnsemble(self.preprocess.spec, classes, cfg.networks, 2, dtype)
        names = ("threshold", "logit_weight", "discount", "value_estimator", "kappa", "tau", "target_every")
        settings = {name: getattr(cfg, name) for name in names}
        self.objective = DiscreteBCQObjective(network, **settings, within=self.within_range)
        self.to(device)
        self.optims = {"network": Adam(network.parameters(), cfg.lr, eps=cfg.adam_eps)}
        greedy = GreedyPolicy(self.objective.values, cfg.exploration, classes, device)
        self._policy = self.preprocess.policy(greedy, device)

    def train_step(self, batch: Batch) -> Update:
        """Take one step of values and clone together, and one of the target: Algorithm 1."""
        losses = self.minimise(self.objective.loss, self.preprocess(batch))
        self.objective.update_targets()
        return Update(metrics=losses.metrics, priority=losses.priority)


DiscreteBCQConfig.learner = DiscreteBCQ

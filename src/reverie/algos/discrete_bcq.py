"""Discrete BCQ: Fujimoto, Conti, Ghavamzadeh, Pineau, "Benchmarking batch deep RL algorithms", arXiv:1910.01708, 2019.

Double Q-learning, restricted to actions that are likely under a clone of the behavior policy, in targets and acting.
With several choices, each choice is a separate branch with its own likely classes, as in :mod:`~reverie.algos.dqn`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.model_free import BoundedValueConfig, ClipFn, ModelFree
from reverie.algos.td import TDConfig, TDObjective
from reverie.core.bounds import Above, AtLeast, ScheduledFloat, Within
from reverie.core.specs import ActionSpec, ObsSpec, num_classes_per_choice
from reverie.core.types import Batch, Obs, Update
from reverie.nn.actor_critic import DiscreteQEnsemble
from reverie.nn.adam import Adam
from reverie.nn.exploration import CapturableFunction, EpsilonGreedy, EpsilonSchedule, GreedyPolicy
from reverie.nn.functional import ILLEGAL
from reverie.nn.network import MemoryNetworkConfig
from reverie.nn.target_network import TargetNetwork
from reverie.objectives.categorical import best_value, choice_weight, chosen_value, likely_values, logsumexp_joint
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, huber_error, masked_mean, obs_after, obs_before

# ---------------------------------------------------------------------- losses


class DiscreteBCQObjective(TDObjective):
    """The losses of discrete BCQ over any ``network(obs, copy=None)`` of values and clone logits, ``[2, ..., A]``.

    ``copy=0`` returns only the values, ``[..., A]``. Actions of the batch are one-hot.
    """

    cfg: DiscreteBCQConfig

    def __init__(
        self, network: nn.Module, cfg: DiscreteBCQConfig, within: ClipFn = None, classes: tuple[int, ...] = ()
    ) -> None:
        """``classes``: number of classes of each choice, one block after the other in A; ``()``: a single choice."""
        super().__init__(cfg)
        self.within = within
        self.classes = classes
        self.network = network
        self.target_network: TargetNetwork = TargetNetwork(network, cfg.tau, cfg.target_update_interval)
        self.log_threshold: float = math.log(cfg.threshold) if cfg.threshold else -math.inf

    def forward(self, batch: Batch) -> Losses:
        """Return the terms ``critic`` and ``bc`` of a batch ``[B, T]``: Algorithm 1.

        E[L(Q(s, a) - y)], and E[-ln G(a | s)] + logit_weight E[i^2] with the clone's logits i, also averaged over
        actions as in the authors' code. Both losses train a shared CNN. With several choices, the first loss is
        averaged over them, and G is the product of their probabilities.
        """
        values, logits = self.network(obs_before(batch.obs)).unbind()  # [B, T-1, A]
        action = batch.action[:, :-1]  # [B, T-1, A]
        chosen = chosen_value(values, action, self.classes)  # [(D,) B, T-1]
        losses = huber_error(chosen, self.targets(batch), batch, self.cfg.kappa, choice_weight(self.classes))
        unlikely = logsumexp_joint(logits, self.classes) - (logits * action).sum(-1)  # [B, T-1]
        wide = logits.masked_fill(logits <= ILLEGAL, 0.0).square().mean(-1)  # [B, T-1]
        imitation = masked_mean(unlikely + self.cfg.logit_weight * wide, transition_mask(batch.is_last))
        return losses._replace(terms=losses.terms | {"bc": imitation})

    def values(self, obs: Obs) -> Tensor:
        """Q of the actions that are likely enough, ``[..., A]``, and -inf for all others."""
        values, logits = self.network(obs).unbind()  # [..., A]
        return likely_values(values, logits, self.log_threshold, self.classes)

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """Y = r + gamma (1 - terminal) Q'(s', a*), a* the network's best among the likely actions.  ``[B, T - 1]``."""
        obs, c = obs_after(batch.obs), self.cfg
        target = self.target_network.model(obs, copy=0)  # [B, T-1, A]
        value = best_value(target, self.values(obs), self.classes)  # [B, T-1]
        value = value if self.within is None else self.within(value)
        return c.value_estimator(batch, value, self.discount)


# ---------------------------------------------------------------------- learner


class DiscreteBCQ(ModelFree):
    """The learner of discrete BCQ: values and a clone, their update, and the policy, greedy among likely actions."""

    def __init__(
        self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: DiscreteBCQConfig, device: torch.device
    ) -> None:
        super().__init__(obs_spec, cfg, device)
        classes = num_classes_per_choice(action_spec)
        network = DiscreteQEnsemble(self.preprocess.spec, action_spec.width, cfg.networks, 2, cfg.dtype)
        self.objective: DiscreteBCQObjective = DiscreteBCQObjective(network, cfg, self.clip_to_return_range, classes)
        self.to(device)
        self.optims["network"] = Adam(network.parameters(), cfg.lr, eps=cfg.adam_eps)
        values = CapturableFunction(self.objective.values, self.objective.network, graph=cfg.graph)
        self._policy = self.with_memory(GreedyPolicy(values, cfg.exploration, classes, device))

    def train_step(self, batch: Batch) -> Update:
        """Take one step of values and clone together, and one of the target: Algorithm 1."""
        losses = self.objective(batch)
        self.optims["network"].step(losses.terms["critic"] + losses.terms["bc"])
        self.objective.target_network.update()
        metrics = losses.update().metrics
        return Update(metrics=metrics, priority=losses.priority, extras=self.memory_states(batch))


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class DiscreteBCQConfig(BoundedValueConfig, TDConfig):
    """Settings of discrete BCQ, with the defaults of the authors' code for vector observations.

    That code (github.com/sfujim/BCQ) uses batches of 64. For Atari it uses batches of 32, a learning rate of 0.0000625,
    adam_eps = 0.00015, tau = 1
    and target_update_interval = 8000.
    """

    action_kinds: ClassVar[frozenset[str]] = frozenset({"discrete", "multi_discrete"})

    networks: MemoryNetworkConfig = field(default_factory=MemoryNetworkConfig)
    """Layers of the network, optionally with a memory."""
    threshold: Annotated[float, Within("[0, 1]")] = 0.3
    """Smallest probability of an action relative to the likeliest one (tau in the paper); others are excluded. 0 allows
    all actions, as in double Q-learning, 1 only the likeliest: behavior cloning."""
    logit_weight: Annotated[float, AtLeast(0)] = 0.01
    """Weight of the mean squared logit of the clone, a regularizer: the authors' code."""
    kappa: Annotated[float, Within("(0, inf]")] = 1.0
    """Threshold of the Huber loss: errors are squared up to kappa and linear beyond; inf: always squared."""
    lr: Annotated[ScheduledFloat, Above(0)] = 3e-4
    """Learning rate of Adam."""
    adam_eps: Annotated[float, Above(0)] = 1e-8
    """Adam's epsilon, added to the root of the second moment."""
    target_update_interval: Annotated[int, AtLeast(1)] = 1
    """Gradient updates between two updates of the target network."""
    exploration: EpsilonSchedule = field(default_factory=lambda: EpsilonGreedy(0.05))
    """Random actions while exploring: when recording data, or when training online after offline."""


DiscreteBCQConfig.learner = DiscreteBCQ

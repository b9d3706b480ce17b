"""Discrete CRR: Wang et al., "Critic regularized regression", NeurIPS 2020, arXiv:2006.15134.

CRR for discrete actions. The critic gives the values of all actions at once, so expectations over actions are exact
sums and no actions are sampled in updates; values of several choices are additive, as in
:mod:`~reverie.algos.discrete_sac`. The CQL penalty (arXiv:2006.04779) may be added, which Tianshou found
to help on Atari.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.crr import CRR, CRRBaseConfig, CRRObjective
from reverie.algos.model_free import BoundedValueConfig, ClipFn
from reverie.algos.td import TDConfig
from reverie.core.bounds import AtLeast
from reverie.core.specs import ActionSpec, ObsSpec, num_classes_per_choice
from reverie.core.types import Batch, Obs
from reverie.nn.actor_critic import DiscreteQEnsemble
from reverie.nn.actors import CategoricalActor
from reverie.nn.distributions import Categoricals
from reverie.nn.network import MemoryNetworkConfig
from reverie.objectives.conservative import add_penalty, cql_gap
from reverie.objectives.td import Losses, obs_after, obs_before, squared_error

# ---------------------------------------------------------------------- losses


class DiscreteCRRObjective(CRRObjective):
    """The losses of discrete CRR, with the terms and targets of :class:`~reverie.algos.crr.CRRObjective`.

    ``actor(obs)`` gives :class:`~reverie.nn.distributions.Categoricals` and ``critic(obs)`` the values of all
    classes, ``[K, ..., A]``, which are additive if there are several choices. Actions of the batch are one-hot.
    """

    cfg: DiscreteCRRConfig

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        cfg: DiscreteCRRConfig,
        within: ClipFn = None,
        classes: tuple[int, ...] = (),
    ) -> None:
        """``classes``: number of classes of each choice, one block after the other in A; ``()``: a single choice."""
        super().__init__(actor, critic, cfg, within)
        self.classes = classes

    def critic_loss(self, batch: Batch) -> Losses:
        """sum_i E[(Q_i(s, a) - y)^2] + alpha E[ln sum_a' exp Q_i(s, a') - Q_i(s, a)]: Algorithm 1, with the penalty."""
        values: Tensor = self.critic(obs_before(batch.obs))  # [K, B, T-1, A]
        chosen = (values * batch.action[:, :-1]).sum(-1)  # [K, B, T-1]
        losses = squared_error(chosen, self.targets(batch), batch)
        weight = self.cfg.conservative_weight
        return add_penalty(losses, cql_gap(values, batch, self.classes), weight) if weight else losses

    def values(self, obs: Obs, action: Tensor) -> Tensor:
        """Q_i of one-hot actions ``[..., A]``, ``[K, ...]``."""
        values: Tensor = self.critic(obs)  # [K, ..., A]
        return (values * action).sum(-1)

    @torch.no_grad()
    def advantage(self, obs: Obs, action: Tensor, policy: Any) -> Tensor:
        """A = Q(s, a) - sum_b pi(b | s) Q(s, b), ``[...]``, of actions ``[..., A]``: table 1, "mean"."""
        values: Tensor = self.critic(obs)  # [K, ..., A]
        minimum = values.amin(0)  # [..., A]
        return (minimum * action).sum(-1) - policy.mean(minimum)

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """Y = r + gamma (1 - terminal) sum_a' pi'(a' | s') min_i Q'_i(s', a'), an exact sum.  ``[B, T - 1]``."""
        obs = obs_after(batch.obs)
        policy: Categoricals = self.target_actor(obs)
        values: Tensor = self.target_critic(obs)  # [K, B, T-1, A]
        return self.bootstrap_value(batch, policy.mean(values.amin(0)))


# ---------------------------------------------------------------------- learner


class DiscreteCRR(CRR):
    """The learner of discrete CRR: actor and critic over one or several choices, their update and the policy."""

    losses: type[DiscreteCRRObjective] = DiscreteCRRObjective

    def build_objective(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> DiscreteCRRObjective:
        c, classes = self.cfg, num_classes_per_choice(action_spec)
        actor = CategoricalActor(obs_spec, classes, c.networks, c.dtype)
        return self.losses(actor, self.build_critic(obs_spec, action_spec), c, self.clip_to_return_range, classes)

    def build_critic(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> nn.Module:
        c = self.cfg
        return DiscreteQEnsemble(obs_spec, action_spec.width, c.networks, c.num_critics, c.dtype)


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class DiscreteCRRConfig(CRRBaseConfig, BoundedValueConfig, TDConfig):
    """Settings of discrete CRR, with the defaults of CRR, and of Tianshou for the additional settings.

    For Atari, Tianshou uses batches of 32, a learning rate of 0.0001, targets that are copied every 500 updates, and a
    weight that is conservative_weight = 20 here.
    """

    action_kinds: ClassVar[frozenset[str]] = frozenset({"discrete", "multi_discrete"})

    networks: MemoryNetworkConfig = field(default_factory=MemoryNetworkConfig)
    """Layers of the networks, optionally with a memory."""
    conservative_weight: Annotated[float, AtLeast(0)] = 0.0
    """Weight alpha of the CQL penalty. The paper has none. Tianshou uses 10 with half the squared error, which is 20
    here."""


DiscreteCRRConfig.learner = DiscreteCRR

"""Discrete SAC: Christodoulou, "Soft actor-critic for discrete action settings", arXiv:1910.07207, 2019.

SAC for discrete actions. The critics give the values of all actions at once and the policy their probabilities, so
expectations over actions are exact sums and no actions are sampled in updates. With several choices, the policy is the
product of their probabilities and values are additive, Q(s, a) = sum_d Q_d(s, a_d), so expectations remain exact. Such
values cannot represent interactions between choices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor, nn

from reverie.algos.model_free import BuildCriticFn
from reverie.algos.sac import CHOICE_ENTROPY, SAC, SACConfig, SACObjective, SoftObjective
from reverie.core.bounds import Finite
from reverie.core.specs import ActionSpec, ObsSpec, num_classes_per_choice
from reverie.core.types import Obs
from reverie.nn.actor_critic import DiscreteQEnsemble
from reverie.nn.actors import CategoricalActor
from reverie.nn.distributions import Categoricals

# ---------------------------------------------------------------------- losses


class DiscreteSACObjective(SACObjective):
    """The losses of discrete SAC, with the terms and targets of :class:`~reverie.algos.sac.SACObjective`.

    ``actor(obs)`` gives :class:`~reverie.nn.distributions.Categoricals`, and ``critic(obs)`` the values of all
    classes, ``[K, ..., A]``, which are additive if there are several choices.
    """

    @classmethod
    def build(
        cls, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: SACConfig, build_critic: BuildCriticFn
    ) -> SACObjective:
        classes = num_classes_per_choice(action_spec)
        actor = CategoricalActor(obs_spec, classes, cfg.networks, cfg.dtype)
        critic = build_critic(obs_spec, action_spec)
        entropy = CHOICE_ENTROPY * sum(map(math.log, classes))
        objective = cls(actor, critic, cfg, cfg.resolve_target_entropy(entropy))
        objective.choices = classes if cfg.target_entropy is None else ()
        return objective

    @classmethod
    def build_critic(cls, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: SACConfig) -> nn.Module:
        return DiscreteQEnsemble(obs_spec, action_spec.width, cfg.networks, copies=cfg.num_critics, dtype=cfg.dtype)

    def values(self, obs: Obs, action: Tensor) -> Tensor:
        values: Tensor = self.critic(obs)  # [K, ..., A]
        return (values * action).sum(-1)

    def expected_value(self, obs: Obs, critic: nn.Module) -> tuple[Tensor, Tensor]:
        """pi^T min_i Q_i and the entropy, ``[...]`` each: equations 10 to 12."""
        values: Tensor = critic(obs)  # [K, ..., A]
        policy: Categoricals = self.actor(obs)
        value = self.combine(values, is_target=critic is not self.critic)  # [..., A]
        return policy.mean(value), policy.entropy()


# ---------------------------------------------------------------------- learner


class DiscreteSAC(SAC):
    """The learner of discrete SAC: actor, two critics and a temperature over one or several choices."""

    losses: ClassVar[dict[str, type[SoftObjective]]] = {
        "discrete": DiscreteSACObjective,
        "multi_discrete": DiscreteSACObjective,
    }


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class DiscreteSACConfig(SACConfig):
    """Settings of discrete SAC: the settings of SAC, with another default of the target entropy."""

    action_kinds: ClassVar[frozenset[str]] = frozenset({"discrete", "multi_discrete"})

    target_entropy: Annotated[float | None, Finite()] = None
    """Target entropy of the policy in nats, for learning the temperature. None: 0.98 ln A for A legal actions, as
    in the author's code; with several choices, the sum over them."""


DiscreteSACConfig.learner = DiscreteSAC

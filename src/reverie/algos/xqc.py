"""XQC: Palenicek et al., "Well-conditioned optimization accelerates deep RL", ICLR 2026, arXiv:2509.25174.

SAC with batch norm and weights of norm 1, and with critics that predict the probabilities of fixed returns. Critics and
target critics each normalize actions and next actions by the same statistics, as in :mod:`~reverie.algos.crossq`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import nn

from reverie.algos.sac import SoftObjective
from reverie.algos.simba_v2 import CategoricalObjective, SimbaV2, SimbaV2Config
from reverie.core.bounds import Above, AtLeast, ScheduledFloat
from reverie.core.types import Batch, Obs, Update
from reverie.nn.actors import TanhGaussianActor
from reverie.nn.batch_norm import BatchNorm, batch_statistics, joint_pass
from reverie.nn.bodies import Body
from reverie.nn.network import NetworkConfig
from reverie.nn.normalization import NormalizeConfig
from reverie.nn.reward_scaling import ReturnStd, RewardScale
from reverie.objectives.td import Losses, obs_after, obs_before

# ---------------------------------------------------------------------- losses


class XQCObjective(CategoricalObjective):
    """The losses of XQC, with the terms of :class:`~reverie.algos.simba_v2.SimbaV2Objective`."""

    cfg: XQCConfig
    build_actor: ClassVar[Callable[..., nn.Module]] = TanhGaussianActor

    def critic_loss(self, batch: Batch) -> Losses:
        """-sum_k E[sum_i m_i ln p_k,i(s, a)], with m of the target critics: SimbaV2's, from joint passes of both."""
        before, after = obs_before(batch.obs), obs_after(batch.obs)
        with torch.no_grad():
            action, log_pi = self.actor(after).sample_and_log_prob()  # [B, T-1, A], [B, T-1]
            rows = before, batch.action[:, :-1], after, action
            _, next_logits = joint_pass(self.target_critic, *rows)  # [K, B, T-1, N]
            atoms, probs = self.distribution_after(batch, next_logits, log_pi)  # [B, T-1, N]
        logits, _ = joint_pass(self.critic, *rows)  # [K, B, T-1, N]
        return self.cross_entropy(logits, atoms, probs, batch)

    def actor_loss(self, batch: Batch) -> Losses:
        """As SAC's; the critics use their running statistics."""
        with batch_statistics(self.actor):
            return super().actor_loss(batch)

    def update_actor_statistics(self, obs: Obs) -> None:
        """Move the actor's running statistics toward those of ``obs`` ``[B, T - 1, ...]``."""
        with batch_statistics(self.actor):
            self.actor(obs)


# ---------------------------------------------------------------------- learner


class XQC(SimbaV2):
    """The learner of XQC: actor, critics of atoms and a temperature, their updates and the policy.

    With several learners, each normalizes by the statistics of its rows, as batch norm in PyTorch does.
    """

    losses: ClassVar[dict[str, type[SoftObjective]]] = {"continuous": XQCObjective}
    objective: XQCObjective

    def critic_step(self, batch: Batch) -> Update:
        """Take one step of the critics; the actor's statistics move in every update."""
        update = super().critic_step(batch)
        self.objective.update_actor_statistics(obs_before(batch.obs))
        return update


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class XQCConfig(SimbaV2Config):
    """Settings of XQC, with the values of its authors' code (github.com/danielpalenicek/xqc).

    The authors use the discount clip(1 - 5 / L, 0.95, 0.995) for episodes of L env steps: 0.995 for 1000. Their ln
    sigma is at least -10, here it is at least -20, as in SAC.
    """

    network_settings: ClassVar[frozenset[str]] = SimbaV2Config.network_settings | {"batch_norm"}
    body: ClassVar[type[Body] | None] = BatchNorm

    networks: NetworkConfig = field(
        default_factory=lambda: NetworkConfig(body=BatchNorm(), units=(256,) * 4, critic_units=(512,) * 4)
    )
    normalize_obs: NormalizeConfig | None = None
    reward_scale: RewardScale | None = field(default_factory=lambda: ReturnStd(clip=None))
    actor_lr: Annotated[ScheduledFloat, Above(0)] = 3e-4
    critic_lr: Annotated[ScheduledFloat, Above(0)] = 3e-4
    temperature_lr: Annotated[ScheduledFloat, AtLeast(0)] = 3e-4
    policy_delay: Annotated[int, AtLeast(1)] = 3


XQCConfig.learner = XQC

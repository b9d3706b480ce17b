"""CrossQ: Bhatt, Palenicek et al., ICLR 2024, arXiv:1902.05605.

SAC without target networks, with batch renormalization in wide critics. One pass of the critics over actions and next
actions, whose distributions differ, normalizes both by the same statistics.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch

from reverie.algos.sac import SAC, SACConfig, SoftObjective
from reverie.core.bounds import Above, AtLeast, ScheduledFloat
from reverie.core.errors import ConfigError
from reverie.core.types import Batch
from reverie.nn.batch_norm import BatchRenorm, batch_statistics, joint_pass
from reverie.nn.bodies import Body
from reverie.nn.network import NetworkConfig
from reverie.objectives.td import Losses, obs_after, obs_before, regression_error

# ---------------------------------------------------------------------- losses


class CrossQObjective(SoftObjective):
    """The losses of CrossQ, with the terms of :class:`~reverie.algos.sac.SACObjective`."""

    cfg: CrossQConfig

    def critic_loss(self, batch: Batch) -> Losses:
        """J_Q = sum_i E[(Q_i(s, a) - y)^2 / 2], with Q(s, a) and Q(s', a') from one pass: section 3.1, figure 1."""
        before, after = obs_before(batch.obs), obs_after(batch.obs)
        with torch.no_grad():
            action, log_pi = self.actor(after).sample_and_log_prob()  # [B, T-1, A], [B, T-1]
        values, next_values = joint_pass(self.critic, before, batch.action[:, :-1], after, action)  # [K, B, T-1]
        target = self.soft_targets(batch, self.combine(next_values.detach(), is_target=True), -log_pi)
        return regression_error(values, target, batch, self.cfg.critic_loss, scale=0.5)

    def actor_loss(self, batch: Batch) -> Losses:
        """As SAC's; the critics use their running statistics."""
        with batch_statistics(self.actor):
            return super().actor_loss(batch)


# ---------------------------------------------------------------------- learner


class CrossQ(SAC):
    """The learner of CrossQ: actor, critics and a temperature, their updates and the policy.

    With several learners, each normalizes by the statistics of its rows, as batch norm in PyTorch does.
    """

    losses: ClassVar[dict[str, type[SoftObjective]]] = {"continuous": CrossQObjective}


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class CrossQConfig(SACConfig):
    """Settings of CrossQ: the paper's (table 2) and its authors' code (github.com/adityab/CrossQ)."""

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous"})
    network_settings: ClassVar[frozenset[str]] = SACConfig.network_settings | {"batch_renorm"}
    body: ClassVar[type[Body] | None] = BatchRenorm

    networks: NetworkConfig = field(  # type: ignore[assignment]  # without SAC's memory
        default_factory=lambda: NetworkConfig(body=BatchRenorm(), critic_units=(2048, 2048))
    )
    actor_lr: Annotated[ScheduledFloat, Above(0)] = 1e-3
    critic_lr: Annotated[ScheduledFloat, Above(0)] = 1e-3
    temperature_lr: Annotated[ScheduledFloat, AtLeast(0)] = 1e-3
    adam_beta1: float = 0.5
    policy_delay: Annotated[int, AtLeast(1)] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, default in (("tau", 0.005), ("target_update_interval", 1)):
            if getattr(self, name) != default:
                raise ConfigError(f"{name} = {getattr(self, name)}: CrossQ has no target networks.")


CrossQConfig.learner = CrossQ

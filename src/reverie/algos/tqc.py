"""TQC, truncated quantile critics: Kuznetsov et al., ICML 2020, arXiv:2005.04269.

SAC whose critics predict quantiles of the return, as in :mod:`~reverie.algos.qr_dqn`. Targets are the quantiles of all
critics together, without the largest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.sac import SAC, SACConfig, SACObjective, SoftObjective
from reverie.core.bounds import AtLeast
from reverie.core.errors import ConfigError
from reverie.core.types import Batch, Obs
from reverie.nn.network import MemoryNetworkConfig
from reverie.objectives.estimators import SingleBootstrap, ValueEstimator
from reverie.objectives.quantile import quantile_huber, quantile_targets
from reverie.objectives.td import Losses, check_shapes, critic_losses, obs_after, obs_before, with_entropy_bonus

# ---------------------------------------------------------------------- losses


class TQCObjective(SACObjective):
    """The losses of TQC, with the terms of :class:`~reverie.algos.sac.SACObjective`.

    ``critic(obs, action)`` returns M quantiles of the return for each of N critics, ``[N, ..., M]``, at the fractions
    (2 m - 1) / (2 M). The estimator must bootstrap from a single row: ``TD0``, ``TD1`` or ``NStep``.
    """

    cfg: TQCConfig

    def critic_loss(self, batch: Batch) -> Losses:
        """sum_n E_m E_i[rho_m(y_i - theta_n,m(s, a))]: section 3.3. The sum is over the critics n."""
        quantiles: Tensor = self.critic(obs_before(batch.obs), batch.action[:, :-1])  # [N, B, T-1, M]
        target = self.targets(batch)  # [B, T-1, I]
        check_shapes(quantiles[..., 0], target[..., 0], batch)
        loss = quantile_huber(quantiles, target.expand(*quantiles.shape[:-1], -1)) / quantiles.shape[-1]
        return critic_losses(loss, loss.detach(), quantiles.detach().mean(-1), target.mean(-1), batch)

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """y_i = r + gamma (1 - terminal) (z_i - alpha ln pi(a' | s')): section 3.2.  ``[B, T - 1, I]``.

        z_i are the I = N (M - d) smallest of all N M quantiles of the next row. Without ``entropy_backup``, y_i lacks
        the entropy.
        """
        obs, c = obs_after(batch.obs), self.cfg
        action, log_pi = self.actor(obs).sample_and_log_prob()  # [B, T-1, A], [B, T-1]
        atoms = _smallest_quantiles(self.target_critic(obs, action), c.num_dropped_quantiles)  # [B, T-1, I]
        assert isinstance(c.value_estimator, SingleBootstrap)  # as the configuration has checked
        if not c.entropy_backup:
            return quantile_targets(atoms, batch, c.value_estimator, self.discount)
        bonus = -self.temperature * log_pi  # [B, T-1]
        batch, earlier_bonus = with_entropy_bonus(batch, bonus)
        target = quantile_targets(atoms + bonus.unsqueeze(-1), batch, c.value_estimator, self.discount)
        return target - earlier_bonus.unsqueeze(-1)

    @staticmethod
    def num_outputs(cfg: TQCConfig) -> int:
        return cfg.num_quantiles

    def values(self, obs: Obs, action: Tensor) -> Tensor:
        """The means of the critics' distributions, ``[N, ...]``."""
        quantiles: Tensor = self.critic(obs, action)  # [N, ..., M]
        return quantiles.mean(-1)

    def expected_value(self, obs: Obs, critic: nn.Module) -> tuple[Tensor, Tensor]:
        """Return the mean of all quantiles of ``critic`` for sampled actions, which the actor maximizes: section 3.3.

        The second tensor is -ln pi(a | s).
        """
        action, log_pi = self.actor(obs).sample_and_log_prob()  # [..., A], [...]
        return critic(obs, action).mean((0, -1)), -log_pi


def _smallest_quantiles(quantiles: Tensor, dropped: int) -> Tensor:
    """Return the N (M - d) smallest of the quantiles ``[N, ..., M]`` of N critics, ``[..., N (M - d)]``: section 3.2.

    ``dropped``: d, how many are dropped for each critic; not always of this critic.
    """
    num_critics, num_kept = len(quantiles), quantiles.shape[-1] - dropped
    return quantiles.movedim(0, -2).flatten(-2).sort(-1).values[..., : num_critics * num_kept]


# ---------------------------------------------------------------------- learner


class TQC(SAC):
    """The learner of TQC: actor, critics of quantiles and a temperature, their updates and the policy."""

    losses: ClassVar[dict[str, type[SoftObjective]]] = {"continuous": TQCObjective}


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class TQCConfig(SACConfig):
    """Settings of TQC: the paper's table 3; other settings are SAC's."""

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous"})
    estimators: ClassVar[type[ValueEstimator]] = SingleBootstrap

    networks: MemoryNetworkConfig = field(default_factory=lambda: MemoryNetworkConfig(critic_units=(512, 512, 512)))
    num_critics: Annotated[int, AtLeast(1)] = 5
    """N, number of critics."""
    num_quantiles: Annotated[int, AtLeast(1)] = 25
    """M, number of quantiles of each critic."""
    num_dropped_quantiles: Annotated[int, AtLeast(0)] = 2
    """d: targets lack the N d largest of all N M quantiles. The authors use 0 for HalfCheetah, 5 for Hopper and 2 for
    other tasks. More is more pessimistic."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_dropped_quantiles >= self.num_quantiles:
            raise ConfigError(
                f"num_dropped_quantiles = {self.num_dropped_quantiles}, num_quantiles = {self.num_quantiles}: no "
                "quantile would be left. Set num_dropped_quantiles to less."
            )
        if self.num_target_critics is not None or self.critic_loss != "l2":
            name = "critic_loss" if self.num_target_critics is None else "num_target_critics"
            raise ConfigError(
                f"{name} = {getattr(self, name)}: TQC computes targets and loss from the quantiles of all critics. "
                "Remove this option."
            )


TQCConfig.learner = TQC

"""QR-DQN: Dabney, Rowland, Bellemare, Munos, "Distributional RL with quantile regression", AAAI 2018, arXiv:1710.10044.

DQN whose network predicts quantiles of the return instead of its mean. With several choices, each is a branch with its
own quantiles, as in :mod:`~reverie.algos.dqn`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.dqn import DQN, DQNConfig, DQNObjective
from reverie.core.bounds import AtLeast
from reverie.core.specs import ObsSpec
from reverie.core.types import Batch, Obs
from reverie.objectives.categorical import mean_over_choices, split_choices
from reverie.objectives.estimators import SingleBootstrap, ValueEstimator
from reverie.objectives.quantile import greedy_quantiles, quantile_error, quantile_targets
from reverie.objectives.td import Losses, obs_after, obs_before

# ---------------------------------------------------------------------- losses


class QRDQNObjective(DQNObjective):
    """The loss of QR-DQN, with the interface of :class:`~reverie.algos.dqn.DQNObjective`.

    ``network(obs)`` returns N quantiles of the return for each action, ``[..., A, N]``, at the fractions
    (2 i + 1) / (2 N). The estimator must bootstrap from a single row: ``TD0``, ``TD1`` or ``NStep``.
    """

    cfg: QRDQNConfig

    def critic_loss(self, batch: Batch) -> Losses:
        """sum_i E_j[rho_i(y_j - theta_i(s, a))], averaged over the batch: Algorithm 1."""
        quantiles: Tensor = self.network(obs_before(batch.obs))  # [B, T-1, A, N]
        return quantile_error(quantiles, self.targets(batch), batch, self.cfg.kappa, self.classes)

    def values(self, obs: Obs) -> Tensor:
        """The means of the distributions, ``[..., A]``: Q in Algorithm 1."""
        return self.network(obs).mean(-1)

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """y_j = r + gamma (1 - terminal) theta'_j(s', a*), a* with the highest mean: Algorithm 1.  ``[B, T - 1, N]``.

        With ``double`` the online network chooses a*. With several choices, the j-th quantile is averaged over the
        choices.
        """
        obs = obs_after(batch.obs)
        quantiles = self.target_network(obs)  # [B, T-1, A, N]
        return self.targets_of(quantiles, self.network(obs) if self.cfg.double else quantiles, batch)

    def targets_of(self, quantiles: Tensor, selector: Tensor, batch: Batch) -> Tensor:
        """Return y_j from the next rows' ``quantiles`` ``[B, T - 1, A, N]``; the means of ``selector`` choose a*."""
        c = self.cfg
        pairs = zip(split_choices(quantiles, self.classes, -2), split_choices(selector, self.classes, -2), strict=True)
        best = mean_over_choices([greedy_quantiles(*pair) for pair in pairs])  # [B, T-1, N]
        assert isinstance(c.value_estimator, SingleBootstrap)  # as the configuration has checked
        return quantile_targets(best, batch, c.value_estimator, self.discount)


# ---------------------------------------------------------------------- learner


class QRDQN(DQN):
    """The learner of QR-DQN: a network of quantiles, its update and the policy that explores."""

    cfg: QRDQNConfig
    losses: type[QRDQNObjective] = QRDQNObjective

    def build_network(self, obs_spec: ObsSpec, classes: tuple[int, ...], outputs: int | None = None) -> nn.Module:
        return super().build_network(obs_spec, classes, self.cfg.num_quantiles)


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class QRDQNConfig(DQNConfig):
    """Settings of QR-DQN, with the defaults of DQN, and of the paper for the additional settings."""

    estimators: ClassVar[type[ValueEstimator]] = SingleBootstrap

    num_quantiles: Annotated[int, AtLeast(1)] = 200
    """N, number of quantiles of each action's return."""
    kappa: Annotated[float, AtLeast(0)] = 1.0
    """Threshold of the quantile Huber loss: errors are squared up to kappa and linear beyond. 1 is QR-DQN-1 of the
    paper, 0 is QR-DQN-0."""


QRDQNConfig.learner = QRDQN

"""QR-DQN: Dabney, Rowland, Bellemare, Munos, "Distributional RL with quantile regression", AAAI 2018, arXiv:1710.10044.

DQN whose network predicts quantiles of the return in place of its mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reverie.algos.base import PRECISIONS
from reverie.algos.dqn import DQN, DQNConfig, DQNObjective
from reverie.core.errors import ConfigError
from reverie.core.specs import ObsSpec
from reverie.core.stats import Stats
from reverie.core.types import Batch, Obs
from reverie.nn.actor_critic import DiscreteQNetwork
from reverie.objectives.estimators import OneRow, ValueEstimator, check_estimator
from reverie.objectives.quantile import check_kappa, greedy_quantiles, quantile_error, quantile_targets
from reverie.objectives.td import Losses, after, before


def check_settings(value_estimator: ValueEstimator, kappa: float, rows: int, algorithm: str = "qr_dqn") -> None:
    """Raise ConfigError unless the estimator and kappa fit quantile regression in windows of ``rows`` rows."""
    check_estimator(value_estimator, algorithm=algorithm, rows=rows, fits=OneRow)
    check_kappa(kappa)


@dataclass(frozen=True, kw_only=True)
class QRDQNConfig(DQNConfig):
    """Settings of QR-DQN: those of DQN, and the paper's for what it adds."""

    quantiles: int = 200
    """N, number of quantiles of each action's return."""
    kappa: float = 1.0
    """Threshold of the quantile Huber loss: errors are squared up to kappa and linear beyond. 1 is QR-DQN-1 of the
    paper, 0 is QR-DQN-0."""

    check = staticmethod(check_settings)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantiles < 1:
            raise ConfigError(f"quantiles = {self.quantiles}: expected at least 1.")


@dataclass(frozen=True, kw_only=True)
class QRDQNStats(Stats):
    """Metrics of an update of QR-DQN."""

    loss_critic: Tensor
    """Loss of quantile regression, summed over the quantiles: E[w sum_i E_j[rho_i(y_j - theta_i(s, a))]]."""
    train_value: Tensor
    """Mean of the taken actions' distributions."""
    train_target: Tensor
    """Mean of the distributions' targets y."""


class QRDQNObjective(DQNObjective):
    """The loss of QR-DQN, used as :class:`~reverie.algos.dqn.DQNObjective` is.

    ``network(obs)`` gives N quantiles of the return for each action, ``[..., A, N]``: those of the fractions
    (2 i + 1) / (2 N). The estimator must bootstrap from a single row: ``TD0``, ``TD1`` or ``NStep``.
    """

    check = staticmethod(check_settings)

    def critic_loss(self, batch: Batch) -> Losses:
        """sum_i E_j[rho_i(y_j - theta_i(s, a))], averaged over the batch: Algorithm 1."""
        quantiles: Tensor = self.network(before(batch.obs))  # [B, T-1, A, N]
        return quantile_error(quantiles, self.targets(batch), batch, self.kappa)

    def values(self, obs: Obs) -> Tensor:
        """The means of the distributions, ``[..., A]``: Q in Algorithm 1."""
        quantiles: Tensor = self.network(obs)
        return quantiles.mean(-1)

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """The y_j ``[B, T - 1, N]``; of one transition, r + gamma (1 - terminal) theta'_j(s', a*): Algorithm 1."""
        assert isinstance(self.value_estimator, OneRow)  # checked by check_settings
        next_quantiles = self.next_value(after(batch.obs))  # [B, T-1, N]
        return quantile_targets(next_quantiles, batch, self.value_estimator, self.discount)

    @torch.no_grad()
    def next_value(self, obs: Obs) -> Tensor:
        """Return quantiles of next states for the targets, ``[..., N]``: theta'(s, a*), a* with the highest mean.

        With ``double`` the online network chooses a*.
        """
        quantiles: Tensor = self.target_network(obs)  # [..., A, N]
        return greedy_quantiles(quantiles, self.network(obs) if self.doubly else quantiles)


class QRDQN(DQN):
    """The learner of QR-DQN: a network of quantiles, its update and the policy that explores."""

    cfg: QRDQNConfig
    losses = QRDQNObjective
    stats: type[Stats] = QRDQNStats

    def build_network(self, obs_spec: ObsSpec, classes: int) -> DiscreteQNetwork:
        """Build the network of the quantiles of so many actions."""
        c, dtype = self.cfg, PRECISIONS[self.cfg.precision]
        return DiscreteQNetwork(obs_spec, classes, c.networks, dueling=c.dueling, quantiles=c.quantiles, dtype=dtype)


QRDQNConfig.learner = QRDQN

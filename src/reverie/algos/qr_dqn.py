"""QR-DQN: Dabney, Rowland, Bellemare, Munos, "Distributional RL with quantile regression", AAAI 2018, arXiv:1710.10044.

DQN whose network answers with quantiles of the return in place of its mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reverie.algos.base import PRECISIONS
from reverie.algos.dqn import DQN, DQNConfig, DQNObjective
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.stats import Stats
from reverie.core.types import Batch, Obs
from reverie.nn.mlp import single_choice
from reverie.nn.steps import QuantilesStep, Step
from reverie.nn.values import ActionValues
from reverie.objectives.estimators import OneRow, ValueEstimator, check_estimator
from reverie.objectives.quantile import best_quantiles, check_kappa, quantile_error, quantile_targets
from reverie.objectives.td import Losses, after, before


def check_settings(value_estimator: ValueEstimator, kappa: float, rows: int) -> None:
    """Refuse an estimator or a loss that makes no sense for QR-DQN in windows of so many rows.

    Raises:
        ConfigError: one of them does not fit.
    """
    check_estimator(value_estimator, algorithm="qr_dqn", rows=rows, fits=OneRow)
    check_kappa(kappa)


@dataclass(frozen=True, kw_only=True)
class QRDQNConfig(DQNConfig):
    """Settings of QR-DQN: those of DQN, and the paper's for what it adds."""

    quantiles: int = 200
    """N, quantiles of the return of each action."""
    kappa: float = 1.0
    """Errors of a quantile count as squares up to here and linearly beyond: QR-DQN-1; 0 is QR-DQN-0."""

    check = staticmethod(check_settings)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantiles < 1:
            raise ConfigError(f"quantiles = {self.quantiles}: expected 1 or more.")

    def build(self, obs_spec: ObsSpec, action_spec: ActionSpec, device: str = "cpu", seed: int = 0) -> QRDQN:
        """A learner for these observations and a choice among classes, its weights drawn from ``seed``."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return QRDQN(obs_spec, action_spec, self, torch.device(device))


@dataclass(frozen=True, kw_only=True)
class QRDQNStats(Stats):
    """What an update of QR-DQN says."""

    loss_critic: Tensor
    """The loss of quantile regression, summed over the quantiles: E[w sum_i E_j[rho_i(y_j - theta_i(s, a))]]."""
    train_value: Tensor
    """The mean of what the distributions say of the actions that were taken."""
    train_target: Tensor
    """The mean of the distributions' targets y."""


class QRDQNObjective(DQNObjective):
    """The loss of QR-DQN, used as :class:`~reverie.algos.dqn.DQNObjective` is.

    ``network(obs)`` are N quantiles of the return for each class, ``[..., A, N]``: those of the fractions
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
        assert isinstance(self.value_estimator, OneRow)  # what it was checked to be
        following = self.next_value(after(batch.obs))  # [B, T-1, N]
        return quantile_targets(following, batch, self.value_estimator, self.discount)

    @torch.no_grad()
    def next_value(self, obs: Obs) -> Tensor:
        """What states are worth to the target, ``[..., N]``: theta'(s, a*) of the action whose mean is highest.

        Doubly, a* is the action that the network itself prefers.
        """
        quantiles: Tensor = self.target_network(obs)  # [..., A, N]
        return best_quantiles(quantiles, self.network(obs) if self.doubly else quantiles)


class QRDQN(DQN):
    """A network of quantiles, the update that trains it, and the policy that explores."""

    cfg: QRDQNConfig
    stats: type[Stats] = QRDQNStats

    def build_objective(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> QRDQNObjective:
        """The loss over a network of these sizes."""
        c = self.cfg
        classes, dtype = single_choice("qr_dqn", action_spec), PRECISIONS[c.precision]
        network = ActionValues(obs_spec, classes, c.networks, dueling=c.dueling, quantiles=c.quantiles, dtype=dtype)
        return QRDQNObjective(network, **c.common())

    def build_step(self) -> Step:
        """One step of the network."""
        return QuantilesStep(self.objective, {"critic": self.optim}, QRDQNObjective.critic_loss)

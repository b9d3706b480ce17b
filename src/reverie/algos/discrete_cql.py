"""Discrete CQL: Kumar et al., "Conservative Q-learning for offline reinforcement learning", NeurIPS 2020.

QR-DQN with a penalty that lowers the values of all actions and raises those of the dataset's actions: CQL(H), equation
4 of arXiv:2006.04779, as in its section 6 and appendix F for Atari.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from reverie.algos.qr_dqn import QRDQN, QRDQNConfig, QRDQNObjective, check_settings
from reverie.core.stats import Stats
from reverie.core.types import Batch
from reverie.nn.exploration import EpsilonGreedy, EpsilonSchedule
from reverie.nn.normalise import Normalise, Running
from reverie.objectives.conservative import check_min_q_weight, choice_gap, pressed
from reverie.objectives.quantile import quantile_error
from reverie.objectives.td import Losses, before

check_fit = functools.partial(check_settings, algorithm="discrete_cql")


@dataclass(frozen=True, kw_only=True)
class DiscreteCQLConfig(QRDQNConfig):
    """Settings of discrete CQL: those of QR-DQN, and for recorded data those of Tianshou and of the authors' code."""

    needs_data: ClassVar[bool] = True
    in_units_of_values: ClassVar[str] = "min_q_weight"

    batch_size: int = 256
    """B, windows in a batch. The authors' code has 32."""
    min_q_weight: float = 10.0
    """Weight alpha of the CQL penalty (equation 4), beside a quantile loss that is summed over N quantiles: Tianshou.
    The authors' code for Atari has 1, with 200 quantiles. Data of better policies allow larger weights."""
    target_every: int = 500
    """Updates between two updates of the target: Tianshou. The authors' code has 2000."""
    exploration: EpsilonSchedule = field(default_factory=lambda: EpsilonGreedy(0.05))
    """Random actions while exploring: when recording data, or when training online after offline."""
    normalise: Normalise | None = field(default_factory=Running)
    """Normalise vectors: (x - mean) / std, over all rows of the dataset. The paper does not (None)."""

    check = staticmethod(check_fit)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_min_q_weight(self.min_q_weight)

    def common(self) -> dict[str, Any]:
        """Return the settings that the objective takes unchanged, by name."""
        return {**super().common(), "min_q_weight": self.min_q_weight}


@dataclass(frozen=True, kw_only=True)
class DiscreteCQLStats(Stats):
    """Metrics of an update of discrete CQL."""

    loss_critic: Tensor
    """The quantile loss, summed over the quantiles."""
    train_value: Tensor
    """Mean Q of the dataset's actions."""
    train_target: Tensor
    """Mean of the distributions' targets."""
    train_gap: Tensor
    """E[ln sum_a' exp Q(s, a') - Q(s, a)], which the penalty lowers."""
    loss_conservative: Tensor
    """CQL penalty: alpha times the gap."""


class DiscreteCQLObjective(QRDQNObjective):
    """The loss of discrete CQL, used as :class:`~reverie.algos.qr_dqn.QRDQNObjective` is."""

    check = staticmethod(check_fit)

    def __init__(self, network: nn.Module, *, min_q_weight: float = 10.0, **settings: Any) -> None:
        """``min_q_weight``: alpha; the rest as in QR-DQN."""
        super().__init__(network, **settings)
        check_min_q_weight(min_q_weight)
        self.min_q_weight = min_q_weight

    def critic_loss(self, batch: Batch) -> Losses:
        """sum_i E_j[rho_i(y_j - theta_i(s, a))] + alpha E[ln sum_a' exp Q(s, a') - Q(s, a)]: equation 4.

        Q is the mean of the quantiles. The sum includes the dataset's own action, so the penalty is never negative.
        """
        quantiles: Tensor = self.network(before(batch.obs))  # [B, T-1, A, N]
        losses = quantile_error(quantiles, self.targets(batch), batch, self.kappa)
        return pressed(losses, choice_gap(quantiles.mean(-1), batch), self.min_q_weight)


class DiscreteCQL(QRDQN):
    """The learner of discrete CQL: a network of quantiles, its update and its policy."""

    cfg: DiscreteCQLConfig
    losses = DiscreteCQLObjective
    stats = DiscreteCQLStats


DiscreteCQLConfig.learner = DiscreteCQL

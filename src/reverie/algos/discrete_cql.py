"""Discrete CQL: Kumar et al., "Conservative Q-learning for offline reinforcement learning", NeurIPS 2020.

QR-DQN with a penalty that lowers the values of all actions and raises the values of dataset actions: CQL(H), equation
4 of arXiv:2006.04779, as in its section 6 and appendix F for Atari.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from torch import Tensor

from reverie.algos.model_free import OfflineConfig
from reverie.algos.qr_dqn import QRDQN, QRDQNConfig, QRDQNObjective
from reverie.core.bounds import AtLeast
from reverie.core.types import Batch
from reverie.nn.exploration import EpsilonGreedy, EpsilonSchedule
from reverie.nn.network import MemoryNetworkConfig
from reverie.objectives.categorical import choice_weight
from reverie.objectives.conservative import add_penalty, cql_gap
from reverie.objectives.quantile import quantile_error
from reverie.objectives.td import Losses, obs_before

# ---------------------------------------------------------------------- losses


class DiscreteCQLObjective(QRDQNObjective):
    """The loss of discrete CQL, with the interface of :class:`~reverie.algos.qr_dqn.QRDQNObjective`."""

    cfg: DiscreteCQLConfig

    def critic_loss(self, batch: Batch) -> Losses:
        """sum_i E_j[rho_i(y_j - theta_i(s, a))] + alpha E[ln sum_a' exp Q(s, a') - Q(s, a)]: equation 4.

        Q is the mean of the quantiles. The sum includes the dataset's own action, so the penalty is never negative.
        With several choices, both terms are averaged over them.
        """
        quantiles: Tensor = self.network(obs_before(batch.obs))  # [B, T-1, A, N]
        losses = quantile_error(quantiles, self.targets(batch), batch, self.cfg.kappa, self.classes)
        gap = choice_weight(self.classes) * cql_gap(quantiles.mean(-1), batch, self.classes)
        return add_penalty(losses, gap, self.cfg.conservative_weight)


# ---------------------------------------------------------------------- learner


class DiscreteCQL(QRDQN):
    """The learner of discrete CQL: a network of quantiles, its update and its policy."""

    cfg: DiscreteCQLConfig
    losses: type[DiscreteCQLObjective] = DiscreteCQLObjective


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class DiscreteCQLConfig(OfflineConfig, QRDQNConfig):
    """Settings of discrete CQL, with the defaults of QR-DQN and, for offline learning, of Tianshou.

    The authors' code for Atari uses batches of 32, lr = 5e-5, adam_eps = 3.125e-4 and copies the target every 2000
    updates.
    """

    batch_size: int = 256
    networks: MemoryNetworkConfig = field(default_factory=MemoryNetworkConfig)
    """Layers of the network, optionally with a memory."""
    conservative_weight: Annotated[float, AtLeast(0)] = 10.0
    """Weight alpha of the CQL penalty (equation 4), relative to a quantile loss summed over N quantiles. The default is
    Tianshou's; the authors' code for Atari has 1, with 200 quantiles. Datasets of better policies allow larger
    weights."""
    target_update_interval: int = 500
    """Gradient updates between two updates of the target network: Tianshou."""
    exploration: EpsilonSchedule = field(default_factory=lambda: EpsilonGreedy(0.05))
    """Random actions while exploring: when recording data, or when training online after offline."""


DiscreteCQLConfig.learner = DiscreteCQL

"""IQN: Dabney, Ostrovski, Silver, Munos, "Implicit quantile networks", ICML 2018, arXiv:1806.06923.

QR-DQN whose network reads the fractions of the quantiles that it predicts. Each loss draws its fractions at random, so
that the network learns the whole distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from reverie.algos.qr_dqn import QRDQN, QRDQNConfig, QRDQNObjective
from reverie.core.bounds import AtLeast
from reverie.core.specs import ObsSpec
from reverie.core.types import Batch, Obs
from reverie.nn.actor_critic import ImplicitQuantileNetwork
from reverie.objectives.quantile import quantile_error, quantile_midpoints
from reverie.objectives.td import Losses, obs_after, obs_before

# ---------------------------------------------------------------------- losses


class IQNObjective(QRDQNObjective):
    """The loss of IQN, with the interface of :class:`~reverie.algos.dqn.DQNObjective`.

    ``network(obs, tau)`` returns the quantiles of the returns of all actions ``[..., A, N]`` at the fractions tau
    ``[..., N]`` or ``[N]``.
    """

    cfg: IQNConfig

    def critic_loss(self, batch: Batch) -> Losses:
        """sum_i E_j[rho_i(y_j - Z_tau_i(s, a))], averaged over the batch, tau_i ~ U([0, 1]): equation 3."""
        tau = _draw_fractions(batch, self.cfg.num_quantiles)  # [B, T-1, N]
        quantiles: Tensor = self.network(obs_before(batch.obs), tau)  # [B, T-1, A, N]
        return quantile_error(quantiles, self.targets(batch), batch, self.cfg.kappa, self.classes, tau)

    def values(self, obs: Obs) -> Tensor:
        """Q, ``[..., A]``: the mean of K quantiles, at evenly spaced instead of random fractions."""
        return self.policy_quantiles(self.network, obs).mean(-1)

    def policy_quantiles(self, network: nn.Module, obs: Obs) -> Tensor:
        """Return the quantiles ``[..., A, K]`` whose mean is Q, at the fractions (2 k + 1) / (2 K)."""
        count, device = self.cfg.num_policy_quantiles, next(iter(obs.values())).device
        quantiles: Tensor = network(obs, quantile_midpoints(count, device))
        return quantiles

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """y_j = r + gamma (1 - terminal) Z'_tau_j(s', a*), tau_j ~ U([0, 1]), a* with the highest Q: Algorithm 1.

        ``[B, T - 1, N']``. With ``double`` the online network chooses a*.
        """
        obs, c = obs_after(batch.obs), self.cfg
        tau = _draw_fractions(batch, c.num_target_quantiles)  # [B, T-1, N']
        if c.double:
            return self.targets_of(self.target_network(obs, tau), self.policy_quantiles(self.network, obs), batch)
        midpoints = quantile_midpoints(c.num_policy_quantiles, tau.device).expand(*tau.shape[:-1], -1)  # [B, T-1, K]
        quantiles: Tensor = self.target_network(obs, torch.cat([tau, midpoints], -1))  # [B, T-1, A, N' + K]
        return self.targets_of(quantiles[..., : tau.shape[-1]], quantiles[..., tau.shape[-1] :], batch)


def _draw_fractions(batch: Batch, count: int) -> Tensor:
    """Return ``count`` fractions for each transition of a batch, uniform in [0, 1): ``[B, T - 1, count]``."""
    windows, rows = batch.shape
    return torch.rand(windows, rows - 1, count, dtype=batch.reward.dtype, device=batch.reward.device)


# ---------------------------------------------------------------------- learner


class IQN(QRDQN):
    """The learner of IQN: an implicit quantile network, its update and the policy that explores."""

    cfg: IQNConfig
    losses: type[IQNObjective] = IQNObjective

    def build_network(self, obs_spec: ObsSpec, classes: tuple[int, ...], outputs: int | None = None) -> nn.Module:
        c = self.cfg
        return ImplicitQuantileNetwork(
            obs_spec,
            classes,
            c.networks,
            num_cosines=c.num_cosines,
            dueling=c.dueling,
            noisy_sigma=c.noisy_sigma,
            dtype=c.dtype,
        )


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class IQNConfig(QRDQNConfig):
    """Settings of IQN, with the defaults of QR-DQN, and of the paper for the additional settings."""

    num_quantiles: Annotated[int, AtLeast(1)] = 8
    """N, number of fractions drawn for each transition in the loss. The paper compares 1 to 64 (figure 2); Dopamine has
    64 for Atari."""
    num_target_quantiles: Annotated[int, AtLeast(1)] = 8
    """N', number of fractions drawn for each transition in the targets."""
    num_policy_quantiles: Annotated[int, AtLeast(1)] = 32
    """K, number of quantiles whose mean chooses actions, in the environment and in the targets."""
    num_cosines: Annotated[int, AtLeast(1)] = 64
    """n, number of cosines that represent a fraction."""


IQNConfig.learner = IQN

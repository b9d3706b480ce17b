"""Gaussian policies, not squashed, with the mean in [-1, 1]: for learners that imitate recorded actions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from reverie.core.specs import ObsSpec
from reverie.core.types import Obs
from reverie.nn.action_samples import times
from reverie.nn.actor_critic import Inputs, NetworkConfig
from reverie.nn.perceptron import ReluMLP
from reverie.objectives.transforms import exp

LOG_STD = (-5.0, 2.0)
"""Limits of ln sigma, from the code of the authors of IQL."""


class DiagonalNormal:
    """N(mean, std^2) over ``[..., A]``, not squashed by tanh: actions of -1 and 1 have a finite density, too."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        """``mean`` is ``[..., A]``, ``log_std`` ``[..., A]`` or ``[A]``, already clamped to its limits."""
        self.mean, self.log_std = mean, log_std

    def repeated(self, n: int) -> DiagonalNormal:
        """Return the distribution repeated n times, over ``[..., n, A]``."""
        return DiagonalNormal(times(self.mean, n), times(self.log_std.expand_as(self.mean), n))

    def sample(self) -> tuple[Tensor, Tensor]:
        """Return actions ``[..., A]``, clipped to [-1, 1], and log-densities ``[...]`` before that; with gradient."""
        noise = torch.randn_like(self.mean)
        action = self.mean + exp(self.log_std) * noise
        return action.clamp(-1, 1), self._log_density(noise)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-density ``[...]`` of actions ``[..., A]``."""
        return self._log_density((action - self.mean) / exp(self.log_std))

    def mode(self) -> Tensor:
        """Return the mean, ``[..., A]``."""
        return self.mean

    def _log_density(self, noise: Tensor) -> Tensor:
        return (-0.5 * noise.square() - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


class GaussianActor(nn.Module):
    """A policy pi(a | s) = N(tanh(f(s)), sigma(s)^2), where one perceptron outputs f and ln sigma."""

    def __init__(self, obs_spec: ObsSpec, width: int, cfg: NetworkConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.inputs = Inputs(obs_spec, cfg, dtype)
        self.body = ReluMLP(self.inputs.width, cfg.units, 2 * width)

    def forward(self, obs: Obs) -> DiagonalNormal:
        """Map observations ``[..., *shape]`` to a distribution over actions ``[..., A]``."""
        y: Tensor = self.body(self.inputs(obs))
        mean, log_std = y.float().chunk(2, -1)  # [..., A]
        return DiagonalNormal(mean.tanh(), log_std.clamp(*LOG_STD))


class FixedStdGaussianActor(nn.Module):
    """A policy pi(a | s) = N(tanh(f(s)), sigma^2), with a learned sigma independent of the state, initially 1."""

    def __init__(self, obs_spec: ObsSpec, width: int, cfg: NetworkConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.inputs = Inputs(obs_spec, cfg, dtype)
        self.body = ReluMLP(self.inputs.width, cfg.units, width, squash=True)
        self.log_std = nn.Parameter(torch.zeros(width))

    def forward(self, obs: Obs) -> DiagonalNormal:
        """Map observations ``[..., *shape]`` to a distribution over actions ``[..., A]``."""
        mean: Tensor = self.body(self.inputs(obs))
        return DiagonalNormal(mean.float(), self.log_std.clamp(*LOG_STD))

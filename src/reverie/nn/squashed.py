"""The tanh-squashed Gaussian policy of SAC, with its exact density."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.accelerate import accelerated
from reverie.core.shapes import expect
from reverie.core.specs import ObsSpec
from reverie.core.types import Obs
from reverie.nn.action_samples import times
from reverie.nn.actor_critic import Inputs, NetworkConfig
from reverie.nn.perceptron import ReluMLP
from reverie.objectives.transforms import exp

LOG_STD = (-20.0, 2.0)
"""Limits of ln sigma, from the code of the authors of SAC."""


class SquashedNormal:
    """a = tanh(u), u ~ N(mean, std^2): Haarnoja et al. 2018, arXiv:1812.05905, appendix C.

    ln pi(a) = ln N(u) - sum ln(1 - tanh(u)^2)   (equation 26)

    where ln(1 - tanh(u)^2) = 2 (ln 2 - u - softplus(-2 u)), which is exact and finite for any u.
    """

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        """Both are ``[..., A]``; ``log_std`` (ln sigma) may be any number, and is clamped to ``LOG_STD``.

        Raises:
            ValueError: they have different shapes.
        """
        expect(mean.shape, log_std=log_std)
        self.mean, self.raw = mean, log_std

    @property
    def log_std(self) -> Tensor:
        """The clamped ln sigma, ``[..., A]``."""
        return self.raw.clamp(*LOG_STD)

    def repeated(self, n: int) -> SquashedNormal:
        """Return the distribution repeated n times, over ``[..., n, A]``."""
        return SquashedNormal(times(self.mean, n), times(self.raw, n))

    def sample(self) -> tuple[Tensor, Tensor]:
        """Return an action ``[..., A]`` and its log-density ``[...]``, both with gradient."""
        noise = torch.randn(self.mean.shape, dtype=self.mean.dtype, device=self.mean.device)  # [..., A]
        return squashed_sample(self.mean, self.raw, noise)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-density ``[...]`` of actions ``[..., A]``; at -1 and 1, that of the nearest number inside."""
        inside = 1 - torch.finfo(action.dtype).eps
        u = action.clamp(-inside, inside).atanh()  # [..., A]
        return log_density((u - self.mean) / exp(self.log_std), u, self.log_std)

    def mode(self) -> Tensor:
        """Return tanh(mean), ``[..., A]``."""
        return self.mean.tanh()


@accelerated
def squashed_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the action ``[..., A]`` that standard normal ``noise`` yields, and its log-density ``[...]``.

    All are ``[..., A]``; see :class:`SquashedNormal`.
    """
    log_std = log_std.clamp(*LOG_STD)
    u = mean + exp(log_std) * noise  # [..., A]
    return u.tanh(), log_density(noise, u, log_std)


def log_density(noise: Tensor, u: Tensor, log_std: Tensor) -> Tensor:
    """Return ln pi(tanh(u)) ``[...]`` of u = mean + sigma noise, all ``[..., A]``: equation 26."""
    normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)  # [..., A]
    squashing = 2 * (math.log(2) - u - F.softplus(-2 * u))  # [..., A]
    return (normal - squashing).sum(-1)


class TanhGaussianActor(nn.Module):
    """A policy pi(a | s): an MLP to a tanh-squashed Gaussian over [-1, 1]^A (appendix C of the SAC paper)."""

    def __init__(self, obs_spec: ObsSpec, width: int, cfg: NetworkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.inputs = Inputs(obs_spec, cfg, dtype)
        self.body = ReluMLP(self.inputs.width, cfg.units, 2 * width)

    def forward(self, obs: Obs) -> SquashedNormal:
        """Map observations ``[..., *shape]`` to a distribution over actions ``[..., A]``."""
        y: Tensor = self.body(self.inputs(obs))
        mean, log_std = y.float().chunk(2, -1)  # [..., A]
        return SquashedNormal(mean, log_std)

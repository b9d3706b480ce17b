"""Normal distributions of continuous actions: the Dreamers', then those of model-free actors.

All of them compute in float32. ``log_prob`` and ``entropy`` sum over the action's axis, so their shape is ``[...]``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.core.kernel_dispatch import accelerated
from reverie.objectives.transforms import exp, tanh

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
HALF_LOG_2PI_E = 0.5 * math.log(2 * math.pi * math.e)
QUANTILES = 999
"""Number of equally likely quantiles that give the mean and std of a truncated normal and of tanh of a normal."""
Summary = tuple[Tensor, Tensor]
"""Summary of a distribution over flat actions, ``[..., A]`` each: the mean of continuous parts and the probability of
classes; and the standard deviation of continuous parts, 0 for classes."""


def _mean_and_std_of_quantiles(quantile: Callable[[Tensor], Tensor], like: Tensor) -> Summary:
    """Return mean and std ``[..., A]``, given the quantiles of probabilities ``[QUANTILES, ..., A]``."""
    share = (torch.arange(QUANTILES, dtype=torch.float64, device=like.device) + 0.5) / QUANTILES
    values = quantile(share.float().view(-1, *(1 for _ in like.shape)))  # [QUANTILES, ..., A]
    return values.mean(0), values.std(0, correction=0)


# ---------------------------------------------------------------------- the Dreamers


@dataclass(eq=False)
class Normal:
    """Independent normals, with samples that may lie outside of [-1, 1]: environments clip them."""

    mean: Tensor  # [..., A]
    std: Tensor  # [..., A]
    squashing: ClassVar[str] = "clip"
    """How a sample of the normal becomes an action in [-1, 1]: clip, tanh, or truncate, which is to draw again."""

    def sample(self) -> Tensor:
        """Return a sample ``[..., A]`` without gradient: the actor losses that use it are likelihood-ratio losses."""
        with torch.no_grad():
            return self.rsample()

    def rsample(self) -> Tensor:
        """Return a sample ``[..., A]`` with gradient."""
        return self.mean + self.std * torch.randn_like(self.mean)  # torch.normal reads std, and waits for a GPU

    def mode(self) -> Tensor:
        """Return the mode, ``[..., A]``."""
        return self.mean

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density ``[...]`` of ``value`` ``[..., A]``."""
        z = (value.float() - self.mean) / self.std
        return (-0.5 * z * z - self.std.log() - HALF_LOG_2PI).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy ``[...]`` in nats."""
        return (self.std.log() + HALF_LOG_2PI_E).sum(-1)

    def summary(self, squashed: bool = True) -> Summary:
        """Return mean and standard deviation of actions before clipping."""
        return self.mean, self.std


class ClippedNormal(Normal):
    """Independent normals, with samples clipped to [-1, 1] and the density before clipping: BMPC's authors' code."""

    def rsample(self) -> Tensor:
        return super().rsample().clamp(-1, 1)


class TruncatedNormal(Normal):
    """A normal distribution truncated to [-1, 1], of DreamerV2's authors' code.

    ``mean`` in [-1, 1] and ``std`` are the parameters before truncation.
    """

    squashing: ClassVar[str] = "truncate"
    LIMIT = 1 - 1e-6
    """Samples are clipped to it, with the gradient of unclipped samples."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__(mean, std)
        self.low: Tensor = (-1 - mean) / std
        self.high: Tensor = (1 - mean) / std
        self.below: Tensor = torch.special.ndtr(self.low)
        self.mass: Tensor = torch.special.ndtr(self.high) - self.below

    def rsample(self) -> Tensor:
        """Return a sample ``[..., A]`` with gradient, by inverting the distribution function."""
        return self.quantile(torch.rand_like(self.mean))

    def quantile(self, share: Tensor) -> Tensor:
        """Return the values ``[..., A]`` that a sample exceeds with probability 1 - ``share``."""
        normal: Tensor = torch.special.ndtri((self.below + share * self.mass).clamp(1e-7, 1 - 1e-7))
        return self.clipped(self.mean + self.std * normal)

    def clipped(self, value: Tensor) -> Tensor:
        """Return values ``[..., A]`` inside of (-1, 1)."""
        return value + (value.clamp(-self.LIMIT, self.LIMIT) - value).detach()

    def mode(self) -> Tensor:
        return self.clipped(self.mean)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density ``[...]`` of values ``[..., A]`` in [-1, 1]."""
        z = (value.float() - self.mean) / self.std
        return (-0.5 * z * z - HALF_LOG_2PI - self.std.log() - self.mass.log()).sum(-1)

    def entropy(self) -> Tensor:
        edges = (self.low * _normal_density(self.low) - self.high * _normal_density(self.high)) / (2 * self.mass)
        return ((self.std * self.mass).log() + HALF_LOG_2PI_E + edges).sum(-1)

    def summary(self, squashed: bool = True) -> Summary:
        """Return mean and standard deviation of the truncated distribution; before that if not ``squashed``."""
        if not squashed:
            return super().summary()
        return _mean_and_std_of_quantiles(self.quantile, self.mean)


def _normal_density(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


class TanhNormalDistribution(Normal):
    """tanh of a normal distribution, whose entropy is estimated from samples: DreamerV1's authors' code.

    Unlike :class:`SquashedNormal` it does not limit the standard deviation, which is 5 at first. ``mean`` and ``std``
    are the parameters before tanh.
    """

    squashing: ClassVar[str] = "tanh"
    LARGEST = 1 - 2**-24
    """The largest float32 below 1: actions nearer to 1 have its density."""

    def __init__(self, mean: Tensor, std: Tensor, samples: int = 100) -> None:
        """``samples``: their number for estimating the entropy; 0: the entropy before tanh."""
        super().__init__(mean, std)
        self.samples = samples

    def rsample(self) -> Tensor:
        return super().rsample().tanh()

    def mode(self) -> Tensor:
        """Return tanh of the mean, ``[..., A]``."""
        return self.mean.tanh()

    def log_prob(self, value: Tensor) -> Tensor:
        return self.density(value.float().clamp(-self.LARGEST, self.LARGEST).atanh())

    def density(self, before: Tensor) -> Tensor:
        """Return the log-density ``[...]`` of tanh(``before``), ``before`` ``[..., A]``."""
        z = (before - self.mean) / self.std
        squashing = 2 * (math.log(2) - before - F.softplus(-2 * before))
        return (-0.5 * z * z - HALF_LOG_2PI - self.std.log() - squashing).sum(-1)

    def entropy(self) -> Tensor:
        if not self.samples:
            return super().entropy()
        noise = torch.randn(self.samples, *self.mean.shape, device=self.mean.device)
        return -self.density(self.mean + self.std * noise).mean(0)

    def summary(self, squashed: bool = True) -> Summary:
        """Return mean and standard deviation of actions after tanh; before it if not ``squashed``."""
        if not squashed:
            return super().summary()
        return _mean_and_std_of_quantiles(
            lambda share: (self.mean + self.std * torch.special.ndtri(share)).tanh(), self.mean
        )


# ---------------------------------------------------------------------- model-free actors


def _expand_samples(x: Tensor, n: int) -> Tensor:
    """Expand ``[..., X]`` to ``[..., n, X]``, as a view."""
    return x.unsqueeze(-2).expand(*x.shape[:-1], n, x.shape[-1])


class DiagonalNormal:
    """N(mean, std^2) over ``[..., A]``, not squashed by tanh: actions of -1 and 1 have a finite density, too."""

    squashing: ClassVar[str] = "clip"

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        """``mean`` is ``[..., A]``, ``log_std`` ``[..., A]`` or ``[A]``, already clamped to its limits."""
        self.mean = mean
        self.log_std = log_std

    def repeat(self, n: int) -> Self:
        """Return the distribution repeated n times, over ``[..., n, A]``."""
        return type(self)(_expand_samples(self.mean, n), _expand_samples(self.log_std.expand_as(self.mean), n))

    def sample(self) -> tuple[Tensor, Tensor]:
        """Return actions ``[..., A]`` clipped to [-1, 1] and log-densities ``[...]`` before clipping, with gradient."""
        noise = torch.randn_like(self.mean)
        action = self.mean + exp(self.log_std) * noise
        return action.clamp(-1, 1), self._log_density(noise)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-density ``[...]`` of actions ``[..., A]``."""
        return normal_log_density(action, self.mean, self.log_std)

    def mode(self) -> Tensor:
        """Return the mean, ``[..., A]``."""
        return self.mean

    def summary(self, squashed: bool = True) -> Summary:
        """Return mean and standard deviation of actions before clipping."""
        return self.mean, exp(self.log_std).expand_as(self.mean)

    def _log_density(self, noise: Tensor) -> Tensor:
        return (-0.5 * noise.square() - self.log_std - HALF_LOG_2PI).sum(-1)


@accelerated
def normal_log_density(action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Return ln N(action | mean, sigma^2) ``[...]`` of actions ``[..., A]``; ``log_std`` is ``[..., A]`` or ``[A]``."""
    noise = (action - mean) / exp(log_std)
    return (-0.5 * noise.square() - log_std - HALF_LOG_2PI).sum(-1)


class UnclippedNormal(DiagonalNormal):
    """N(mean, std^2) whose samples may lie outside of [-1, 1]: environments clip them, and their density is exact."""

    def sample(self) -> tuple[Tensor, Tensor]:
        noise = torch.randn_like(self.mean)
        return self.mean + exp(self.log_std) * noise, self._log_density(noise)

    def entropy(self) -> Tensor:
        """Return the entropy ``[...]`` in nats."""
        return (self.log_std + HALF_LOG_2PI_E).sum(-1).expand(self.mean.shape[:-1])


LOG_STD = (-20.0, 2.0)
"""Limits of ln sigma of :class:`SquashedNormal`, from the code of the authors of SAC."""


class SquashedNormal(DiagonalNormal):
    """a = tanh(u), u ~ N(mean, std^2): Haarnoja et al. 2018, arXiv:1812.05905, appendix C.

    ln pi(a) = ln N(u) - sum ln(1 - tanh(u)^2)   (equation 26)

    where ln(1 - tanh(u)^2) = 2 (ln 2 - u - softplus(-2 u)), which is exact and finite for any u.
    """

    squashing: ClassVar[str] = "tanh"

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        """Both are ``[..., A]``; ``log_std`` (ln sigma) may be any number, and is clamped to ``LOG_STD``."""
        self.mean = mean
        self.unclamped = log_std

    @functools.cached_property
    def log_std(self) -> Tensor:  # type: ignore[override]
        """Ln sigma, ``[..., A]``."""
        return self.unclamped.clamp(*LOG_STD)

    def sample(self) -> tuple[Tensor, Tensor]:
        """Return an action ``[..., A]`` and its log-density ``[...]``, both with gradient."""
        noise = torch.randn(self.mean.shape, dtype=self.mean.dtype, device=self.mean.device)  # [..., A]
        return squash(self.mean, self.unclamped, noise)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-density ``[...]`` of actions ``[..., A]``; at -1 and 1, at the nearest number inside."""
        inside = 1 - torch.finfo(action.dtype).eps
        u = action.clamp(-inside, inside).atanh()  # [..., A]
        return log_density((u - self.mean) / exp(self.log_std), u, self.log_std)

    def mode(self) -> Tensor:
        """Return tanh(mean), ``[..., A]``."""
        return tanh(self.mean)

    def summary(self, squashed: bool = True) -> Summary:
        """Return mean and standard deviation of actions after tanh; before it if not ``squashed``."""
        if not squashed:
            return super().summary()
        std = exp(self.log_std)
        return _mean_and_std_of_quantiles(
            lambda share: (self.mean + std * torch.special.ndtri(share)).tanh(), self.mean
        )


@accelerated
def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return tanh(u) ``[..., A]`` and its log-density ``[...]``, for u = mean + sigma noise, all ``[..., A]``.

    ``log_std`` (ln sigma) is clamped to ``LOG_STD``.
    """
    log_std = log_std.clamp(*LOG_STD)
    u = mean + exp(log_std) * noise  # [..., A]
    return tanh(u), log_density(noise, u, log_std)


def log_density(noise: Tensor, u: Tensor, log_std: Tensor) -> Tensor:
    """Return ln pi(tanh(u)) ``[...]`` of u = mean + sigma noise, all ``[..., A]``: equation 26."""
    normal = -0.5 * noise.square() - log_std - HALF_LOG_2PI  # [..., A]
    squashing = 2 * (math.log(2) - u - F.softplus(-2 * u))  # [..., A]
    return (normal - squashing).sum(-1)

"""Normal distributions of continuous actions: as they are, clipped, truncated, or squashed by tanh.

All of them compute in float32. ``log_prob`` and ``entropy`` sum over the action's axis, so their shape is ``[...]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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


class Normal:
    """Independent normals, with samples that may lie outside of [-1, 1]: environments clip them."""

    squashing: ClassVar[str] = "clip"
    """How a sample of the normal becomes an action in [-1, 1]: clip, tanh, or truncate, which is to draw again."""

    def __init__(self, mean: Tensor, log_std: Tensor | None = None, *, std: Tensor | None = None) -> None:
        """``mean`` is ``[..., A]``; ln sigma, or sigma itself, is ``[..., A]`` or ``[A]``."""
        self.mean = mean
        self._log_std = log_std
        self._std = std

    @property
    def std(self) -> Tensor:
        """Sigma, ``[..., A]`` or ``[A]``."""
        return exp(self.log_std) if self._std is None else self._std

    @property
    def log_std(self) -> Tensor:
        """Ln sigma, ``[..., A]`` or ``[A]``."""
        return self.std.log() if self._log_std is None else self._log_std

    def repeat(self, n: int) -> Self:
        """Return the distribution repeated n times, over ``[..., n, A]``, as a view."""
        lead, width = self.mean.shape[:-1], self.mean.shape[-1]
        parts = (self.mean, self.log_std.expand_as(self.mean))
        return type(self)(*(x.unsqueeze(-2).expand(*lead, n, width) for x in parts))

    def sample(self) -> Tensor:
        """Return a sample ``[..., A]`` without gradient, as losses of the likelihood ratio use it."""
        with torch.no_grad():
            return self.rsample()

    def rsample(self) -> Tensor:
        """Return a sample ``[..., A]`` with gradient."""
        return self.mean + self.std * torch.randn_like(self.mean)  # torch.normal reads std, and waits for a GPU

    def sample_and_log_prob(self) -> tuple[Tensor, Tensor]:
        """Return a sample ``[..., A]`` and its log-density ``[...]`` before clipping, both with gradient."""
        noise, log_std = torch.randn_like(self.mean), self.log_std
        action = self.mean + exp(log_std) * noise
        return action, (-0.5 * noise.square() - log_std - HALF_LOG_2PI).sum(-1)

    def mode(self) -> Tensor:
        """Return the likeliest action, ``[..., A]``."""
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-density ``[...]`` of actions ``[..., A]``."""
        if self._std is None:
            return normal_log_density(action, self.mean, self.log_std)
        return (-0.5 * ((action - self.mean) / self._std).square() - self._std.log() - HALF_LOG_2PI).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy ``[...]`` in nats."""
        return (self.log_std + HALF_LOG_2PI_E).sum(-1).expand(self.mean.shape[:-1])

    def summary(self, squashed: bool = True) -> Summary:
        """Return mean and standard deviation of actions; before squashing or truncation if not ``squashed``.

        They are those before clipping.
        """
        return self.mean, self.std.expand_as(self.mean)


@accelerated
def normal_log_density(action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Return ln N(action | mean, sigma^2) ``[...]`` of actions ``[..., A]``; ``log_std`` is ``[..., A]`` or ``[A]``."""
    noise = (action - mean) / exp(log_std)
    return (-0.5 * noise.square() - log_std - HALF_LOG_2PI).sum(-1)


class ClippedNormal(Normal):
    """Independent normals, with samples clipped to [-1, 1] and the density before clipping.

    Unlike that of tanh, it is finite at actions of -1 and 1.
    """

    def rsample(self) -> Tensor:
        return super().rsample().clamp(-1, 1)

    def sample_and_log_prob(self) -> tuple[Tensor, Tensor]:
        action, log_prob = super().sample_and_log_prob()
        return action.clamp(-1, 1), log_prob

    def mode(self) -> Tensor:
        return self.mean.clamp(-1, 1)


class TruncatedNormal(Normal):
    """A normal distribution truncated to [-1, 1], of DreamerV2's authors' code.

    ``mean`` in [-1, 1] and ``std`` are the parameters before truncation.
    """

    squashing: ClassVar[str] = "truncate"
    LIMIT = 1 - 1e-6
    """Samples are clipped to it, with the gradient of unclipped samples."""

    def __init__(self, mean: Tensor, log_std: Tensor | None = None, *, std: Tensor | None = None) -> None:
        super().__init__(mean, log_std, std=std)
        self.low: Tensor = (-1 - mean) / self.std
        self.high: Tensor = (1 - mean) / self.std
        self.below: Tensor = torch.special.ndtr(self.low)
        self.mass: Tensor = torch.special.ndtr(self.high) - self.below

    def rsample(self) -> Tensor:
        """Return a sample ``[..., A]`` with gradient, by inverting the distribution function."""
        return self.quantile(torch.rand_like(self.mean))

    def sample_and_log_prob(self) -> tuple[Tensor, Tensor]:
        action = self.rsample()
        return action, self.log_prob(action)

    def quantile(self, share: Tensor) -> Tensor:
        """Return the values ``[..., A]`` that a sample exceeds with probability 1 - ``share``."""
        normal: Tensor = torch.special.ndtri((self.below + share * self.mass).clamp(1e-7, 1 - 1e-7))
        return self.clipped(self.mean + self.std * normal)

    def clipped(self, value: Tensor) -> Tensor:
        """Return values ``[..., A]`` inside of (-1, 1)."""
        return value + (value.clamp(-self.LIMIT, self.LIMIT) - value).detach()

    def mode(self) -> Tensor:
        return self.clipped(self.mean)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-density ``[...]`` of actions ``[..., A]`` in [-1, 1]."""
        return super().log_prob(action) - self.mass.log().sum(-1)

    def entropy(self) -> Tensor:
        edges = (self.low * _normal_density(self.low) - self.high * _normal_density(self.high)) / (2 * self.mass)
        return super().entropy() + (self.mass.log() + edges).sum(-1)

    def summary(self, squashed: bool = True) -> Summary:
        return _mean_and_std_of_quantiles(self.quantile, self.mean) if squashed else super().summary()


def _normal_density(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


LOG_STD = (-20.0, 2.0)
"""Limits of ln sigma of :class:`SquashedNormal`, from the code of the authors of SAC."""


class SquashedNormal(Normal):
    """a = tanh(u), u ~ N(mean, std^2): Haarnoja et al. 2018, arXiv:1812.05905, appendix C; and DreamerV1.

    ln pi(a) = ln N(u) - sum ln(1 - tanh(u)^2)   (equation 26)

    where ln(1 - tanh(u)^2) = 2 (ln 2 - u - softplus(-2 u)), which is exact and finite for any u.
    """

    squashing: ClassVar[str] = "tanh"

    def __init__(
        self, mean: Tensor, log_std: Tensor | None = None, *, std: Tensor | None = None, samples: int = 100
    ) -> None:
        """``log_std`` may be any number, and is clamped to ``LOG_STD``; ``std`` has no limits.

        ``samples``: their number for estimating the entropy; 0: the entropy before tanh.
        """
        super().__init__(mean, log_std, std=std)
        self.samples = samples

    @property
    def log_std(self) -> Tensor:
        return self.std.log() if self._log_std is None else self._log_std.clamp(*LOG_STD)

    def rsample(self) -> Tensor:
        return tanh(super().rsample())

    def sample_and_log_prob(self) -> tuple[Tensor, Tensor]:
        noise = torch.randn_like(self.mean)  # [..., A]
        if self._log_std is not None:
            return squash(self.mean, self._log_std, noise)
        u = self.mean + self.std * noise
        return tanh(u), log_density(noise, u, self.log_std)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-density ``[...]`` of actions ``[..., A]``; at -1 and 1, at the nearest number inside."""
        inside = 1 - torch.finfo(action.dtype).eps / 2
        return self.density(action.clamp(-inside, inside).atanh())

    def density(self, u: Tensor) -> Tensor:
        """Return the log-density ``[...]`` of tanh(``u``), ``[..., A]``."""
        return log_density((u - self.mean) / self.std, u, self.log_std)

    def mode(self) -> Tensor:
        """Return tanh(mean), ``[..., A]``."""
        return tanh(self.mean)

    def entropy(self) -> Tensor:
        """Return the entropy ``[...]`` in nats, estimated from samples."""
        if not self.samples:
            return super().entropy()
        noise = torch.randn(self.samples, *self.mean.shape, device=self.mean.device)
        return -self.density(self.mean + self.std * noise).mean(0)

    def summary(self, squashed: bool = True) -> Summary:
        if not squashed:
            return super().summary()
        std = self.std
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

"""The distributions that networks return, with exactly the methods that learners call.

All of them compute in float32. ``log_prob`` and ``entropy`` sum over the action's axis, so their shape is ``[...]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.core.accelerate import accelerated
from reverie.core.specs import ActionSpec
from reverie.core.tree import expect
from reverie.nn.functional import ILLEGAL, cross_entropy, one_hot, sample_classes
from reverie.objectives.categorical import joined, per_choice
from reverie.objectives.transforms import exp, symexp, symlog, symmetric_mean, two_hot

LOG_ROOT = 0.5 * math.log(2 * math.pi)
LOG_ROOT_E = 0.5 * math.log(2 * math.pi * math.e)
QUANTILES = 999
"""Numbers, equally likely, by which the mean and deviation of tanh of a normal and of a truncated one are computed."""
Summary = tuple[Tensor, Tensor]
"""What a policy expects of flat actions, ``[..., A]`` each: the mean of numbers and the probability of classes; and the
standard deviation of numbers, 0 of classes."""


def mean_and_std(quantile: Callable[[Tensor], Tensor], like: Tensor) -> Summary:
    """Return both ``[..., A]`` of numbers, given their quantiles of probabilities ``[QUANTILES, ..., A]``."""
    share = (torch.arange(QUANTILES, dtype=torch.float64, device=like.device) + 0.5) / QUANTILES
    values = quantile(share.float().view(-1, *(1 for _ in like.shape)))  # [QUANTILES, ..., A]
    return values.mean(0), values.std(0, correction=0)


# ---------------------------------------------------------------------- classes


def softmax(logits: Tensor) -> Tensor:
    """Return the softmax over the last axis, in float32.

    PyTorch's CPU kernel works row by row. For rows of a few classes that takes three times as long as the operations
    here, each of which passes over the whole tensor.
    """
    logits = logits.float()
    if logits.device.type != "cpu" or logits.shape[-1] > 64:
        return torch.softmax(logits, -1)
    weights = (logits - logits.detach().amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True)


def log_of(probs: Tensor) -> Tensor:
    """Return ln p ``[...]``, finite also where p underflows to 0, as it can without unimix."""
    return probs.clamp(min=torch.finfo(probs.dtype).tiny).log()


class _StraightThrough(torch.autograd.Function):
    """The straight-through estimator: forward a one-hot vector, backward the identity to the probabilities."""

    @staticmethod
    def forward(ctx: Any, probs: Tensor, index: Tensor) -> Tensor:
        return one_hot(index, probs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def straight_through(probs: Tensor, index: Tensor) -> Tensor:
    """Return the one-hot of ``index``, ``[..., C]``, whose gradient passes unchanged to ``probs``."""
    if not (torch.is_grad_enabled() and probs.requires_grad):
        return one_hot(index, probs)
    out: Tensor = _StraightThrough.apply(probs, index)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return out


class Categoricals:
    """Independent categorical variables; the flat value is the concatenation of their one-hot vectors.

    Variables with fewer classes than the largest are padded with classes of probability 0.
    """

    def __init__(
        self, logits: Tensor, classes: tuple[int, ...], unimix: float = 0.0, legal: Tensor | None = None
    ) -> None:
        """``logits`` are ``[..., sum(classes)]``; ``unimix`` is the share of the uniform distribution mixed in.

        ``legal`` ``[..., sum(classes)]``: the classes that are possible, of each variable at least one. None: all.
        """
        self.classes = classes
        self.unimix = unimix
        self.ragged: bool = len(set(classes)) > 1
        self.padded: Tensor = self._pad(logits.float(), ILLEGAL)  # [..., n, C]
        if legal is None and self.ragged:
            legal = torch.ones_like(logits, dtype=torch.bool)
        self.legal: Tensor | None = None if legal is None else self._pad(legal, False)  # [..., n, C]
        if self.legal is not None:
            self.padded = self.padded.masked_fill(~self.legal, ILLEGAL)

    @cached_property
    def probs(self) -> Tensor:
        """Probabilities of the classes, ``[..., n, C]``."""
        with self._graph():
            return self._mixed(softmax(self.padded))

    @cached_property
    def log_probs(self) -> Tensor:
        """Log-probabilities of the classes, ``[..., n, C]``."""
        with self._graph():
            return self.probs.clamp(min=1e-30).log() if self.unimix else torch.log_softmax(self.padded, -1)

    def _graph(self) -> torch.set_grad_enabled:
        """Record a graph if the logits have one: what is computed here is kept for calls that may need gradients."""
        return torch.set_grad_enabled(self.padded.requires_grad)

    def _mixed(self, probs: Tensor) -> Tensor:
        if not self.unimix:
            return probs
        if self.legal is None:
            return (1 - self.unimix) * probs + self.unimix / self.classes[0]
        count = self.legal.sum(-1, keepdim=True)  # [..., n, 1]
        share = self.unimix / count if self.ragged else (self.unimix / count.double()).float()  # as without a mask
        return torch.where(self.legal, (1 - self.unimix) * probs + share, 0.0)

    def _pad(self, flat: Tensor, value: float) -> Tensor:
        if not self.ragged:
            return flat.reshape(*flat.shape[:-1], len(self.classes), self.classes[0])
        widest = max(self.classes)
        parts = torch.split(flat, list(self.classes), -1)
        return torch.stack([F.pad(p, (0, widest - p.shape[-1]), value=value) for p in parts], -2)

    def _flat(self, padded: Tensor) -> Tensor:
        if not self.ragged:
            return padded.flatten(-2)
        return torch.cat([padded[..., i, :c] for i, c in enumerate(self.classes)], -1)

    def _onehot(self, index: Tensor) -> Tensor:
        known = torch.arange(self.probs.shape[-1], device=index.device)
        return self._flat((index.unsqueeze(-1) == known).float())

    @accelerated
    def sample(self) -> Tensor:
        """Return a sample ``[..., sum(classes)]``, one-hot for each variable."""
        return self._onehot(sample_classes(self.probs, self.legal is not None))

    def rsample(self) -> Tensor:
        """Return a sample ``[..., sum(classes)]`` with the straight-through gradient."""
        return self._flat(straight_through(self.probs, sample_classes(self.probs, self.legal is not None)))

    def drawn_anew(self) -> Tensor:
        """Return uniformly random classes ``[..., sum(classes)]`` among the legal ones, one-hot for each variable."""
        legal = None if self.legal is None else self._flat(self.legal)
        return Categoricals(torch.zeros_like(self._flat(self.padded)), self.classes, legal=legal).sample()

    def mode(self) -> Tensor:
        """Return the most probable classes ``[..., sum(classes)]``, one-hot for each variable."""
        return self._onehot(self.probs.argmax(-1))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probability ``[...]`` of one-hot values ``[..., sum(classes)]``, which get no gradient."""
        return (self._pad(value.detach().float(), 0.0) * self.log_probs).sum((-2, -1))

    def log_prob_index(self, index: Tensor) -> Tensor:
        """Return the log-probability ``[...]`` of class indices ``[..., n]``; indices of -1 (absent) are left out."""
        picked = self.log_probs.gather(-1, index.clamp(min=0).unsqueeze(-1)).squeeze(-1)  # [..., n]
        return torch.where(index >= 0, picked, 0.0).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy ``[...]`` in nats, summed over the variables."""
        return -(self.probs * self.log_probs).sum((-2, -1))

    def summary(self) -> Summary:
        """Return the probabilities."""
        probs = self._flat(self.probs)
        return probs, torch.zeros_like(probs)


class Choices:
    """Independent categorical variables of model-free actors, as :class:`Categoricals`, drawn by Gumbel's trick."""

    def __init__(self, logits: Tensor, classes: tuple[int, ...]) -> None:
        """``logits`` are ``[..., A]``, where A is the sum of ``classes``, the number of classes of each variable."""
        self.classes = classes
        self.logits = logits

    @property
    def log_probs(self) -> Tensor:
        """The ln pi of every class, ``[..., A]``. Not cached: a later call may need gradients, unlike this one."""
        return torch.cat([part.log_softmax(-1) for part in per_choice(self.logits, self.classes)], -1)

    def sample(self) -> tuple[Tensor, Tensor]:
        """Return one-hot actions ``[..., A]`` and their log-probabilities ``[...]``."""
        noise = -torch.empty_like(self.log_probs).exponential_().log()  # the arg max is a sample
        action = self._highest(self.log_probs.detach() + noise)
        return action, self.log_prob(action)

    def mode(self) -> Tensor:
        """Return the most probable classes, one-hot ``[..., A]``."""
        return self._highest(self.log_probs)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probabilities ``[...]`` of one-hot actions ``[..., A]``."""
        return (self.log_probs * action).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy ``[...]`` in nats, summed over the variables; classes of probability 0 add nothing."""
        log_probs = self.log_probs
        return -(log_probs.exp() * log_probs).sum(-1)

    def mean(self, values: Tensor) -> Tensor:
        """Return the expectation sum_a pi(a) x_a ``[...]`` of ``values`` ``[..., A]``, summed over the variables."""
        return (self.log_probs.exp() * values).sum(-1)

    def summary(self) -> Summary:
        """Return the probabilities."""
        return self.log_probs.exp(), torch.zeros_like(self.logits)

    def _highest(self, x: Tensor) -> Tensor:
        return torch.cat([one_hot(part.argmax(-1), part) for part in per_choice(x, self.classes)], -1)


# ---------------------------------------------------------------------- continuous actions of the Dreamers


class Normal:
    """Independent normals, with samples that may lie outside of [-1, 1]: environments clip them."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        """Both are ``[..., A]``."""
        self.mean = mean
        self.std = std

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
        return (-0.5 * z * z - self.std.log() - LOG_ROOT).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy ``[...]`` in nats."""
        return (self.std.log() + LOG_ROOT_E).sum(-1)

    def summary(self) -> Summary:
        """Return the mean and the deviation, of actions before they are clipped."""
        return self.mean, self.std


Distribution = Categoricals | Normal
"""Distributions over flat actions ``[..., A]``."""


class TruncatedNormal(Normal):
    """A normal distribution truncated to [-1, 1], of DreamerV2's authors' code.

    ``mean`` in [-1, 1] and ``std`` are those before it is truncated.
    """

    LIMIT = 1 - 1e-6
    """Samples are clipped to it, with the gradient of what is not clipped."""

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
        """See :class:`Normal`; of values in [-1, 1]."""
        z = (value.float() - self.mean) / self.std
        return (-0.5 * z * z - LOG_ROOT - self.std.log() - self.mass.log()).sum(-1)

    def entropy(self) -> Tensor:
        edges = (self.low * _normal_density(self.low) - self.high * _normal_density(self.high)) / (2 * self.mass)
        return ((self.std * self.mass).log() + LOG_ROOT_E + edges).sum(-1)

    def summary(self) -> Summary:
        """Return the mean and the deviation of the truncated distribution."""
        return mean_and_std(self.quantile, self.mean)


def _normal_density(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


class TanhedNormal(Normal):
    """tanh of a normal distribution, whose entropy is estimated from samples: DreamerV1's authors' code.

    Unlike :class:`SquashedNormal` it does not limit the deviation, which begins at 5. ``mean`` and ``std`` are those
    before tanh.
    """

    LARGEST = 1 - 2**-24
    """The largest float32 below 1: actions nearer to 1 have its density."""

    def __init__(self, mean: Tensor, std: Tensor, samples: int = 100) -> None:
        """``samples``: how many the entropy is estimated from; 0: it is that before tanh."""
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
        return (-0.5 * z * z - LOG_ROOT - self.std.log() - squashing).sum(-1)

    def entropy(self) -> Tensor:
        if not self.samples:
            return super().entropy()
        noise = torch.randn(self.samples, *self.mean.shape, device=self.mean.device)
        return -self.density(self.mean + self.std * noise).mean(0)

    def summary(self) -> Summary:
        """Return the mean and the deviation of actions, after tanh."""
        return mean_and_std(lambda share: (self.mean + self.std * torch.special.ndtri(share)).tanh(), self.mean)


# ---------------------------------------------------------------------- continuous actions of model-free actors


def times(x: Tensor, n: int) -> Tensor:
    """Expand ``[..., X]`` to ``[..., n, X]``, as a view."""
    return x.unsqueeze(-2).expand(*x.shape[:-1], n, x.shape[-1])


class DiagonalNormal:
    """N(mean, std^2) over ``[..., A]``, not squashed by tanh: actions of -1 and 1 have a finite density, too."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        """``mean`` is ``[..., A]``, ``log_std`` ``[..., A]`` or ``[A]``, already clamped to its limits."""
        self.mean = mean
        self.log_std = log_std

    def repeated(self, n: int) -> Self:
        """Return the distribution repeated n times, over ``[..., n, A]``."""
        return type(self)(times(self.mean, n), times(self.log_std.expand_as(self.mean), n))

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

    def summary(self) -> Summary:
        """Return the mean and the deviation, of actions before they are clipped."""
        return self.mean, exp(self.log_std).expand_as(self.mean)

    def _log_density(self, noise: Tensor) -> Tensor:
        return (-0.5 * noise.square() - self.log_std - LOG_ROOT).sum(-1)


class FreeNormal(DiagonalNormal):
    """N(mean, std^2) whose samples may lie outside of [-1, 1]: environments clip them, and their density is exact."""

    def sample(self) -> tuple[Tensor, Tensor]:
        noise = torch.randn_like(self.mean)
        return self.mean + exp(self.log_std) * noise, self._log_density(noise)

    def entropy(self) -> Tensor:
        """Return the entropy ``[...]`` in nats."""
        return (self.log_std + LOG_ROOT_E).sum(-1).expand(self.mean.shape[:-1])


LOG_STD = (-20.0, 2.0)
"""Limits of ln sigma of :class:`SquashedNormal`, from the code of the authors of SAC."""


class SquashedNormal(DiagonalNormal):
    """a = tanh(u), u ~ N(mean, std^2): Haarnoja et al. 2018, arXiv:1812.05905, appendix C.

    ln pi(a) = ln N(u) - sum ln(1 - tanh(u)^2)   (equation 26)

    where ln(1 - tanh(u)^2) = 2 (ln 2 - u - softplus(-2 u)), which is exact and finite for any u.
    """

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        """Both are ``[..., A]``; ``log_std`` (ln sigma) may be any number, and is clamped to ``LOG_STD``."""
        super().__init__(mean, log_std.clamp(*LOG_STD))

    def sample(self) -> tuple[Tensor, Tensor]:
        """Return an action ``[..., A]`` and its log-density ``[...]``, both with gradient."""
        noise = torch.randn(self.mean.shape, dtype=self.mean.dtype, device=self.mean.device)  # [..., A]
        u = self.mean + exp(self.log_std) * noise  # [..., A]
        return u.tanh(), log_density(noise, u, self.log_std)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-density ``[...]`` of actions ``[..., A]``; at -1 and 1, that of the nearest number inside."""
        inside = 1 - torch.finfo(action.dtype).eps
        u = action.clamp(-inside, inside).atanh()  # [..., A]
        return log_density((u - self.mean) / exp(self.log_std), u, self.log_std)

    def mode(self) -> Tensor:
        """Return tanh(mean), ``[..., A]``."""
        return self.mean.tanh()

    def summary(self) -> Summary:
        """Return the mean and the deviation of actions, after tanh."""
        std = exp(self.log_std)
        return mean_and_std(lambda share: (self.mean + std * torch.special.ndtri(share)).tanh(), self.mean)


def log_density(noise: Tensor, u: Tensor, log_std: Tensor) -> Tensor:
    """Return ln pi(tanh(u)) ``[...]`` of u = mean + sigma noise, all ``[..., A]``: equation 26."""
    normal = -0.5 * noise.square() - log_std - LOG_ROOT  # [..., A]
    squashing = 2 * (math.log(2) - u - F.softplus(-2 * u))  # [..., A]
    return (normal - squashing).sum(-1)


# ---------------------------------------------------------------------- numbers and choices


class Layout:
    """Where the numbers and the classes of an action lie in the flat action."""

    def __init__(self, spec: ActionSpec) -> None:
        parts = [spec.parts[key] for key in sorted(spec.parts)]
        self.continuous: list[bool] = [part.kind == "continuous" for part in parts]
        self.widths: list[int] = [part.width for part in parts]

    def apart(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers ``[..., C]`` and the classes ``[..., D]`` of flat actions or masks ``[..., C + D]``."""
        parts = list(zip(torch.split(flat, self.widths, -1), self.continuous, strict=True))
        return joined([x for x, number in parts if number]), joined([x for x, number in parts if not number])

    def together(self, numbers: Tensor, classes: Tensor) -> Tensor:
        """Return the inverse of :meth:`apart`."""
        widths = list(zip(self.widths, self.continuous, strict=True))
        left = iter(torch.split(numbers, [width for width, number in widths if number], -1))
        right = iter(torch.split(classes, [width for width, number in widths if not number], -1))
        return torch.cat([next(left if number else right) for number in self.continuous], -1)


class Mixed:
    """The product of a distribution of the numbers of an action and one of its choices."""

    def __init__(self, numbers: Any, choices: Choices, layout: Layout) -> None:
        """``numbers`` is a normal distribution of any kind here, over ``[..., C]``."""
        self.numbers = numbers
        self.choices = choices
        self.layout = layout

    def sample(self) -> tuple[Tensor, Tensor]:
        """Return flat actions ``[..., A]`` and their log-densities ``[...]``."""
        (numbers, density), (classes, log_prob) = self.numbers.sample(), self.choices.sample()
        return self.layout.together(numbers, classes), density + log_prob

    def mode(self) -> Tensor:
        """Return the modes of both parts, ``[..., A]``."""
        return self.layout.together(self.numbers.mode(), self.choices.mode())

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-densities ``[...]`` of flat actions ``[..., A]``."""
        numbers, classes = self.layout.apart(action)
        density: Tensor = self.numbers.log_prob(numbers)
        return density + self.choices.log_prob(classes)

    def entropy(self) -> Tensor:
        """Return the entropy ``[...]`` in nats of both parts together; not of squashed numbers, which have none."""
        entropy: Tensor = self.numbers.entropy()
        return entropy + self.choices.entropy()

    def summary(self) -> Summary:
        """Return those of both parts."""
        (mean, std), (probs, none) = self.numbers.summary(), self.choices.summary()
        return self.layout.together(mean, probs), self.layout.together(std, none)


# ---------------------------------------------------------------------- numbers, yes or no


class UnitNormal:
    """A number as a normal distribution of deviation 1."""

    def __init__(self, mean: Tensor) -> None:
        self._mean = mean.float()

    def mean(self) -> Tensor:
        """Return the mean, ``[...]``."""
        return self._mean

    def loss(self, value: Tensor) -> Tensor:
        """Return -ln p(value), ``[...]``, with its constant, as the authors of DreamerV1 and V2 have it."""
        expect(self._mean.shape, value=value)
        return 0.5 * (self._mean - value).square() + LOG_ROOT

    def __getitem__(self, rows: Any) -> UnitNormal:
        """Return the distributions of some rows."""
        return UnitNormal(self._mean[rows])


class Support:
    """A number as a categorical distribution over given values, each number being learned as the nearest of them."""

    def __init__(self, logits: Tensor, values: Tensor) -> None:
        """``logits`` are ``[..., K]`` of ``values`` ``[K]``."""
        self.logits: Tensor = logits.float()
        self.values = values

    def mean(self) -> Tensor:
        """Return the expected value, ``[...]``."""
        return torch.softmax(self.logits, -1) @ self.values

    def loss(self, value: Tensor) -> Tensor:
        """Return the cross-entropy ``[...]`` with the nearest of the values; the first of two equally near."""
        nearest = (value.unsqueeze(-1) - self.values).abs().argmin(-1, keepdim=True)
        return -torch.log_softmax(self.logits, -1).gather(-1, nearest).squeeze(-1)


class TwoHot:
    """A number as a categorical distribution over symexp-spaced bins. DreamerV3 (2025), equations 10 and 11."""

    def __init__(self, logits: Tensor, bins: Tensor) -> None:
        """``logits`` are ``[..., K]``, ``bins`` the values of the K bins, ascending."""
        self.logits: Tensor = logits.float()
        self.bins = bins

    def mean(self) -> Tensor:
        """Return the expected value, ``[...]``."""
        return symmetric_mean(torch.softmax(self.logits, -1), self.bins)

    def loss(self, value: Tensor, other: Tensor | None = None, counts: float = 1.0) -> Tensor:
        """Return the cross-entropy -sum_i w_i ln p_i ``[...]``, where w are the two-hot weights of ``value`` ``[...]``.

        Only two of the w_i are not 0, so only two of the ln p_i are read. With ``other``, its cross-entropy times
        ``counts`` is added; the logits are then read, and their gradient computed, once for both.
        """
        expect(self.logits.shape[:-1], value=value, other=other)
        index, weight = two_hot(value.float(), self.bins)  # [..., 2]
        if other is not None:
            index_of, weight_of = two_hot(other.float(), self.bins)
            index, weight = torch.cat([index, index_of], -1), torch.cat([weight, counts * weight_of], -1)  # [..., 4]
        return cross_entropy(self.logits, index, weight)

    def __getitem__(self, rows: Any) -> TwoHot:
        """Return the distributions of some rows."""
        return TwoHot(self.logits[rows], self.bins)


class LogTwoHot(TwoHot):
    """A number as a categorical distribution over bins that lie evenly in symlog: TD-MPC2 (2024), section 3.1."""

    def mean(self) -> Tensor:
        """Return symexp of the expected bin, ``[...]``."""
        return symexp(torch.softmax(self.logits, -1) @ self.bins)

    def loss(self, value: Tensor, other: Tensor | None = None, counts: float = 1.0) -> Tensor:
        """See :class:`TwoHot`; the weights are those of symlog(value)."""
        return super().loss(symlog(value.float()), None if other is None else symlog(other.float()), counts)


class Bernoulli:
    """A Bernoulli distribution with the given logit ``[...]``."""

    def __init__(self, logit: Tensor) -> None:
        self.logit: Tensor = logit.float()

    def prob(self) -> Tensor:
        """Return the probability of true, ``[...]``."""
        return torch.sigmoid(self.logit)

    def loss(self, target: Tensor) -> Tensor:
        """Return the cross-entropy ``[...]`` with a probability ``[...]`` as target."""
        return F.binary_cross_entropy_with_logits(self.logit, target, reduction="none")


class Constant:
    """A probability ``[...]`` that is given and not learned."""

    def __init__(self, prob: Tensor) -> None:
        self._prob = prob

    def prob(self) -> Tensor:
        """Return the probability of true, ``[...]``."""
        return self._prob

    def loss(self, target: Tensor) -> Tensor:
        """Return 0 ``[...]``."""
        return torch.zeros_like(target)

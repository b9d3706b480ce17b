"""Distributions of numbers and booleans that heads predict. All of them compute in float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.core.kernel_dispatch import accelerated
from reverie.core.tree import check_tensor_shapes
from reverie.nn.normals import HALF_LOG_2PI
from reverie.objectives.transforms import inverse_sqrt_transform, sqrt_transform, symexp, symlog, two_hot


class UnitNormal:
    """A number as a normal distribution of standard deviation 1."""

    def __init__(self, mean: Tensor) -> None:
        self._mean = mean.float()

    def mean(self) -> Tensor:
        """Return the mean, ``[...]``."""
        return self._mean

    def loss(self, value: Tensor) -> Tensor:
        """Return -ln p(value), ``[...]``, including its constant, as in the code of DreamerV1 and V2."""
        check_tensor_shapes(self._mean.shape, value=value)
        return 0.5 * (self._mean - value).square() + HALF_LOG_2PI

    def __getitem__(self, rows: slice | Tensor) -> UnitNormal:
        """Return the distributions of some rows."""
        return UnitNormal(self._mean[rows])


@dataclass(eq=False)
class SupportDistribution:
    """A number as a categorical distribution over given values; each number is learned as the nearest of them."""

    logits: Tensor  # [..., K]
    values: Tensor  # [K]

    def mean(self) -> Tensor:
        """Return the expected value, ``[...]``."""
        return torch.softmax(self.logits.float(), -1) @ self.values

    def loss(self, value: Tensor) -> Tensor:
        """Return the cross-entropy ``[...]`` with the nearest of the values; the first of two equally near."""
        nearest = (value.unsqueeze(-1) - self.values).abs().argmin(-1, keepdim=True)
        return -torch.log_softmax(self.logits.float(), -1).gather(-1, nearest).squeeze(-1)


@dataclass(eq=False)
class TwoHot:
    """A reward or value, two-hot encoded over symexp-spaced bins: DreamerV3 (2025), equations 10 and 11."""

    logits: Tensor  # [..., K]
    bins: Tensor  # [K], the values of the bins, ascending and symmetric about zero

    @accelerated
    def mean(self) -> Tensor:
        """Return the expected value ``[...]``: the sum over b_i > 0 of b_i (p_i - p_-i), with bins b and p = softmax.

        A plain sum over all bins would have rounding errors in proportion to the outermost ones. With the differences,
        an untrained head, whose probabilities are uniform, predicts exactly 0.
        """
        probs, half = torch.softmax(self.logits.float(), -1), len(self.bins) // 2
        return (probs[..., -half:] - probs[..., :half].flip(-1)) @ self.bins[-half:]

    @accelerated
    def loss(self, value: Tensor, second: Tensor | None = None, counts: float = 1.0) -> Tensor:
        """Return the cross-entropy -sum_i w_i ln p_i ``[...]``, where w are the two-hot weights of ``value`` ``[...]``.

        Only two of the w_i are not 0, so only two of the ln p_i are read. With ``second``, its cross-entropy times
        ``counts`` is added; the logits are then read, and their gradient computed, once for both.
        """
        check_tensor_shapes(self.logits.shape[:-1], value=value, second=second)
        index, weight = two_hot(value.float(), self.bins)  # [..., 2]
        if second is not None:
            index_of, weight_of = two_hot(second.float(), self.bins)
            index, weight = torch.cat([index, index_of], -1), torch.cat([weight, counts * weight_of], -1)  # [..., 4]
        return -(torch.log_softmax(self.logits.float(), -1).gather(-1, index) * weight).sum(-1)

    def __getitem__(self, rows: slice | Tensor) -> TwoHot:
        """Return the distributions of some rows."""
        return TwoHot(self.logits[rows], self.bins)


class LogTwoHot(TwoHot):
    """A reward or value, two-hot encoded over bins evenly spaced in symlog: TD-MPC2 (2024), section 3.1."""

    def mean(self) -> Tensor:
        """Return symexp of the expected bin, ``[...]``."""
        return symexp(torch.softmax(self.logits.float(), -1) @ self.bins)

    def loss(self, value: Tensor, second: Tensor | None = None, counts: float = 1.0) -> Tensor:
        """Return the cross-entropy of :class:`TwoHot`, with the weights of symlog(value)."""
        return super().loss(symlog(value.float()), None if second is None else symlog(second.float()), counts)


class SqrtTwoHot(TwoHot):
    """A reward or value, two-hot encoded over bins evenly spaced after a root: MuZero (2020), appendix F."""

    def mean(self) -> Tensor:
        """Return the inverse of ``sqrt_transform`` of the expected bin, ``[...]``."""
        return inverse_sqrt_transform(torch.softmax(self.logits.float(), -1) @ self.bins)

    def loss(self, value: Tensor, second: Tensor | None = None, counts: float = 1.0) -> Tensor:
        """Return the cross-entropy of :class:`TwoHot`, with the weights of the transformed value."""
        other = None if second is None else sqrt_transform(second.float())
        return super().loss(sqrt_transform(value.float()), other, counts)


@dataclass(eq=False)
class Bernoulli:
    """A Bernoulli distribution."""

    logit: Tensor  # [...]

    def prob(self) -> Tensor:
        """Return the probability of true, ``[...]``."""
        return torch.sigmoid(self.logit.float())

    def loss(self, target: Tensor) -> Tensor:
        """Return the cross-entropy ``[...]`` with a probability ``[...]`` as target."""
        return F.binary_cross_entropy_with_logits(self.logit.float(), target, reduction="none")


class ConstantProbability:
    """A given, not learned probability ``[...]``."""

    def __init__(self, prob: Tensor) -> None:
        self._prob = prob

    def prob(self) -> Tensor:
        """Return the probability of true, ``[...]``."""
        return self._prob

    def loss(self, target: Tensor) -> Tensor:
        """Return 0 ``[...]``."""
        return torch.zeros_like(target)

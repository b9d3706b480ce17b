"""Symlog, two-hot encoding and other transforms, to predict numbers of unknown scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

LOG2_E = math.log2(math.e)


def exp(x: Tensor) -> Tensor:
    """Return e^x as 2^(x log2 e), with a relative error of about 1e-7 (1 + |x|) in float32.

    ``torch.exp`` uses MKL on many CPUs, which wakes all threads for a few numbers. It takes twenty times as long, and
    the threads slow down later operations for a while.
    """
    return torch.exp2(x * LOG2_E)


def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent, as 2 sigmoid(2 x) - 1, with an absolute error of about 1e-7 in float32.

    ``torch.tanh`` uses MKL as ``torch.exp`` does: see :func:`exp`.
    """
    return 2 * torch.sigmoid(2 * x) - 1


def symlog(x: Tensor) -> Tensor:
    """Return sign(x) ln(|x| + 1): DreamerV3 (Hafner et al. 2025), equation 9."""
    return torch.sign(x) * torch.log1p(torch.abs(x))


def symexp(x: Tensor) -> Tensor:
    """Return sign(x) (exp(|x|) - 1), the inverse of :func:`symlog`: DreamerV3 (2025), equation 9."""
    return torch.sign(x) * torch.expm1(torch.abs(x))


SQRT_SLOPE = 0.001
"""The slope that keeps :func:`sqrt_transform` invertible."""


def sqrt_transform(x: Tensor) -> Tensor:
    """Return sign(x) (sqrt(|x| + 1) - 1) + 0.001 x: Pohlen et al. 2018, arXiv:1805.11593, proposition A.2; MuZero."""
    return torch.sign(x) * (torch.sqrt(torch.abs(x) + 1) - 1) + SQRT_SLOPE * x


def inverse_sqrt_transform(x: Tensor) -> Tensor:
    """Return the inverse of :func:`sqrt_transform`, in a form without differences of nearly equal numbers."""
    y = torch.abs(x) + 1 + SQRT_SLOPE
    root = 2 * y / (torch.sqrt(1 + 4 * SQRT_SLOPE * y) + 1)  # (sqrt(1 + 4 eps y) - 1) / (2 eps)
    return torch.sign(x) * (root.square() - 1)


def symexp_bins(count: int) -> Tensor:
    """Return bins that are exactly symmetric about 0, ``[count]``: DreamerV3 (2025), equation 10.

    The lower half is symexp(linspace(-20, 0, ceil(count / 2))). The upper half is its mirror image, not a second
    evaluation, so that ``b[i] == -b[count - 1 - i]`` to the last bit. For an odd count that is equation 10,
    b = symexp(linspace(-20, 20, count)), with a bin at 0; an even count has its two middle bins both at 0.
    """
    half = symexp(torch.linspace(-20, 0, (count + 1) // 2, dtype=torch.float32))  # [ceil(count / 2)]
    upper = -(half[:-1] if count % 2 else half).flip(0)
    return torch.cat([half, upper])


def two_hot(target: Tensor, bins: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two bins around each target and their weights, linear in the distance: DreamerV3 (2025), equation 11.

    A target beyond the outermost bins, or equal to a bin, has all its weight on that bin. A target that is not finite
    has NaN weights, so that it shows in the loss instead of passing for the outermost bin. Only two of the K weights
    of the distribution differ from zero, so only those are returned.

    Args:
        target: ``[...]`` float32.
        bins: ``[K]`` ascending.

    Returns:
        Indices ``[..., 2]`` of the bins, and their weights ``[..., 2]``: non-negative, with sum 1, and with mean
        ``target`` inside the range of the bins.
    """
    last = len(bins) - 1
    above_first = torch.searchsorted(bins, target.contiguous(), right=True)  # how many bins are <= target
    below = (above_first - 1).clamp(0, last)
    above = above_first.clamp(0, last)
    to_below = (bins[below] - target).abs()
    to_above = (bins[above] - target).abs()
    same = below == above
    total = torch.where(same, 1.0, to_below + to_above)
    weight_above = torch.where(same, 0.0 * target, to_below / total)  # 0, or NaN for a target that is not finite
    return torch.stack([below, above], -1), torch.stack([1 - weight_above, weight_above], -1)


class RewardTransform(NamedTuple):
    """A transform of rewards for learning, and its inverse."""

    forward: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]


def _identity(x: Tensor) -> Tensor:
    return x


IDENTITY = RewardTransform(_identity, _identity)
REWARD_TRANSFORMS: dict[str, RewardTransform] = {
    "identity": IDENTITY,
    "sign": RewardTransform(torch.sign, lambda x: x),  # the magnitude is lost
    "tanh": RewardTransform(torch.tanh, lambda x: x.clamp(-1 + 1e-6, 1 - 1e-6).atanh()),
    "log1p": RewardTransform(torch.log1p, torch.expm1),
}
"""Transforms of rewards by name. log1p is for rewards above -1."""

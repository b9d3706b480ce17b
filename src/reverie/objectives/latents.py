"""Regularizers that keep the latents of a world model without decoder from collapsing to a point."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.core.kernel_dispatch import accelerated

NUM_KNOTS = 16
KNOT = 3.0 / NUM_KNOTS
"""Distance of the knots 1 to 16 of the integral in :func:`sigreg`."""
_PHI = [math.exp(-((k * KNOT) ** 2) / 2) for k in range(1, NUM_KNOTS + 1)]
KNOTS = [(phi, (1 if k == NUM_KNOTS else 2) * KNOT * phi) for k, phi in enumerate(_PHI, 1)]
"""phi(t) and the weight of each knot t > 0."""


def sigreg(z: Tensor, directions: Tensor) -> Tensor:
    """Return how far projections of latents are from a standard normal distribution, ``[]``.

    For each step and direction, with x = z . a and phi(t) = exp(-t^2 / 2), the statistic of Epps and Pulley (1983)
    compares characteristic functions::

        B integral_{-3}^{3} phi(t) [(mean cos(t x) - phi(t))^2 + (mean sin(t x))^2] dt

    by the trapezoidal rule with 17 knots on [0, 3], doubled. Normal latents have the same expectation for each B;
    others grow in proportion to B. Source: SIGReg of Balestriero and LeCun 2025, arXiv 2511.08544, as in LeWorldModel.

    Args:
        z: latents ``[B, T, D]``; means are over B.
        directions: unit vectors ``[D, P]``.
    """
    return normality(z.float() @ directions)


@accelerated
def normality(x: Tensor) -> Tensor:
    """Return the statistic of projections ``[B, T, P]`` in :func:`sigreg`, ``[]``."""
    angle = KNOT * x
    cos, sin = [torch.ones_like(angle), angle.cos()], [torch.zeros_like(angle), angle.sin()]
    for _ in KNOTS[1:]:  # cos(k + 1) = 2 cos(1) cos(k) - cos(k - 1), and so for the sine
        cos.append(2 * cos[1] * cos[-1] - cos[-2])
        sin.append(2 * cos[1] * sin[-1] - sin[-2])
    total = angle.new_zeros(())
    for c, s, (phi, weight) in zip(cos[1:], sin[1:], KNOTS, strict=True):  # the term of t = 0 is 0
        error = (c.mean(0) - phi).square() + s.mean(0).square()  # [T, P]
        total = total + weight * error.mean()
    return len(x) * total


def random_directions(width: int, count: int, device: torch.device) -> Tensor:
    """Return random unit vectors ``[width, count]``."""
    return F.normalize(torch.randn(width, count, device=device), dim=0)


def std_hinge(z: Tensor, dim: int) -> Tensor:
    """Return the mean of max(0, 1 - std) of latents ``[B, T, D]`` along ``dim``, ``[]``.

    Source: VICReg (Bardes et al. 2022, arXiv 2105.04906), equation 1.
    """
    return (1 - (z.var(dim) + 1e-4).sqrt()).relu().mean()


def covariance_loss(z: Tensor) -> Tensor:
    """Return the mean square of covariances between two different numbers of latents ``[B, T, D]``, ``[]``.

    Covariances are over B. Source: VICReg, equation 4.
    """
    size, _, width = z.shape
    centered = (z - z.mean(0)).transpose(0, 1)  # [T, B, D]
    covariance = centered.mT @ centered / (size - 1)  # [T, D, D]
    others = covariance.square().sum((-1, -2)) - covariance.diagonal(dim1=-2, dim2=-1).square().sum(-1)
    return others.mean() / max(1, width * (width - 1))


def effective_rank(z: Tensor) -> Tensor:
    """Return the number of dimensions in which latents ``[M, D]`` vary: (tr C)^2 / tr C^2 of their covariance C."""
    centered = z - z.mean(0)
    covariance = centered.mT @ centered / len(z)
    return covariance.trace().square() / covariance.square().sum().clamp(min=1e-12)

"""Regularizers that keep the latents of a world model without decoder from collapsing to a point."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

LAST_KNOT, NUM_INTERVALS = 3.0, 16
"""Range and intervals of the integral in :func:`sigreg`."""


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
    dt = LAST_KNOT / NUM_INTERVALS
    angle = dt * (z.float() @ directions)  # [B, T, P]
    cos, sin = [torch.ones_like(angle), angle.cos()], [torch.zeros_like(angle), angle.sin()]
    for _ in range(NUM_INTERVALS - 1):  # cos(k + 1) = 2 cos(1) cos(k) - cos(k - 1), and so for the sine
        cos.append(2 * cos[1] * cos[-1] - cos[-2])
        sin.append(2 * cos[1] * sin[-1] - sin[-2])
    total = angle.new_zeros(())
    for k in range(1, NUM_INTERVALS + 1):  # the term of t = 0 is 0
        phi = math.exp(-((k * dt) ** 2) / 2)
        weight = (1 if k == NUM_INTERVALS else 2) * dt * phi
        error = (cos[k].mean(0) - phi).square() + sin[k].mean(0).square()  # [T, P]
        total = total + weight * error.mean()
    return len(z) * total


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

"""A world model in latent space without decoder: its encoder, its predictor and its regularizers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.bounds import AtLeast
from reverie.core.config import Choice
from reverie.core.kernel_dispatch import accelerated
from reverie.core.specs import GOAL, ObsSpec
from reverie.core.types import Obs
from reverie.nn.network import NetworkConfig, ObsConcat

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


@dataclass(frozen=True)
class LatentRegularizer(Choice, ABC):
    """What keeps latents from collapsing to a point, which is the easiest to predict."""

    @abstractmethod
    def loss(self, z: Tensor) -> Tensor:
        """Return the weighted loss ``[]`` of latents ``[B, T, D]``."""


@dataclass(frozen=True)
class Sigreg(LatentRegularizer):
    """Latents are normal in random directions: LeWorldModel."""

    weight: Annotated[float, AtLeast(0)] = 0.09
    """Weight of the loss; it belongs to a batch of 128."""
    directions: Annotated[int, AtLeast(1)] = 128
    """Random directions of an update; the authors draw 1024, with the same expectation."""

    def loss(self, z: Tensor) -> Tensor:
        return self.weight * sigreg(z, random_directions(z.shape[-1], self.directions, z.device))


@dataclass(frozen=True)
class Vicreg(LatentRegularizer):
    """Latents vary over the batch and over time, without correlations: PLDM, with the weights of stable-worldmodel."""

    std: Annotated[float, AtLeast(0)] = 18.0
    """Weight of the standard deviation over the batch."""
    covariance: Annotated[float, AtLeast(0)] = 12.0
    """Weight of covariances."""
    time_std: Annotated[float, AtLeast(0)] = 0.7
    """Weight of the standard deviation over time."""
    smoothness: Annotated[float, AtLeast(0)] = 0.2
    """Weight of the squared distance of successive latents."""

    def loss(self, z: Tensor) -> Tensor:
        steps = (z[:, 1:] - z[:, :-1]).square().mean()
        spread = self.std * std_hinge(z, 0) + self.time_std * std_hinge(z, 1)
        return spread + self.covariance * covariance_loss(z) + self.smoothness * steps


def projector(inputs: int, units: int, outputs: int) -> nn.Sequential:
    """Return a layer with batch norm and GELU, and a linear one: the projectors of LeWorldModel."""
    return nn.Sequential(nn.Linear(inputs, units), nn.BatchNorm1d(units), nn.GELU(), nn.Linear(units, outputs))


class LatentModel(nn.Module):
    """Latents z of observations, and the latents that follow blocks of actions."""

    def __init__(
        self, spec: ObsSpec, block_width: int, networks: NetworkConfig, latent: int, dtype: torch.dtype
    ) -> None:
        """``spec``: of the encoded observations. ``block_width``: numbers of a block of actions. ``latent``: D."""
        super().__init__()
        self.keys: list[str] = list(spec)
        self.inputs: ObsConcat = ObsConcat(spec, networks, dtype)
        first, *rest = networks.units
        self.trunk: nn.Sequential = nn.Sequential(nn.Linear(self.inputs.width, first), nn.LayerNorm(first))
        self.encode_projector: nn.Sequential = projector(first, networks.units[-1], latent)
        layers: list[nn.Module] = []
        width = latent + block_width
        for units in rest or [first]:
            layers += [nn.Linear(width, units), nn.LayerNorm(units), nn.GELU()]
            width = units
        self.change: nn.Sequential = nn.Sequential(*layers, nn.Linear(width, latent))
        self.predict_projector: nn.Sequential = projector(latent, networks.units[-1], latent)

    def encode(self, obs: Obs) -> Tensor:
        """Return the latents ``[..., D]`` of observations ``[..., *shape]``."""
        features = self.trunk(self.inputs({key: obs[key] for key in self.keys}).float())
        return _flat(self.encode_projector, features)

    def encode_goal(self, obs: Obs) -> Tensor:
        """Return the latents ``[..., D]`` of the goals among observations ``[..., *shape]``."""
        return self.encode({key: obs[f"{GOAL}{key}"] for key in self.keys})

    def predict(self, z: Tensor, block: Tensor) -> Tensor:
        """Return the latents ``[..., D]`` after blocks of actions ``[..., block_width]`` in ``z`` ``[..., D]``."""
        return _flat(self.predict_projector, z + self.change(torch.cat([z, block], -1)))

    def imagine(self, z: Tensor, blocks: Tensor) -> Tensor:
        """Return the latents ``[..., H, D]`` after each of H blocks ``[..., H, block_width]``, from ``z`` on."""
        latents = []
        for block in blocks.unbind(-2):
            z = self.predict(z, block)
            latents.append(z)
        return torch.stack(latents, -2)


def _flat(layers: nn.Module, x: Tensor) -> Tensor:
    """Return the outputs of ``layers``, which accept ``[M, F]`` only, for ``[..., F]``."""
    y: Tensor = layers(x.flatten(0, -2))
    return y.view(*x.shape[:-1], -1)

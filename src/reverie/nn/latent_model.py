"""A world model in latent space without decoder: its encoder, its predictor and its regularizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from reverie.core.bounds import AtLeast
from reverie.core.config import Choice
from reverie.core.specs import GOAL, ObsSpec
from reverie.core.types import Obs
from reverie.nn.network import NetworkConfig, ObsConcat
from reverie.objectives.latents import covariance_loss, random_directions, sigreg, std_hinge


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

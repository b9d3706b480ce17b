"""Which actions a dataset holds: a variational autoencoder of actions given the observation, and what moves them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from reverie.core.specs import ObsSpec
from reverie.core.types import Obs
from reverie.nn.mlp import Inputs, NetworkConfig
from reverie.nn.perceptron import Perceptron
from reverie.nn.several import beside
from reverie.objectives.transforms import exp

LOG_STD = (-4.0, 15.0)
"""Within which ln sigma of the latent is kept: the code of the authors of BCQ, for numerical stability."""


class Coded(NamedTuple):
    """What an autoencoder makes of an action."""

    action: Tensor  # [..., A], decoded from a latent that was drawn
    mean: Tensor  # [..., L] of the latent
    log_std: Tensor  # [..., L]


class ActionVAE(nn.Module):
    """A conditional variational autoencoder, E(s, a) and D(s, z): Kingma and Welling 2014; Sohn, Lee and Yan 2015."""

    def __init__(
        self, obs_spec: ObsSpec, width: int, latent: int, cfg: NetworkConfig, dtype: torch.dtype = torch.float32
    ) -> None:
        """``width`` of actions, ``latent`` of what they are coded as. Images go through one CNN for both."""
        super().__init__()
        self.latent = latent
        self.inputs = Inputs(obs_spec, cfg, dtype)
        self.encoder = Perceptron(self.inputs.width + width, cfg.units, 2 * latent)
        self.decoder = Perceptron(self.inputs.width + latent, cfg.units, width, squash=True)

    def forward(self, obs: Obs, action: Tensor) -> Coded:
        """``[..., *shape]`` and ``[..., A]``: the action by way of a latent z ~ N(mean, std), with gradient."""
        features = self.inputs(obs)  # [..., F]
        code: Tensor = self.encoder(features, action.to(features.dtype))
        mean, raw = code.float().chunk(2, -1)  # [..., L]
        log_std = raw.clamp(*LOG_STD)
        latent = mean + exp(log_std) * torch.randn_like(mean)
        return Coded(self._decoded(features, latent), mean, log_std)

    def decode(self, obs: Obs, latent: Tensor) -> Tensor:
        """Actions ``[..., n, A]`` of n latents ``[..., n, L]`` for each observation ``[..., *shape]``."""
        return self._decoded(beside(self.inputs(obs), latent), latent)

    def _decoded(self, features: Tensor, latent: Tensor) -> Tensor:
        y: Tensor = self.decoder(features, latent.to(features.dtype))
        return y.float()


class Perturbation(nn.Module):
    """xi: a perceptron that moves actions by at most phi: BCQ (Fujimoto et al. 2019), section 4.1."""

    def __init__(
        self, obs_spec: ObsSpec, width: int, phi: float, cfg: NetworkConfig, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.inputs = Inputs(obs_spec, cfg, dtype)
        self.body = Perceptron(self.inputs.width + width, cfg.units, width, squash=True)
        self.phi = phi

    def forward(self, obs: Obs, action: Tensor) -> Tensor:
        """``[..., *shape]`` and ``[..., A]`` to actions ``[..., A]`` within [-1, 1]."""
        return self._moved(self.inputs(obs), action)

    def several(self, obs: Obs, action: Tensor) -> Tensor:
        """Of n actions ``[..., n, A]`` for each observation."""
        return self._moved(beside(self.inputs(obs), action), action)

    def _moved(self, features: Tensor, action: Tensor) -> Tensor:
        y: Tensor = self.body(features, action.to(features.dtype))
        return (action + self.phi * y.float()).clamp(-1, 1)

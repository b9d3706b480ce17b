"""The generative networks of BCQ: a VAE of recorded actions given the observation, and a perturbation network."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from reverie.core.specs import ObsSpec
from reverie.core.types import Obs
from reverie.nn.actor_critic import Inputs, NetworkConfig
from reverie.nn.perceptron import ReluMLP
from reverie.objectives.transforms import exp

LOG_STD = (-4.0, 15.0)
"""Limits of ln sigma of the latent, for numerical stability: from the code of the authors of BCQ."""


class Coded(NamedTuple):
    """The output of a variational autoencoder for an action."""

    action: Tensor  # [..., A], decoded from a sampled latent
    mean: Tensor  # [..., L], mean of the latent
    log_std: Tensor  # [..., L], ln sigma of the latent


class ActionVAE(nn.Module):
    """A conditional variational autoencoder, E(s, a) and D(s, z): Kingma and Welling 2014; Sohn, Lee and Yan 2015."""

    def __init__(
        self, obs_spec: ObsSpec, width: int, latent: int, cfg: NetworkConfig, dtype: torch.dtype = torch.float32
    ) -> None:
        """``width`` is that of actions, ``latent`` that of latents. Encoder and decoder share a CNN for images."""
        super().__init__()
        self.latent = latent
        self.inputs = Inputs(obs_spec, cfg, dtype)
        self.encoder = ReluMLP(self.inputs.width + width, cfg.units, 2 * latent)
        self.decoder = ReluMLP(self.inputs.width + latent, cfg.units, width, squash=True)

    def forward(self, obs: Obs, action: Tensor) -> Coded:
        """Encode and decode actions ``[..., A]`` given observations, by a latent z ~ N(mean, std^2); with gradient."""
        features = self.inputs(obs)  # [..., F]
        code: Tensor = self.encoder(features, action.to(features.dtype))
        mean, raw = code.float().chunk(2, -1)  # [..., L]
        log_std = raw.clamp(*LOG_STD)
        latent = mean + exp(log_std) * torch.randn_like(mean)
        return Coded(self._decoded(features, latent), mean, log_std)

    def decode(self, obs: Obs, latent: Tensor) -> Tensor:
        """Return the actions ``[..., n, A]`` of n latents ``[..., n, L]`` for each observation ``[..., *shape]``."""
        return self._decoded(self.inputs(obs), latent)

    def _decoded(self, features: Tensor, latent: Tensor) -> Tensor:
        y: Tensor = self.decoder(features, latent.to(features.dtype))
        return y.float()


class Perturbation(nn.Module):
    """The perturbation network xi, which changes actions by at most phi: BCQ (Fujimoto et al. 2019), section 4.1."""

    def __init__(
        self, obs_spec: ObsSpec, width: int, phi: float, cfg: NetworkConfig, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.inputs = Inputs(obs_spec, cfg, dtype)
        self.body = ReluMLP(self.inputs.width + width, cfg.units, width, squash=True)
        self.phi = phi

    def forward(self, obs: Obs, action: Tensor) -> Tensor:
        """Return the perturbed actions ``[..., A]``, clipped to [-1, 1], given observations ``[..., *shape]``."""
        return self._moved(self.inputs(obs), action)

    def several(self, obs: Obs, action: Tensor) -> Tensor:
        """Return the perturbed actions of n actions ``[..., n, A]`` for each observation."""
        return self._moved(self.inputs(obs), action)

    def _moved(self, features: Tensor, action: Tensor) -> Tensor:
        y: Tensor = self.body(features, action.to(features.dtype))
        return (action + self.phi * y.float()).clamp(-1, 1)

"""Intrinsic rewards: what a learner adds to the environment's rewards so that it explores."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor, nn

from reverie.core.bounds import Above, AtLeast
from reverie.core.collectives import all_gather
from reverie.core.config import Choice
from reverie.core.specs import ObsSpec
from reverie.core.types import Batch, Metrics, Obs
from reverie.nn.adam import Adam
from reverie.nn.cnn import ConvReLU, ImageEncoder
from reverie.nn.network import Network, NetworkConfig
from reverie.nn.normalization import CONSTANT_ATOL, CONSTANT_RTOL

CLIP = 5.0
"""Largest absolute value of a normalized observation: Burda et al. 2019, section 2.4."""


@dataclass(frozen=True)
class IntrinsicReward(Choice):
    """Reward of novel observations, added to the environment's reward in learning. Scores and stored rows omit it."""


@dataclass(frozen=True)
class RND(IntrinsicReward):
    """Random network distillation: Burda et al., "Exploration by random network distillation", ICLR 2019.

    The paper also learns the values of intrinsic rewards separately, as if episodes did not end. Here, one critic
    learns the values of the sum.
    """

    scale: Annotated[float, Above(0)] = 0.005
    """Weight of the intrinsic reward: the prediction error over its running standard deviation."""
    lr: Annotated[float, Above(0)] = 1e-3
    """Learning rate of the predictor. The paper's 1e-4 is for runs of a billion steps."""
    units: Annotated[int, AtLeast(1)] = 128
    """Width of all layers of both networks."""

    def build(self, spec: ObsSpec, encoder: ImageEncoder | None, device: torch.device) -> RandomNetworkDistillation:
        """Return the networks for these observations; None: the default ``encoder`` of images."""
        return RandomNetworkDistillation(spec, self, encoder, device)


class RandomNetworkDistillation(nn.Module):
    """A random target network f, and a predictor f^ trained to equal it. The reward is ||f^(s') - f(s')||^2 / std.

    Observations are normalized and clipped; classes are one-hot. The predictor has two more layers than the target.
    """

    def __init__(self, spec: ObsSpec, cfg: RND, encoder: ImageEncoder | None, device: torch.device) -> None:
        super().__init__()
        self.cfg = cfg
        self.shapes: dict[str, tuple[int, ...]] = {
            key: part.shape for key, part in spec.items() if part.kind in ("vector", "image")
        }
        self.obs_moments: nn.ModuleDict = nn.ModuleDict(
            {_escape(key): RunningMoments(math.prod(shape)) for key, shape in self.shapes.items()}
        )
        self.error_moments: RunningMoments = RunningMoments(1)
        normalized = {
            key: replace(part, dtype="float32", low=0.0, high=1.0) if key in self.shapes else part
            for key, part in spec.items()
        }
        self.target_network: Network = _network(normalized, encoder, cfg.units, 1).requires_grad_(False)
        self.predictor: Network = _network(normalized, encoder, cfg.units, 3)
        self.to(device)
        self.optim: Adam = Adam(self.predictor.parameters(), cfg.lr)

    def forward(self, obs: Obs) -> Tensor:
        """Return the prediction error of observations ``[B, T, *shape]``: ``[B, T]``."""
        x = dict(obs)
        for key, shape in self.shapes.items():
            rows, moments = obs[key].shape[:2], self.moments_of(key)
            flat = moments.standardize(obs[key].float().reshape(*rows, -1)).clamp(-CLIP, CLIP)
            x[key] = flat.view(*rows, *shape)
        with torch.no_grad():
            target = self.target_network(x)
        error: Tensor = (self.predictor(x) - target).square().mean(-1)
        return error

    def moments_of(self, key: str) -> RunningMoments:
        """Return the statistics of the observation ``key``."""
        moments = self.obs_moments[_escape(key)]
        assert isinstance(moments, RunningMoments)
        return moments

    @torch.no_grad()
    def add_reward(self, batch: Batch) -> Batch:
        """Return the batch with intrinsic rewards added, after an update of the statistics with its rows."""
        for key in self.shapes:
            self.moments_of(key).add(batch.obs[key].float().reshape(batch.reward.numel(), -1))
        error = self(batch.obs)
        self.error_moments.add(error.reshape(-1, 1))
        bonus = self.cfg.scale * error / self.error_moments.std
        return replace(batch, reward=batch.reward + bonus.masked_fill(batch.is_first, 0.0))  # no step led there

    def learn(self, obs: Obs) -> Metrics:
        """Train the predictor on observations ``[B, T, *shape]``; return the metrics."""
        loss = self(obs).mean()
        self.optim.step(loss)
        error = loss.detach()
        reward = self.cfg.scale * error / self.error_moments.std.squeeze(0)
        return {"loss/intrinsic": error, "train/intrinsic_reward": reward}


class RunningMoments(nn.Module):
    """Mean and standard deviation of all rows ``[M, D]`` so far, computed on the device without waiting for it."""

    count: Tensor
    mean: Tensor
    var: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))

    @property
    def std(self) -> Tensor:
        """The standard deviation ``[D]``, above 0; of constants, more than the rounding error of the mean."""
        return torch.maximum(self.var.sqrt(), CONSTANT_RTOL * self.mean.abs() + CONSTANT_ATOL)

    def add(self, x: Tensor) -> None:
        """Add rows ``[M, D]``, of all learners: Chan, Golub and LeVeque (1979), equation 2.1."""
        rows = all_gather(x).flatten(0, 1)
        var, mean = torch.var_mean(rows, 0, correction=0)
        share = len(rows) / (self.count + len(rows))
        shift = mean - self.mean
        self.var.lerp_(var, share).add_(share * (1 - share) * shift.square())
        self.mean.add_(share * shift)
        self.count.add_(len(rows))

    def standardize(self, x: Tensor) -> Tensor:
        """Return ``(x - mean) / std``, ``[..., D]``."""
        return (x - self.mean) / self.std


def _network(spec: ObsSpec, encoder: ImageEncoder | None, units: int, hidden: int) -> Network:
    """Return a network of ``hidden`` layers and ``units`` outputs, with orthogonal weights."""
    network = Network(spec, units, NetworkConfig(units=(units,) * hidden, encoder=encoder))
    network.body.initialize(math.sqrt(2))  # type: ignore[operator]
    for part in network.modules():
        if isinstance(part, ConvReLU):
            part.initialize()
    return network


def _escape(key: str) -> str:
    """Return the name of a module for the observation ``key``, without dots."""
    return "obs:" + key.replace(".", "|")

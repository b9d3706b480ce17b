"""Intrinsic rewards: what a learner adds to the environment's rewards so that it explores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from reverie.core.bounds import Above, AtLeast, Within
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

    PPO and A2C learn the values of intrinsic returns separately, as if episodes did not end, and add their advantages.
    DQN and IMPALA add the rewards: one critic learns the values of the sum.
    """

    scale: Annotated[float, Above(0)] = 0.5
    """Weight of the intrinsic returns, whose standard deviation is 1; in the paper 1, and 2 of the environment's."""
    discount: Annotated[float, Within("[0, 1)")] = 0.99
    """gamma of the intrinsic returns; the paper's."""
    lr: Annotated[float, Above(0)] = 1e-3
    """Learning rate of the predictor. The paper's 1e-4 is for runs of a billion steps."""
    update_fraction: Annotated[float, Within("(0, 1]")] = 0.25
    """Share of the rows of a batch from which the predictor learns, drawn at random; the authors'."""
    units: Annotated[int, AtLeast(1)] = 128
    """Width of all layers of both networks."""

    def build(self, spec: ObsSpec, encoder: ImageEncoder | None, device: torch.device) -> RandomNetworkDistillation:
        """Return the networks for these observations; None: the default ``encoder`` of images."""
        return RandomNetworkDistillation(spec, self, encoder, device)


class RandomNetworkDistillation(nn.Module):
    """A random target network f, and a predictor f^ trained to equal it. The reward is ||f^(s') - f(s')||^2 / std.

    Observations are normalized and clipped; classes are one-hot. The predictor has two more layers than the target.
    std is the running standard deviation of the discounted sums of errors.
    """

    returns: Tensor

    def __init__(self, spec: ObsSpec, cfg: RND, encoder: ImageEncoder | None, device: torch.device) -> None:
        super().__init__()
        self.cfg = cfg
        self.shapes: dict[str, tuple[int, ...]] = {
            key: part.shape for key, part in spec.items() if part.kind in ("vector", "image")
        }
        self.obs_moments: nn.ModuleDict = nn.ModuleDict(
            {_escape(key): RunningMoments(math.prod(shape)) for key, shape in self.shapes.items()}
        )
        self.return_moments: RunningMoments = RunningMoments(1)
        self.register_buffer("returns", torch.zeros(0))  # [N], discounted sums of errors so far
        normalized = {
            key: replace(part, dtype="float32", low=0.0, high=1.0) if key in self.shapes else part
            for key, part in spec.items()
        }
        self.target_network: Network = _network(normalized, encoder, cfg.units, 1).requires_grad_(False)
        self.predictor: Network = _network(normalized, encoder, cfg.units, 3)
        self.to(device)
        self.optim: Adam = Adam(self.predictor.parameters(), cfg.lr)

    def forward(self, obs: Obs) -> Tensor:
        """Return the prediction error of observations ``[..., *shape]``: ``[...]``."""
        x = dict(obs)
        for key, shape in self.shapes.items():
            rows, moments = obs[key].shape[: obs[key].ndim - len(shape)], self.moments_of(key)
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
        """Return the batch with intrinsic rewards added, after an update of the statistics with its rows.

        The errors of later rows are unknown: a discounted sum counts as if all were equal.
        """
        error = self.errors(batch)
        self.return_moments.add(error.reshape(-1, 1) / (1 - self.cfg.discount))
        return replace(batch, reward=batch.reward + self.cfg.scale * error / self.return_moments.std)

    @torch.no_grad()
    def rewards(self, batch: Batch) -> Tensor:
        """Return the intrinsic rewards ``[N, T + 1]`` of rollouts, after an update of the statistics with their rows.

        Row 0 does not count: it was the last row of the rollout before.
        """
        error = self.errors(batch)
        if len(self.returns) != len(error):
            self.returns = error.new_zeros(len(error))
        returns = []
        for column in error[:, 1:].unbind(1):
            self.returns = column + self.cfg.discount * self.returns
            returns.append(self.returns)
        self.return_moments.add(torch.cat(returns).unsqueeze(1))
        return error / self.return_moments.std

    def errors(self, batch: Batch) -> Tensor:
        """Return the errors ``[B, T]``, 0 where no step led, after an update of the statistics of observations."""
        for key in self.shapes:
            self.moments_of(key).add(batch.obs[key].float().reshape(batch.reward.numel(), -1))
        error: Tensor = self(batch.obs)
        return error.masked_fill(batch.is_first, 0.0)

    def learn(self, batch: Batch) -> Metrics:
        """Train the predictor on some of the rows ``[B, T]``; return the metrics."""
        rows = batch.reward.numel()
        chosen = torch.rand(rows, device=batch.reward.device).topk(math.ceil(self.cfg.update_fraction * rows)).indices
        loss = self({key: x.flatten(0, 1)[chosen] for key, x in batch.obs.items()}).mean()
        self.optim.step(loss)
        error = loss.detach()
        return {"loss/intrinsic": error, "train/intrinsic_reward": error / self.return_moments.std.squeeze(0)}

    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *rest: Any) -> None:
        """Accept a state saved with another number of environments."""
        saved = state_dict.get(f"{prefix}returns", self.returns)
        self.returns = self.returns.new_zeros(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *rest)


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

"""The actor of the Dreamers: a head for each part of an action."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.bounds import Above, AtLeast, Within
from reverie.core.config import Choice
from reverie.core.specs import ActionPart, ActionSpec
from reverie.nn.distributions import Categoricals, Distribution, JointDistribution
from reverie.nn.heads import DenseHeadConfig, HeadConfig
from reverie.nn.layers import MLP, DenseMLP
from reverie.nn.normals import Normal, SquashedNormal, TruncatedNormal


@dataclass(frozen=True, kw_only=True)
class ActorConfig(HeadConfig):
    """The head of DreamerV3's policy."""

    layers: Annotated[int, AtLeast(0)] = 3
    """Number of hidden layers."""
    scale: Annotated[float, AtLeast(0)] = 0.01
    """Factor of the last layer's initial weights, 0 or more; a small one makes the first policy nearly uniform."""
    unimix: Annotated[float, Within("[0, 1)")] = 0.01
    """Categorical actions: share of the uniform distribution that is mixed in, in [0, 1). The authors' newest code has
    this setting but does not apply it; 0 reproduces that."""
    min_std: Annotated[float, Above(0)] = 0.1
    """Continuous actions: smallest standard deviation, above 0, where actions are in [-1, 1]."""
    max_std: Annotated[float, Above(0)] = 1.0
    """Continuous actions: largest standard deviation, where actions are in [-1, 1]."""

    def continuous(self, mean: Tensor, std: Tensor) -> Normal:
        """Return N(tanh(mean), sigma^2) for network outputs ``[..., A]``, with sigma in [min_std, max_std]."""
        return Normal(mean.tanh(), std=(self.max_std - self.min_std) * torch.sigmoid(std + 2.0) + self.min_std)


@dataclass(frozen=True)
class ContinuousAction(Choice, ABC):
    """A distribution of continuous actions in DreamerV1 and V2, with network outputs ``[..., A]`` as parameters."""

    @abstractmethod
    def __call__(self, mean: Tensor, std: Tensor) -> Normal:
        """Return the distribution."""


@dataclass(frozen=True)
class TruncNormal(ContinuousAction):
    """A normal truncated to [-1, 1], with mean tanh(m) and std 2 sigmoid(s / 2) + min_std: DreamerV2's code."""

    min_std: Annotated[float, Above(0)] = 0.1
    """Smallest standard deviation, above 0."""
    offset: float = 0.0
    """Added to the output s."""

    def __call__(self, mean: Tensor, std: Tensor) -> Normal:
        return TruncatedNormal(mean.tanh(), std=2 * torch.sigmoid((std + self.offset) / 2) + self.min_std)


@dataclass(frozen=True)
class TanhNormal(ContinuousAction):
    """tanh of a normal with mean 5 tanh(m / 5) and std softplus(s + offset) + min_std: DreamerV1's code."""

    min_std: Annotated[float, Above(0)] = 1e-4
    """Smallest standard deviation, above 0."""
    offset: float = math.log(math.exp(5) - 1)
    """Added to the output s. Its softplus, 5 by default, is the standard deviation of the first policy."""
    entropy_samples: Annotated[int, AtLeast(0)] = 100
    """Number of samples for estimating the entropy; 0: the entropy of the normal before tanh, as in PyDreamer."""

    def __call__(self, mean: Tensor, std: Tensor) -> Normal:
        deviation = F.softplus(std + self.offset) + self.min_std
        return SquashedNormal(5 * torch.tanh(mean / 5), std=deviation, samples=self.entropy_samples)


@dataclass(frozen=True)
class NormalTanh(ContinuousAction):
    """A normal with mean tanh(m) and std sigmoid(s) + min_std: PyDreamer."""

    min_std: Annotated[float, Above(0)] = 0.01
    """Smallest standard deviation, above 0."""

    def __call__(self, mean: Tensor, std: Tensor) -> Normal:
        return Normal(mean.tanh(), std=torch.sigmoid(std) + self.min_std)


@dataclass(frozen=True, kw_only=True)
class DenseActorConfig(DenseHeadConfig):
    """The policy of DreamerV1 and V2; discrete actions are one-hot."""

    continuous: ContinuousAction = field(default_factory=TruncNormal)
    """Distribution of continuous actions: trunc_normal, tanh_normal or normal_tanh."""
    unimix: ClassVar[float] = 0.0


class PartHead(nn.Module):
    """The last layers of one key of the action: logits, or mean and standard deviation."""

    def __init__(self, inputs: int, part: ActionPart, cfg: ActorConfig | DenseActorConfig) -> None:
        super().__init__()
        self.part = part
        self.cfg = cfg
        count = 1 if part.kind == "categorical" else 2
        self.outputs: nn.ModuleList = nn.ModuleList([cfg.output_layer(inputs, part.width) for _ in range(count)])

    def forward(self, x: Tensor, legal: Tensor | None = None) -> Distribution:
        """Map ``[..., inputs]`` to a distribution over ``[..., A]``; ``legal`` ``[..., A]`` masks its classes."""
        y = [layer(x).float() for layer in self.outputs]  # [..., A] each
        if self.part.kind == "categorical":
            return Categoricals(y[0], self.part.classes, self.cfg.unimix, legal)
        return self.cfg.continuous(*y)


ActionDraw = Callable[[JointDistribution], Tensor]
"""A function from a policy's distribution to an action ``[..., A]``: a sample, or the mode."""


class DreamerActor(nn.Module):
    """The policy pi(a | s) over all parts of the action."""

    draw: ActionDraw | None = None
    """How imagination draws actions, to compare updates with recordings; None: it samples."""

    def __init__(self, inputs: int, spec: ActionSpec, cfg: ActorConfig | DenseActorConfig) -> None:
        super().__init__()
        self.slices: dict[str, slice] = spec.slices()
        self.mlp: DenseMLP | MLP = cfg.hidden_layers(inputs)
        self.keys: list[str] = list(self.slices)
        self.parts: nn.ModuleList = nn.ModuleList([PartHead(self.mlp.width, spec.parts[k], cfg) for k in self.keys])

    def forward(self, feature: Tensor, legal: Tensor | None = None) -> JointDistribution:
        """Map features ``[..., F]`` to a distribution over ``[..., A]``; ``legal`` ``[..., A]`` masks its classes."""
        return self.heads(self.mlp(feature), legal)

    def heads(self, hidden: Tensor, legal: Tensor | None = None) -> JointDistribution:
        """Apply the last layers alone: ``[..., units]`` to a distribution over ``[..., A]``."""
        masks = {} if legal is None else {k: (legal[..., cut],) for k, cut in self.slices.items()}
        heads = zip(self.keys, self.parts, strict=True)
        return JointDistribution({k: head(hidden, *masks.get(k, ())) for k, head in heads}, self.slices)

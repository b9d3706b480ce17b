"""Heads: map features to a distribution over a number or a boolean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.bounds import AtLeast
from reverie.core.config import Config
from reverie.core.specs import ActionSpec
from reverie.nn.layers import MLP, Activation, Dense, DenseMLP, Linear, Norm
from reverie.nn.number_distributions import Bernoulli, ConstantProbability, SupportDistribution, TwoHot, UnitNormal
from reverie.objectives.transforms import symexp_bins


@dataclass(frozen=True, kw_only=True)
class HeadConfig(Config):
    """A head: an MLP with a linear layer on top."""

    layers: Annotated[int, AtLeast(0)] = 1
    """Number of hidden layers."""
    units: Annotated[int, AtLeast(1)] = 256
    """Width of each hidden layer."""
    scale: Annotated[float, AtLeast(0)] = 1.0
    """Factor of the last layer's initial weights, 0 or more."""

    def hidden_layers(self, inputs: int) -> MLP:
        """Return the hidden layers."""
        return MLP(inputs, self.units, self.layers)

    def output_layer(self, inputs: int, outputs: int) -> Linear:
        """Return the linear layer on top."""
        return Linear(inputs, outputs, self.scale)


Initial = Literal["xavier", "torch"]
Layers = TypeVar("Layers", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class DenseHeadConfig(Config):
    """A head of DreamerV1 and V2."""

    layers: Annotated[int, AtLeast(0)] = 4
    """Number of hidden layers."""
    units: Annotated[int, AtLeast(1)] = 400
    """Width of each hidden layer."""
    norm: Norm = "none"
    """Normalization before each activation."""
    act: Activation = "elu"
    """Activation."""
    init: Initial = "xavier"
    """Initial weights: xavier as in Keras, with biases of 0; or torch, weights and biases uniform within
    1 / sqrt(inputs), as in the policy, critic and probes of PyDreamer."""

    def hidden_layers(self, inputs: int) -> DenseMLP:
        return self._drawn(DenseMLP(inputs, [self.units] * self.layers, self.norm, self.act))

    def output_layer(self, inputs: int, outputs: int) -> Linear:
        return self._drawn(Dense(inputs, outputs))

    def _drawn(self, layers: Layers) -> Layers:
        for layer in layers.modules() if self.init == "torch" else ():
            if isinstance(layer, Dense):
                for x in layer.parameters():
                    nn.init.uniform_(x, -(layer.weight.shape[1] ** -0.5), layer.weight.shape[1] ** -0.5)
        return layers


@dataclass(frozen=True, kw_only=True)
class TwoHotConfig(HeadConfig):
    """A head that predicts a number as a distribution over bins."""

    bins: Annotated[int, AtLeast(2)] = 255
    """Number of bins, 2 or more."""
    scale: Annotated[float, AtLeast(0)] = 0.0
    """Factor of the last layer's initial weights, 0 or more; 0 makes the first predictions exactly 0."""


class TwoHotHead(nn.Module):
    """Predicts a reward or value by two-hot encoding over symexp-spaced bins: a :class:`TwoHot`."""

    bins: Tensor

    def __init__(self, inputs: int, cfg: TwoHotConfig) -> None:
        super().__init__()
        self.mlp: MLP = MLP(inputs, cfg.units, cfg.layers)
        self.logits: Linear = Linear(self.mlp.width, cfg.bins, cfg.scale)
        self.register_buffer("bins", symexp_bins(cfg.bins), persistent=False)

    def forward(self, feature: Tensor) -> TwoHot:
        """Map features ``[..., F]`` to a distribution ``[...]``."""
        return TwoHot(self.logits(self.mlp(feature)), self.bins)


class BernoulliHead(nn.Module):
    """Predicts a boolean as a :class:`Bernoulli`."""

    def __init__(self, inputs: int, cfg: HeadConfig | DenseHeadConfig) -> None:
        super().__init__()
        self.mlp: DenseMLP | MLP = cfg.hidden_layers(inputs)
        self.logit: Linear = cfg.output_layer(self.mlp.width, 1)

    def forward(self, feature: Tensor) -> Bernoulli:
        """Map features ``[..., F]`` to a distribution ``[...]``."""
        return Bernoulli(self.logit(self.mlp(feature)).squeeze(-1))


class MaskHead(nn.Module):
    """Predicts which actions are legal: one :class:`Bernoulli` for each element of the flat action.

    A class that has been legal in all rows so far is taken to be always legal, and is not learned.
    """

    forbidden: Tensor
    """Classes that were illegal in some row, ``[A]`` bool."""

    def __init__(self, inputs: int, spec: ActionSpec, cfg: HeadConfig | DenseHeadConfig) -> None:
        super().__init__()
        self.choices: list[slice] = [cut for _, cut in spec.categorical_slices()]
        self.mlp: DenseMLP | MLP = cfg.hidden_layers(inputs)
        self.logits: Linear = cfg.output_layer(self.mlp.width, spec.width)
        self.register_buffer("forbidden", torch.zeros(spec.width, dtype=torch.bool))

    def forward(self, feature: Tensor) -> Bernoulli:
        """Map features ``[..., F]`` to distributions ``[..., A]``."""
        return Bernoulli(self.logits(self.mlp(feature)))

    def loss(self, feature: Tensor, legal: Tensor, last: Tensor) -> Tensor:
        """Return -ln p of masks ``[..., A]``, summed over classes, ``[...]``; 0 in the ``last`` rows of episodes."""
        acts = ~last.unsqueeze(-1)  # [..., 1]: nothing is chosen in a last row
        with torch.no_grad():
            self.forbidden |= (acts & ~legal).flatten(0, -2).any(0)
        return torch.where(acts & self.forbidden, self(feature).loss(legal.float()), 0.0).sum(-1)

    @torch.no_grad()
    def legal(self, feature: Tensor) -> Tensor:
        """Return the predicted masks ``[..., A]``; a choice without a legal class gets its likeliest one."""
        logit = self(feature).logit.masked_fill(~self.forbidden, math.inf)
        out: Tensor = logit > 0
        for cut in self.choices:
            best = F.one_hot(logit[..., cut].argmax(-1), cut.stop - cut.start).bool()
            out[..., cut] |= best & ~out[..., cut].any(-1, keepdim=True)
        return out


class ConstantHead(nn.Module):
    """Predicts a constant continuation probability, for models that do not learn the ends of episodes."""

    def __init__(self, prob: float) -> None:
        super().__init__()
        self.prob = prob

    def forward(self, feature: Tensor) -> ConstantProbability:
        """Map features ``[..., F]`` to a distribution ``[...]``."""
        return ConstantProbability(torch.full(feature.shape[:-1], self.prob, device=feature.device))


class ScalarHead(nn.Module):
    """Predicts a number as the mean of a :class:`UnitNormal`."""

    def __init__(self, inputs: int, cfg: DenseHeadConfig) -> None:
        super().__init__()
        self.mlp: DenseMLP = cfg.hidden_layers(inputs)
        self.out: Linear = cfg.output_layer(self.mlp.width, 1)

    def forward(self, feature: Tensor) -> UnitNormal:
        """Map features ``[..., F]`` to a distribution ``[...]``."""
        return UnitNormal(self.out(self.mlp(feature)).squeeze(-1))


class SupportHead(nn.Module):
    """Predicts a number as a :class:`SupportDistribution`."""

    values: Tensor

    def __init__(self, inputs: int, cfg: DenseHeadConfig, values: Tensor) -> None:
        """``values``: the numbers that are predicted, ``[K]``."""
        super().__init__()
        self.mlp: DenseMLP = cfg.hidden_layers(inputs)
        self.out: Linear = cfg.output_layer(self.mlp.width, len(values))
        self.register_buffer("values", values, persistent=False)

    def forward(self, feature: Tensor) -> SupportDistribution:
        """Map features ``[..., F]`` to a distribution ``[...]``."""
        return SupportDistribution(self.out(self.mlp(feature)), self.values)

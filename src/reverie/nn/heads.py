"""Heads: map features to a distribution over a number, a yes or no, or a dictionary of actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reverie.core.checks import at_least
from reverie.core.config import Config
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionPart, ActionSpec
from reverie.nn.distributions import Bernoulli, BoundedNormal, Categoricals, Distribution, TwoHot
from reverie.nn.layers import MLP, Linear
from reverie.nn.number_head import LayerTwoHot
from reverie.objectives.transforms import symexp_bins


@dataclass(frozen=True, kw_only=True)
class HeadConfig(Config):
    """A head: an MLP with a linear layer on top."""

    layers: int = 1
    """Number of hidden layers."""
    units: int = 256
    """Width of each hidden layer."""
    scale: float = 1.0
    """Factor of the last layer's initial weights, 0 or more."""

    def __post_init__(self) -> None:
        at_least(self, layers=0, units=1, scale=0)


@dataclass(frozen=True, kw_only=True)
class TwoHotConfig(HeadConfig):
    """A head that predicts a number as a distribution over bins."""

    bins: int = 255
    """Number of bins, 2 or more."""
    scale: float = 0.0
    """Factor of the last layer's initial weights, 0 or more; 0 makes the first predictions exactly 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bins < 2:
            raise ConfigError(f"bins = {self.bins}: expected at least 2.")


class TwoHotHead(nn.Module):
    """Predicts a number as a :class:`TwoHot`."""

    bins: Tensor

    def __init__(self, inputs: int, cfg: TwoHotConfig) -> None:
        super().__init__()
        self.mlp = MLP(inputs, cfg.units, cfg.layers)
        self.logits = Linear(self.mlp.width, cfg.bins, cfg.scale)
        self.register_buffer("bins", symexp_bins(cfg.bins), persistent=False)

    def forward(self, feature: Tensor) -> TwoHot:
        """Map features ``[..., F]`` to a distribution ``[...]``."""
        hidden = self.mlp(feature)
        layer = hidden, self.logits.weight, self.logits.bias, self.bins
        return LayerTwoHot(*layer) if LayerTwoHot.fits(*layer) else TwoHot(self.logits(hidden), self.bins)


class BernoulliHead(nn.Module):
    """Predicts a yes or no as a :class:`Bernoulli`."""

    def __init__(self, inputs: int, cfg: HeadConfig) -> None:
        super().__init__()
        self.mlp = MLP(inputs, cfg.units, cfg.layers)
        self.logit = Linear(self.mlp.width, 1, cfg.scale)

    def forward(self, feature: Tensor) -> Bernoulli:
        """Map features ``[..., F]`` to a distribution ``[...]``."""
        return Bernoulli(self.logit(self.mlp(feature)).squeeze(-1))


@dataclass(frozen=True, kw_only=True)
class ActorConfig(Config):
    """The head of DreamerV3's policy."""

    layers: int = 3
    """Number of hidden layers."""
    units: int = 256
    """Width of each hidden layer."""
    scale: float = 0.01
    """Factor of the last layer's initial weights, 0 or more; a small one makes the first policy nearly uniform."""
    unimix: float = 0.01
    """Categorical actions: share of the uniform distribution that is mixed in, in [0, 1). The authors' newest code has
    this setting but does not apply it; 0 reproduces that."""
    min_std: float = 0.1
    """Continuous actions: smallest standard deviation, above 0, where actions are in [-1, 1]."""
    max_std: float = 1.0
    """Continuous actions: largest standard deviation, where actions are in [-1, 1]."""

    def __post_init__(self) -> None:
        at_least(self, layers=0, units=1, scale=0)
        if not 0 <= self.unimix < 1:
            raise ConfigError(f"unimix = {self.unimix}: expected a number in [0, 1).")
        if not 0 < self.min_std <= self.max_std:
            raise ConfigError(f"min_std = {self.min_std}, max_std = {self.max_std}: expected 0 < min_std <= max_std.")


class JointDistribution:
    """The product of independent distributions over the parts of a flat action."""

    def __init__(self, parts: dict[str, Distribution], slices: dict[str, slice]) -> None:
        self.parts = parts
        self.slices = slices

    def sample(self) -> Tensor:
        """Return a sample, ``[..., A]``."""
        return torch.cat([p.sample() for p in self.parts.values()], -1)

    def mode(self) -> Tensor:
        """Return the mode of each part, ``[..., A]``."""
        return torch.cat([p.mode() for p in self.parts.values()], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probability ``[...]`` of flat actions ``[..., A]``."""
        terms = [part.log_prob(action[..., self.slices[key]]) for key, part in self.parts.items()]
        return torch.stack(terms).sum(0)

    def entropies(self) -> dict[str, Tensor]:
        """Return the entropy ``[...]`` of each part, in nats."""
        return {key: part.entropy() for key, part in self.parts.items()}

    def entropy(self) -> Tensor:
        """Return the entropy ``[...]`` in nats, summed over the parts."""
        return torch.stack(list(self.entropies().values())).sum(0)


class _PartHead(nn.Module):
    """The last layer, of one key of the action."""

    def __init__(self, inputs: int, part: ActionPart, cfg: ActorConfig) -> None:
        super().__init__()
        self.part = part
        self.cfg = cfg
        if part.kind == "categorical":
            self.logits = Linear(inputs, part.width, cfg.scale)
        else:
            self.mean = Linear(inputs, part.width, cfg.scale)
            self.std = Linear(inputs, part.width, cfg.scale)

    def forward(self, x: Tensor) -> Distribution:
        if self.part.kind == "categorical":
            return Categoricals(self.logits(x), self.part.classes, self.cfg.unimix)
        return BoundedNormal(self.mean(x), self.std(x), self.cfg.min_std, self.cfg.max_std)


class Actor(nn.Module):
    """The policy pi(a | s) over all parts of the action.

    Imagination calls ``mlp`` and :meth:`heads` one after the other, as acting does by :meth:`forward`. So a subclass
    replaces these two.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "forward" in vars(cls):
            raise TypeError(
                f"{cls.__name__}.forward would only be called while acting: imagination calls actor.mlp and "
                "actor.heads. Replace these in place of forward."
            )

    def __init__(self, inputs: int, spec: ActionSpec, cfg: ActorConfig) -> None:
        super().__init__()
        self.slices = spec.slices()
        self.mlp = MLP(inputs, cfg.units, cfg.layers)
        self.keys = list(self.slices)
        self.parts = nn.ModuleList([_PartHead(self.mlp.width, spec.parts[k], cfg) for k in self.keys])

    def forward(self, feature: Tensor) -> JointDistribution:
        """Map features ``[..., F]`` to a distribution over ``[..., A]``."""
        return self.heads(self.mlp(feature))

    def heads(self, hidden: Tensor) -> JointDistribution:
        """Apply the last layers alone: ``[..., units]`` to a distribution over ``[..., A]``."""
        return JointDistribution({k: head(hidden) for k, head in zip(self.keys, self.parts, strict=True)}, self.slices)

"""Heads: features to a distribution over a number, a coin, or a dictionary of actions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reverie.core.config import Config, at_least
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionPart, ActionSpec
from reverie.nn.distributions import Bernoulli, BoundedNormal, Categoricals, Distribution, TwoHot
from reverie.nn.layers import MLP, Linear
from reverie.nn.number_head import LayerTwoHot
from reverie.objectives.transforms import symexp_bins


@dataclass(frozen=True, kw_only=True)
class HeadConfig(Config):
    """An MLP and the linear layer on top of it."""

    layers: int = 1
    """Hidden layers."""
    units: int = 256
    """Width of each hidden layer."""
    scale: float = 1.0
    """Multiplies the initial weights of the last layer."""

    def __post_init__(self) -> None:
        at_least(self, layers=0, units=1, scale=0)


@dataclass(frozen=True, kw_only=True)
class TwoHotConfig(HeadConfig):
    """A head whose number is a distribution over bins."""

    bins: int = 255
    """How many bins."""
    scale: float = 0.0
    """Multiplies the initial weights of the last layer; 0 makes the first predictions exactly 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bins < 2:
            raise ConfigError(f"bins = {self.bins}: expected at least 2.")


class TwoHotHead(nn.Module):
    """A number as a :class:`TwoHot`."""

    bins: Tensor

    def __init__(self, inputs: int, cfg: TwoHotConfig) -> None:
        super().__init__()
        self.mlp = MLP(inputs, cfg.units, cfg.layers)
        self.logits = Linear(self.mlp.width, cfg.bins, cfg.scale)
        self.register_buffer("bins", symexp_bins(cfg.bins), persistent=False)

    def forward(self, feature: Tensor) -> TwoHot:
        """``[..., F]`` to a distribution ``[...]``."""
        hidden = self.mlp(feature)
        layer = hidden, self.logits.weight, self.logits.bias, self.bins
        return LayerTwoHot(*layer) if LayerTwoHot.fits(*layer) else TwoHot(self.logits(hidden), self.bins)


class BernoulliHead(nn.Module):
    """A yes or no as a :class:`Bernoulli`."""

    def __init__(self, inputs: int, cfg: HeadConfig) -> None:
        super().__init__()
        self.mlp = MLP(inputs, cfg.units, cfg.layers)
        self.logit = Linear(self.mlp.width, 1, cfg.scale)

    def forward(self, feature: Tensor) -> Bernoulli:
        """``[..., F]`` to a distribution ``[...]``."""
        return Bernoulli(self.logit(self.mlp(feature)).squeeze(-1))


@dataclass(frozen=True, kw_only=True)
class ActorConfig(Config):
    """The policy head."""

    layers: int = 3
    """Hidden layers."""
    units: int = 256
    """Width of each hidden layer."""
    scale: float = 0.01
    """Multiplies the initial weights of the last layer, so that the first policy is nearly uniform."""
    unimix: float = 0.01
    """Categorical actions: the share of the uniform distribution mixed in. The authors' newest code has this setting
    but does not apply it; 0 reproduces that."""
    min_std: float = 0.1
    """Continuous actions: least standard deviation."""
    max_std: float = 1.0
    """Continuous actions: greatest standard deviation."""

    def __post_init__(self) -> None:
        at_least(self, layers=0, units=1, scale=0)
        if not 0 <= self.unimix < 1:
            raise ConfigError(f"unimix = {self.unimix}: expected a share in [0, 1).")
        if not 0 < self.min_std <= self.max_std:
            raise ConfigError(f"min_std = {self.min_std}, max_std = {self.max_std}: expected 0 < min_std <= max_std.")


class JointDistribution:
    """Independent distributions over the parts of a flat action."""

    def __init__(self, parts: dict[str, Distribution], slices: dict[str, slice]) -> None:
        self.parts = parts
        self.slices = slices

    def sample(self) -> Tensor:
        """``[..., A]``."""
        return torch.cat([p.sample() for p in self.parts.values()], -1)

    def mode(self) -> Tensor:
        """``[..., A]``."""
        return torch.cat([p.mode() for p in self.parts.values()], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        """``[...]`` of flat actions ``[..., A]``."""
        terms = [part.log_prob(action[..., self.slices[key]]) for key, part in self.parts.items()]
        return torch.stack(terms).sum(0)

    def entropies(self) -> dict[str, Tensor]:
        """``[...]`` of each part."""
        return {key: part.entropy() for key, part in self.parts.items()}

    def entropy(self) -> Tensor:
        """``[...]`` in nats."""
        return torch.stack(list(self.entropies().values())).sum(0)


class _PartHead(nn.Module):
    """The last layer for one key of the action."""

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
    """pi(a | s) over all parts of the action."""

    def __init__(self, inputs: int, spec: ActionSpec, cfg: ActorConfig) -> None:
        super().__init__()
        self.slices = spec.slices()
        self.mlp = MLP(inputs, cfg.units, cfg.layers)
        self.keys = list(self.slices)
        self.parts = nn.ModuleList([_PartHead(self.mlp.width, spec.parts[k], cfg) for k in self.keys])

    def forward(self, feature: Tensor) -> JointDistribution:
        """``[..., F]`` to a distribution over ``[..., A]``."""
        return self.heads(self.mlp(feature))

    def heads(self, hidden: Tensor) -> JointDistribution:
        """The last layers alone: ``[..., units]`` to a distribution over ``[..., A]``."""
        return JointDistribution({k: head(hidden) for k, head in zip(self.keys, self.parts, strict=True)}, self.slices)

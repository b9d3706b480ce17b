"""The networks of model-free papers: multilayer perceptrons with ReLU, actors and critics over them.

They are initialised as ``torch.nn.Linear`` is, weights and biases uniform within 1 / sqrt(inputs), as in the authors'
code of TD3 and in CleanRL.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn

from reverie.core.config import Config
from reverie.core.discover import algorithms
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Obs
from reverie.nn.encoder import EncoderConfig, one_hot, split_kinds
from reverie.nn.product import linear


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(Config):
    """An actor or critic: a perceptron over vectors and classes as they are, and over features of images."""

    units: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    """The CNN for images; actor and critic have one each. Its MLP is not used."""

    def __post_init__(self) -> None:
        if not self.units or min(self.units) < 1:
            raise ConfigError(f"units = {self.units}: expected one hidden layer or more, of widths of 1 or more.")


class Dense(nn.Linear):
    """y = W x + b, with the products that are fastest here."""

    def forward(self, x: Tensor) -> Tensor:
        """``[..., inputs]`` to ``[..., outputs]``, in the dtype of x."""
        return linear(x, self.weight, self.bias)


class StackedDense(nn.Module):
    """K layers side by side in one batched product."""

    def __init__(self, copies: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(copies, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(copies, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """``[K, M, inputs]`` to ``[K, M, outputs]``, in the dtype of x."""
        return torch.baddbmm(self.bias.to(x.dtype), x, self.weight.to(x.dtype))


class Perceptron(nn.Sequential):
    """Layers with ReLU between them. ``copies`` of it share their input and answer side by side."""

    def __init__(self, inputs: int, units: tuple[int, ...], outputs: int, copies: int | None = None) -> None:
        sizes = pairwise((inputs, *units, outputs))
        super().__init__(*[Dense(i, o) if copies is None else StackedDense(copies, i, o) for i, o in sizes])
        self.copies = copies

    def forward(self, x: Tensor) -> Tensor:
        """``[..., inputs]`` to ``[..., outputs]``, or to ``[K, ..., outputs]`` of K copies."""
        lead = x.shape[:-1]
        x = x.reshape(-1, x.shape[-1])  # [M, inputs]
        if self.copies is not None:
            x = x.expand(self.copies, *x.shape)  # [K, M, inputs]
        *hidden, last = self
        for layer in hidden:
            x = layer(x).relu_()
        y: Tensor = last(x)
        return y.reshape(*y.shape[:-2], *lead, y.shape[-1])


class Inputs(nn.Module):
    """Observations as one vector: numbers as they are, classes one-hot, images through a CNN."""

    def __init__(self, spec: ObsSpec, cfg: NetworkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.vectors, images = split_kinds(spec)
        self.dtype = dtype
        self.width = sum(part.width for part in self.vectors.values())
        self.encoder = cfg.encoder.build(images) if images else None
        self.width += self.encoder.width if self.encoder is not None else 0

    def forward(self, obs: Obs) -> Tensor:
        """``[..., *shape]`` to ``[..., width]``."""
        parts = []
        for key, part in self.vectors.items():
            x, dims = obs[key], len(part.shape)
            flat = x if dims == 1 else x.reshape(*x.shape[: x.ndim - dims], -1)
            parts.append((one_hot(flat, part.classes) if part.kind == "categorical" else flat).to(self.dtype))
        if self.encoder is not None:
            parts.append(self.encoder(obs, self.dtype))
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0]


class DeterministicActor(nn.Module):
    """mu(s) in [-1, 1]: tanh on top of a perceptron."""

    def __init__(self, obs_spec: ObsSpec, width: int, cfg: NetworkConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.inputs = Inputs(obs_spec, cfg, dtype)
        self.body = Perceptron(self.inputs.width, cfg.units, width)

    def forward(self, obs: Obs) -> Tensor:
        """``[..., *shape]`` to actions ``[..., A]``."""
        y: Tensor = self.body(self.inputs(obs))
        return y.float().tanh()


class ActionCritic(nn.Module):
    """Q(s, a), or K of them that share nothing but a CNN."""

    def __init__(
        self,
        obs_spec: ObsSpec,
        width: int,
        cfg: NetworkConfig,
        copies: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.inputs = Inputs(obs_spec, cfg, dtype)
        self.body = Perceptron(self.inputs.width + width, cfg.units, 1, copies)

    def forward(self, obs: Obs, action: Tensor) -> Tensor:
        """``[..., *shape]`` and ``[..., A]`` to ``[...]``, or ``[K, ...]`` of K copies."""
        features = self.inputs(obs)  # [..., F]
        y: Tensor = self.body(torch.cat([features, action.to(features.dtype)], -1))
        return y.float().squeeze(-1)


class Stacked(nn.Module):
    """Several critics of any kind as one: ``Stacked(first, second)(obs, action)`` are their values, ``[K, ...]``."""

    def __init__(self, *critics: nn.Module) -> None:
        super().__init__()
        self.critics = nn.ModuleList(critics)

    def forward(self, obs: Obs, action: Tensor) -> Tensor:
        """What each of them says."""
        return torch.stack([critic(obs, action) for critic in self.critics])


CONTINUOUS = ("ddpg", "td3", "sac", "dreamer_v3")
CHOICE = ("dqn", "qr_dqn", "sac_discrete", "dreamer_v3")
ANY = ("dreamer_v3",)


def continuous_width(algorithm: str, spec: ActionSpec) -> int:
    """A, the width of actions all of whose parts are continuous.

    Raises:
        ConfigError: some are not; names the algorithms that fit.
    """
    discrete = [key for key in sorted(spec.parts) if spec.parts[key].kind != "continuous"]
    if discrete:
        raise _unfit(f"{algorithm} is for continuous actions, but {discrete[0]!r} is a choice among classes", spec)
    return spec.width


def single_choice(algorithm: str, spec: ActionSpec) -> int:
    """A, the classes of an action that is one choice among them.

    Raises:
        ConfigError: it is something else; names the algorithms that fit.
    """
    continuous = [key for key in sorted(spec.parts) if spec.parts[key].kind == "continuous"]
    if continuous:
        raise _unfit(f"{algorithm} is for a choice among classes, but {continuous[0]!r} is continuous", spec)
    if sum(len(part.classes) for part in spec.parts.values()) != 1:
        raise _unfit(f"{algorithm} is for a single choice among classes, but an action here is several", spec)
    return spec.width


def _unfit(what: str, spec: ActionSpec) -> ConfigError:
    kinds = {part.kind for part in spec.parts.values()}
    choices = sum(len(part.classes) for part in spec.parts.values())
    fit = CONTINUOUS if kinds == {"continuous"} else CHOICE if kinds == {"categorical"} and choices == 1 else ANY
    known = algorithms()
    return ConfigError(f"{what}. Algorithms that fit: {', '.join(name for name in fit if name in known)}.")

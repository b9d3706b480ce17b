"""Actors and critics of model-free algorithms: multilayer perceptrons with ReLU on top of the observations.

Weights and biases are initialised as in ``torch.nn.Linear``, uniformly within 1 / sqrt(inputs), as in the authors'
code of TD3 and in CleanRL.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from reverie.core.checks import check_at_least
from reverie.core.config import Config
from reverie.core.discover import algorithm_config, algorithms
from reverie.core.errors import ConfigError, brief
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Obs
from reverie.nn.cnn import Dreamer, ImageEncoder, read_by
from reverie.nn.encoder import encoded, one_hot, width_of
from reverie.nn.perceptron import ReluMLP


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(Config):
    """An actor or critic: an MLP whose input is vectors, one-hot categoricals and features of images."""

    units: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers, first to last; at least one."""
    encoder: ImageEncoder = field(default_factory=Dreamer)
    """Encoder of images, or of what an encoder of your own reads, if there are any; each network has its own."""

    def __post_init__(self) -> None:
        given: object = self.units
        if not isinstance(given, tuple | list) or not all(isinstance(unit, Integral) for unit in given):
            raise ConfigError(
                f"units = {brief(given)}: expected a tuple of whole numbers, the widths of the hidden layers, such as "
                "(256, 256)."
            )
        if not self.units or min(self.units) < 1:
            raise ConfigError(f"units = {self.units}: expected at least one hidden layer, each at least 1 wide.")


class Inputs(nn.Module):
    """Concatenates observations to one vector: numbers unchanged, categoricals one-hot, images through an encoder."""

    def __init__(self, spec: ObsSpec, cfg: NetworkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        if not hasattr(cfg, "units"):
            raise ConfigError(
                f"networks = {brief(cfg)}: expected a NetworkConfig of reverie.nn.actor_critic, such as "
                "NetworkConfig(units=(256, 256))."
            )
        read = read_by(cfg.encoder, spec)
        self.vectors = {key: spec[key] for key in sorted(spec) if key not in read}
        self.dtype = dtype
        self.width = sum(part.width for part in self.vectors.values())
        self.encoder = cfg.encoder.build(read) if read else None
        self.width += width_of(self.encoder) if self.encoder is not None else 0

    def forward(self, obs: Obs) -> Tensor:
        """Map observations ``[..., *shape]`` to a vector ``[..., width]``."""
        parts = []
        for key, part in self.vectors.items():
            x, dims = obs[key], len(part.shape)
            flat = x if dims == 1 else x.reshape(*x.shape[: x.ndim - dims], -1)
            parts.append((one_hot(flat, part.classes) if part.kind == "categorical" else flat).to(self.dtype))
        if self.encoder is not None:
            parts.append(encoded(self.encoder, obs, self.dtype))
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0]


class DeterministicActor(nn.Module):
    """A deterministic policy mu(s) in [-1, 1]: an MLP with tanh on top."""

    def __init__(self, obs_spec: ObsSpec, width: int, cfg: NetworkConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.inputs = Inputs(obs_spec, cfg, dtype)
        self.body = ReluMLP(self.inputs.width, cfg.units, width, squash=True)

    def forward(self, obs: Obs) -> Tensor:
        """Map observations ``[..., *shape]`` to actions ``[..., A]``."""
        y: Tensor = self.body(self.inputs(obs))
        return y.float()


class QEnsemble(nn.Module):
    """A critic Q(s, a), or K critics (``copies``) that share only a CNN."""

    def __init__(
        self,
        obs_spec: ObsSpec,
        width: int,
        cfg: NetworkConfig,
        copies: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if copies is not None:
            check_at_least("copies", copies, 1)
        self.inputs = Inputs(obs_spec, cfg, dtype)
        self.body = ReluMLP(self.inputs.width + width, cfg.units, 1, copies)

    def forward(self, obs: Obs, action: Tensor) -> Tensor:
        """Map observations ``[..., *shape]`` and actions ``[..., A]`` to values ``[...]``; ``[K, ...]`` of K copies."""
        return self._values(self.inputs(obs), action)

    def first(self, obs: Obs, action: Tensor) -> Tensor:
        """Return the values ``[...]`` of the first copy, without computing the others."""
        return self._values(self.inputs(obs), action, copy=0)

    def several(self, obs: Obs, action: Tensor, copy: int | None = None) -> Tensor:
        """Return the values ``[(K,) ..., n]`` of n actions ``[..., n, A]`` for each observation, which is encoded once.

        ``copy``: the index of the only copy to compute, whose values are ``[..., n]``.
        """
        return self._values(self.inputs(obs), action, copy)

    def _values(self, features: Tensor, action: Tensor, copy: int | None = None) -> Tensor:
        y: Tensor = self.body(features, action.to(features.dtype), copy=copy)
        return y.float().squeeze(-1)


class Stacked(nn.Module):
    """K critics of any kind as one: ``Stacked(first, second)(obs, action)`` returns their values ``[K, ...]``."""

    def __init__(self, *critics: nn.Module) -> None:
        super().__init__()
        self.critics = nn.ModuleList(critics)

    def forward(self, obs: Obs, action: Tensor) -> Tensor:
        """Return the values of all critics, ``[K, ...]``."""
        return torch.stack([critic(obs, action) for critic in self.critics])

    def first(self, obs: Obs, action: Tensor) -> Tensor:
        """Return the values of the first critic, ``[...]``."""
        value: Tensor = self.critics[0](obs, action)
        return value


def first(critic: nn.Module, obs: Obs, action: Tensor) -> Tensor:
    """Return the values ``[...]`` of the first of several critics, without computing the others if possible."""
    ask = getattr(critic, "first", None)
    value: Tensor = critic(obs, action)[0] if ask is None else ask(obs, action)
    return value


def continuous_width(algorithm: str, spec: ActionSpec) -> int:
    """Return A, the width of actions whose parts are all continuous.

    Raises:
        ConfigError: a part is discrete. The message names the algorithms that fit.
    """
    discrete = [key for key in sorted(spec.parts) if spec.parts[key].kind != "continuous"]
    if discrete:
        raise _unfit(f"{algorithm} needs continuous actions, but action {discrete[0]!r} is discrete", spec)
    return spec.width


def single_choice(algorithm: str, spec: ActionSpec) -> int:
    """Return A, the number of classes of an action that is a single discrete choice.

    Raises:
        ConfigError: it is not. The message names the algorithms that fit.
    """
    continuous = [key for key in sorted(spec.parts) if spec.parts[key].kind == "continuous"]
    if continuous:
        raise _unfit(f"{algorithm} needs a discrete action, but action {continuous[0]!r} is continuous", spec)
    if sum(len(part.classes) for part in spec.parts.values()) != 1:
        raise _unfit(f"{algorithm} needs a single discrete action, but the action space has several", spec)
    return spec.width


def only_kind(algorithm: str, spec: ActionSpec) -> str:
    """Return the kind of all parts, ``continuous`` or ``categorical``.

    Raises:
        ConfigError: there are both. The message names the algorithms that fit.
    """
    kinds = {part.kind for part in spec.parts.values()}
    if len(kinds) > 1:
        raise _unfit(
            f"{algorithm} needs actions that are all continuous or all discrete, but the action space has both", spec
        )
    return kinds.pop()


def all_classes(spec: ActionSpec) -> tuple[int, ...]:
    """Return the number of classes of each discrete choice, in the order of the flat action."""
    return tuple(count for key in sorted(spec.parts) for count in spec.parts[key].classes)


def kind_of(spec: ActionSpec) -> str:
    """Return ``continuous``, ``discrete`` (one choice), ``multi_discrete`` (several choices) or ``mixed``."""
    kinds = {part.kind for part in spec.parts.values()}
    if len(kinds) > 1:
        return "mixed"
    if kinds == {"continuous"}:
        return "continuous"
    return "discrete" if len(all_classes(spec)) == 1 else "multi_discrete"


def _unfit(what: str, spec: ActionSpec) -> ConfigError:
    """Return the error ``what``, which names the algorithms that are for actions such as ``spec``."""
    kind, fit = kind_of(spec), {False: list[str](), True: list[str]()}
    for name in sorted(algorithms()):
        with contextlib.suppress(Exception):  # an installed package's algorithm that cannot be imported
            config: Any = algorithm_config(name)
            if kind in config.action_kinds:
                fit[config.needs_data].append(name)
    also = f"; with recorded data: {', '.join(fit[True])}" if fit[True] else ""
    return ConfigError(f"{what}. Suitable algorithms: {', '.join(fit[False])}{also}.")

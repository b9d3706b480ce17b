"""Actors with a distribution over actions; the critics of mixed actions, which are laid out as these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from reverie.core.specs import MASK_KEY, ActionSpec, ObsSpec, num_classes_per_choice, num_continuous
from reverie.core.types import Obs
from reverie.nn.actor_critic import DeterministicActor
from reverie.nn.distributions import Categoricals, JointDistribution, legal_classes, slices_by_kind
from reverie.nn.functional import ILLEGAL
from reverie.nn.network import Network, NetworkConfig
from reverie.nn.normals import ClippedNormal, Normal, SquashedNormal


class TanhGaussianActor(Network):
    """A policy pi(a | s): an MLP to a tanh-squashed Gaussian over [-1, 1]^A (appendix C of the SAC paper)."""

    def __init__(
        self, obs_spec: ObsSpec, width: int, cfg: NetworkConfig, dtype: torch.dtype = torch.float32, **settings: Any
    ) -> None:
        """``settings`` are passed to :class:`Network`."""
        super().__init__(obs_spec, 2 * width, cfg, dtype, **settings)

    def forward(self, obs: Obs) -> SquashedNormal:  # type: ignore[override]
        """Map observations ``[..., *shape]`` to a distribution over actions ``[..., A]``."""
        mean, log_std = super().forward(obs).chunk(2, -1)
        return SquashedNormal(mean, self.bound_log_std(log_std))

    def bound_log_std(self, log_std: Tensor) -> Tensor:
        """Return ln sigma ``[..., A]``, given the network's output for it."""
        return log_std


class BoundedGaussianActor(TanhGaussianActor):
    """A policy as :class:`TanhGaussianActor`, with ln sigma in [-10, 2] by tanh: the code of SAC-AE and SimbaV2."""

    def bound_log_std(self, log_std: Tensor) -> Tensor:
        return 6 * log_std.tanh() - 4


IQL_LOG_STD = (-5.0, 2.0)
"""Limits of ln sigma of the Gaussians that are not squashed, from the code of the authors of IQL."""


class GaussianActor(Network):
    """A policy pi(a | s) = N(tanh(f(s)), sigma(s)^2), where one MLP outputs f and ln sigma."""

    def __init__(self, obs_spec: ObsSpec, width: int, cfg: NetworkConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(obs_spec, 2 * width, cfg, dtype)

    def forward(self, obs: Obs) -> ClippedNormal:  # type: ignore[override]
        return _tanh_mean(*super().forward(obs).chunk(2, -1))


def _tanh_mean(mean: Tensor, log_std: Tensor) -> ClippedNormal:
    """Return N(tanh(mean), std^2) of a network's outputs ``[..., A]``."""
    return ClippedNormal(mean.tanh(), log_std.clamp(*IQL_LOG_STD))


class FixedStdGaussianActor(DeterministicActor):
    """A policy pi(a | s) = N(tanh(f(s)), sigma^2), with a learned sigma independent of the state, initially 1."""

    def __init__(self, obs_spec: ObsSpec, width: int, cfg: NetworkConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(obs_spec, width, cfg, dtype)
        self.log_std: nn.Parameter = nn.Parameter(torch.zeros(width))

    def forward(self, obs: Obs) -> ClippedNormal:  # type: ignore[override]
        return ClippedNormal(super().forward(obs), self.log_std.clamp(*IQL_LOG_STD))


class CategoricalActor(Network):
    """A policy pi(a | s): an MLP whose outputs are the logits of :class:`Categoricals`."""

    def __init__(
        self,
        obs_spec: ObsSpec,
        classes: tuple[int, ...],
        cfg: NetworkConfig,
        dtype: torch.dtype = torch.float32,
        **settings: Any,
    ) -> None:
        super().__init__(obs_spec, sum(classes), cfg, dtype, **settings)
        self.classes = classes

    def forward(self, obs: Obs) -> Categoricals:  # type: ignore[override]
        return Categoricals(super().forward(obs), self.classes, legal=obs.get(MASK_KEY))


class HybridActor(Network):
    """A policy pi(a | s) over continuous and discrete parts: one MLP for the parameters of both."""

    def __init__(
        self,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        cfg: NetworkConfig,
        dtype: torch.dtype = torch.float32,
        numbers: Callable[[Tensor, Tensor], Normal] = _tanh_mean,
    ) -> None:
        """``numbers(mean, log_std)`` returns the distribution of the continuous part; both inputs are ``[..., C]``."""
        classes, count = num_classes_per_choice(action_spec), num_continuous(action_spec)
        super().__init__(obs_spec, 2 * count + sum(classes), cfg, dtype)
        self.widths: list[int] = [count, count, sum(classes)]
        self.classes: tuple[int, ...] = classes
        self.numbers = numbers
        self.slices: dict[str, tuple[slice, ...]] = slices_by_kind(action_spec)

    def forward(self, obs: Obs) -> JointDistribution:  # type: ignore[override]
        mean, log_std, logits = torch.split(super().forward(obs), self.widths, -1)
        choices = Categoricals(logits, self.classes, legal=legal_classes(obs, self.slices["choices"]))
        return JointDistribution({"numbers": self.numbers(mean, log_std), "choices": choices}, self.slices)


class HybridQEnsemble(Network):
    """K critics of mixed actions that share only a CNN: they read the continuous part and value each class."""

    def __init__(
        self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: NetworkConfig, copies: int, dtype: torch.dtype
    ) -> None:
        count = num_continuous(action_spec)
        outputs = sum(num_classes_per_choice(action_spec))
        super().__init__(obs_spec, outputs, cfg, dtype, extra_inputs=count, copies=copies, is_critic=True)
        self.choices: tuple[slice, ...] = slices_by_kind(action_spec)["choices"]

    def forward(self, obs: Obs, numbers: Tensor) -> Tensor:  # type: ignore[override]
        """Map observations ``[..., *shape]`` and continuous parts ``[..., C]`` to additive values ``[K, ..., D]``."""
        values: Tensor = super().forward(obs, numbers)
        legal = legal_classes(obs, self.choices)
        return values if legal is None else values.masked_fill(~legal, ILLEGAL)

"""What rewards are multiplied by where they are learned from. Rows, scores and episodes keep the true ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reverie.core.config import Choice
from reverie.core.errors import ConfigError
from reverie.nn.host import HostBuffers
from reverie.nn.normalise import LEAST, Moments, check_clip


@dataclass(frozen=True)
class RewardScale(Choice):
    """How rewards are scaled."""


@dataclass(frozen=True)
class Factor(RewardScale):
    """By a number."""

    factor: float = 1.0
    """It."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.factor) and self.factor > 0):
            raise ConfigError(f"factor = {self.factor}: expected a number above 0.")


@dataclass(frozen=True)
class ReturnStd(RewardScale):
    """By one over the standard deviation of discounted returns: Engstrom et al. 2020, arXiv:2005.12729, Algorithm 1.

    The return of a row is what its episode has earned until then, G <- r + gamma G, from 0 at its first row.
    """

    clip: float | None = 10.0
    """The largest size of a reward that is left after that; None: any."""

    def __post_init__(self) -> None:
        check_clip(self.clip)


class ReturnRange(HostBuffers):
    """What returns can be, by the smallest and largest reward of all rows so far. Values outside are mistaken.

    A sum of rewards r, discounted by gamma, that may end at any row is at most r / (1 - gamma) of the largest where
    that is above 0, and the largest itself where not; and the other way round at least.
    """

    on_host = ("rewards",)
    rewards: Tensor
    bounds: Tensor

    def __init__(self, discount: float) -> None:
        super().__init__()
        self.horizon = 1 / (1 - discount) if discount < 1 else math.inf
        self.register_buffer("rewards", torch.tensor([math.inf, -math.inf]))
        self.register_buffer("bounds", torch.tensor([-math.inf, math.inf]))

    def forward(self, value: Tensor) -> Tensor:
        """``value`` ``[...]`` within the bounds; as it is before any reward was seen."""
        return value.clamp(self.bounds[0], self.bounds[1])

    def add(self, reward: Tensor, is_first: Tensor) -> None:
        """Take in rows ``[...]``; those that begin an episode have no reward."""
        earned = reward[~is_first]
        if not len(earned):
            return
        least, most = min(float(earned.min()), float(self.rewards[0])), max(float(earned.max()), float(self.rewards[1]))
        self.rewards.copy_(torch.tensor([least, most]))
        low = least * self.horizon if least < 0 else least
        high = most * self.horizon if most > 0 else most
        self.bounds.copy_(torch.tensor([low, high]), non_blocking=True)

    def fit(self, reward: Tensor, is_first: Tensor) -> None:
        """Forget all rows, and take in these."""
        self.rewards.copy_(torch.tensor([math.inf, -math.inf]))
        self.bounds.copy_(torch.tensor([-math.inf, math.inf]))
        self.add(reward, is_first)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Checkpoints from before there were bounds go on without: nothing is bounded before rewards are seen."""
        for name, now in self.named_buffers():
            state.setdefault(prefix + name, now)
        super()._load_from_state_dict(state, prefix, *rest)


class ConstantFactor(nn.Module):
    """Rewards times a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, reward: Tensor) -> Tensor:
        """``[...]``."""
        return reward * self.factor


class ReturnScaler(HostBuffers):
    """Rewards over the standard deviation of the returns of all rows so far; before any has varied, as they are.

    The mean is left in: to shift rewards would change which policy is best where episodes differ in length.
    """

    on_host = ("returns",)
    factor: Tensor
    returns: Tensor

    def __init__(self, discount: float, clip: float | None) -> None:
        super().__init__()
        self.discount, self.clip = discount, clip
        self.moments = Moments(())
        self.register_buffer("factor", torch.ones(()))
        self.register_buffer("returns", torch.zeros(0, dtype=torch.float64))  # [N], of the running episodes

    def forward(self, reward: Tensor) -> Tensor:
        """``[...]``."""
        scaled = reward * self.factor
        return scaled if self.clip is None else scaled.clamp(-self.clip, self.clip)

    def add(self, reward: Tensor, is_first: Tensor) -> None:
        """Take in the next row of each of N streams, ``[N]``. Nothing was earned by one that is first."""
        if self.returns.shape != reward.shape:
            self.returns = self.returns.new_zeros(reward.shape)
        earned, first = reward.numpy(force=True), is_first.numpy(force=True)
        returns = np.where(first, 0.0, self.discount * self.returns.numpy() + earned)
        self.returns.copy_(torch.from_numpy(returns))
        self._count(returns[~first])

    def fit(self, reward: Tensor, is_first: Tensor) -> None:
        """Forget all rows, and take in these of N streams, ``[N, n]``. What is lived next begins new episodes."""
        earned, first = reward.double().numpy(force=True), is_first.numpy(force=True)
        returns = np.zeros_like(earned)
        for t in range(earned.shape[1]):
            before = returns[:, t - 1] if t else 0.0
            returns[:, t] = np.where(first[:, t], 0.0, earned[:, t] + self.discount * before)
        self.moments.clear()
        self.returns = self.returns.new_zeros(0)
        self._count(returns[~first])

    def _count(self, returns: np.ndarray) -> None:
        self.moments.add(torch.from_numpy(returns))
        _, std = self.moments.mean_and_std()
        self.factor.fill_(1 / std.item() if std > LEAST else 1.0)

    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *rest: Any) -> None:
        """Whoever was saved may have had another number of environments."""
        saved = state_dict.get(f"{prefix}returns", self.returns)
        self.returns = self.returns.new_zeros(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *rest)

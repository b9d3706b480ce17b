"""Scaling of rewards in learning. Stored rows, episodes and scores keep the original rewards."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from reverie.core.bounds import Above, Finite
from reverie.core.collectives import all_gather, is_distributed
from reverie.core.config import Choice
from reverie.core.kernel_dispatch import accelerated
from reverie.nn.normalization import CONSTANT_ATOL, HostBuffers, Moments, add_rows, mean_and_std


@dataclass(frozen=True)
class RewardScale(Choice):
    """Scaling of the rewards for learning."""

    follows_returns: ClassVar[bool] = False
    """Whether it follows the returns of the rows so far, which come in the order of one collector."""


@dataclass(frozen=True)
class Factor(RewardScale):
    """Multiply rewards by a constant."""

    factor: Annotated[float, Above(0)] = 1.0
    """The constant, above 0."""
    shift: ClassVar[float] = 0.0

    @property
    def multiplier(self) -> float:
        """The number by which returns are multiplied."""
        return self.factor

    def __call__(self, reward: Tensor) -> Tensor:
        """Return the scaled rewards, ``[...]``."""
        return reward * self.factor


@dataclass(frozen=True)
class Affine(Factor):
    """Multiply the reward of each step by a constant, then add another: affine(1, -1) is r - 1."""

    shift: Annotated[float, Finite()] = 0.0  # type: ignore[misc]  # a setting here
    """The constant that is added."""

    def __call__(self, reward: Tensor) -> Tensor:
        return reward * self.factor + self.shift


@dataclass(frozen=True)
class ReturnStd(RewardScale):
    """Divide rewards by the standard deviation of returns: Engstrom et al. 2020, arXiv:2005.12729, Algorithm 1.

    The return of a row is the discounted sum of its episode's rewards so far, G <- r + gamma G, 0 at the first row.
    """

    follows_returns: ClassVar[bool] = True

    clip: Annotated[float | None, Above(0)] = 10.0
    """Largest absolute value of a reward, applied after scaling; above 0, or None for no limit."""
    max_return: Annotated[float | None, Above(0)] = None
    """Divide by more where the largest absolute return so far would exceed this otherwise: Lee et al. 2025, "SimbaV2",
    section 4. None: no limit."""
    std: Annotated[float, Above(0)] = 1.0
    """Standard deviation of the scaled returns. Much smaller rewards than 1 drown in the errors of a critic."""


class ReturnBounds(HostBuffers):
    """Bounds on returns, from the smallest and largest reward r_min and r_max of all rows so far, after scaling.

    The upper bound is r_max / (1 - gamma) if r_max > 0, else r_max, because the episode may end after one reward. The
    lower bound is r_min / (1 - gamma) if r_min < 0, else r_min. A predicted value outside cannot be right.
    """

    on_host: ClassVar[tuple[str, ...]] = ("rewards",)
    rewards: Tensor
    bounds: Tensor

    def __init__(self, discount: float) -> None:
        super().__init__()
        self.horizon: float = 1 / (1 - discount) if discount < 1 else math.inf
        self.register_buffer("rewards", torch.tensor([math.inf, -math.inf]))
        self.register_buffer("bounds", torch.tensor([-math.inf, math.inf]))

    def forward(self, value: Tensor) -> Tensor:
        """Return ``value`` ``[...]`` clamped to the bounds; unchanged before the first reward."""
        return value.clamp(self.bounds[0], self.bounds[1])

    def add(self, reward: Tensor, is_first: Tensor, scale: Callable[[Tensor], Tensor] | None = None) -> None:
        """Extend the bounds by rows ``[...]``; the first row of an episode has no reward, so it is skipped.

        ``scale`` maps rewards to those of the losses, and may change with the rows. With several learners, the rows of
        all count.
        """
        earned = reward[~is_first]
        ends = [earned.min(), earned.max()] if len(earned) else [math.inf, -math.inf]
        extremes = all_gather(torch.tensor(list(map(float, ends))))  # [N, 2]
        min_reward = min(float(extremes[:, 0].min()), float(self.rewards[0]))
        max_reward = max(float(extremes[:, 1].max()), float(self.rewards[1]))
        if min_reward > max_reward:  # no row had a reward
            return
        self.rewards.copy_(torch.tensor([min_reward, max_reward]))
        rewards = self.rewards.to(self.bounds.device, non_blocking=True)  # nothing waits for the device
        rewards = (rewards if scale is None else scale(rewards)).double()
        is_repeated = torch.stack([rewards[0] < 0, rewards[1] > 0])
        self.bounds.copy_(torch.where(is_repeated, rewards * self.horizon, rewards))

    def fit(self, reward: Tensor, is_first: Tensor) -> None:
        """Recompute the bounds from these rows ``[...]``."""
        self.rewards.copy_(torch.tensor([math.inf, -math.inf]))
        self.bounds.copy_(torch.tensor([-math.inf, math.inf]))
        self.add(reward, is_first)


def running_returns(reward: np.ndarray, first: np.ndarray, discount: float) -> np.ndarray:
    """Return G of each row, float64 ``[N, n]``: G <- r + gamma G within an episode, 0 at its first row.

    ``reward`` is float64, ``first`` bool, both ``[N, n]``: n consecutive rows of N streams. Python loops over the rows
    of the longest episode only.
    """
    begins = first.copy()
    begins[:, :1] = True
    position = np.arange(first.size)
    age = position - np.maximum.accumulate(np.where(begins.ravel(), position, 0))  # [N * n], rows since the first one
    returns = np.where(first, 0.0, reward).ravel()  # [N * n], final where the age is 0
    by_age = np.split(np.argsort(age, kind="stable"), np.cumsum(np.bincount(age)))
    for rows in by_age[1:-1]:  # the last one is empty
        returns[rows] += discount * returns[rows - 1]
    return returns.reshape(first.shape)


def _update_returns(returns: Tensor, reward: Tensor, is_first: Tensor, discount: float) -> None:
    """Set ``returns`` ``[N]`` (float64) to the next rows' returns: G <- r + gamma G, 0 at a first row."""
    returns.mul_(discount).add_(reward).masked_fill_(is_first, 0.0)


def _set_factor(moments: Tensor, factor: Tensor) -> None:
    """Set ``factor`` to 1 / the standard deviation of ``moments``, or to 1 while that is 0."""
    std = mean_and_std(moments)[1].view(factor.shape)
    factor.copy_(torch.where(std > CONSTANT_ATOL, 1 / std, 1.0), non_blocking=True)


@accelerated
def add_returns(
    returns: Tensor, reward: Tensor, is_first: Tensor, discount: float, moments: Tensor, factor: Tensor
) -> None:
    """Update ``returns`` with the next rows ``[N]``, add them to ``moments`` ``[3, 1]`` and set ``factor``."""
    _update_returns(returns, reward, is_first, discount)
    add_rows(moments, returns, ~is_first)
    _set_factor(moments, factor)


class ReturnScaler(HostBuffers):
    """Scales rewards so that the returns of all rows so far have the standard deviation ``std``; 0 counts as 1."""

    on_host: ClassVar[tuple[str, ...]] = ("returns", "largest")
    factor: Tensor
    returns: Tensor
    largest: Tensor

    def __init__(self, discount: float, clip: float | None, max_return: float | None = None, std: float = 1.0) -> None:
        super().__init__()
        self.discount = discount
        self.clip = clip
        self.max_return = max_return
        self.std = std
        self.moments: Moments = Moments(())
        self.register_buffer("factor", torch.ones(()))
        self.register_buffer("returns", torch.zeros(0, dtype=torch.float64))  # [N], G of the unfinished episodes
        self.register_buffer("largest", torch.zeros((), dtype=torch.float64))  # absolute G, if it matters

    @property
    def multiplier(self) -> Tensor:
        """The number ``[]`` by which returns are multiplied."""
        return self.factor * self.std

    def forward(self, reward: Tensor) -> Tensor:
        """Return the scaled and clipped rewards, ``[...]``."""
        scaled = reward * self.multiplier
        return scaled if self.clip is None else scaled.clamp(-self.clip, self.clip)

    def add(self, reward: Tensor, is_first: Tensor) -> None:
        """Add the next row of each of N streams, ``[N]``. The first row of an episode has no reward."""
        if self.returns.shape != reward.shape:
            self.returns.resize_(reward.shape).zero_()  # in place, as recorded calls look at its address
        if self.returns.device != reward.device:
            self.returns = self.returns.to(reward.device)
            self.moments.moments = self.moments.moments.to(reward.device)
        if not is_distributed():
            add_returns(self.returns, reward, is_first, self.discount, self.moments.moments, self.factor)
            return self._limit(self.returns)
        _update_returns(self.returns, reward, is_first, self.discount)
        self._count(self.returns[~is_first])

    def repeats_updates(self, reward: Tensor) -> bool:
        """Return whether ``add`` makes the same calls with each row of these N streams."""
        return self.max_return is None and self.returns.shape == reward.shape

    def fit(self, reward: Tensor, is_first: Tensor) -> None:
        """Replace all rows by these of N streams, ``[N, n]``. The next row added begins a new episode."""
        earned, first = reward.double().numpy(force=True), is_first.numpy(force=True)
        returns = running_returns(earned, first, self.discount)
        self.moments.moments.zero_()
        self.largest.zero_()
        self.returns.resize_(0)
        self._count(torch.from_numpy(returns[~first]))

    def _count(self, returns: Tensor) -> None:
        self.moments.add(returns)
        _set_factor(self.moments.moments, self.factor)
        self._limit(returns)

    def _limit(self, returns: Tensor) -> None:
        """Lower the factor to ``max_return`` over the largest absolute return, counting ``returns``, if it is more."""
        if self.max_return is None:
            return
        newest = returns.abs().max() if len(returns) else self.largest
        self.largest.copy_(torch.maximum(self.largest, all_gather(newest).max()))
        if self.largest > 0:
            self.factor.clamp_(max=self.max_return / (self.std * float(self.largest)))

    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *rest: object) -> None:
        """Accept a state saved with another number of environments."""
        saved = state_dict.get(f"{prefix}returns", self.returns)
        self.returns.resize_(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *rest)

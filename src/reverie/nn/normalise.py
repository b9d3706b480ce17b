"""Running statistics that scale what a learner sees: observations, rewards, returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from reverie.core.config import Choice
from reverie.core.errors import ConfigError, warn
from reverie.core.specs import ObsSpec
from reverie.core.types import Obs
from reverie.nn.host import HostBuffers

NOISE = 1e-6
"""Numbers whose standard deviation is not above this part of their mean differ by no more than rounding."""

LEAST = 1e-30
"""And no difference is as small as this: one over it is still a number in float32."""

LOOKED_AT = 1000
"""Rows after which running statistics are looked at for numbers that never change."""


@dataclass(frozen=True)
class Normalise(Choice):
    """How vectors are normalised: ``(x - mean) / std``, cut to ``[-clip, clip]``. The kinds differ in the rows."""

    @property
    def clip(self) -> float:
        """The largest size that is left."""
        raise NotImplementedError

    @property
    def limit(self) -> int | None:
        """Rows after which mean and standard deviation stay what they are; None: never."""
        return None


@dataclass(frozen=True)
class Fixed(Normalise):
    """By the first rows that are lived, whose actions are random; statistics do not change any more after that."""

    rows: int = 1000
    """How many, all environments together."""
    clip: float = 10.0
    """The largest size that is left."""

    def __post_init__(self) -> None:
        if not isinstance(self.rows, int) or self.rows < 2:
            raise ConfigError(f"rows = {self.rows}: expected a whole number, 2 or more, to have a standard deviation.")
        check_clip(self.clip)

    @property
    def limit(self) -> int:
        """As many."""
        return self.rows


@dataclass(frozen=True)
class Running(Normalise):
    """By all rows that have been lived so far, or given at once (:meth:`Normaliser.fit`)."""

    clip: float = 10.0
    """The largest size that is left."""

    def __post_init__(self) -> None:
        check_clip(self.clip)


def check_clip(clip: float | None) -> None:
    """Raises ConfigError unless something is left within ``[-clip, clip]``; None cuts nothing."""
    if clip is not None and not clip > 0:
        raise ConfigError(f"clip = {clip}: expected a number above 0.")


class Moments(HostBuffers):
    """Count, mean and standard deviation of rows, exact to rounding in float64 however many there are.

    Sets of rows are joined as in Chan, Golub and LeVeque (1979), which is Welford (1962) where they are single rows.
    That is done by NumPy, whose calls take a fifth of PyTorch's time for so few numbers.
    """

    on_host = ("moments",)
    moments: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        # [3, D], each number by itself: rows, mean, sum of squared deviations
        self.register_buffer("moments", torch.zeros(3, math.prod(shape), dtype=torch.float64))

    @property
    def count(self) -> int:
        """Rows that were taken in."""
        return int(self.moments[0, 0])

    def clear(self) -> None:
        """Forget all rows."""
        self.moments.zero_()

    def add(self, x: Tensor) -> None:
        """Take in rows ``[M, *shape]``."""
        new = len(x)
        if new == 0:
            return
        rows = x.numpy(force=True).reshape(new, -1).astype(np.float64)  # [M, D]
        count, mean, spread = self.moments.numpy()  # [D], the buffer itself
        fresh = rows.sum(0) / new
        shift, share = fresh - mean, new / (count + new)
        spread += shift * shift * count * share
        if new > 1:
            spread += np.square(rows - fresh).sum(0)
        mean += shift * share
        count += new

    def mean_and_std(self) -> tuple[np.ndarray, np.ndarray]:
        """``[*shape]`` each; the deviation is that of all rows, not of a sample. 0 before there are any."""
        count, mean, spread = self.moments.numpy()
        return mean.reshape(self.shape), np.sqrt(spread / np.maximum(count, 1)).reshape(self.shape)


class Standard(Moments):
    """Moments, and the shift and factor in float32 that take them to 0 and 1; those of before any row do nothing."""

    shift: Tensor
    factor: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("factor", torch.ones(shape))

    def add(self, x: Tensor) -> None:
        """Take in rows ``[M, *shape]``. What has not varied is only shifted: nothing can be divided by 0."""
        super().add(x)
        mean, std = self.mean_and_std()
        self.shift.copy_(torch.as_tensor(mean), non_blocking=True)
        self.factor.copy_(torch.as_tensor(1 / np.where(constant(mean, std), 1.0, std)), non_blocking=True)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., *shape]``."""
        return (x - self.shift) * self.factor


def constant(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Which numbers have not varied but by rounding, bool ``[*shape]``."""
    found: np.ndarray = std <= np.maximum(NOISE * np.abs(mean), LEAST)
    return found


class Normaliser(nn.Module):
    """``(x - mean) / std`` of each number of each vector, cut at ``clip``. Images and classes stay as they are.

    Statistics are buffers, so a checkpoint holds them and a captured update reads those of now. Only rows that were
    lived or given move them: not those that are sampled, nor those of evaluations.
    """

    def __init__(self, spec: ObsSpec, cfg: Normalise) -> None:
        """For the vectors of ``spec``.

        Raises:
            ConfigError: there are none.
        """
        super().__init__()
        vectors = {key: spec[key] for key in sorted(spec) if spec[key].kind == "vector"}
        if not vectors:
            seen = ", ".join(f"{key!r} ({spec[key].kind})" for key in sorted(spec))
            raise ConfigError(
                f"normalise = {cfg.text()}: there are no vectors here, only {seen}. Images are scaled to [0, 1] and "
                "classes are one-hot as they are: leave it out."
            )
        self.cfg = cfg
        self.keys = list(vectors)
        self.parts = nn.ModuleList([Standard(part.shape) for part in vectors.values()])

    def forward(self, obs: Obs) -> Obs:
        """``[..., *shape]`` of every key; vectors may have more axes in front of theirs, such as one of frames."""
        clip = self.cfg.clip
        return obs | {key: part(obs[key]).clamp(-clip, clip) for key, part in self._each() if key in obs}

    def fit(self, obs: Mapping[str, Tensor]) -> None:
        """Forget all rows, and take in these, ``[M, *shape]`` of each vector, in their order."""
        for _, part in self._each():
            part.clear()
        self.add(obs)

    def add(self, obs: Mapping[str, Tensor]) -> None:
        """Take in rows ``[M, *shape]`` that have just been lived, as many as are still wanted."""
        before = self.count
        room = None if self.cfg.limit is None else max(0, self.cfg.limit - before)
        if room == 0:
            return
        for key, part in self._each():
            part.add(obs[key][:room])
        look = LOOKED_AT if self.cfg.limit is None else self.cfg.limit
        if before < look <= self.count:
            self._warn()

    @property
    def count(self) -> int:
        """Rows that were taken in."""
        return self._each()[0][1].count

    def _each(self) -> list[tuple[str, Standard]]:
        return [(key, part) for key, part in zip(self.keys, self.parts, strict=True) if isinstance(part, Standard)]

    def _warn(self) -> None:
        """Say which numbers have not changed: often a sensor that is not there, or one in units that are too large."""
        found = {key: np.argwhere(constant(*part.mean_and_std())) for key, part in self._each()}
        said = [f"{_places(where)} of observation '{key}'" for key, where in found.items() if len(where)]
        if said:
            warn(
                f"{' and '.join(said)} did not change in {self.count} rows: normalised, they are 0 as long as that "
                "holds, and not scaled afterwards. What never changes can be left out of the environment."
            )


def _places(where: np.ndarray, most: int = 8) -> str:
    """``dimensions 3, 5`` of indices ``[n, dims]``."""
    if not where.shape[1]:
        return "the one number"
    named = [str(tuple(map(int, i)) if len(i) > 1 else int(i[0])) for i in where[:most]]
    more = f" and {len(where) - most} more" if len(where) > most else ""
    return f"dimension{'s' if len(where) > 1 else ''} {', '.join(named)}{more}"


def percentiles(x: Tensor, percents: tuple[float, ...]) -> list[Tensor]:
    """Percentiles of all numbers in ``x`` ``[...]``, linear between neighbours: ``torch.quantile`` to the last bit.

    Unlike there, any count of numbers will do, nothing comes from the host, and NaN counts as the largest number.
    """
    flat = x.float().flatten()
    ranks = [np.float32(p / 100) * np.float32(flat.numel() - 1) for p in percents]  # in the precision of quantile
    below, above = (at_ranks(flat, [int(f(r)) for r in ranks]) for f in (np.floor, np.ceil))
    shares = [float(r - np.floor(r)) for r in ranks]
    return [torch.lerp(a, b, share) for a, b, share in zip(below, above, shares, strict=True)]


def at_ranks(flat: Tensor, ranks: list[int]) -> list[Tensor]:
    """The numbers ``[]`` that have these places in ascending order, counted from 0."""
    if flat.device.type == "cpu":  # a quarter of the time of sorting; a GPU selects with one block of threads only
        return [flat.kthvalue(rank + 1).values for rank in ranks]
    ordered = flat.sort().values
    return [ordered[rank] for rank in ranks]


class PercentileScale(nn.Module):
    """The spread of returns, as a moving average of percentiles. DreamerV3 (Hafner et al. 2025), equation 7.

    S = max(limit, ema(per(R, high)) - ema(per(R, low))), the averages starting at 0 and not debiased.
    """

    low: Tensor
    high: Tensor

    def __init__(self, rate: float = 0.01, limit: float = 1.0, percentiles: tuple[float, float] = (5.0, 95.0)) -> None:
        super().__init__()
        self.rate, self.limit, self.percentiles = rate, limit, percentiles
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Take in new values ``[...]``."""
        low, high = percentiles(x, self.percentiles)
        self.low.lerp_(low, self.rate)
        self.high.lerp_(high, self.rate)

    def forward(self) -> tuple[Tensor, Tensor]:
        """``(offset, scale)``."""
        return self.low, (self.high - self.low).clamp(min=self.limit)

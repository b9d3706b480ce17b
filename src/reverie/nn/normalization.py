"""Running statistics that scale a learner's inputs: observations, rewards, returns."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from reverie.core.bounds import Above, AtLeast
from reverie.core.collectives import all_gather, is_distributed, mean_across_ranks
from reverie.core.config import Choice
from reverie.core.errors import ConfigError
from reverie.core.kernel_dispatch import accelerated
from reverie.core.logger import logger
from reverie.core.specs import ObsSpec
from reverie.core.types import Obs

CONSTANT_RTOL = 1e-6
"""Relative limit: a number with a standard deviation of at most ``CONSTANT_RTOL * |mean|`` counts as constant."""

CONSTANT_ATOL = 1e-30
"""Absolute limit: a standard deviation up to this counts as 0. Its inverse is still finite in float32."""

CHUNK_ROWS = 8192
"""Number of rows converted to float64 at once: a whole dataset may not fit into memory."""

PERCENTILES = (5.0, 95.0)
"""Percentiles of the returns, low and high, between which :class:`PercentileScale` takes the range."""

CONSTANT_CHECK_ROWS = 1000
"""Number of rows after which running statistics are checked for numbers that never change."""


@dataclass(frozen=True)
class NormalizeConfig(Choice, ABC):
    """Normalization of vectors: ``(x - mean) / std``, clipped to ``[-clip, clip]``. Subclasses choose the rows used."""

    @property
    @abstractmethod
    def clip(self) -> float:
        """Largest absolute value of a normalized number, above 0."""

    @property
    def limit(self) -> int | None:
        """Number of rows after which mean and standard deviation are frozen; None: never."""
        return None


@dataclass(frozen=True)
class Fixed(NormalizeConfig):
    """Statistics of the first rows of the run, whose actions are random; afterwards they are frozen."""

    rows: Annotated[int, AtLeast(2)] = 1000
    """Number of rows that the statistics are taken from, summed over all environments; 2 or more."""
    clip: Annotated[float, Above(0)] = 10.0
    """Largest absolute value of a normalized number, above 0."""

    @property
    def limit(self) -> int:
        return self.rows


@dataclass(frozen=True)
class Running(NormalizeConfig):
    """Statistics of all rows so far, or of a whole dataset (:meth:`ObsNormalizer.fit`)."""

    clip: Annotated[float, Above(0)] = 10.0
    """Largest absolute value of a normalized number, above 0."""


class HostBuffers(nn.Module):
    """A module some of whose buffers keep their device (CPU) and dtype when the module is moved or converted.

    Python reads these buffers with every new row of experience. On a GPU each read would wait for the running update.
    """

    on_host: ClassVar[tuple[str, ...]] = ()
    """Names of the buffers that stay on the CPU."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        on_host = {name: self._buffers[name] for name in self.on_host}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._buffers.update(on_host)
        return self


class Moments(HostBuffers):
    """Count, mean and standard deviation of rows in float64, numerically stable for any number of rows.

    They lie where the newest rows do, so that nothing waits for a GPU.
    """

    on_host: ClassVar[tuple[str, ...]] = ("moments",)
    moments: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        # [3, D], for each number: count of rows, mean, sum of squared deviations
        self.register_buffer("moments", torch.zeros(3, math.prod(shape), dtype=torch.float64))

    @property
    def count(self) -> int:
        """Number of rows added so far."""
        return int(self.moments[0, 0])

    def add(self, x: Tensor) -> None:
        """Add rows ``[M, *shape]``; with several learners, the rows of all."""
        if not is_distributed():
            return add_rows(self.moments, x)
        local = torch.zeros_like(self.moments)
        add_rows(local, x)
        for part in all_gather(local):
            _merge_moments(self.moments, *part)

    def mean_and_std(self) -> tuple[Tensor, Tensor]:
        """Return mean and population standard deviation (divided by n), each ``[*shape]``; 0 without rows."""
        mean, std = mean_and_std(self.moments)
        return mean.view(self.shape), std.view(self.shape)


def add_rows(moments: Tensor, x: Tensor, counted: Tensor | None = None) -> None:
    """Add rows ``x`` ``[M, ...]`` of D numbers to ``moments`` ``[3, D]``, in place; ``counted`` ``[M]``: which rows."""
    rows = x.reshape(len(x), moments.shape[1]).to(moments.device)  # [M, D]
    weights = torch.ones_like(rows[:, :1]) if counted is None else counted.unsqueeze(1)  # [M, 1]
    for part, weight in zip(torch.split(rows, CHUNK_ROWS), torch.split(weights.double(), CHUNK_ROWS), strict=True):
        count, wide = weight.sum(), part.double()
        mean = (wide * weight).sum(0) / count.clamp(min=1)
        _merge_moments(moments, count, mean, ((wide - mean).square() * weight).sum(0))


def mean_and_std(moments: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and population standard deviation of ``moments`` ``[3, D]``, each ``[D]``."""
    count, mean, spread = moments
    return mean, (spread / count.clamp(min=1)).sqrt()


def _merge_moments(moments: Tensor, new: Tensor, fresh: Tensor, scatter: Tensor) -> None:
    """Add to ``moments`` ``[3, D]``: ``new`` rows of mean ``fresh`` and sum of squared deviations ``scatter``.

    Chan, Golub and LeVeque (1979), equation 2.1.
    """
    count, mean, spread = moments  # [D], views
    shift, share = fresh - mean, new / (count + new).clamp(min=1)
    spread += shift * shift * count * share + scatter
    mean += shift * share
    count += new


class Standardizer(Moments):
    """Moments, with the ``shift`` and ``factor`` (float32) to mean 0 and std 1; the identity without rows."""

    moments: Tensor
    shift: Tensor
    factor: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("factor", torch.ones(shape))

    def add(self, x: Tensor) -> None:
        """Add rows ``[M, *shape]``. Numbers that have not varied are only shifted, never divided by 0."""
        if is_distributed():
            super().add(x)
            x = x[:0]
        if self.moments.device != x.device:  # a module takes 10 us to set an attribute
            self.moments = self.moments.to(x.device)
        add_and_standardize(self.moments, x, self.shift, self.factor)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` standardized, ``[..., *shape]``."""
        return (x - self.shift) * self.factor


@accelerated
def add_and_standardize(moments: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> None:
    """Add rows ``x`` ``[M, *shape]`` to ``moments`` ``[3, D]``, then set ``shift`` and ``factor`` ``[*shape]``."""
    add_rows(moments, x)
    mean, std = mean_and_std(moments)
    inverse = 1 / std.masked_fill(_are_constant(mean, std), 1.0)
    shift.copy_(mean.view(shift.shape), non_blocking=True)
    factor.copy_(inverse.view(shift.shape), non_blocking=True)


def _are_constant(mean: Tensor, std: Tensor) -> Tensor:
    """Return which numbers have not varied except by rounding, bool ``[*shape]``."""
    return std <= (CONSTANT_RTOL * mean.abs()).clamp(min=CONSTANT_ATOL)


class ObsNormalizer(nn.Module):
    """Returns ``(x - mean) / std`` of each number of each vector, clipped. Images and categoricals are not changed.

    Only new rows of the run or the rows of a dataset change the statistics, not sampled batches and not evaluations.
    """

    def __init__(self, spec: ObsSpec, cfg: NormalizeConfig) -> None:
        super().__init__()
        vectors = {key: spec[key] for key in sorted(spec) if spec[key].kind == "vector"}
        if not vectors:
            raise ConfigError(
                f"normalize_obs = {cfg.to_text()}: only vectors are normalized, but there are none among the "
                f"observations {', '.join(sorted(spec))}. Set normalize_obs = none."
            )
        self.cfg = cfg
        self.keys: list[str] = list(vectors)
        self.is_checked: bool = False
        """Whether rows need no longer be counted, which takes as long as adding them."""
        self.each: list[tuple[str, Standardizer]] = [(key, Standardizer(part.shape)) for key, part in vectors.items()]
        self.parts: nn.ModuleList = nn.ModuleList([part for _, part in self.each])

    def forward(self, obs: Obs) -> Obs:
        """Return the observations with normalized vectors ``[..., *shape]``; stacked frames count as leading axes."""
        clip = self.cfg.clip
        return obs | {key: part(obs[key]).clamp(-clip, clip) for key, part in self.each if key in obs}

    def fit(self, obs: Mapping[str, Tensor]) -> None:
        """Replace all rows by these, ``[M, *shape]`` of each vector, in their order."""
        for _, part in self.each:
            part.moments.zero_()
        self.add(obs)

    def add(self, obs: Mapping[str, Tensor]) -> None:
        """Add new rows ``[M, *shape]`` of the run, up to the limit of :class:`NormalizeConfig`."""
        is_on_gpu = not next(iter(obs.values())).is_cpu  # where counting would wait for the device
        if self.is_checked or (is_on_gpu and self.cfg.limit is None):
            for key, part in self.each:
                part.add(obs[key])
            return
        before, limit = self.count, self.cfg.limit
        if limit is not None:
            if before >= limit:
                return
            obs = {key: obs[key][: limit - before] for key in self.keys}
        for key, part in self.each:
            part.add(obs[key])
        if before < (limit or CONSTANT_CHECK_ROWS) <= self.count:
            self._warn()
        self.is_checked = limit is None and before >= CONSTANT_CHECK_ROWS

    @property
    def count(self) -> int:
        """Number of rows added so far."""
        return self.each[0][1].count

    def _warn(self) -> None:
        """Warn about constant inputs, often a missing sensor or too large units."""
        for key, part in self.each:
            if len(index := torch.nonzero(_are_constant(*part.mean_and_std()))):
                frozen = "and later changes will not be scaled" if self.cfg.limit else "until they change"
                logger.warning(
                    f"{len(index)} numbers of observation '{key}', the first at {index[0].tolist()}, did not change "
                    f"in {self.count} rows: the normalized values are 0 {frozen}. Remove constants from observations."
                )


def percentiles(x: Tensor, percents: tuple[float, ...]) -> list[Tensor]:
    """Return percentiles of all numbers in ``x`` ``[...]``, linearly interpolated, as ``torch.quantile`` does.

    Unlike that function, it has no size limit and copies nothing from the host, and NaN sorts as the largest number.
    """
    flat = x.float().flatten()
    ranks = [np.float32(p / 100) * np.float32(flat.numel() - 1) for p in percents]  # float32, as in torch.quantile
    around = [int(f(r)) for f in (np.floor, np.ceil) for r in ranks]  # the ranks below, then those above
    if flat.device.type == "cpu":  # a quarter of the time of sorting; on a GPU kthvalue uses one block of threads only
        numbers = [flat.kthvalue(rank + 1).values for rank in around]
    else:
        ordered = flat.sort().values
        numbers = [ordered[rank] for rank in around]
    below, above, shares = numbers[: len(ranks)], numbers[len(ranks) :], [float(r - np.floor(r)) for r in ranks]
    return [torch.lerp(a, b, share) for a, b, share in zip(below, above, shares, strict=True)]


class PercentileScale(nn.Module):
    """The return normalization of DreamerV3 (Hafner et al. 2025), equation 7: a moving average of percentiles.

    S = max(limit, ema(per(R, high)) - ema(per(R, low))). The averages start at 0 and are not debiased.
    """

    low: Tensor
    high: Tensor

    def __init__(self, rate: float = 0.01, limit: float = 1.0) -> None:
        super().__init__()
        self.rate = rate
        self.limit = limit
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Update the averages with new values ``[...]``."""
        low, high = percentiles(all_gather(x), PERCENTILES)
        self.low.lerp_(low, self.rate)
        self.high.lerp_(high, self.rate)

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return ``(offset, scale)``: the average of the low percentile, and S; both ``[]``."""
        return self.low, (self.high - self.low).clamp(min=self.limit)


class MagnitudeScale(nn.Module):
    """Divides by a moving average of magnitudes, times ``scale``: the reward norm of DreamerV2's code.

    A momentum of 1, the default, leaves the magnitude at 1.
    """

    magnitude: Tensor

    def __init__(self, momentum: float = 1.0, scale: float = 1.0, eps: float = 1e-8) -> None:
        super().__init__()
        self.momentum = momentum
        self.scale = scale
        self.eps = eps
        self.register_buffer("magnitude", torch.ones(()))

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Update the average with new values ``[...]``."""
        self.magnitude.lerp_(mean_across_ranks(x.abs().mean()), 1 - self.momentum)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled values, ``[...]``."""
        return x / (self.magnitude + self.eps) * self.scale

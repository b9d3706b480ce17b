"""Bodies of networks that normalize over the batch: CrossQ's batch renormalization and XQC's batch normalization."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from reverie.core.bounds import AtLeast, Within
from reverie.core.collectives import mean_across_ranks
from reverie.core.types import Obs
from reverie.nn.bodies import Body, CopiedLinear, Copies, SphericalLinear


@dataclass(frozen=True)
class BatchBody(Body, base=True):
    """A network whose algorithm normalizes it by the statistics of batches, and updates the running ones."""

    rate: Annotated[float, Within("(0, 1]")] = 0.01
    """Step size of the running means and variances per update."""


BATCH_NORM_EPS = 1e-3
"""Added to variances: the authors' code of CrossQ (github.com/adityab/CrossQ) and of XQC."""


@torch.no_grad()
def _batch_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means and the variances ``[K, 1, width]`` of K batches ``[K, M, width]``, without gradient."""
    var, mean = torch.var_mean(x.float(), 1, correction=0, keepdim=True)
    return mean, var


def batch_norm(x: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return scale (x - m) / s + shift, m, and s^2: Ioffe and Szegedy 2015, arXiv:1502.03167, algorithm 1.

    m and s are the mean and the standard deviation of each of K batches, x ``[K, M, width]``. ``scale`` and ``shift``
    are ``[K, 1, width]``, as m and s^2, which have no gradient.
    """
    var, mean = torch.var_mean(x.float(), 1, correction=0, keepdim=True)
    y = torch.addcmul(shift, (x - mean) * (var + BATCH_NORM_EPS).rsqrt(), scale)
    return y.to(x.dtype), mean.detach(), var.detach()


class BatchNormLayer(nn.Module):
    """K batch normalizations, :func:`batch_norm` with learned scales and shifts.

    The statistics are those of the batch within :func:`batch_statistics`, and the running ones outside of it.
    """

    mean: Tensor
    var: Tensor

    def __init__(self, width: int, copies: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.scale: nn.Parameter = nn.Parameter(torch.ones(copies, 1, width))
        self.shift: nn.Parameter = nn.Parameter(torch.zeros(copies, 1, width))
        self.register_buffer("mean", torch.zeros(copies, 1, width))
        self.register_buffer("var", torch.ones(copies, 1, width))
        self.uses_batch: bool = False
        """Whether to normalize by the batch's statistics; see :func:`batch_statistics`."""

    def forward(self, x: Tensor, only: slice) -> Tensor:
        """Map ``[k, M, width]`` to the same shape, with the k copies ``only``."""
        if self.uses_batch:
            y, mean, var = self.normalize(x, only)
            if torch.is_grad_enabled():
                self.follow(mean, var)
            return y
        scale = self.scale[only] * (self.var[only] + BATCH_NORM_EPS).rsqrt()
        shift = torch.addcmul(self.shift[only], self.mean[only], scale, value=-1)
        return torch.addcmul(shift.to(x.dtype), x, scale.to(x.dtype))

    def normalize(self, x: Tensor, only: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs for ``x`` ``[k, M, width]``, normalized by its statistics, and its means and variances."""
        return batch_norm(x, self.scale[only], self.shift[only])

    @torch.no_grad()
    def follow(self, mean: Tensor, var: Tensor) -> None:
        """Move the running statistics toward a batch's ``[K, 1, width]``; with several learners, toward their mean."""
        self.mean.lerp_(mean_across_ranks(mean), self.rate)
        self.var.lerp_(mean_across_ranks(var), self.rate)


@contextmanager
def batch_statistics(network: nn.Module) -> Iterator[None]:
    """Normalize by the statistics of batches in this context; gradient steps also move the running statistics."""
    layers = [layer for layer in network.modules() if isinstance(layer, BatchNormLayer)]
    for layer in layers:
        layer.uses_batch = True
    try:
        yield
    finally:
        for layer in layers:
            layer.uses_batch = False


def joint_pass(
    critic: nn.Module, obs: Obs, action: Tensor, next_obs: Obs, next_action: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the critics' outputs ``[K, B, ...]`` for (s, a) and for (s', a'), normalized by the same statistics.

    The distributions of actions and next actions differ: CrossQ, section 3.1, figure 1. Inputs are ``[B, ...]``.
    """
    both = {key: torch.cat([x, next_obs[key]]) for key, x in obs.items()}  # [2 B, ...]
    with batch_statistics(critic):
        outputs: Tensor = critic(both, torch.cat([action, next_action]))  # [K, 2 B, ...]
    first, second = outputs.chunk(2, 1)
    return first, second


# ---------------------------------------------------------------------- CrossQ


@dataclass(frozen=True)
class BatchRenorm(BatchBody):
    """An MLP with ReLU whose inputs and hidden layers are normalized over the batch: Bhatt et al. 2024, "CrossQ"."""

    trained_by: ClassVar[str] = "crossq"

    warmup: Annotated[int, AtLeast(0)] = 100_000
    """Updates with batch normalization, before its results are corrected by the running statistics."""

    def build(
        self, inputs: int, units: tuple[int, ...], outputs: int, copies: int | None = None, *, squash: bool = False
    ) -> BatchRenormMLP:
        return BatchRenormMLP(inputs, units, outputs, copies, squash=squash, cfg=self)


class BatchRenormLayer(BatchNormLayer):
    """K batch renormalizations: Ioffe 2017, arXiv:1702.03275, algorithm 1.

    y = scale ((x - m) / s r + d) + shift,  r = s / running s within [1/3, 3],  d = (m - running m) / running s within
    [-5, 5]; r and d have no gradient. Outside of :func:`batch_statistics` and in the warm-up, r is 1 and d is 0.
    """

    updates: Tensor

    def __init__(self, width: int, copies: int, cfg: BatchRenorm) -> None:
        super().__init__(width, copies, cfg.rate)
        self.warmup: int = cfg.warmup
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def normalize(self, x: Tensor, only: slice) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            mean, var = _batch_moments(x)  # [k, 1, width] each
            std = (var + BATCH_NORM_EPS).sqrt()
            running_std, warm = (self.var[only] + BATCH_NORM_EPS).sqrt(), self.updates >= self.warmup
            r = torch.where(warm, (std / running_std).clamp(1 / MAX_RATIO, MAX_RATIO), 1.0)
            d = ((mean - self.mean[only]) / running_std).clamp(-MAX_DISTANCE, MAX_DISTANCE)
            d = torch.where(warm, d, 0.0)
        scale = self.scale[only]
        return batch_norm(x, scale * r, torch.addcmul(self.shift[only], scale, d))

    @torch.no_grad()
    def follow(self, mean: Tensor, var: Tensor) -> None:
        super().follow(mean, var)
        self.updates += 1


MAX_RATIO, MAX_DISTANCE = 3.0, 5.0
"""Limits of r and d in :class:`BatchRenormLayer`."""


class BatchRenormMLP(Copies):
    """The network of CrossQ: a norm, then a linear layer, ReLU and a norm for each of ``units``, then a linear layer.

    Weights are drawn as in :class:`~reverie.nn.relu_mlp.ReluMLP`.
    """

    def __init__(
        self, inputs: int, units: tuple[int, ...], outputs: int, copies: int | None = None, *, squash: bool = False,
        cfg: BatchRenorm,
    ) -> None:  # fmt: skip
        super().__init__(copies)
        count, widths = copies or 1, (inputs, *units)
        self.squash = squash
        self.norms: nn.ModuleList = nn.ModuleList([BatchRenormLayer(width, count, cfg) for width in widths])
        self.layers: nn.ModuleList = nn.ModuleList([CopiedLinear(i, o, count) for i, o in pairwise((*widths, outputs))])
        for layer, width in zip(self.layers, widths, strict=True):
            for p in layer.parameters():
                nn.init.uniform_(p, -(width**-0.5), width**-0.5)

    def outputs(self, x: Tensor, only: slice) -> Tensor:
        y = x  # [k, M, inputs]
        for i, (norm, layer) in enumerate(zip(self.norms, self.layers, strict=True)):
            y = layer(norm(y.relu() if i else y, only), only)
        return y.tanh() if self.squash else y  # [k, M, outputs]


# ---------------------------------------------------------------------- XQC


@dataclass(frozen=True)
class BatchNorm(BatchBody):
    """An MLP with ReLU that normalizes its inputs, and its hidden layers before ReLU, over the batch.

    Its weights have norm 1: Palenicek et al. 2026, "XQC", arXiv:2509.25174.
    """

    trained_by: ClassVar[str] = "xqc"

    def build(
        self, inputs: int, units: tuple[int, ...], outputs: int, copies: int | None = None, *, squash: bool = False
    ) -> BatchNormMLP:
        return BatchNormMLP(inputs, units, outputs, copies, squash=squash, rate=self.rate)


class BatchNormMLP(Copies):
    """The network of XQC: a norm, then a linear layer, a norm and ReLU for each of ``units``, then a linear layer.

    The weights of each output have norm 1, and only the last layer has biases.
    """

    def __init__(
        self, inputs: int, units: tuple[int, ...], outputs: int, copies: int | None = None, *, squash: bool = False,
        rate: float,
    ) -> None:  # fmt: skip
        super().__init__(copies)
        count, widths = copies or 1, (inputs, *units)
        self.squash = squash
        self.norm: BatchNormLayer = BatchNormLayer(inputs, count, rate)
        self.layers: nn.ModuleList = nn.ModuleList([SphericalLinear(i, o, count) for i, o in pairwise(widths)])
        self.norms: nn.ModuleList = nn.ModuleList([BatchNormLayer(width, count, rate) for width in units])
        self.head: SphericalLinear = SphericalLinear(widths[-1], outputs, count)
        self.bias: nn.Parameter = nn.Parameter(torch.zeros(count, 1, outputs))

    def outputs(self, x: Tensor, only: slice) -> Tensor:
        y: Tensor = self.norm(x, only)  # [k, M, inputs]
        for layer, norm in zip(self.layers, self.norms, strict=True):
            y = norm(layer(y, only), only).relu_()
        y = self.head(y, only) + self.bias[only].to(y.dtype)  # [k, M, outputs]
        return y.tanh() if self.squash else y

"""Networks between inputs and outputs of an actor or critic, other than a plain MLP, each from a paper."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.bounds import AtLeast, Within
from reverie.core.collectives import mean_across_ranks
from reverie.core.config import Choice
from reverie.core.errors import ConfigError
from reverie.nn.layers import init_
from reverie.nn.relu_mlp import NORM_EPS, ReluMLP, concat_inputs, perceptron


@dataclass(frozen=True)
class Body(Choice, ABC):
    """What is between the inputs and the outputs of a network."""

    def check(self, **widths: tuple[int, ...]) -> None:
        """Raise ConfigError unless these ``widths``, by the names of their settings, can be built."""

    @abstractmethod
    def build(
        self, inputs: int, units: tuple[int, ...], outputs: int, copies: int | None = None, *, squash: bool = False
    ) -> Copies:
        """Return K networks (``copies``), or one: see :class:`Copies`.

        ``units``: widths of the hidden layers or blocks. ``squash``: apply tanh to the outputs.
        """


@dataclass(frozen=True)
class Simba(Body):
    """Residual blocks: Lee et al., "SimBa: simplicity bias for scaling up parameters in deep RL", ICLR 2025."""

    def check(self, **widths: tuple[int, ...]) -> None:
        for name, units in widths.items():
            if len(set(units)) != 1:
                raise ConfigError(f"{name} = {units}, body = {self.to_text()}: all blocks must have the same width.")

    def build(
        self, inputs: int, units: tuple[int, ...], outputs: int, copies: int | None = None, *, squash: bool = False
    ) -> ResidualMLP:
        return ResidualMLP(inputs, units, outputs, copies, squash=squash)


class Copies(nn.Module):
    """A network, or K of them (``copies``) that share their input. A subclass defines :meth:`outputs`."""

    def __init__(self, copies: int | None) -> None:
        super().__init__()
        self.copies = copies

    def outputs(self, x: Tensor, only: slice) -> Tensor:
        """Map ``[k, M, inputs]`` to ``[k, M, outputs]``, with the k copies ``only``."""
        raise NotImplementedError

    def forward(self, *parts: Tensor, copy: int | None = None) -> Tensor:
        """Map ``[..., inputs]`` to ``[..., outputs]``, or to ``[K, ..., outputs]``: see ``nn/relu_mlp.py: ReluMLP``."""
        x = concat_inputs(*[part.reshape(-1, part.shape[-1]) for part in parts])  # [M, inputs]
        lead, alone = parts[-1].shape[:-1], self.copies is None or copy is not None
        x = x.expand(1 if alone else self.copies or 1, *x.shape)  # [k, M, inputs]
        y = self.outputs(x, ALL if copy is None else slice(copy, copy + 1))  # [k, M, outputs]
        return y.view(*lead, y.shape[-1]) if alone else y.view(len(y), *lead, y.shape[-1])


ALL = slice(None)
"""All copies."""


class CopiedLinear(nn.Module):
    """K linear layers with separate weights ``[K, inputs, outputs]`` and biases ``[K, 1, outputs]``."""

    def __init__(self, inputs: int, outputs: int, copies: int) -> None:
        super().__init__()
        self.weight: nn.Parameter = nn.Parameter(torch.empty(copies, inputs, outputs))
        self.bias: nn.Parameter = nn.Parameter(torch.zeros(copies, 1, outputs))

    def forward(self, x: Tensor, only: slice) -> Tensor:
        """Map ``[k, M, inputs]`` to ``[k, M, outputs]``, with the k copies ``only``."""
        return torch.baddbmm(self.bias[only].to(x.dtype), x, self.weight[only].to(x.dtype))


class CopiedLayerNorm(nn.Module):
    """K layer norms, which differ in their scales and shifts ``[K, 1, width]``: Ba et al. 2016, equation 3."""

    def __init__(self, width: int, copies: int) -> None:
        super().__init__()
        self.scale: nn.Parameter = nn.Parameter(torch.ones(copies, 1, width))
        self.shift: nn.Parameter = nn.Parameter(torch.zeros(copies, 1, width))

    def forward(self, x: Tensor, only: slice) -> Tensor:
        """Map ``[k, M, width]`` to the same shape, with the k copies ``only``."""
        normed = F.layer_norm(x, x.shape[-1:], eps=NORM_EPS)
        return torch.addcmul(self.shift[only].to(x.dtype), normed, self.scale[only].to(x.dtype))


class ResidualBlock(nn.Module):
    """x + W_2 relu(W_1 LN(x)), with a hidden layer of four times the width: SimBa, equation 6."""

    def __init__(self, width: int, copies: int) -> None:
        super().__init__()
        self.norm: CopiedLayerNorm = CopiedLayerNorm(width, copies)
        self.expand: CopiedLinear = CopiedLinear(width, 4 * width, copies)
        self.contract: CopiedLinear = CopiedLinear(4 * width, width, copies)
        for layer in (self.expand, self.contract):
            init_(layer.weight, layer.weight.shape[1], math.sqrt(2))

    def forward(self, x: Tensor, only: slice) -> Tensor:
        """Map ``[k, M, width]`` to the same shape, with the k copies ``only``."""
        change: Tensor = self.contract(self.expand(self.norm(x, only), only).relu(), only)  # [k, M, width]
        return x + change


class ResidualMLP(Copies):
    """The network of SimBa, section 4: a linear layer, a residual block for each of ``units``, layer norm, linear.

    Weights are drawn as in the authors' code (github.com/SonyResearch/simba), orthogonal in the first and last layer.
    """

    def __init__(
        self, inputs: int, units: tuple[int, ...], outputs: int, copies: int | None = None, *, squash: bool = False
    ) -> None:
        super().__init__(copies)
        count, width = copies or 1, units[0]
        self.squash = squash
        self.embed: CopiedLinear = CopiedLinear(inputs, width, count)
        self.blocks: nn.ModuleList = nn.ModuleList([ResidualBlock(width, count) for _ in units])
        self.norm: CopiedLayerNorm = CopiedLayerNorm(width, count)
        self.head: CopiedLinear = CopiedLinear(width, outputs, count)
        for weight in (*self.embed.weight, *self.head.weight):
            nn.init.orthogonal_(weight)

    def outputs(self, x: Tensor, only: slice) -> Tensor:
        y: Tensor = self.embed(x, only)  # [k, M, width]
        for block in self.blocks:
            y = block(y, only)
        y = self.head(self.norm(y, only), only)  # [k, M, outputs]
        return y.tanh() if self.squash else y


# ---------------------------------------------------------------------- batch renormalization


@dataclass(frozen=True)
class BatchRenorm(Body):
    """An MLP with ReLU whose inputs and hidden layers are normalized over the batch: Bhatt et al. 2024, "CrossQ"."""

    rate: Annotated[float, Within("(0, 1]")] = 0.01
    """Step size of the running means and variances per update."""
    warmup: Annotated[int, AtLeast(0)] = 100_000
    """Updates with batch normalization, before its results are corrected by the running statistics."""

    def build(
        self, inputs: int, units: tuple[int, ...], outputs: int, copies: int | None = None, *, squash: bool = False
    ) -> BatchRenormMLP:
        return BatchRenormMLP(inputs, units, outputs, copies, squash=squash, cfg=self)


class BatchRenormLayer(nn.Module):
    """K batch renormalizations: Ioffe 2017, arXiv:1702.03275, algorithm 1.

    y = scale ((x - m) / s r + d) + shift,  r = s / running s within [1/3, 3],  d = (m - running m) / running s within
    [-5, 5], where m and s are mean and standard deviation of the batch; r and d have no gradient. Outside of
    :func:`batch_statistics`, m and s are the running ones, r is 1 and d is 0, and so are r and d in the warm-up.
    """

    mean: Tensor
    var: Tensor
    updates: Tensor

    def __init__(self, width: int, copies: int, cfg: BatchRenorm) -> None:
        super().__init__()
        self.cfg = cfg
        self.scale: nn.Parameter = nn.Parameter(torch.ones(copies, 1, width))
        self.shift: nn.Parameter = nn.Parameter(torch.zeros(copies, 1, width))
        self.register_buffer("mean", torch.zeros(copies, 1, width))
        self.register_buffer("var", torch.ones(copies, 1, width))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self.uses_batch: bool = False
        """Whether m and s are those of the batch; see :func:`batch_statistics`."""

    def forward(self, x: Tensor, only: slice) -> Tensor:
        """Map ``[k, M, width]`` to the same shape, with the k copies ``only``."""
        scale, shift, mean, var = (t[only] for t in (self.scale, self.shift, self.mean, self.var))
        if self.uses_batch:
            running_mean, running_std = mean, (var + RENORM_EPS).sqrt()
            var, mean = torch.var_mean(x.float(), 1, correction=0, keepdim=True)  # [k, 1, width]
            m, s, warm = mean.detach(), (var.detach() + RENORM_EPS).sqrt(), self.updates >= self.cfg.warmup
            r = torch.where(warm, (s / running_std).clamp(1 / MAX_RATIO, MAX_RATIO), 1.0)
            d = torch.where(warm, ((m - running_mean) / running_std).clamp(-MAX_DISTANCE, MAX_DISTANCE), 0.0)
            scale, shift = scale * r, torch.addcmul(shift, scale, d)
            if torch.is_grad_enabled():
                self.follow(m, var.detach())
        scale = scale * (var + RENORM_EPS).rsqrt()
        shift = torch.addcmul(shift, mean, scale, value=-1)
        return torch.addcmul(shift.to(x.dtype), x, scale.to(x.dtype))

    @torch.no_grad()
    def follow(self, mean: Tensor, var: Tensor) -> None:
        """Move the running statistics toward a batch's ``[K, 1, width]``; with several learners, toward their mean."""
        self.mean.lerp_(mean_across_ranks(mean), self.cfg.rate)
        self.var.lerp_(mean_across_ranks(var), self.cfg.rate)
        self.updates += 1


RENORM_EPS = 1e-3
"""Added to variances: the authors' code (github.com/adityab/CrossQ)."""

MAX_RATIO, MAX_DISTANCE = 3.0, 5.0
"""Limits of r and d in :class:`BatchRenormLayer`."""


@contextmanager
def batch_statistics(network: nn.Module) -> Iterator[None]:
    """Normalize by the statistics of batches in this context; gradient steps also move the running statistics."""
    layers = [layer for layer in network.modules() if isinstance(layer, BatchRenormLayer)]
    for layer in layers:
        layer.uses_batch = True
    try:
        yield
    finally:
        for layer in layers:
            layer.uses_batch = False


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


# ---------------------------------------------------------------------- noisy networks


class NoisyMLP(ReluMLP):
    """An MLP with ReLU whose parameters are noisy: Fortunato et al. 2018, "Noisy networks for exploration".

    Within :func:`noisy_parameters`, each forward pass has the parameters theta + sigma noise, with new noise that all
    rows share; elsewhere it has theta. Section 3.2: theta and sigma are initialized for factorized Gaussian noise.
    """

    def __init__(self, inputs: int, units: tuple[int, ...], outputs: int, sigma: float) -> None:
        """``sigma``: initial standard deviation of the noise, times the square root of a layer's inputs."""
        super().__init__(inputs, units, outputs)
        scale = torch.zeros_like(self.theta)
        for weight, bias in self.layout.layers(scale):
            weight.fill_(sigma / math.sqrt(weight.shape[1]))
            bias.fill_(sigma / math.sqrt(weight.shape[1]))
        self.sigma: nn.Parameter = nn.Parameter(scale)

    def forward(self, x: Tensor, copy: int | None = None) -> Tensor:  # type: ignore[override]
        """Map ``[..., inputs]`` to ``[..., outputs]``. There is a single copy."""
        theta = torch.addcmul(self.theta, self.sigma, self.draw_noise()) if _is_noisy.get() else self.theta
        y = perceptron(theta, self.layout, x.reshape(-1, x.shape[-1]))  # [1, M, outputs]
        return y.view(*x.shape[:-1], y.shape[-1])

    def draw_noise(self) -> Tensor:
        """Return noise for all parameters, ``[1, P]``: equations 10 and 11.

        f(e_i) f(e_j) for the weight from input i to output j and f(e_j) for the bias of j, where e are standard normal
        and f(x) = sgn(x) sqrt(|x|).
        """
        sizes = [size for i, o, *_ in self.layout.places for size in (i, o)]
        draws = torch.randn(sum(sizes), device=self.theta.device)
        factors = torch.split(draws.sign() * draws.abs().sqrt(), sizes)
        pairs = zip(factors[::2], factors[1::2], strict=True)
        noise = torch.cat([part for a, b in pairs for part in ((a.unsqueeze(1) * b).flatten(), b)])
        return F.pad(noise, (0, self.layout.stride - len(noise))).unsqueeze(0)


_is_noisy: ContextVar[bool] = ContextVar("is_noisy", default=False)


@contextmanager
def noisy_parameters() -> Iterator[None]:
    """Draw noise in each forward pass of a :class:`NoisyMLP` in this context."""
    token = _is_noisy.set(True)
    try:
        yield
    finally:
        _is_noisy.reset(token)

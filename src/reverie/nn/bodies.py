"""Networks between inputs and outputs of an actor or critic, other than a plain MLP, each from a paper."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.config import Choice
from reverie.core.errors import ConfigError
from reverie.nn.functional import copied_linear
from reverie.nn.layers import init_
from reverie.nn.relu_mlp import NORM_EPS, concat_inputs


@dataclass(frozen=True)
class Body(Choice, ABC):
    """What is between the inputs and the outputs of a network."""

    trained_by: ClassVar[str] = ""
    """The algorithm with more than gradient steps that trains it; empty: any algorithm does."""

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
    ) -> Copies:
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


def _select_copies(parameter: Tensor, only: slice) -> Tensor:
    """Return the copies ``only`` of a parameter ``[K, ...]``. Unlike a slice, ``ALL`` does not copy their gradient."""
    return parameter if only is ALL else parameter[only]


class CopiedLinear(nn.Module):
    """K linear layers with separate weights ``[K, inputs, outputs]`` and biases ``[K, 1, outputs]``."""

    def __init__(self, inputs: int, outputs: int, copies: int) -> None:
        super().__init__()
        self.weight: nn.Parameter = nn.Parameter(torch.empty(copies, inputs, outputs))
        self.bias: nn.Parameter = nn.Parameter(torch.zeros(copies, 1, outputs))

    def forward(self, x: Tensor, only: slice) -> Tensor:
        """Map ``[k, M, inputs]`` to ``[k, M, outputs]``, with the k copies ``only``."""
        return copied_linear(x, _select_copies(self.weight, only), _select_copies(self.bias, only))


class CopiedLayerNorm(nn.Module):
    """K layer norms, which differ in their scales and shifts ``[K, 1, width]``: Ba et al. 2016, equation 3."""

    def __init__(self, width: int, copies: int) -> None:
        super().__init__()
        self.scale: nn.Parameter = nn.Parameter(torch.ones(copies, 1, width))
        self.shift: nn.Parameter = nn.Parameter(torch.zeros(copies, 1, width))

    def forward(self, x: Tensor, only: slice) -> Tensor:
        """Map ``[k, M, width]`` to the same shape, with the k copies ``only``."""
        normed = F.layer_norm(x, x.shape[-1:], eps=NORM_EPS)
        return torch.addcmul(
            _select_copies(self.shift, only).to(x.dtype), normed, _select_copies(self.scale, only).to(x.dtype)
        )


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


# ---------------------------------------------------------------------- unit sphere


@dataclass(frozen=True)
class Hypersphere(Simba):
    """Residual blocks whose features and weights have norm 1: Lee et al. 2025, "SimbaV2", arXiv:2502.15280."""

    trained_by: ClassVar[str] = "simba_v2"

    def build(
        self, inputs: int, units: tuple[int, ...], outputs: int, copies: int | None = None, *, squash: bool = False,
        heads: int = 1,
    ) -> Copies:  # fmt: skip
        """Return the networks, with the outputs divided among ``heads``."""
        return SphericalMLP(inputs, units, outputs, copies, squash=squash, heads=heads)


def _to_unit(x: Tensor) -> Tensor:
    """Return ``x`` ``[..., width]`` divided by its Euclidean norm; zeros, which have no direction, stay zeros."""
    return F.normalize(x, dim=-1, eps=max(1e-8, torch.finfo(x.dtype).tiny))  # in float16, 1e-8 is 0


class SphericalLinear(nn.Module):
    """K linear layers without biases; the weights ``[K, inputs, outputs]`` of each output have norm 1.

    The learner restores the norms after each step: :func:`project_weights`.
    """

    def __init__(self, inputs: int, outputs: int, copies: int) -> None:
        super().__init__()
        self.weight: nn.Parameter = nn.Parameter(torch.empty(copies, inputs, outputs))
        for weight in self.weight:
            nn.init.orthogonal_(weight)
        self.project()

    @torch.no_grad()
    def project(self) -> None:
        """Divide the weights of each output by their norm."""
        norm = self.weight.square().sum(1, keepdim=True).sqrt()  # faster than torch.linalg.vector_norm
        self.weight.div_(norm.clamp(min=1e-8))

    def forward(self, x: Tensor, only: slice) -> Tensor:
        """Map ``[k, M, inputs]`` to ``[k, M, outputs]``, with the k copies ``only``."""
        return copied_linear(x, _select_copies(self.weight, only))


def project_weights(network: nn.Module) -> None:
    """Restore the norms of all spherical layers of ``network`` that are not frozen: SimbaV2, section 4."""
    for layer in network.modules():
        if isinstance(layer, SphericalLinear) and layer.weight.requires_grad:
            layer.project()


class Scaler(nn.Module):
    """K learned factors of each feature. They begin at ``initial``; their parameters, ``[K, 1, width]``, at ``scale``.

    So a step of the optimizer changes factors by its size times initial / scale.
    """

    def __init__(self, width: int, copies: int, initial: float, scale: float) -> None:
        super().__init__()
        self.ratio: float = initial / scale
        self.factor: nn.Parameter = nn.Parameter(torch.full((copies, 1, width), scale))

    def forward(self, x: Tensor, only: slice) -> Tensor:
        """Map ``[k, M, width]`` to the same shape, with the k copies ``only``."""
        return x * (self.ratio * _select_copies(self.factor, only).to(x.dtype))


class SphericalBlock(nn.Module):
    """unit(x + a (unit(W_2 relu(s W_1 x)) - x)), with a hidden layer of four times the width and learned s and a.

    SimbaV2, section 4. ``depth``: the number of blocks; a begins at 1 / (depth + 1).
    """

    def __init__(self, width: int, copies: int, depth: int) -> None:
        super().__init__()
        scale = math.sqrt(2 / width) / 2
        self.expand: SphericalLinear = SphericalLinear(width, 4 * width, copies)
        self.scaler: Scaler = Scaler(4 * width, copies, scale, scale)
        self.contract: SphericalLinear = SphericalLinear(4 * width, width, copies)
        self.share: Scaler = Scaler(width, copies, 1 / (depth + 1), width**-0.5)

    def forward(self, x: Tensor, only: slice) -> Tensor:
        """Map ``[k, M, width]`` to the same shape, with the k copies ``only``."""
        hidden = self.scaler(self.expand(x, only), only).relu() + 1e-8  # never the zero vector
        change = _to_unit(self.contract(hidden, only)) - x  # [k, M, width]
        return _to_unit(x + self.share(change, only))


class SphericalHead(nn.Module):
    """W_2 s W_1 x + b with a learned s, without an activation: the heads of SimbaV2's code."""

    def __init__(self, width: int, outputs: int, copies: int) -> None:
        super().__init__()
        self.hidden: SphericalLinear = SphericalLinear(width, width, copies)
        self.scaler: Scaler = Scaler(width, copies, 1.0, 1.0)
        self.last: SphericalLinear = SphericalLinear(width, outputs, copies)
        self.bias: nn.Parameter = nn.Parameter(torch.zeros(copies, 1, outputs))

    def forward(self, x: Tensor, only: slice) -> Tensor:
        """Map ``[k, M, width]`` to ``[k, M, outputs]``, with the k copies ``only``."""
        y: Tensor = self.last(self.scaler(self.hidden(x, only), only), only)
        return y + _select_copies(self.bias, only).to(y.dtype)


class SphericalMLP(Copies):
    """The network of SimbaV2, section 4: an input with another coordinate on the sphere, blocks, and ``heads``."""

    def __init__(
        self, inputs: int, units: tuple[int, ...], outputs: int, copies: int | None = None, *, squash: bool = False,
        heads: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(copies)
        count, width, scale = copies or 1, units[0], math.sqrt(2 / units[0])
        self.squash = squash
        self.embed: SphericalLinear = SphericalLinear(inputs + 1, width, count)
        self.scaler: Scaler = Scaler(width, count, scale, scale)
        self.blocks: nn.ModuleList = nn.ModuleList([SphericalBlock(width, count, len(units)) for _ in units])
        self.heads: nn.ModuleList = nn.ModuleList([SphericalHead(width, outputs // heads, count) for _ in range(heads)])

    def outputs(self, x: Tensor, only: slice) -> Tensor:
        x = _to_unit(F.pad(x, (0, 1), value=SHIFT))  # [k, M, inputs + 1]
        y: Tensor = _to_unit(self.scaler(self.embed(x, only), only))  # [k, M, width]
        for block in self.blocks:
            y = block(y, only)
        parts = [head(y, only) for head in self.heads]
        y = torch.cat(parts, -1) if len(parts) > 1 else parts[0]
        return y.tanh() if self.squash else y  # [k, M, outputs]


SHIFT = 3.0
"""The other coordinate of inputs, which keeps their length: SimbaV2, section 4; the authors' value."""

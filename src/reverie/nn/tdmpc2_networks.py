"""MLPs with layer norm and Mish, whose outputs may be simplices: the networks of TD-MPC2.

Hansen, Su, Wang, "TD-MPC2: scalable, robust world models for continuous control", ICLR 2024: section 3.1, appendix H.
Weights are drawn as in the authors' code: normal with standard deviation 0.02, biases of 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, cast

import torch
from torch import Tensor, nn

from reverie.core.bounds import AtLeast, Finite, Within
from reverie.core.errors import ConfigError
from reverie.core.specs import ObsSpec
from reverie.core.types import Obs
from reverie.nn.cnn import ImageEncoder
from reverie.nn.functional import linear, norm_mish, sim_norm
from reverie.nn.network import NetworkConfig, ObsConcat


@dataclass(frozen=True, kw_only=True)
class LatentNetworkConfig(NetworkConfig):
    """Widths of the networks around a latent that consists of simplices."""

    units: Annotated[tuple[int, ...], AtLeast(1)] = (512, 512)
    """Widths of the hidden layers of dynamics, reward, termination, policy and critics."""
    encoder_units: Annotated[tuple[int, ...], AtLeast(1)] = (256,)
    """Widths of the hidden layers between observations and latent."""
    latent: Annotated[int, AtLeast(1)] = 512
    """L, the width of the latent; a multiple of ``simplex``."""
    simplex: Annotated[int, AtLeast(2)] = 8
    """Size of each softmax in the latent, which consists of L / simplex of them."""
    bins: Annotated[int, AtLeast(2)] = 101
    """Number of bins of the distributions of rewards and values."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.latent % self.simplex:
            raise ConfigError(
                f"networks.latent = {self.latent}, networks.simplex = {self.simplex}: the latent consists of softmaxes "
                f"of {self.simplex} numbers. Use a multiple, such as networks.latent = "
                f"{-(-self.latent // self.simplex) * self.simplex}."
            )


@dataclass(frozen=True, kw_only=True)
class TDMPC2NetworkConfig(LatentNetworkConfig):
    """Widths of the networks of TD-MPC2; the defaults are the authors' at five million parameters."""

    encoder: ImageEncoder | None = None
    """Encoder of images, if there are any. None: shifted; that of other algorithms where a side has fewer than 39
    pixels."""
    num_critics: Annotated[int, AtLeast(2)] = 5
    """K, the number of critics; each value uses two random ones."""
    dropout: Annotated[float, Within("[0, 1)")] = 0.01
    """Share of the first hidden layer of each critic that is dropped while it learns."""
    low: Annotated[float, Finite()] = -10.0
    """symlog of the lowest bin's value."""
    high: Annotated[float, Finite()] = 10.0
    """symlog of the highest bin's value: rewards and values beyond 22025 are clipped to it."""


Weights = tuple[Tensor, ...]
"""One layer of one copy: weight ``[outputs, inputs]``, bias ``[outputs]``; scale and shift of its norm, if any."""


class MishLayer(nn.Module):
    """The parameters of a linear layer and of the layer norm after it, ``[K, ...]`` each; K is 1 without copies."""

    def __init__(self, inputs: int, outputs: int, copies: int, *, norm: bool = True, zero: bool = False) -> None:
        super().__init__()
        self.weight: nn.Parameter = nn.Parameter(torch.zeros(copies, outputs, inputs))
        self.bias: nn.Parameter = nn.Parameter(torch.zeros(copies, outputs))
        self.scale: nn.Parameter | None = nn.Parameter(torch.ones(copies, outputs)) if norm else None
        self.shift: nn.Parameter | None = nn.Parameter(torch.zeros(copies, outputs)) if norm else None
        if not zero:
            nn.init.trunc_normal_(self.weight, std=0.02)

    def copies(self, chosen: Tensor | None = None) -> Iterator[Weights]:
        """Yield the weights of each copy, or of the ``chosen`` ones, indices ``[k]``."""
        tensors: list[Tensor] = [x for x in (self.weight, self.bias, self.scale, self.shift) if x is not None]
        if chosen is not None:
            tensors = [x.index_select(0, chosen) for x in tensors]
        return zip(*(x.unbind() for x in tensors), strict=True)


class MishMLP(nn.Module):
    """[linear, layer norm, Mish] for each of ``units``, and a linear layer; or K of these (``copies``).

    Dropout acts between the first linear layer and its norm.
    """

    def __init__(
        self, inputs: int, units: tuple[int, ...], outputs: int, *, copies: int | None = None, simplex: int = 0,
        dropout: float = 0.0, zero: bool = False,
    ) -> None:  # fmt: skip
        """``simplex``: after the last layer, a norm and a softmax of every ``simplex`` numbers. ``zero``: outputs 0."""
        super().__init__()
        n, widths = copies or 1, (inputs, *units)
        hidden = [MishLayer(i, o, n) for i, o in zip(widths, units, strict=False)]
        last = MishLayer(widths[-1], outputs, n, norm=simplex > 0, zero=zero)
        self.layers: nn.ModuleList = nn.ModuleList([*hidden, last])
        self.alone: bool = copies is None
        self.count: int = n
        self.units: int = units[0]
        self.simplex = simplex
        self.dropout: nn.Dropout | None = nn.Dropout(dropout) if dropout else None

    def forward(self, *parts: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Map inputs ``[..., I]``, concatenated along the last axis, to ``[..., outputs]``; with copies ``[K, ...]``.

        Args:
            parts: a first part with one axis fewer, ``[N, I]`` next to ``[N, n, J]``, is shared by the n rows.
            chosen: indices ``[k]`` of the copies to compute; None computes all.
        """
        copies = zip(*(cast(MishLayer, layer).copies(chosen) for layer in self.layers), strict=True)
        drop = self._dropped(parts[-1], self.count if chosen is None else len(chosen))
        outputs = [self._forward_copy(parts, layers, drop, k) for k, layers in enumerate(copies)]
        return outputs[0] if self.alone else torch.stack(outputs)

    @contextmanager
    def without_dropout(self) -> Iterator[None]:
        """Keep all outputs of the first layers, also in training."""
        dropout, self.dropout = self.dropout, None
        try:
            yield
        finally:
            self.dropout = dropout

    def _dropped(self, x: Tensor, copies: int) -> Tensor | None:
        """Return the factors ``[K, ..., units]`` by which dropout multiplies the outputs of the first layers."""
        if self.dropout is None or not self.dropout.training:
            return None
        factors: Tensor = self.dropout(x.new_ones(copies, *x.shape[:-1], self.units))
        return factors

    def _forward_copy(
        self, parts: tuple[Tensor, ...], layers: tuple[Weights, ...], drop: Tensor | None, copy: int
    ) -> Tensor:
        x = _concat_linear(parts, *layers[0][:2])
        if drop is not None:
            x = x * drop[copy]
        for before, layer in pairwise(layers):
            x = linear(norm_mish(x, *before[2:]), *layer[:2])
        return sim_norm(x, self.simplex, *layers[-1][2:]) if self.simplex else x


def _concat_linear(parts: tuple[Tensor, ...], weight: Tensor, bias: Tensor) -> Tensor:
    """Return the linear layer of concatenated inputs ``[..., I]``, as the sum b + W_1 x_1 + W_2 x_2.

    The first may lack the axis before the last, and is then multiplied once for all rows of the second.
    """
    if len(parts) == 1:
        return linear(parts[0], weight, bias)
    z, a = parts
    of_z, of_a = torch.split(weight, [z.shape[-1], a.shape[-1]], -1)
    y, a, of_a = linear(z, of_z, bias), a.to(z.dtype), of_a.mT.to(z.dtype)  # [..., outputs]
    if z.ndim < a.ndim:
        return torch.baddbmm(y.unsqueeze(1), a, of_a.expand(len(a), -1, -1))
    return torch.addmm(y.flatten(0, -2), a.flatten(0, -2), of_a).view(y.shape)


class LatentEncoder(nn.Module):
    """Maps observations to latents that are simplices.

    If all observations are images and the CNN has as many outputs as the latent, they are normed directly, as in the
    authors' code. Otherwise, features and vectors are concatenated and pass an MLP.
    """

    def __init__(self, spec: ObsSpec, cfg: LatentNetworkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.inputs: ObsConcat = ObsConcat(spec, cfg, dtype)
        self.simplex: int = cfg.simplex
        direct = not self.inputs.vectors and self.inputs.width == cfg.latent
        layers = (cfg.encoder_units, cfg.latent)
        self.body: MishMLP | None = None if direct else MishMLP(self.inputs.width, *layers, simplex=cfg.simplex)

    def forward(self, obs: Obs) -> Tensor:
        """Map observations ``[..., *shape]`` to latents ``[..., L]``."""
        x: Tensor = self.inputs(obs)
        return sim_norm(x, self.simplex) if self.body is None else self.body(x)


class RandomDraws:
    """The source of random numbers: PyTorch's default generator. Recorded numbers can replace it."""

    def normal(self, *shape: int, like: Tensor) -> Tensor:
        """Return standard normal numbers of this shape."""
        return torch.randn(shape, device=like.device)

    def pair(self, count: int, like: Tensor) -> Tensor:
        """Return two different indices below ``count``, ``[2]``."""
        return torch.rand(count, device=like.device).topk(2).indices

    def gumbel(self, like: Tensor) -> Tensor:
        """Return standard Gumbel noise of the shape of ``like``."""
        return -torch.empty_like(like).exponential_().log()

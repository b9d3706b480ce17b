"""The layers of the world model's networks, initialized as in the DreamerV3 authors' code, or as in Keras (``Dense``).

Parameters are float32. Layers compute in the dtype of their input, so the caller chooses the precision by the input;
norms always compute in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from reverie.nn.functional import cast_parameter, linear, norm_silu, strided_conv, transposed_conv


def init_(weight: Tensor, fan_in: int, scale: float = 1.0) -> None:
    """Fill ``weight`` from a truncated normal distribution of standard deviation ``scale / sqrt(fan_in)``.

    Truncation at two standard deviations shrinks the standard deviation to 0.8796; the factor 1.1368 corrects that.
    """
    if scale == 0:
        nn.init.zeros_(weight)
        return
    nn.init.trunc_normal_(weight, std=1.0, a=-2.0, b=2.0)
    with torch.no_grad():
        weight.mul_(1.1368 * scale / math.sqrt(fan_in))


class Linear(nn.Module):
    """A linear layer y = W x + b."""

    def __init__(self, inputs: int, outputs: int, scale: float = 1.0) -> None:
        super().__init__()
        self.weight: nn.Parameter = nn.Parameter(torch.empty(outputs, inputs))
        self.bias: nn.Parameter = nn.Parameter(torch.zeros(outputs))
        init_(self.weight, inputs, scale)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., inputs]`` to ``[..., outputs]``."""
        return linear(x, self.weight, self.bias)


class Dense(Linear):
    """The linear layer of DreamerV1 and V2: weights drawn as in Glorot and Bengio (2010), equation 16."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(inputs, outputs)
        nn.init.xavier_uniform_(self.weight)
        if not bias:
            self.register_parameter("bias", None)


class LayerNorm(nn.LayerNorm):
    """Layer norm over the last axis with Keras' epsilon, computed in float32."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., width]`` to the same shape."""
        return super().forward(x.float()).to(x.dtype)


Norm = Literal["none", "layer"]
Activation = Literal["elu", "relu", "leaky_relu", "silu", "tanh", "none"]
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "elu": nn.ELU, "relu": nn.ReLU, "leaky_relu": lambda: nn.LeakyReLU(0.2), "silu": nn.SiLU, "tanh": nn.Tanh,
    "none": nn.Identity,
}  # fmt: skip


def norm_act(width: int, norm: Norm, act: Activation) -> list[nn.Module]:
    """Return the modules after a layer of ``width`` outputs in DreamerV1 and V2: an optional norm, then ``act``."""
    return [*([LayerNorm(width)] if norm == "layer" else []), ACTIVATIONS[act]()]


class DenseMLP(nn.Sequential):
    """A chain of [Dense, norm, activation], one for each of ``units``."""

    def __init__(self, inputs: int, units: Sequence[int], norm: Norm, act: Activation) -> None:
        widths = [inputs, *units]
        super().__init__(*[m for i, o in pairwise(widths) for m in (Dense(i, o), *norm_act(o, norm, act))])
        self.width: int = widths[-1]


class BlockLinear(nn.Module):
    """A block-diagonal linear layer: block k of the output depends only on block k of the input.

    Every block also reads the ``shared`` inputs, which are multiplied once with the weights of all blocks.
    """

    def __init__(self, inputs: int, outputs: int, blocks: int, shared: int = 0) -> None:
        super().__init__()
        self.own: int = inputs // blocks
        self.weight: nn.Parameter = nn.Parameter(torch.empty(blocks, outputs // blocks, self.own + shared))
        self.bias: nn.Parameter = nn.Parameter(torch.zeros(outputs))
        init_(self.weight, blocks * (self.own + shared))  # the authors take the fan-in of all blocks together

    def forward(self, x: Tensor, shared: Tensor | None = None) -> Tensor:
        """Map ``[M, inputs]``, and ``[M, shared]`` if there are shared inputs, to ``[M, outputs]``."""
        for_own, for_shared = torch.tensor_split(cast_parameter(self.weight, x.dtype), [self.own], -1)
        base = cast_parameter(self.bias, x.dtype)  # [outputs], or [M, outputs] with the part of the shared inputs
        if shared is not None and for_shared.shape[-1]:
            base = linear(shared, for_shared.reshape(len(base), -1), base)
        blocks = self.weight.shape[0]
        grouped = x.view(len(x), blocks, -1).transpose(0, 1)  # [blocks, M, inputs / blocks]
        base = base.view(-1, blocks, self.weight.shape[1]).transpose(0, 1)  # [blocks, M or 1, outputs / blocks]
        return torch.baddbmm(base, grouped, for_own.mT).transpose(0, 1).reshape(len(x), -1)


class RMSNormSiLU(nn.Module):
    """SiLU(g x / sqrt(mean(x^2) + eps)): root-mean-square norm over the last axis, then SiLU."""

    def __init__(self, width: int, eps: float = 1e-4) -> None:
        super().__init__()
        self.eps = eps
        self.weight: nn.Parameter = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., width]`` to the same shape."""
        return norm_silu(x, self.weight, self.eps)


class Conv(nn.Module):
    """The weights of a convolution with an odd kernel; ``functional.py`` has the stages that it is part of."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 5) -> None:
        super().__init__()
        weight = torch.empty(outputs, inputs, kernel, kernel)
        init_(weight, inputs * kernel * kernel)
        self.weight: nn.Parameter = nn.Parameter(weight.contiguous(memory_format=torch.channels_last))
        self.bias: nn.Parameter = nn.Parameter(torch.zeros(outputs))


class DoublingConv(Conv):
    """Nearest-neighbor upsampling by 2, then :class:`Conv`, in about a third of the multiplications.

    A window of 5 x 5 upsampled pixels contains only 3 x 3 different ones. So each of the four parities of the output's
    row and column is a convolution of 3 x 3 on the small image, whose weights are sums of the given ones.
    """

    fold: Tensor

    def __init__(self, inputs: int, outputs: int, kernel: int = 5) -> None:
        super().__init__(inputs, outputs, kernel)
        reach = kernel // 2
        self.reach: int = (reach + 1) // 2
        fold = torch.zeros(2, 2 * self.reach + 1, kernel)  # [parity, pixel of the small image, weight]
        for parity in range(2):
            for tap in range(-reach, reach + 1):
                fold[parity, (parity + tap) // 2 + self.reach, tap + reach] = 1.0
        self.register_buffer("fold", fold, persistent=False)

    def fold_weights(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the weights ``[2 * 2 * outputs, C, 3, 3]`` and bias ``[2 * 2 * outputs]`` of all four parities."""
        folded = torch.einsum("pak,qbl,oikl->pqoiab", self.fold, self.fold, self.weight).flatten(0, 2)
        return folded.to(dtype, memory_format=torch.channels_last), self.bias.to(dtype).repeat(4)


class StridedConv(nn.Module):
    """A convolution of stride 2 without padding, or its transpose, on channels-last images; drawn as :class:`Dense`.

    A side of n pixels becomes (n - kernel) // 2 + 1 or, transposed, 2 (n - 1) + kernel.
    """

    def __init__(self, inputs: int, outputs: int, kernel: tuple[int, int], transposed: bool = False) -> None:
        """``kernel``: height and width."""
        super().__init__()
        sides = (inputs, outputs) if transposed else (outputs, inputs)
        weight = torch.empty(*sides, *kernel)
        nn.init.xavier_uniform_(weight)
        self.weight: nn.Parameter = nn.Parameter(weight.contiguous(memory_format=torch.channels_last))
        self.bias: nn.Parameter = nn.Parameter(torch.zeros(outputs))
        self.convolve: Callable[[Tensor, Tensor, Tensor], Tensor] = transposed_conv if transposed else strided_conv

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[M, H, W, C]`` to ``[M, H', W', outputs]``."""
        return self.convolve(x, self.weight, self.bias)


class MLP(nn.Sequential):
    """A chain of ``layers`` times [Linear, RMS norm, SiLU]: maps ``[..., inputs]`` to ``[..., width]``."""

    def __init__(self, inputs: int, units: int, layers: int) -> None:
        widths = [inputs] + [units] * layers
        super().__init__(*[m for i, o in pairwise(widths) for m in (Linear(i, o), RMSNormSiLU(o))])
        self.width: int = widths[-1]

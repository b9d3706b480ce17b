"""The layers all networks here are made of, with the DreamerV3 authors' initialisation.

Parameters are float32. Layers compute in the dtype of their input, so the caller chooses the precision by what it
feeds in; norms compute in float32 whatever comes.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.nn.product import block_linear, linear


def init_(weight: Tensor, fan_in: int, scale: float = 1.0) -> None:
    """Truncated normal within two standard deviations, of standard deviation ``scale / sqrt(fan_in)``.

    Cutting at two standard deviations shrinks a normal's spread to 0.8796; 1.1368 makes up for it.
    """
    if scale == 0:
        nn.init.zeros_(weight)
        return
    nn.init.trunc_normal_(weight, std=1.0, a=-2.0, b=2.0)
    with torch.no_grad():
        weight.mul_(1.1368 * scale / math.sqrt(fan_in))


class Linear(nn.Module):
    """y = W x + b."""

    def __init__(self, inputs: int, outputs: int, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        init_(self.weight, inputs, scale)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., inputs]`` to ``[..., outputs]``."""
        return linear(x, self.weight, self.bias)


class BlockWeights(NamedTuple):
    """The weights of a :class:`BlockLinear` as they are multiplied with."""

    own: Tensor  # [blocks, outputs / blocks, inputs / blocks]
    shared: Tensor  # [outputs, shared]
    bias: Tensor  # [outputs]

    def __call__(self, x: Tensor, shared: Tensor | None = None) -> Tensor:
        """``[M, inputs]``, and ``[M, shared]`` if there are such inputs, to ``[M, outputs]``."""
        return block_linear(x, self.own, self.bias if shared is None else linear(shared, self.shared, self.bias))


class BlockLinear(nn.Module):
    """Groups of units that do not see each other: block k of the output sees block k of the input only.

    ``shared`` further inputs are seen by every block. The authors repeat them in each block's input; it is the same
    to multiply them once with the weights of all blocks, as one dense product.
    """

    def __init__(self, inputs: int, outputs: int, blocks: int, shared: int = 0) -> None:
        super().__init__()
        if inputs % blocks or outputs % blocks:
            raise ValueError(f"{blocks} blocks must divide both widths, {inputs} and {outputs}.")
        self.own = inputs // blocks
        self.weight = nn.Parameter(torch.empty(blocks, outputs // blocks, self.own + shared))
        self.bias = nn.Parameter(torch.zeros(outputs))
        init_(self.weight, blocks * (self.own + shared))  # the authors count the fan-in of all blocks together

    def weights(self, dtype: torch.dtype) -> BlockWeights:
        """To be called once for a sequence, so that weights are cut and cast, and their gradients joined, once."""
        own, shared = torch.tensor_split(self.weight.to(dtype), [self.own], -1)
        return BlockWeights(own, shared.reshape(len(self.bias), -1), self.bias.to(dtype))

    def forward(self, x: Tensor, shared: Tensor | None = None) -> Tensor:
        """``[M, inputs]``, and ``[M, shared]`` if there are such inputs, to ``[M, outputs]``."""
        return self.weights(x.dtype)(x, shared)


class RMSNormSiLU(nn.Module):
    """SiLU(g x / sqrt(mean(x^2) + eps)): root-mean-square norm over the last axis, then the activation."""

    def __init__(self, width: int, eps: float = 1e-4) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """``[..., width]`` to the same."""
        normed = F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)
        return F.silu(normed.to(x.dtype))


class Conv(nn.Module):
    """A convolution of stride 1 that keeps height and width, on channels-last images."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 5) -> None:
        super().__init__()
        if kernel % 2 == 0:
            raise ValueError(f"kernel = {kernel}: only odd kernels keep height and width.")
        weight = torch.empty(outputs, inputs, kernel, kernel)
        init_(weight, inputs * kernel * kernel)
        self.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.padding = kernel // 2

    def forward(self, x: Tensor) -> Tensor:
        """``[M, H, W, C]`` to ``[M, H, W, outputs]``, both contiguous in this order."""
        nchw = x.permute(0, 3, 1, 2)  # a view whose memory is PyTorch's channels_last
        y = F.conv2d(nchw, self.weight.to(x.dtype), self.bias.to(x.dtype), padding=self.padding)
        return y.permute(0, 2, 3, 1)


class DoublingConv(Conv):
    """Every pixel doubled in both directions, then :class:`Conv`; in about a third of the multiplications.

    A window of 5 x 5 doubled pixels holds only 3 x 3 different ones, and which of its weights fall on the same pixel
    depends on nothing but whether the output's row and column are even or odd. So the four parities are four
    convolutions of 3 x 3 on the small image, whose weights are sums of those given.
    """

    fold: Tensor

    def __init__(self, inputs: int, outputs: int, kernel: int = 5) -> None:
        super().__init__(inputs, outputs, kernel)
        reach = kernel // 2
        self.reach = (reach + 1) // 2
        fold = torch.zeros(2, 2 * self.reach + 1, kernel)  # [parity, pixel of the small image, weight]
        for parity in range(2):
            for tap in range(-reach, reach + 1):
                fold[parity, (parity + tap) // 2 + self.reach, tap + reach] = 1.0
        self.register_buffer("fold", fold, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[M, h, w, C]`` to ``[M, 2 h, 2 w, outputs]``."""
        (m, h, w, _), outputs = x.shape, len(self.bias)
        folded = torch.einsum("pak,qbl,oikl->pqoiab", self.fold, self.fold, self.weight).flatten(0, 2)
        weight = folded.to(x.dtype, memory_format=torch.channels_last)  # [2 * 2 * outputs, C, 3, 3]
        y = F.conv2d(x.permute(0, 3, 1, 2), weight, self.bias.to(x.dtype).repeat(4), padding=self.reach)
        parities = y.permute(0, 2, 3, 1).view(m, h, w, 2, 2, outputs)
        return parities.transpose(2, 3).reshape(m, 2 * h, 2 * w, outputs)


class MLP(nn.Sequential):
    """``layers`` times [Linear, RMS norm, SiLU]."""

    def __init__(self, inputs: int, units: int, layers: int) -> None:
        widths = [inputs] + [units] * layers
        pairs = [(Linear(i, o), RMSNormSiLU(o)) for i, o in pairwise(widths)]
        super().__init__(*[layer for pair in pairs for layer in pair])
        self.width = widths[-1]

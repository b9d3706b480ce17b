"""Convolutions of stride 2 without padding, and transposed ones, as matrix products of a few images at a time.

A window of k x k pixels of C channels is a row of k k C numbers, and the weights are a matrix of such rows; a
transposed convolution multiplies with the matrix' transpose and adds up windows that overlap. On CPUs PyTorch's
convolutions take up to ten times as long where channels are many and pixels few. ``tests/nn/test_strided.py`` compares
both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.core.compiled import call, compiled, first_order
from reverie.nn.matmul import product, wanted
from reverie.nn.stages import parts

LONG = 1024
"""Numbers in a window from which a convolution is computed here; with fewer, copying windows takes too long."""


def strided_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Map images ``[M, H, W, C]`` by weights ``[outputs, C, k, k]`` to ``[M, (H - k) // 2 + 1, .., outputs]``."""
    if weight[0].numel() >= LONG and compiled(x, weight, bias) and x.numel():
        return cast(Tensor, call(_Strided, x, weight, bias))
    y = F.conv2d(x.permute(0, 3, 1, 2), weight.to(x.dtype), bias.to(x.dtype), stride=2)
    return y.permute(0, 2, 3, 1)


def transposed_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Map images ``[M, H, W, C]`` by weights ``[C, outputs, k, k]`` to ``[M, 2 (H - 1) + k, .., outputs]``."""
    if compiled(x, weight, bias) and x.numel():
        return cast(Tensor, call(_Transposed, x, weight, bias))
    y = F.conv_transpose2d(x.permute(0, 3, 1, 2), weight.to(x.dtype), bias.to(x.dtype), stride=2)
    return y.permute(0, 2, 3, 1)


class _Windows:
    """The windows of images ``[M, H, W, C]`` and the matrix ``[N, k k C]`` of weights ``[N, C, k, k]``."""

    def __init__(self, weight: Tensor, size: tuple[int, int]) -> None:
        self.kernel, self.channels = weight.shape[-1], weight.shape[1]
        self.h, self.w = ((side - self.kernel) // 2 + 1 for side in size)
        self.matrix = weight.permute(0, 2, 3, 1).reshape(len(weight), -1)  # [N, k k C]

    def parts(self, images: int) -> Iterator[slice]:
        """Split the images into parts whose windows stay in the cache."""
        return parts(images, self.h * self.w * self.matrix.shape[1])

    def read(self, x: Tensor) -> Tensor:
        """Return the windows of images ``[m, H, W, C]``: ``[m h w, k k C]``."""
        (m, _, width, c), k = x.shape, self.kernel
        down = width * c
        windows = x.as_strided(
            (m, self.h, self.w, k, k * c), (x.stride(0), 2 * down, 2 * c, down, 1), x.storage_offset()
        )
        return windows.reshape(m * self.h * self.w, -1)

    def add(self, windows: Tensor, x: Tensor) -> None:
        """Add windows ``[m h w, k k C]`` to images ``[m, H, W, C]``. Those that are two apart do not overlap."""
        (m, _, width, c), k = x.shape, self.kernel
        rows = windows.view(m, self.h, self.w, k, k * c)
        down = width * c
        for i in range(0, k, 2):
            for j in range(0, k, 2):
                tall, wide = min(2, k - i), min(2, k - j) * c
                to = x.as_strided(
                    (m, self.h, self.w, tall, wide), (x.stride(0), 2 * down, 2 * c, down, 1),
                    x.storage_offset() + i * down + j * c,
                )  # fmt: skip
                to += rows[..., i : i + tall, j * c : j * c + wide]

    def gradient(self, matrix: Tensor) -> Tensor:
        """Return a gradient ``[N, k k C]`` of the matrix as one of the weights."""
        return matrix.view(-1, self.kernel, self.kernel, self.channels).permute(0, 3, 1, 2)


class _Strided(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x, windows = x.contiguous(), _Windows(weight, (x.shape[1], x.shape[2]))
        y = x.new_empty(len(x), windows.h, windows.w, len(weight))
        for part in windows.parts(len(x)):
            product(windows.read(x[part]), windows.matrix.T, bias, y[part].view(-1, len(weight)))
        if ctx is not None:
            ctx.save_for_backward(x, weight)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), grad, (needs_x, needs_weight, needs_bias) = ctx.saved_tensors, grad.contiguous(), wanted(ctx)
        windows = _Windows(weight, (x.shape[1], x.shape[2]))
        dx = torch.zeros_like(x) if needs_x else None
        dmatrix = torch.zeros_like(windows.matrix) if needs_weight else None
        for part in windows.parts(len(x)):
            g = grad[part].view(-1, len(weight))  # [m h w, N]
            if dx is not None:
                windows.add(product(g, windows.matrix), dx[part])
            if dmatrix is not None:
                dmatrix += product(g.T, windows.read(x[part]))
        dweight = None if dmatrix is None else windows.gradient(dmatrix)
        return dx, dweight, grad.sum((0, 1, 2)) if needs_bias else None


class _Transposed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x, k = x.contiguous(), weight.shape[-1]
        size = 2 * (x.shape[1] - 1) + k, 2 * (x.shape[2] - 1) + k
        windows = _Windows(weight, size)
        y = bias.expand(len(x), *size, len(bias)).contiguous()
        for part in windows.parts(len(x)):
            windows.add(product(x[part].view(-1, len(weight)), windows.matrix), y[part])
        if ctx is not None:
            ctx.save_for_backward(x, weight)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), grad, (needs_x, needs_weight, needs_bias) = ctx.saved_tensors, grad.contiguous(), wanted(ctx)
        windows = _Windows(weight, (grad.shape[1], grad.shape[2]))
        dx = torch.empty_like(x) if needs_x else None
        dmatrix = torch.zeros_like(windows.matrix) if needs_weight else None
        for part in windows.parts(len(x)):
            g = windows.read(grad[part])  # [m h w, k k outputs]
            if dx is not None:
                product(g, windows.matrix.T, None, dx[part].view(-1, len(weight)))
            if dmatrix is not None:
                dmatrix += product(x[part].view(-1, len(weight)).T, g)
        dweight = None if dmatrix is None else windows.gradient(dmatrix)
        return dx, dweight, grad.sum((0, 1, 2)) if needs_bias else None

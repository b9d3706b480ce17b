"""Convolutions of stride 2 without padding, and their transposes, as matrix products of a few images at a time.

A window of k x l pixels of C channels is a row of k l C numbers, and the weights are a matrix of such rows; a
transposed convolution multiplies with the matrix' transpose and adds up windows that overlap. On CPUs PyTorch's
convolutions take up to ten times as long where channels are many and pixels few.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from reverie.kernels.ctypes_call import call, is_cpu_float32, once_differentiable_strict
from reverie.kernels.images import parts
from reverie.kernels.matmul import needed_input_grads, product_cpu

MIN_WINDOW_SIZE = 1024
"""Numbers in a window from which a convolution is computed here; with fewer, copying windows takes too long."""


def supports_strided_conv(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Return whether :func:`strided_conv_cpu` can be used, and is faster."""
    return (
        weight[:1].numel() >= MIN_WINDOW_SIZE
        and _supports(x, weight, bias, 1)
        and min(x.shape[1:3]) >= max(weight.shape[2:])
    )


def _supports(x: Tensor, weight: Tensor, bias: Tensor, inputs: int) -> bool:
    images = x.ndim == weight.ndim == 4 and x.numel() > 0 and weight.shape[inputs] == x.shape[3]
    return images and bias.shape == (weight.shape[1 - inputs],) and is_cpu_float32(x, weight, bias)


def strided_conv_cpu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute ``functional.strided_conv``."""
    return cast(Tensor, call(_StridedConv, x, weight, bias))


def supports_transposed_conv(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Return whether :func:`transposed_conv_cpu` can be used."""
    return _supports(x, weight, bias, 0)


def transposed_conv_cpu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute ``functional.transposed_conv``."""
    return cast(Tensor, call(_TransposedConv, x, weight, bias))


class _Windows:
    """The windows of images ``[M, H, W, C]`` and the matrix ``[N, k l C]`` of weights ``[N, C, k, l]``."""

    def __init__(self, weight: Tensor, size: tuple[int, int]) -> None:
        self.shape = weight.shape
        self.h, self.w = ((side - kernel) // 2 + 1 for side, kernel in zip(size, weight.shape[2:], strict=True))
        self.matrix = weight.permute(0, 2, 3, 1).reshape(len(weight), -1)  # [N, k l C]

    def parts(self, images: int) -> Iterator[slice]:
        """Split the images into parts whose windows stay in the cache."""
        return parts(images, self.h * self.w * self.matrix.shape[1])

    def read(self, x: Tensor) -> Tensor:
        """Return the windows of images ``[m, H, W, C]``: ``[m h w, k l C]``."""
        _, c, k, line = self.shape
        return self._at(x, 0, 0, k, line * c).reshape(len(x) * self.h * self.w, -1)

    def add(self, windows: Tensor, x: Tensor) -> None:
        """Add windows ``[m h w, k l C]`` to images ``[m, H, W, C]``, 2 x 2 pixels of each at a time: none overlap."""
        _, c, k, line = self.shape
        rows = windows.view(len(x), self.h, self.w, k, line * c)
        for i in range(0, k, 2):
            for j in range(0, line * c, 2 * c):
                tall, wide = min(2, k - i), min(2 * c, line * c - j)
                to = self._at(x, i, j, tall, wide)
                to += rows[..., i : i + tall, j : j + wide]

    def _at(self, x: Tensor, down: int, along: int, tall: int, wide: int) -> Tensor:
        """View a part of every window, ``[m, h, w, tall, wide]``, in rows of numbers."""
        (m, _, width, c), start = x.shape, x.storage_offset()
        steps = (x.stride(0), 2 * width * c, 2 * c, width * c, 1)
        return x.as_strided((m, self.h, self.w, tall, wide), steps, start + down * width * c + along)

    def gradient(self, matrix: Tensor) -> Tensor:
        """Return a gradient ``[N, k l C]`` of the matrix in the shape of the weights."""
        count, channels, k, line = self.shape
        return matrix.view(count, k, line, channels).permute(0, 3, 1, 2)


class _StridedConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x, windows = x.contiguous(), _Windows(weight, (x.shape[1], x.shape[2]))
        y = x.new_empty(len(x), windows.h, windows.w, len(weight))
        for part in windows.parts(len(x)):
            product_cpu(windows.read(x[part]), windows.matrix.T, bias, y[part].view(-1, len(weight)))
        if ctx is not None:
            ctx.save_for_backward(x, weight)
        return y

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), grad = ctx.saved_tensors, grad.contiguous()
        needs_x, needs_weight, needs_bias = needed_input_grads(ctx)
        windows = _Windows(weight, (x.shape[1], x.shape[2]))
        dx = torch.zeros_like(x) if needs_x else None
        dmatrix = torch.zeros_like(windows.matrix) if needs_weight else None
        for part in windows.parts(len(x)):
            g = grad[part].view(-1, len(weight))  # [m h w, N]
            if dx is not None:
                windows.add(product_cpu(g, windows.matrix), dx[part])
            if dmatrix is not None:
                dmatrix += product_cpu(g.T, windows.read(x[part]))
        dweight = None if dmatrix is None else windows.gradient(dmatrix)
        return dx, dweight, grad.sum((0, 1, 2)) if needs_bias else None


class _TransposedConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x = x.contiguous()
        size = 2 * (x.shape[1] - 1) + weight.shape[2], 2 * (x.shape[2] - 1) + weight.shape[3]
        windows = _Windows(weight, size)
        y = bias.expand(len(x), *size, len(bias)).contiguous()
        for part in windows.parts(len(x)):
            windows.add(product_cpu(x[part].view(-1, len(weight)), windows.matrix), y[part])
        if ctx is not None:
            ctx.save_for_backward(x, weight)
        return y

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), grad = ctx.saved_tensors, grad.contiguous()
        needs_x, needs_weight, needs_bias = needed_input_grads(ctx)
        windows = _Windows(weight, (grad.shape[1], grad.shape[2]))
        dx = torch.empty_like(x) if needs_x else None
        dmatrix = torch.zeros_like(windows.matrix) if needs_weight else None
        for part in windows.parts(len(x)):
            g = windows.read(grad[part])  # [m h w, k l outputs]
            if dx is not None:
                product_cpu(g, windows.matrix.T, None, dx[part].view(-1, len(weight)))
            if dmatrix is not None:
                dmatrix += product_cpu(x[part].view(-1, len(weight)).T, g)
        dweight = None if dmatrix is None else windows.gradient(dmatrix)
        return dx, dweight, grad.sum((0, 1, 2)) if needs_bias else None

"""A stage of the encoder, a few images at a time (``images.c``, ``pooled.c``).

Images are processed in parts whose convolution stays in the cache, and only what the backward pass cannot do without is
stored. ``upsample.py`` has the stages of the decoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.kernels.call import call, compute, cpu32, first_order, threads
from reverie.kernels.elementwise import norm_backward
from reverie.kernels.winograd import Convolution

PART = 2**20
"""Floats that the convolution of one part of the images may output: 4 MB."""

FULL, STRETCH, GROUP = 16, 160, 32
"""Constants of ``pooled.c``."""


def parts(images: int, numbers: int) -> Iterator[slice]:
    """Split the images into parts that stay in the cache, where each image takes ``numbers`` floats."""
    size = max(1, PART // numbers)
    return (slice(start, start + size) for start in range(0, images, size))


def sums_for(scale: Tensor) -> Tensor:
    """Return zeros ``[threads, C]`` in float64, in which each thread sums its part of the gradient of ``scale``."""
    return scale.new_zeros(torch.get_num_threads(), len(scale), dtype=torch.float64)


def fits_conv(x: Tensor, weight: Tensor, bias: Tensor, *others: Tensor) -> bool:
    """Return whether a stage can be computed here: its convolution keeps height and width."""
    images = x.ndim == weight.ndim == 4 and weight.shape[1] == x.shape[3] and x.numel() > 0
    square = images and weight.shape[2] == weight.shape[3] and weight.shape[2] % 2 == 1
    return square and bias.shape == weight.shape[:1] and cpu32(x, weight, bias, *others)


def fits_stage(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float) -> bool:
    """Return whether :func:`conv_pool_norm_silu` can be used."""
    return scale.shape == bias.shape and fits_conv(x, weight, bias, scale)


def conv_pool_norm_silu(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Compute ``functional.conv_pool_norm_silu``."""
    return cast(Tensor, call(_Pooled, x, weight, bias, scale, eps))


class _Pooled(torch.autograd.Function):
    """Stores only the maxima and their places: just one pixel in four has a gradient, see ``pooled.c``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float) -> Tensor:
        x, scale, (m, h, w, _), width = x.contiguous(), scale.contiguous(), x.shape, len(weight)
        weight = weight.contiguous(memory_format=torch.channels_last)
        out = x.new_empty(m, (h + 1) // 2, (w + 1) // 2, width)
        pooled, which = torch.empty_like(out), torch.empty_like(out, dtype=torch.uint8)
        convolution = Convolution(weight, bias, x.shape)
        for part in parts(m, h * w * width):
            y = convolution(x[part]).contiguous()
            compute("pool_norm_silu", y, scale, pooled[part], which[part], out[part], *y.shape, eps, threads(y))
        if ctx is not None:
            ctx.save_for_backward(x, weight, scale, pooled, which)
            ctx.eps = eps
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale, pooled, which = ctx.saved_tensors
        grads, grad, dscale = _PooledGradients(x, weight, ctx), grad.contiguous(), sums_for(scale)
        for part in parts(len(x), pooled[0].numel()):
            grads.add(part, norm_backward(pooled[part], scale, grad[part], dscale, ctx.eps), which[part])
        return grads.dx, grads.dweight, grads.dbias, dscale.sum(0).float(), None


class _PooledGradients:
    """The gradients of a convolution, given those of its maxima, summed over parts of the images."""

    def __init__(self, x: Tensor, weight: Tensor, ctx: Any) -> None:
        self.x, self.kernel = x, weight.shape[-1]
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        self.packed = _pack(weight) if needs_x else None
        self.dx = torch.empty_like(x) if needs_x else None
        self.dweight = torch.zeros_like(weight) if needs_weight else None
        self.dbias = weight.new_zeros(len(weight)) if needs_bias else None

    def add(self, part: slice, dpooled: Tensor, which: Tensor) -> None:
        """Add the gradients of ``x[part]``, given that of its maxima and their places, ``[m, h, w, outputs]``."""
        if self.dx is not None and self.packed is not None:
            _input_gradient(self.packed, dpooled, which, self.dx[part], self.kernel)
        if self.dweight is not None:
            self.dweight += _weight_gradient(self.x[part], dpooled, which, self.kernel)
        if self.dbias is not None:
            self.dbias += dpooled.sum((0, 1, 2))


def _ceil(x: int, multiple: int) -> int:
    return -(-x // multiple) * multiple


def _scratch(x: Tensor, channels: int, outputs: int, kernel: int, workers: int) -> Tensor:
    """Return each thread's scratch memory: a padded image, one more row, padding for vector loads, and two lists."""
    image = (x.shape[1] + kernel) * (x.shape[2] + kernel - 1) * channels + kernel * channels + STRETCH
    return x.new_empty(workers, _ceil(2 * GROUP * outputs + image, FULL))


def _weight_gradient(x: Tensor, dpooled: Tensor, which: Tensor, kernel: int) -> Tensor:
    """Return the gradient of the weights, ``[outputs, C, kernel, kernel]``."""
    channels, outputs, workers = x.shape[-1], dpooled.shape[-1], min(threads(x), len(x))
    run = _ceil(kernel * channels, FULL)  # numbers in a row of the window
    blocks = _ceil(kernel * run, STRETCH) // STRETCH
    dw, scratch = x.new_zeros(workers, blocks, outputs, STRETCH), _scratch(x, channels, outputs, kernel, workers)
    compute(
        "pooled_weight_gradient", x, dpooled, which, dw, scratch, scratch.shape[1], *x.shape, outputs, kernel, workers,
    )  # fmt: skip
    rows = dw.sum(0).transpose(0, 1).reshape(outputs, -1)[:, : kernel * run].view(outputs, kernel, run)
    return rows[..., : kernel * channels].reshape(outputs, kernel, kernel, channels).permute(0, 3, 1, 2)


def _pack(weight: Tensor) -> Tensor:
    """Return weights ``[outputs, C, kernel, kernel]`` as blocks of vectors, ``[blocks, outputs, STRETCH]``."""
    outputs, channels = weight.shape[:2]
    pixels = F.pad(weight.permute(0, 2, 3, 1), (0, _ceil(channels, FULL) - channels)).flatten(1)
    whole = F.pad(pixels, (0, _ceil(pixels.shape[1], STRETCH) - pixels.shape[1]))
    return whole.view(outputs, -1, STRETCH).transpose(0, 1).contiguous()


def _input_gradient(packed: Tensor, dpooled: Tensor, which: Tensor, dx: Tensor, kernel: int) -> None:
    """Write the gradient of the input to dx ``[M, H, W, C]``."""
    outputs, workers = dpooled.shape[-1], min(threads(dx), len(dx))
    scratch = _scratch(dx, _ceil(dx.shape[-1], FULL), outputs, kernel, workers)
    compute(
        "pooled_input_gradient", packed, dpooled, which, dx, scratch, scratch.shape[1], *dx.shape, outputs, kernel,
        workers,
    )  # fmt: skip

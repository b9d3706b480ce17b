"""Stages of encoder and decoder, a few images at a time.

Images are processed in parts whose convolution stays in the cache, and only what the backward pass needs is stored
(``images.c``, ``pooled.c``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.kernels.ctypes_call import call, call_compiled, is_cpu_float32, num_threads_for, once_differentiable_strict
from reverie.nn.functional import convolve

MAX_PART_FLOATS = 2**20
"""Floats that the convolution of one part of the images may output: 4 MB."""

FULL, STRETCH, GROUP = 16, 160, 32
"""Constants of ``pooled.c``."""


def parts(images: int, numbers: int) -> Iterator[slice]:
    """Split the images into parts that stay in the cache, where each image takes ``numbers`` floats."""
    size = max(1, MAX_PART_FLOATS // numbers)
    return (slice(start, start + size) for start in range(0, images, size))


def _sums_for(scale: Tensor) -> Tensor:
    """Return zeros ``[threads, C]`` in float64, in which each thread sums its part of the gradient of ``scale``."""
    return scale.new_zeros(torch.get_num_threads(), len(scale), dtype=torch.float64)


def _ceil(x: int, multiple: int) -> int:
    return -(-x // multiple) * multiple


def _supports_stage(x: Tensor, weight: Tensor, bias: Tensor, *parameters: Tensor) -> bool:
    """Return whether a stage can be computed here: its convolution keeps height and width."""
    images = x.ndim == weight.ndim == 4 and weight.shape[1] == x.shape[3] and x.numel() > 0
    square = images and weight.shape[2] == weight.shape[3] and weight.shape[2] % 2 == 1
    return square and bias.shape == weight.shape[:1] and is_cpu_float32(x, weight, bias, *parameters)


def _norm_backward(
    x: Tensor, scale: Tensor, grad: Tensor, dscale: Tensor, eps: float, unfolded: tuple[int, int] = (0, 0)
) -> Tensor:
    """Return the gradient with respect to x of ``norm_silu``, or of ``norm_silu`` after ``pixel_shuffle``.

    The gradient of the scale is added to ``dscale`` ``[threads, C]``, float64, in parts.
    """
    dx, width, workers = torch.empty_like(x), len(scale), num_threads_for(x)
    scratch = x.new_empty(workers, 2 * width)
    call_compiled("norm_silu_backward", x, scale, grad, dx, dscale, scratch, x.numel() // width, width, *unfolded, eps,
            workers)  # fmt: skip
    return dx


class _Gradients:
    """The gradients of a convolution, summed over parts of the images."""

    def __init__(self, x: Tensor, weight: Tensor, ctx: Any) -> None:
        self.x, self.weight = x, weight
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        self.dx = torch.empty_like(x) if needs_x else None
        self.dweight = torch.zeros_like(weight) if needs_weight else None
        self.dbias = weight.new_zeros(len(weight)) if needs_bias else None


# ---------------------------------------------------------------------- a stage of the encoder


def supports_conv_pool_norm_silu(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float) -> bool:
    """Return whether :func:`conv_pool_norm_silu_cpu` can be used."""
    return scale.shape == bias.shape and _supports_stage(x, weight, bias, scale)


def conv_pool_norm_silu_cpu(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Compute ``functional.conv_pool_norm_silu``."""
    return cast(Tensor, call(_ConvPool, x, weight, bias, scale, eps))


class _ConvPool(torch.autograd.Function):
    """Stores only the maxima and their positions: only one pixel in four has a gradient, see ``pooled.c``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float) -> Tensor:
        x, scale, (m, h, w, _), width = x.contiguous(), scale.contiguous(), x.shape, len(weight)
        weight = weight.contiguous(memory_format=torch.channels_last)
        out = x.new_empty(m, (h + 1) // 2, (w + 1) // 2, width)
        pooled, which = torch.empty_like(out), torch.empty_like(out, dtype=torch.uint8)
        for part in parts(m, h * w * width):
            y = convolve(x[part], weight, bias).contiguous()
            call_compiled(
                "pool_norm_silu", y, scale, pooled[part], which[part], out[part], *y.shape, eps, num_threads_for(y)
            )
        if ctx is not None:
            ctx.save_for_backward(x, weight, scale, pooled, which)
            ctx.eps = eps
        return out

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale, pooled, which = ctx.saved_tensors
        grads, grad, dscale = _PooledGradients(x, weight, ctx), grad.contiguous(), _sums_for(scale)
        for part in parts(len(x), pooled[0].numel()):
            grads.add(part, _norm_backward(pooled[part], scale, grad[part], dscale, ctx.eps), which[part])
        return grads.dx, grads.dweight, grads.dbias, dscale.sum(0).float(), None


class _PooledGradients(_Gradients):
    """The gradients of a convolution, given the gradients of its maxima."""

    def __init__(self, x: Tensor, weight: Tensor, ctx: Any) -> None:
        super().__init__(x, weight, ctx)
        self.packed = None if self.dx is None else _pack(weight)

    def add(self, part: slice, dpooled: Tensor, which: Tensor) -> None:
        """Add the gradients of ``x[part]``, given its maxima's gradient and positions, ``[m, h, w, outputs]``."""
        kernel = self.weight.shape[-1]
        if self.dx is not None and self.packed is not None:
            _input_gradient(self.packed, dpooled, which, self.dx[part], kernel)
        if self.dweight is not None:
            self.dweight += _weight_gradient(self.x[part], dpooled, which, kernel)
        if self.dbias is not None:
            self.dbias += dpooled.sum((0, 1, 2))


def _scratch(x: Tensor, channels: int, outputs: int, kernel: int, workers: int) -> Tensor:
    """Return each thread's scratch memory: a padded image, one more row, padding for vector loads, and two lists."""
    image = (x.shape[1] + kernel) * (x.shape[2] + kernel - 1) * channels + kernel * channels + STRETCH
    return x.new_empty(workers, _ceil(2 * GROUP * outputs + image, FULL))


def _weight_gradient(x: Tensor, dpooled: Tensor, which: Tensor, kernel: int) -> Tensor:
    """Return the gradient of the weights, ``[outputs, C, kernel, kernel]``."""
    channels, outputs, workers = x.shape[-1], dpooled.shape[-1], min(num_threads_for(x), len(x))
    run = _ceil(kernel * channels, FULL)  # numbers in a row of the window
    blocks = _ceil(kernel * run, STRETCH) // STRETCH
    dw, scratch = x.new_zeros(workers, blocks, outputs, STRETCH), _scratch(x, channels, outputs, kernel, workers)
    call_compiled("pooled_weight_gradient", x, dpooled, which, dw, scratch, scratch.shape[1], *x.shape, outputs, kernel,
            workers)  # fmt: skip
    rows = dw.sum(0).transpose(0, 1).reshape(outputs, -1)[:, : kernel * run].view(outputs, kernel, run)
    return rows[..., : kernel * channels].reshape(outputs, kernel, kernel, channels).permute(0, 3, 1, 2)


def _pack(weight: Tensor) -> Tensor:
    """Return weights ``[outputs, C, kernel, kernel]`` as blocks of vectors, ``[blocks, outputs, STRETCH]``."""
    outputs, channels = weight.shape[:2]
    pixels = F.pad(weight.permute(0, 2, 3, 1), (0, _ceil(channels, FULL) - channels)).flatten(1)
    padded = F.pad(pixels, (0, _ceil(pixels.shape[1], STRETCH) - pixels.shape[1]))
    return padded.view(outputs, -1, STRETCH).transpose(0, 1).contiguous()


def _input_gradient(packed: Tensor, dpooled: Tensor, which: Tensor, dx: Tensor, kernel: int) -> None:
    """Write the gradient of the input to dx ``[M, H, W, C]``."""
    outputs, workers = dpooled.shape[-1], min(num_threads_for(dx), len(dx))
    scratch = _scratch(dx, _ceil(dx.shape[-1], FULL), outputs, kernel, workers)
    call_compiled("pooled_input_gradient", packed, dpooled, which, dx, scratch, scratch.shape[1], *dx.shape, outputs,
        kernel,
            workers)  # fmt: skip


# ---------------------------------------------------------------------- a stage of the decoder: four pixels of one


def supports_conv_unfold_norm_silu(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float) -> bool:
    """Return whether :func:`conv_unfold_norm_silu_cpu` can be used."""
    return len(weight) % 4 == 0 and scale.shape == (len(weight) // 4,) and _supports_stage(x, weight, bias, scale)


def conv_unfold_norm_silu_cpu(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Compute ``functional.conv_unfold_norm_silu``."""
    return cast(Tensor, call(_ConvUnfold, x, weight, bias, scale, eps))


class _ConvUnfold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float) -> Tensor:
        x, scale, (m, h, w, _), width = x.contiguous(), scale.contiguous(), x.shape, len(weight) // 4
        weight = weight.contiguous(memory_format=torch.channels_last)
        out, outputs = x.new_empty(m, 2 * h, 2 * w, width), []
        for part in parts(m, h * w * 4 * width):
            y = convolve(x[part], weight, bias).contiguous()
            call_compiled("norm_silu", y, scale, out[part], y.numel() // width, width, h, w, eps, num_threads_for(y))
            outputs.append(y)
        if ctx is not None:
            ctx.save_for_backward(x, weight, scale, *outputs)
            ctx.eps = eps
        return out

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale, *outputs = ctx.saved_tensors
        grads, grad, dscale = _UnfoldedGradients(x, weight, ctx), grad.contiguous(), _sums_for(scale)
        for part, y in zip(parts(len(x), x[0, ..., 0].numel() * len(weight)), outputs, strict=True):
            grads.add(part, _norm_backward(y, scale, grad[part], dscale, ctx.eps, (x.shape[1], x.shape[2])))
        return grads.dx, grads.dweight, grads.dbias, dscale.sum(0).float(), None


class _UnfoldedGradients(_Gradients):
    """The gradients of a convolution."""

    def add(self, part: slice, dy: Tensor) -> None:
        """Add the gradients of ``x[part]``, given the gradient ``dy`` ``[m, H, W, outputs]`` of its convolution."""
        reach = self.weight.shape[-1] // 2
        dx, dweight, dbias = torch.ops.aten.convolution_backward(
            dy.permute(0, 3, 1, 2), self.x[part].permute(0, 3, 1, 2), self.weight, [len(self.weight)], [1, 1],
            [reach, reach], [1, 1], False, [0, 0], 1, [x is not None for x in (self.dx, self.dweight, self.dbias)],
        )  # fmt: skip
        if self.dx is not None:
            self.dx[part] = dx.permute(0, 2, 3, 1)
        if self.dweight is not None:
            self.dweight += dweight
        if self.dbias is not None:
            self.dbias += dbias

"""The stages of encoder and decoder: a convolution and what follows it, a few images at a time.

Each function states what it computes as PyTorch code. On CPUs in float32 it goes through the images in parts whose
convolution stays in the cache, and keeps for the way back only what cannot be left out. The compiled functions are in
``images.c`` and ``pooled.c``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from reverie.nn.fused import _call, compiled, library, norm_silu, threads, unfold_norm_silu, unfold_parities

PART = 2**21
"""Numbers that the output of a convolution may have before the images are divided: 8 MB."""

LANES, BLOCK, GROUP = 16, 10, 32
"""As in ``pooled.c``."""


def _parts(images: int, numbers: int) -> Iterator[slice]:
    """The images in parts, if each makes so many ``numbers``."""
    size = max(1, PART // numbers)
    return (slice(start, start + size) for start in range(0, images, size))


def _convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``[M, H, W, C]`` to ``[M, H, W, outputs]``, height and width being kept."""
    # The permuted view's memory is PyTorch's channels_last.
    return F.conv2d(x.permute(0, 3, 1, 2), weight, bias, padding=weight.shape[-1] // 2).permute(0, 2, 3, 1)


# ---------------------------------------------------------------------- encoder


def conv_pool_norm_silu(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Convolution, 2 x 2 max-pooling, RMS norm over the channels and SiLU.

    x is ``[M, H, W, C]``, the weights ``[outputs, C, kernel, kernel]`` with an odd kernel; to
    ``[M, ceil(H / 2), ceil(W / 2), outputs]``.
    """
    if compiled(x, weight, scale) and x.numel():
        return cast(Tensor, _call(_Pooled, x, weight, bias, scale, eps))
    y = _convolve(x, weight.to(x.dtype), bias.to(x.dtype))
    pooled = F.max_pool2d(y.permute(0, 3, 1, 2), 2, ceil_mode=True)  # [M, outputs, h, w]
    return norm_silu(pooled.permute(0, 2, 3, 1), scale, eps)


class _Pooled(torch.autograd.Function):
    """Keeps the maxima and where they were. One pixel in four has a gradient then, see ``pooled.c``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float) -> Tensor:
        x, scale, (m, h, w, _), width = x.contiguous(), scale.contiguous(), x.shape, len(weight)
        weight = weight.contiguous(memory_format=torch.channels_last)
        out = x.new_empty(m, (h + 1) // 2, (w + 1) // 2, width)
        pooled, which = torch.empty_like(out), torch.empty_like(out, dtype=torch.uint8)
        for part in _parts(m, h * w * width):
            y = _convolve(x[part], weight, bias).contiguous()
            library().pool_norm_silu(
                y.data_ptr(), scale.data_ptr(), pooled[part].data_ptr(), which[part].data_ptr(),
                out[part].data_ptr(), *y.shape, eps, threads(y),
            )  # fmt: skip
        if ctx is not None:
            ctx.save_for_backward(x, weight, scale, pooled, which)
            ctx.eps = eps
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale, pooled, which = ctx.saved_tensors
        needs_x, needs_weight, *_ = ctx.needs_input_grad
        grad, width = grad.contiguous(), len(weight)
        dx = torch.empty_like(x) if needs_x else None
        packed = _pack(weight) if needs_x else None
        dweight, dbias = torch.zeros_like(weight), torch.zeros(width)
        dscale = torch.zeros_like(scale).double()
        for part in _parts(len(x), x.shape[1] * x.shape[2] * width):
            dpooled = _norm_backward(pooled[part], scale, grad[part], dscale, ctx.eps)
            dbias += dpooled.sum((0, 1, 2))
            if needs_weight:
                dweight += _weight_gradient(x[part], dpooled, which[part], weight.shape[-1])
            if dx is not None and packed is not None:
                _input_gradient(packed, dpooled, which[part], dx[part], weight.shape[-1])
        return dx, dweight, dbias, dscale.float(), None


def _norm_backward(
    x: Tensor, scale: Tensor, grad: Tensor, dscale: Tensor, eps: float, unfolded: tuple[int, int] = (0, 0)
) -> Tensor:
    """Gradient of ``norm_silu``, of ``unfold_norm_silu`` if a size is given, with respect to x.

    Adds that of the scale to ``dscale``, which is float64.
    """
    dx, width, workers = torch.empty_like(x), len(scale), threads(x)
    scratch = x.new_empty(workers, 2 * width)
    library().norm_silu_backward(
        x.data_ptr(), scale.data_ptr(), grad.data_ptr(), dx.data_ptr(), dscale.data_ptr(), scratch.data_ptr(),
        x.numel() // width, width, *unfolded, eps, workers,
    )  # fmt: skip
    return dx


def _ceil(x: int, multiple: int) -> int:
    return -(-x // multiple) * multiple


def _scratch(x: Tensor, channels: int, outputs: int, kernel: int, workers: int) -> Tensor:
    """For each thread: a padded image, one row more, what the last vector reads beyond it, and two lists."""
    image = (x.shape[1] + kernel) * (x.shape[2] + kernel - 1) * channels + kernel * channels + BLOCK * LANES
    return x.new_empty(workers, _ceil(2 * GROUP * outputs + image, LANES))


def _weight_gradient(x: Tensor, dpooled: Tensor, which: Tensor, kernel: int) -> Tensor:
    """``[outputs, C, kernel, kernel]``."""
    channels, outputs, workers = x.shape[-1], dpooled.shape[-1], min(threads(x), len(x))
    run = _ceil(kernel * channels, LANES)  # numbers in a row of the window
    blocks = _ceil(kernel * run, BLOCK * LANES) // (BLOCK * LANES)
    dw, scratch = x.new_zeros(workers, blocks, outputs, BLOCK * LANES), _scratch(x, channels, outputs, kernel, workers)
    library().pooled_weight_gradient(
        x.data_ptr(), dpooled.data_ptr(), which.data_ptr(), dw.data_ptr(), scratch.data_ptr(), scratch.shape[1],
        *x.shape, outputs, kernel, workers,
    )  # fmt: skip
    rows = dw.sum(0).transpose(0, 1).reshape(outputs, -1)[:, : kernel * run].view(outputs, kernel, run)
    return rows[..., : kernel * channels].reshape(outputs, kernel, kernel, channels).permute(0, 3, 1, 2)


def _pack(weight: Tensor) -> Tensor:
    """``[outputs, C, kernel, kernel]`` as blocks of vectors, ``[blocks, outputs, BLOCK * LANES]``."""
    outputs, channels = weight.shape[:2]
    pixels = F.pad(weight.permute(0, 2, 3, 1), (0, _ceil(channels, LANES) - channels)).flatten(1)
    whole = F.pad(pixels, (0, _ceil(pixels.shape[1], BLOCK * LANES) - pixels.shape[1]))
    return whole.view(outputs, -1, BLOCK * LANES).transpose(0, 1).contiguous()


def _input_gradient(packed: Tensor, dpooled: Tensor, which: Tensor, dx: Tensor, kernel: int) -> None:
    """Fill dx ``[M, H, W, C]``."""
    outputs, workers = dpooled.shape[-1], min(threads(dx), len(dx))
    scratch = _scratch(dx, _ceil(dx.shape[-1], LANES), outputs, kernel, workers)
    library().pooled_input_gradient(
        packed.data_ptr(), dpooled.data_ptr(), which.data_ptr(), dx.data_ptr(), scratch.data_ptr(), scratch.shape[1],
        *dx.shape, outputs, kernel, workers,
    )  # fmt: skip


# ---------------------------------------------------------------------- decoder


def conv_unfold_norm_silu(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Convolution to the four pixels of each place, RMS norm and SiLU of each pixel: an image of twice the size.

    x is ``[M, h, w, C]``, the weights ``[2 * 2 * width, C, kernel, kernel]``; to ``[M, 2 h, 2 w, width]``.
    """
    if compiled(x, weight, scale) and x.numel():
        return cast(Tensor, _call(_Unfolded, x, weight, bias, scale, eps))
    return unfold_norm_silu(_places(_convolve(x, weight, bias)), scale, eps)


def conv_unfold_sigmoid(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """:func:`conv_unfold_norm_silu` with a sigmoid in the place of norm and SiLU."""
    if compiled(x, weight) and x.numel():
        return cast(Tensor, _call(_Sigmoid, x, weight, bias))
    return torch.sigmoid(unfold_parities(_places(_convolve(x, weight, bias))))


def _places(y: Tensor) -> Tensor:
    """``[M, h, w, 2 * 2 * width]`` to ``[M, h, w, 2, 2, width]``."""
    return y.unflatten(-1, (2, 2, -1))


class _Unfolded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float) -> Tensor:
        x, scale, (m, h, w, _), width = x.contiguous(), scale.contiguous(), x.shape, len(weight) // 4
        weight = weight.contiguous(memory_format=torch.channels_last)
        out, kept = x.new_empty(m, 2 * h, 2 * w, width), []
        for part in _parts(m, h * w * 4 * width):
            y = _convolve(x[part], weight, bias).contiguous()
            library().norm_silu(
                y.data_ptr(), scale.data_ptr(), out[part].data_ptr(), y.numel() // width, width, h, w, eps, threads(y)
            )
            kept.append(y)
        if ctx is not None:
            ctx.save_for_backward(x, weight, scale, *kept)
            ctx.eps = eps
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale, *kept = ctx.saved_tensors
        grads, grad, dscale = _ConvGradients(x, weight, ctx), grad.contiguous(), torch.zeros_like(scale).double()
        for part, y in zip(_parts(len(x), x[0, ..., 0].numel() * len(weight)), kept, strict=True):
            dy = _norm_backward(y, scale, grad[part], dscale, ctx.eps, (x.shape[1], x.shape[2]))
            grads.add(part, dy)
        return grads.dx, grads.dweight, grads.dbias, dscale.float(), None


class _Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x, (m, h, w, _), channels = x.contiguous(), x.shape, len(weight) // 4
        weight = weight.contiguous(memory_format=torch.channels_last)
        out = x.new_empty(m, 2 * h, 2 * w, channels)
        for part in _parts(m, h * w * 4 * channels):
            y = _convolve(x[part], weight, bias).contiguous()
            library().unfold_sigmoid(y.data_ptr(), out[part].data_ptr(), len(y) * h, w, channels, threads(y))
        if ctx is not None:
            ctx.save_for_backward(x, weight, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, out = ctx.saved_tensors
        grads, grad, (m, h, w, _) = _ConvGradients(x, weight, ctx), grad.contiguous(), x.shape
        for part in _parts(m, h * w * len(weight)):
            p, dy = out[part], x.new_empty(len(out[part]), h, w, len(weight))
            library().unfold_sigmoid_backward(
                p.data_ptr(), grad[part].data_ptr(), dy.data_ptr(), len(p) * h, w, len(weight) // 4, threads(p)
            )
            grads.add(part, dy)
        return grads.dx, grads.dweight, grads.dbias


class _ConvGradients:
    """Gradients of a convolution, a part of the images after the other."""

    def __init__(self, x: Tensor, weight: Tensor, ctx: Any) -> None:
        self.x, self.weight = x, weight
        self.mask = list(ctx.needs_input_grad[:3])
        needs_x, needs_weight, needs_bias = self.mask
        self.dx = torch.empty_like(x) if needs_x else None
        self.dweight = torch.zeros_like(weight) if needs_weight else None
        self.dbias = weight.new_zeros(len(weight)) if needs_bias else None

    def add(self, part: slice, dy: Tensor) -> None:
        """With the gradient ``[m, H, W, outputs]`` of the convolution of ``x[part]``."""
        x, grad, reach = self.x[part].permute(0, 3, 1, 2), dy.permute(0, 3, 1, 2), self.weight.shape[-1] // 2
        dx, dweight, dbias = torch.ops.aten.convolution_backward(
            grad, x, self.weight, [len(self.weight)], [1, 1], [reach, reach], [1, 1], False, [0, 0], 1, self.mask
        )
        if self.dx is not None:
            self.dx[part] = dx.permute(0, 2, 3, 1)
        if self.dweight is not None:
            self.dweight += dweight
        if self.dbias is not None:
            self.dbias += dbias


# ---------------------------------------------------------------------- error of images


def unit_squared_error(pixels: Tensor, target: Tensor, low: float, high: float) -> Tensor:
    """Squared error of unit pixels ``[..., H, W, C]`` to targets between ``low`` and ``high``: ``[...]``."""
    if compiled(pixels) and target.dtype is torch.uint8 and target.device.type == "cpu" and pixels.numel():
        return cast(Tensor, _call(_SquaredError, pixels, target, low, high - low))
    return (pixels - (target.to(pixels.dtype) - low) / (high - low)).square().sum((-3, -2, -1))


class _SquaredError(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pixels: Tensor, target: Tensor, low: float, span: float) -> Tensor:
        pixels, target, out = pixels.contiguous(), target.contiguous(), pixels.new_empty(pixels.shape[:-3])
        if ctx is not None:
            ctx.save_for_backward(pixels, target)
            ctx.range = low, span
        library().squared_error(
            pixels.data_ptr(), target.data_ptr(), out.data_ptr(), out.numel(), pixels.numel() // out.numel(),
            low, span, threads(pixels),
        )  # fmt: skip
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (pixels, target), grad = ctx.saved_tensors, grad.contiguous()
        out = torch.empty_like(pixels)
        library().squared_error_backward(
            pixels.data_ptr(), target.data_ptr(), grad.data_ptr(), out.data_ptr(), grad.numel(),
            pixels.numel() // grad.numel(), *ctx.range, threads(pixels),
        )  # fmt: skip
        return out, None, None, None

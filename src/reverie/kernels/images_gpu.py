"""Stages of encoder and decoder on a GPU: what follows a convolution is one Triton kernel, forward and backward.

The kernel also adds the bias, and its backward pass sums the bias's gradient; PyTorch would read and write all pixels
once more for each. cuDNN is slow where channels are no multiple of 8, so the first and the last convolution have more.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.kernels import gpu
from reverie.kernels.ctypes_call import call, once_differentiable_strict
from reverie.nn import functional
from reverie.nn.functional import cast_parameter, convolve

MIN_IMAGES = 64
"""Smallest number of images whose first convolution is computed on blocks of 2 x 2 pixels."""

MAX_CHANNELS = 7
"""Largest number of input channels of such a convolution."""

BLOCK = 1024
"""Pixels of an image whose errors a program sums at once."""


def _tile(rows: int, width: int) -> dict[str, int]:
    """Return the shape of a program's tile; more warps hide more of the time that reading takes."""
    return {**gpu._tile(rows, width), "num_warps": 8}


def _parts(rows: int, tile: dict[str, int], *shape: int, like: Tensor) -> Tensor:
    """Return memory for each program's part of a gradient, ``[programs, *shape]``."""
    programs = max(1, min(gpu.PROGRAMS, gpu._count(rows, tile["ROWS"])))
    return torch.empty(programs, *shape, dtype=torch.float32, device=like.device)


# ---------------------------------------------------------------------- a stage of the encoder


def supports_stage(x: Tensor, weight: Tensor, bias: Tensor, *rest: object) -> bool:
    """Return whether a stage can be computed here."""
    inputs = x, weight, bias, *(s for s in rest if isinstance(s, Tensor))
    return x.ndim == 4 and gpu.can_use_triton(*inputs, family="images")


def conv_pool_norm_silu_triton(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Compute ``functional.conv_pool_norm_silu``."""
    m, height, width, channels = x.shape
    if channels <= MAX_CHANNELS and height % 2 == width % 2 == 0 and m >= MIN_IMAGES:
        y = convolve(_pixel_blocks(x), _block_weight(weight, x.dtype), None).contiguous()
        y = y.view(*y.shape[:3], 4, len(weight))
    else:
        y = convolve(x, cast_parameter(weight, x.dtype), None).contiguous()
    return cast(Tensor, call(_PoolNormSiLU, y, bias, scale, eps))


def _pixel_blocks(x: Tensor) -> Tensor:
    """Return blocks of 2 x 2 pixels of ``[M, H, W, C]`` as pixels ``[M, H / 2, W / 2, n]``, n a multiple of 8."""
    m, height, width, channels = x.shape
    blocks = x.reshape(m, height // 2, 2, width // 2, 2, channels).transpose(2, 3)  # [M, h, w, 2, 2, C]
    padded = gpu._count(4 * channels, 8) * 8
    if padded == 4 * channels:
        return blocks.flatten(3)
    if x.requires_grad:
        return F.pad(blocks.flatten(3), (0, padded - 4 * channels))
    out = x.new_zeros(*blocks.shape[:3], padded)
    out[..., : 4 * channels].view(blocks.shape).copy_(blocks)
    return out


def _block_weight(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weights ``[4 * outputs, n, l, l]`` that map blocks of 2 x 2 pixels to all four pixels of blocks."""
    outputs, channels, kernel, _ = weight.shape
    around = (kernel // 2 + 1) // 2  # blocks on each side
    count = 2 * around + 1
    first = [2 * around - kernel // 2 + k for k in range(2)]  # the kernel's first pixel in the blocks, of both pixels
    pads = [(before, 2 * count - kernel - before) for before in first]
    all_four = torch.stack([F.pad(weight, (*columns, *lines)) for lines in pads for columns in pads])
    blocks = all_four.view(4, outputs, channels, count, 2, count, 2).permute(0, 1, 4, 6, 2, 3, 5)
    flat = blocks.reshape(4 * outputs, 4 * channels, count, count)
    return F.pad(flat, (0, 0, 0, 0, 0, -4 * channels % 8)).to(dtype, memory_format=torch.channels_last)


class _PoolNormSiLU(torch.autograd.Function):
    """From convolutions ``[M, H, W, C]``, or ``[M, h, w, 4, C]`` with the four pixels of a maximum side by side."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, bias: Tensor, scale: Tensor, eps: float) -> Tensor:
        shape, layout = _pooling_layout(y)
        rows, width = shape.numel() // shape[-1], shape[-1]
        out, tile = y.new_empty(shape), _tile(rows, width)
        grid = (gpu._count(rows, tile["ROWS"]),)
        gpu._launch("pool_norm_silu_kernel", grid, y, bias, scale, out, rows, width, *layout, eps, **tile)
        if ctx is not None:
            ctx.save_for_backward(y, bias, scale)
            ctx.eps = eps
        return out

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        y, bias, scale = ctx.saved_tensors
        (_, layout), width = _pooling_layout(y), y.shape[-1]
        rows, dy = grad.numel() // width, torch.empty_like(y)
        tile = _tile(rows, width)
        dscale, dbias = (_parts(rows, tile, width, like=y) for _ in range(2))
        gpu._launch("pool_norm_silu_backward_kernel", (len(dscale),), y, bias, scale, grad.contiguous(), dy, dscale,
                    dbias, rows, width, *layout, ctx.eps, **tile)  # fmt: skip
        return dy, dbias.sum(0).to(bias.dtype), dscale.sum(0), None


def _pooling_layout(y: Tensor) -> tuple[torch.Size, tuple[int, ...]]:
    """Return the shape of the maxima of y, and where each one's pixels lie: see ``pool_norm_silu_kernel``."""
    c = y.shape[-1]
    if y.ndim == 5:
        m, h, w = y.shape[:3]
        layout = (h, w, 2 * h, 2 * w, 4 * h * w * c, 4 * w * c, 4 * c, 2 * c)
    else:
        m, height, width = y.shape[:3]
        h, w = (height + 1) // 2, (width + 1) // 2
        layout = (h, w, height, width, height * width * c, 2 * width * c, 2 * c, width * c)
    return torch.Size([m, h, w, c]), layout


# ---------------------------------------------------------------------- a stage of the decoder


def conv_unfold_norm_silu_triton(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Compute ``functional.conv_unfold_norm_silu``."""
    return cast(Tensor, call(_UnfoldNormSiLU, convolve(x, weight, None).contiguous(), bias, scale, eps))


def _unfolding_layout(y: Tensor, width: int) -> tuple[list[int], int, dict[str, int]]:
    """Return the shape of y ``[M, h, w, 4 * n]`` as an image ``[M, 2 h, 2 w, width]``, its pixels, and a tile."""
    m, h, w, _ = y.shape
    rows = 4 * m * h * w
    tile = _tile(rows, width)
    return [m, 2 * h, 2 * w, width], rows, {**tile, "ROWS": max(4, tile["ROWS"])}


class _UnfoldNormSiLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, bias: Tensor, scale: Tensor, eps: float) -> Tensor:
        shape, rows, tile = _unfolding_layout(y, len(scale))
        out, grid = y.new_empty(shape), (gpu._count(rows, tile["ROWS"]),)
        gpu._launch("unfold_norm_silu_kernel", grid, y, bias, scale, out, rows, len(scale), y.shape[2], eps, **tile)
        if ctx is not None:
            ctx.save_for_backward(y, bias, scale)
            ctx.eps = eps
        return out

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        y, bias, scale = ctx.saved_tensors
        (_, rows, tile), dy, width = _unfolding_layout(y, len(scale)), torch.empty_like(y), len(scale)
        dscale, dbias = _parts(rows, tile, width, like=y), _parts(rows, tile, 4 * width, like=y)
        gpu._launch("unfold_norm_silu_backward_kernel", (len(dscale),), y, bias, scale, grad.contiguous(), dy, dscale,
                    dbias, rows, width, y.shape[2], ctx.eps, **tile)  # fmt: skip
        return dy, dbias.sum(0).to(bias.dtype), dscale.sum(0), None


def conv_unfold_sigmoid_triton(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute ``functional.conv_unfold_sigmoid``."""
    four = weight.view(4, -1, *weight.shape[1:])  # [4, C, inputs, kernel, kernel]
    padded = F.pad(four, (0, 0, 0, 0, 0, 0, 0, four.shape[1] % 2)).flatten(0, 1)
    y = convolve(x, padded.contiguous(memory_format=torch.channels_last), None)
    return cast(Tensor, call(_UnfoldSigmoid, y.contiguous(), bias))


class _UnfoldSigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, bias: Tensor) -> Tensor:
        width, padded = len(bias) // 4, y.shape[-1] // 4
        shape, rows, tile = _unfolding_layout(y, padded)
        out, grid = y.new_empty([*shape[:3], width]), (gpu._count(rows, tile["ROWS"]),)
        gpu._launch("unfold_sigmoid_kernel", grid, y, bias, out, rows, width, y.shape[2], padded, **tile)
        if ctx is not None:
            ctx.save_for_backward(out, bias)
            ctx.padded = padded
        return out

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        out, bias = ctx.saved_tensors
        m, height, width, channels = out.shape
        dy = out.new_empty(m, height // 2, width // 2, 4 * ctx.padded)
        _, rows, tile = _unfolding_layout(dy, ctx.padded)
        dbias = _parts(rows, tile, 4 * channels, like=out)
        gpu._launch("unfold_sigmoid_backward_kernel", (len(dbias),), out, grad.contiguous(), dy, dbias, rows, channels,
                    width // 2, ctx.padded, **tile)  # fmt: skip
        return dy, dbias.sum(0).to(bias.dtype)


# ---------------------------------------------------------------------- the loss of images


def supports_squared_error(pixels: Tensor, target: Tensor, *_: float) -> bool:
    """Return whether :func:`unit_squared_error_triton` can be used: for images ``[B, T, H, W, C]``."""
    dtypes = target.dtype in (torch.uint8, torch.float32) and target.device == pixels.device
    fits = dtypes and pixels.ndim == 5 and pixels.shape == target.shape and pixels.numel() > 0
    fits = fits and pixels.is_contiguous() and target[0, 0].is_contiguous()
    return fits and gpu.can_use_triton(pixels, family="images")


def unit_squared_error_triton(pixels: Tensor, target: Tensor, low: float, high: float) -> Tensor:
    """Compute ``functional.unit_squared_error``; the target has no gradient."""
    return cast(Tensor, call(_SquaredError, pixels, target, low, high))


class _SquaredError(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pixels: Tensor, target: Tensor, low: float, high: float) -> Tensor:
        b, t, *image = pixels.shape
        loss = torch.empty(b, t, dtype=torch.float32, device=pixels.device)
        numbers = (t, torch.Size(image).numel(), *target.stride()[:2], float(low), float(high - low))
        gpu._launch("squared_error_kernel", (b * t,), pixels, target, loss, *numbers, BLOCK=BLOCK)
        if ctx is not None:
            ctx.save_for_backward(pixels, target)
            ctx.numbers = numbers
        return loss

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        pixels, target = ctx.saved_tensors
        dpixels = torch.empty_like(pixels)
        grid = (grad.numel(), gpu._count(ctx.numbers[1], BLOCK))
        gpu._launch("squared_error_backward_kernel", grid, pixels, target, grad.contiguous(), dpixels, *ctx.numbers,
                    BLOCK=BLOCK)  # fmt: skip
        return dpixels, None, None, None


# ---------------------------------------------------------------------- self-check


def _compare_images(numbers: gpu.Numbers) -> gpu.Compared:
    """Return the results of every kernel here and PyTorch's, for ``gpu.check_triton_kernels``."""
    images, blocks = ((3 * numbers(*shape)).round() for shape in ((2, 5, 7, 12), (2, 3, 2, 4, 12)))  # some are equal
    bias, scale, all_bias = numbers(12), numbers(12), numbers(48)
    pixels, target = numbers(1, 2, 2, 2, 3).sigmoid(), (255 * numbers(1, 2, 2, 2, 3).sigmoid()).to(torch.uint8)
    eps = 1e-4

    def pool(x: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
        image = _shuffle_pixels(x.flatten(3)) if x.ndim == 5 else x
        largest = F.max_pool2d((image + bias).permute(0, 3, 1, 2), 2, ceil_mode=True)
        return _norm_silu(largest.permute(0, 2, 3, 1), scale, eps)

    def add_and_shuffle(x: Tensor, bias: Tensor) -> Tensor:
        return _shuffle_pixels(x + bias)

    def sigmoid(x: Tensor, bias: Tensor) -> Tensor:
        return add_and_shuffle(x.view(*x.shape[:3], 4, 4)[..., :3].flatten(3), bias).sigmoid()

    def error(x: Tensor) -> Tensor:
        return functional.unit_squared_error.definition(x, target, 0.0, 255.0)  # type: ignore[attr-defined, no-any-return]  # without kernels

    stages: list[tuple[str, Any, Any, list[Tensor]]] = [
        ("pool", lambda *x: call(_PoolNormSiLU, *x, eps), pool, [images, bias, scale]),
        ("pool", lambda *x: call(_PoolNormSiLU, *x, eps), pool, [blocks, bias, scale]),
        ("unfold", lambda *x: call(_UnfoldNormSiLU, *x, eps), lambda x, b, s: _norm_silu(add_and_shuffle(x, b), s, eps),
         [numbers(2, 3, 5, 48), all_bias, scale]),
        ("sigmoid", lambda *x: call(_UnfoldSigmoid, *x), sigmoid, [numbers(2, 3, 5, 16), bias]),
        ("error", lambda x: unit_squared_error_triton(x, target, 0.0, 255.0), error, [pixels]),
    ]  # fmt: skip
    compared: gpu.Compared = []
    for name, run, definition, arguments in stages:
        inputs = [x.requires_grad_() for x in arguments]
        ours = run(*inputs)
        grad = numbers(*ours.shape)
        gradients = torch.autograd.grad(ours, inputs, grad)
        defined = definition(*inputs)
        pairs = zip(gradients, torch.autograd.grad(defined, inputs, grad), strict=True)
        compared += [(name, ours, defined), *((f"{name}_backward", *pair) for pair in pairs)]
    return compared


def _shuffle_pixels(x: Tensor) -> Tensor:
    return functional.pixel_shuffle(x.view(*x.shape[:3], 2, 2, -1))


def _norm_silu(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    return cast(Tensor, functional.norm_silu.definition(x, scale, eps))  # type: ignore[attr-defined]  # without kernels


gpu.COMPARISONS["images"] = _compare_images

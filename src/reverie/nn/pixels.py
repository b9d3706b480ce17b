"""The loss of predicted images, compiled for CPUs (``images.c``)."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from reverie.core.compiled import call, compiled, first_order, library, threads


def unit_squared_error(pixels: Tensor, target: Tensor, low: float, high: float) -> Tensor:
    """Return the squared error ``[...]`` of pixels in [0, 1], ``[..., H, W, C]``, to targets in [``low``, ``high``]."""
    bytes_here = target.dtype is torch.uint8 and target.device.type == "cpu" and target.shape == pixels.shape
    if compiled(pixels) and bytes_here and pixels.numel():
        return cast(Tensor, call(_SquaredError, pixels, target, low, high - low))
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
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (pixels, target), grad = ctx.saved_tensors, grad.contiguous()
        out = torch.empty_like(pixels)
        library().squared_error_backward(
            pixels.data_ptr(), target.data_ptr(), grad.data_ptr(), out.data_ptr(), grad.numel(),
            pixels.numel() // grad.numel(), *ctx.range, threads(pixels),
        )  # fmt: skip
        return out, None, None, None

"""The stages of the decoder: a convolution that makes four pixels of one, then norm and activation.

As in ``images.py``, a few images at a time.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from reverie.kernels.call import call, compute, cpu32, first_order, threads
from reverie.kernels.elementwise import norm_backward
from reverie.kernels.images import fits_conv, parts, sums_for
from reverie.kernels.winograd import Convolution


def fits_norm(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float) -> bool:
    """Return whether :func:`conv_unfold_norm_silu` can be used."""
    four = len(weight) % 4 == 0 and fits_conv(x, weight, bias)
    return four and scale.shape == (len(weight) // 4,) and cpu32(scale)


def conv_unfold_norm_silu(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Compute ``functional.conv_unfold_norm_silu``."""
    return cast(Tensor, call(_Unfolded, x, weight, bias, scale, eps))


class _Unfolded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float) -> Tensor:
        x, scale, (m, h, w, _), width = x.contiguous(), scale.contiguous(), x.shape, len(weight) // 4
        weight = weight.contiguous(memory_format=torch.channels_last)
        out, kept, convolution = x.new_empty(m, 2 * h, 2 * w, width), [], Convolution(weight, bias, x.shape)
        for part in parts(m, h * w * 4 * width):
            y = convolution(x[part]).contiguous()
            compute("norm_silu", y, scale, out[part], y.numel() // width, width, h, w, eps, threads(y))
            kept.append(y)
        if ctx is not None:
            ctx.save_for_backward(x, weight, scale, *kept)
            ctx.eps = eps
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale, *kept = ctx.saved_tensors
        grads, grad, dscale = _ConvGradients(x, weight, ctx), grad.contiguous(), sums_for(scale)
        for part, y in zip(parts(len(x), x[0, ..., 0].numel() * len(weight)), kept, strict=True):
            dy = norm_backward(y, scale, grad[part], dscale, ctx.eps, (x.shape[1], x.shape[2]))
            grads.add(part, dy)
        return grads.dx, grads.dweight, grads.dbias, dscale.sum(0).float(), None


class _ConvGradients:
    """The gradients of a convolution, summed over parts of the images."""

    def __init__(self, x: Tensor, weight: Tensor, ctx: Any) -> None:
        self.x, self.weight = x, weight
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        self.dx = torch.empty_like(x) if needs_x else None
        self.dweight = torch.zeros_like(weight) if needs_weight else None
        self.dbias = weight.new_zeros(len(weight)) if needs_bias else None
        self.back = _transposed(weight, x.shape) if needs_x else None
        self.mask = [needs_x and not (self.back and self.back.points is not None), needs_weight, needs_bias]

    def add(self, part: slice, dy: Tensor) -> None:
        """Add the gradients of ``x[part]``, given the gradient ``dy`` ``[m, H, W, outputs]`` of its convolution."""
        dx, dweight, dbias = self._by_pytorch(self.x[part], dy) if any(self.mask) else (None, None, None)
        if self.dx is not None and self.back is not None:
            self.dx[part] = self.back(dy) if dx is None else dx.permute(0, 2, 3, 1)
        for total, more in ((self.dweight, dweight), (self.dbias, dbias)):
            if total is not None and more is not None:
                total.add_(more)

    def _by_pytorch(self, x: Tensor, dy: Tensor) -> Any:
        reach = self.weight.shape[-1] // 2
        return torch.ops.aten.convolution_backward(
            dy.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2), self.weight, [len(self.weight)], [1, 1], [reach, reach],
            [1, 1], False, [0, 0], 1, self.mask,
        )  # fmt: skip


def _transposed(weight: Tensor, shape: torch.Size) -> Convolution:
    """Return the convolution that maps gradients of the output to gradients of input images of ``shape``."""
    return Convolution(
        weight.flip(2, 3).transpose(0, 1), weight.new_zeros(weight.shape[1]), torch.Size([*shape[:3], len(weight)])
    )

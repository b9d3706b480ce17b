"""Norm and activation in C, forward and backward (``kernels.c``).

PyTorch runs such a chain operation by operation, reading and writing memory each time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reverie.kernels.call import call, compute, cpu32, first_order, threads


def fits_norm(x: Tensor, scale: Tensor, eps: float) -> bool:
    """Return whether :func:`norm_silu` can be used. It computes in float32, whatever the dtype of ``x``."""
    here = cpu32(scale) and x.is_cpu and x.is_floating_point()
    return here and x.shape[-1:] == scale.shape and x.numel() > 0


def norm_silu(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Compute ``functional.norm_silu``."""
    y: Tensor = call(_NormSiLU, x.float(), scale, eps)
    return y.to(x.dtype)


def norm_backward(
    x: Tensor, scale: Tensor, grad: Tensor, dscale: Tensor, eps: float, unfolded: tuple[int, int] = (0, 0)
) -> Tensor:
    """Return the gradient with respect to x of ``norm_silu``, or of it after ``unfold_parities`` to a size.

    The gradient of the scale is added to ``dscale`` ``[threads, C]``, float64, in parts.
    """
    dx, width, workers = torch.empty_like(x), len(scale), threads(x)
    scratch = x.new_empty(workers, 2 * width)
    compute(
        "norm_silu_backward", x, scale, grad, dx, dscale, scratch, x.numel() // width, width, *unfolded, eps, workers,
    )  # fmt: skip
    return dx


class _NormSiLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, eps: float) -> Tensor:
        x, scale = x.contiguous(), scale.contiguous()
        if ctx is not None:
            ctx.save_for_backward(x, scale)
            ctx.eps = eps
        y, width = torch.empty_like(x), x.shape[-1]
        compute("norm_silu", x, scale, y, x.numel() // width, width, 0, 0, eps, threads(x))
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, scale = ctx.saved_tensors
        dscale = x.new_zeros(threads(x), len(scale), dtype=torch.float64)
        dx = norm_backward(x, scale, grad.contiguous(), dscale, ctx.eps)
        return dx, dscale.sum(0).float(), None

"""Norms and losses of numbers as classes in C, forward and backward (``kernels.c``).

PyTorch runs such a chain operation by operation, reading and writing memory each time.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from reverie.kernels.call import call, compute, cpu32, first_order, floats, threads, untracked

# ---------------------------------------------------------------------- norm and activation


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


def fits(x: Tensor) -> bool:
    """Return whether :func:`elu` can be used."""
    return cpu32(x) and x.numel() > 0


def elu(x: Tensor) -> Tensor:
    """Compute ``functional.elu``."""
    return cast(Tensor, call(_ELU, x))


class _ELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        compute("elu", x, y, x.numel(), threads(x))
        if ctx is not None:
            ctx.save_for_backward(y)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,), grad = ctx.saved_tensors, grad.contiguous()
        out = torch.empty_like(y)
        compute("elu_backward", y, grad, out, y.numel(), threads(y))
        return out


# ---------------------------------------------------------------------- numbers as classes


def _log_sum_exp(x: Tensor) -> Tensor:
    lse = floats(x.shape[:-1])
    compute("log_sum_exp", x, lse, lse.numel(), x.shape[-1], threads(x))
    return lse


def fits_cross_entropy(logits: Tensor, index: Tensor, weight: Tensor) -> bool:
    """Return whether :func:`cross_entropy` can be used; the weights have no gradient."""
    same = index.shape == weight.shape and index.shape[:-1] == logits.shape[:-1] and logits.numel() > 0
    return same and index.dtype is torch.int64 and index.is_cpu and cpu32(logits, weight) and untracked(weight)


def cross_entropy(logits: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """Compute ``functional.cross_entropy``."""
    return cast(Tensor, call(_CrossEntropy, logits, index, weight))


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        logits = logits.contiguous()
        lse = _log_sum_exp(logits)
        if ctx is not None:
            ctx.save_for_backward(logits, lse, index, weight)
        return (weight * (lse.unsqueeze(-1) - logits.gather(-1, index))).sum(-1)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        logits, lse, index, weight = (x.contiguous() for x in ctx.saved_tensors)
        grad, out, (*_, width) = grad.contiguous(), torch.empty_like(logits), logits.shape
        compute(
            "cross_entropy_backward", logits, lse, index, weight, grad, out, lse.numel(), width, index.shape[-1],
            threads(logits),
        )  # fmt: skip
        return out, None, None


def fits_mean(logits: Tensor, bins: Tensor) -> bool:
    """Return whether :func:`softmax_mean` can be used; it has no gradient."""
    return bins.shape == logits.shape[-1:] and logits.numel() > 0 and cpu32(logits, bins) and untracked(logits, bins)


def softmax_mean(logits: Tensor, bins: Tensor) -> Tensor:
    """Compute ``functional.softmax_mean``."""
    logits, bins, width, workers = logits.contiguous(), bins.contiguous(), logits.shape[-1], threads(logits)
    out, scratch = floats(logits.shape[:-1]), floats(workers, width)
    compute("softmax_mean", logits, bins, out, out.numel(), width, scratch, workers)
    return out

"""Norm and activation in C, forward and backward (``kernels.c``).

PyTorch runs such a chain operation by operation, reading and writing memory each time.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from reverie.kernels.ctypes_call import call, call_compiled, is_cpu_float32, num_threads_for, once_differentiable_strict
from reverie.nn.batch_norm import BATCH_NORM_EPS


def supports_norm_silu(x: Tensor, scale: Tensor, eps: float) -> bool:
    """Return whether :func:`norm_silu_cpu` can be used. It computes in float32, regardless of the dtype of ``x``."""
    is_supported = is_cpu_float32(scale) and x.is_cpu and x.is_floating_point()
    return is_supported and x.shape[-1:] == scale.shape and x.numel() > 0


def norm_silu_cpu(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Compute ``functional.norm_silu``."""
    y: Tensor = call(_NormSiLU, x.float(), scale, eps)
    return y.to(x.dtype)


def norm_backward(
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


class _NormSiLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, eps: float) -> Tensor:
        x, scale = x.contiguous(), scale.contiguous()
        if ctx is not None:
            ctx.save_for_backward(x, scale)
            ctx.eps = eps
        y, width = torch.empty_like(x), x.shape[-1]
        call_compiled("norm_silu", x, scale, y, x.numel() // width, width, 0, 0, eps, num_threads_for(x))
        return y

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, scale = ctx.saved_tensors
        dscale = x.new_zeros(num_threads_for(x), len(scale), dtype=torch.float64)
        dx = norm_backward(x, scale, grad.contiguous(), dscale, ctx.eps)
        return dx, dscale.sum(0).float(), None


# ---------------------------------------------------------------- layer norm, then Mish or softmaxes (``mish.c``)


def supports_norm_mish(x: Tensor, scale: Tensor, shift: Tensor) -> bool:
    """Return whether :func:`norm_mish_cpu` can be used."""
    return is_cpu_float32(x, scale, shift) and x.shape[-1:] == scale.shape == shift.shape and x.numel() > 0


def norm_mish_cpu(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Compute ``functional.norm_mish``."""
    return cast(Tensor, call(_NormThen, x, scale, shift, 0))


def supports_sim_norm(x: Tensor, size: int, scale: Tensor | None = None, shift: Tensor | None = None) -> bool:
    """Return whether :func:`sim_norm_cpu` can be used."""
    norm = [] if scale is None or shift is None else [scale, shift]
    fit = all(parameter.shape == x.shape[-1:] for parameter in norm) and x.numel() > 0 and x.shape[-1] % size == 0
    return fit and is_cpu_float32(x, *norm)


def sim_norm_cpu(x: Tensor, size: int, scale: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
    """Compute ``functional.sim_norm``."""
    return cast(Tensor, call(_NormThen, x, scale, shift, size))


class _NormThen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor | None, shift: Tensor | None, size: int) -> Tensor:
        x, width = x.contiguous(), x.shape[-1]
        norm = [None if parameter is None else parameter.contiguous() for parameter in (scale, shift)]
        y = torch.empty_like(x)
        if size:
            call_compiled("sim_norm", x, *norm, y, x.numel() // width, width, size, num_threads_for(x))
        else:
            call_compiled("norm_mish", x, *norm, y, x.numel() // width, width, num_threads_for(x))
        if ctx is not None:
            ctx.save_for_backward(x, *norm, y if size else None)
            ctx.size = size
        return y

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, shift, y = ctx.saved_tensors
        dx, width, workers = torch.empty_like(x), x.shape[-1], num_threads_for(x)
        dnorm = None if scale is None else x.new_zeros(workers, 2, width, dtype=torch.float64)
        call_compiled("norm_then_backward", x, scale, shift, y, grad.contiguous(), dx, dnorm,
                x.new_empty(workers, 3 * width), x.numel() // width, width, ctx.size, workers)  # fmt: skip
        dscale, dshift = (None, None) if dnorm is None else dnorm.sum(0).float().unbind()
        return dx, dscale, dshift, None


# ---------------------------------------------------------------- batch norm (``batch_norm.c``)


def supports_batch_norm(x: Tensor, *affine: Tensor) -> bool:
    """Return whether :func:`batch_norm_cpu` and :func:`batch_moments_cpu` can be used."""
    fit = x.ndim == 3 and x.numel() > 0 and all(p.shape == (len(x), 1, x.shape[2]) for p in affine)
    return fit and is_cpu_float32(x, *affine)


def batch_moments_cpu(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``batch_norm.batch_moments``."""
    x, (mean, var) = x.detach().contiguous(), x.new_empty(2, len(x), 1, x.shape[2])
    call_compiled("batch_norm", x, None, None, None, mean, var, *x.shape, BATCH_NORM_EPS, num_threads_for(x))
    return mean, var


def batch_norm_cpu(x: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ``batch_norm.batch_norm``."""
    y, mean, var = call(_BatchNorm, x, scale, shift)
    return y, mean, var


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, scale, shift = x.contiguous(), scale.contiguous(), shift.contiguous()
        y, mean, var = torch.empty_like(x), torch.empty_like(scale), torch.empty_like(scale)
        call_compiled("batch_norm", x, scale, shift, y, mean, var, *x.shape, BATCH_NORM_EPS, num_threads_for(x))
        if ctx is not None:
            ctx.save_for_backward(x, scale, mean, var)
            ctx.mark_non_differentiable(mean, var)
            ctx.set_materialize_grads(False)  # of mean and var
        return y, mean, var

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor, Tensor, Tensor]:
        x, scale, mean, var = ctx.saved_tensors
        dx, dscale, dshift = torch.empty_like(x), torch.empty_like(scale), torch.empty_like(scale)
        call_compiled("batch_norm_backward", x, scale, mean, var, grad.contiguous(), dx, dscale, dshift, *x.shape,
                BATCH_NORM_EPS, num_threads_for(x))  # fmt: skip
        return dx, dscale, dshift

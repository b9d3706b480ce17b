"""Distributions of policies on a GPU (``triton_policies.py``): one launch forwards, and one backwards."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from reverie.kernels import gpu
from reverie.kernels.ctypes_call import call, once_differentiable_strict
from reverie.kernels.gpu import Compared
from reverie.nn.normals import LOG_STD, squash


def supports_squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> bool:
    """Return whether :func:`squash_triton` can be used; the noise has no gradient."""
    if not gpu.can_use_triton(mean) or not mean.shape == log_std.shape == noise.shape or not mean.numel():
        return False
    return all(x.dtype is torch.float32 for x in (mean, log_std, noise)) and not noise.requires_grad


def squash_triton(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``nn/normals.py: squash``."""
    return cast(tuple[Tensor, Tensor], call(_Squash, mean, log_std, noise))


class _Squash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        width = mean.shape[-1]
        given = [_rows(x, width) for x in (mean, log_std, noise.contiguous())]
        action = torch.empty(mean.shape, dtype=mean.dtype, device=mean.device)
        log_prob = action.new_empty(mean.shape[:-1])
        _start("squash_kernel", *given, action, log_prob)
        if ctx is not None:
            ctx.save_for_backward(*given)
            ctx.shape = mean.shape
        return action, log_prob

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, daction: Tensor, dlog_prob: Tensor) -> tuple[Tensor, Tensor, None]:
        given = list(ctx.saved_tensors)
        outputs = [given[2].new_empty(ctx.shape) for _ in range(2)]
        grads = daction.contiguous(), dlog_prob.contiguous()
        _start("squash_backward_kernel", *given, *grads, *outputs)
        return outputs[0], outputs[1], None


def _rows(x: Tensor, width: int) -> Tensor:
    """Return x as ``[M, width]`` without gaps in a row."""
    flat = x.reshape(-1, width)
    return flat if width == 1 or flat.stride(1) == 1 else flat.contiguous()


def _start(name: str, mean: Tensor, log_std: Tensor, *others: Tensor) -> None:
    (rows, width), strides = mean.shape, (mean.stride(0), log_std.stride(0))
    wide = 1 << (width - 1).bit_length()
    tall = max(1, 128 // wide)
    gpu._launch(
        name, (-(-rows // tall),), mean, log_std, *others, rows, width, *strides, *LOG_STD, ROWS=tall, WIDTH=wide
    )


def compare_policies(numbers: Any) -> Compared:
    """Return results of each kernel beside its definition's; ``numbers`` returns random tensors of a shape."""
    outputs, noise, grads = numbers(7, 2, 6), numbers(7, 2, 3), (numbers(7, 2, 3), numbers(7, 2))
    outputs[..., 3:] *= 15  # beyond the limits of ln sigma, too
    outputs.requires_grad_()
    functions: list[Any] = [squash_triton, squash.definition]  # type: ignore[attr-defined]  # without kernels
    results = []
    for function in functions:
        values = function(*outputs.chunk(2, -1), noise)
        results.append([*values, *torch.autograd.grad(values, outputs, grads)])
    return list(zip(("squash", "squash", "squash_backward"), *results, strict=True))

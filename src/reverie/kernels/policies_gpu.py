"""Distributions of policies on a GPU (``triton_policies.py``): one launch forwards, and one backwards."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from reverie.kernels import gpu
from reverie.kernels.ctypes_call import call, has_no_grad, once_differentiable_strict
from reverie.kernels.gpu import Compared, Numbers
from reverie.nn.functional import clipped_noise, scale_pixels
from reverie.nn.normals import LOG_STD, normal_log_density, squash

LARGEST = 8192
"""Numbers over which one program sums the gradient of a shared ln sigma."""


def supports_squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> bool:
    """Return whether :func:`squash_triton` can be used; the noise has no gradient."""
    fits = mean.shape == log_std.shape == noise.shape and mean.numel()
    if not fits or not gpu.can_use_triton(mean, family="policies"):
        return False
    return all(x.dtype is torch.float32 for x in (mean, log_std, noise)) and not noise.requires_grad


def squash_triton(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``nn/normals.py: squash``."""
    return cast(tuple[Tensor, Tensor], call(_Squash, mean, log_std, noise))


class _Squash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        width = mean.shape[-1]
        inputs = [_rows(x, width) for x in (mean, log_std, noise.contiguous())]
        action = torch.empty(mean.shape, dtype=mean.dtype, device=mean.device)
        log_prob = action.new_empty(mean.shape[:-1])
        _start("squash_kernel", *inputs, action, log_prob)
        if ctx is not None:
            ctx.save_for_backward(*inputs)
            ctx.shape = mean.shape
        return action, log_prob

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, daction: Tensor, dlog_prob: Tensor) -> tuple[Tensor, Tensor, None]:
        inputs = list(ctx.saved_tensors)
        outputs = [inputs[2].new_empty(ctx.shape) for _ in range(2)]
        grads = daction.contiguous(), dlog_prob.contiguous()
        _start("squash_backward_kernel", *inputs, *grads, *outputs)
        return outputs[0], outputs[1], None


def _rows(x: Tensor, width: int) -> Tensor:
    """Return x as ``[M, width]`` without gaps in a row."""
    flat = x.reshape(-1, width)
    return flat if width == 1 or flat.stride(1) == 1 else flat.contiguous()


def _start(name: str, mean: Tensor, log_std: Tensor, *arrays: Tensor) -> None:
    (rows, width), strides = mean.shape, (mean.stride(0), log_std.stride(0))
    tile = _tile(width)
    gpu._launch(name, (-(-rows // tile["ROWS"]),), mean, log_std, *arrays, rows, width, *strides, *LOG_STD, **tile)


def _tile(width: int) -> dict[str, int]:
    """Return the shape of a program's tile."""
    wide = 1 << (width - 1).bit_length()
    return {"ROWS": max(1, 128 // wide), "WIDTH": wide}


def supports_normal_density(action: Tensor, mean: Tensor, log_std: Tensor) -> bool:
    """Return whether :func:`normal_density_triton` can be used; actions have no gradient."""
    fits = action.shape == mean.shape and log_std.shape == mean.shape[-1:]
    if not fits or not gpu.can_use_triton(mean, family="policies"):
        return False
    fit = 0 < mean.numel() <= LARGEST and not (torch.is_grad_enabled() and action.requires_grad)
    return fit and all(x.dtype is torch.float32 for x in (action, mean, log_std))


def normal_density_triton(action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Compute ``nn/normals.py: normal_log_density``."""
    return cast(Tensor, call(_NormalDensity, action, mean, log_std))


class _NormalDensity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        inputs, width = [x.contiguous() for x in (action, mean, log_std)], mean.shape[-1]
        log_prob = inputs[1].new_empty(mean.shape[:-1])
        rows, tile = log_prob.numel(), _tile(width)
        gpu._launch("normal_density_kernel", (-(-rows // tile["ROWS"]),), *inputs, log_prob, rows, width, **tile)
        if ctx is not None:
            ctx.save_for_backward(*inputs)
        return log_prob

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor]:
        inputs = ctx.saved_tensors
        dmean, dlog_std, width = torch.empty_like(inputs[1]), torch.empty_like(inputs[2]), len(inputs[2])
        gpu._launch("normal_density_backward_kernel", (1,), *inputs, grad.contiguous(), dmean, dlog_std, grad.numel(),
                    width, **_tile(width))  # fmt: skip
        return None, dmean, dlog_std


# ---------------------------------------------------------------------- their inputs and outputs


def supports_clipped_noise(action: Tensor, noise: Tensor, std: float, limit: float) -> bool:
    """Return whether :func:`clipped_noise_triton` can be used; it has no gradient."""
    if not gpu.can_use_triton(action, family="policies") or action.shape != noise.shape:
        return False
    return has_no_grad(action, noise) and action.dtype is noise.dtype is torch.float32 and not isinstance(std, Tensor)


def clipped_noise_triton(action: Tensor, noise: Tensor, std: float, limit: float) -> Tensor:
    """Compute ``nn/functional.py: clipped_noise``."""
    action, noise = action.contiguous(), noise.contiguous()
    y, count = torch.empty_like(action), action.numel()
    gpu._launch("clipped_noise_kernel", (-(-count // 1024),), action, noise, y, count, float(std), float(limit),
                BLOCK=1024)  # fmt: skip
    return y


def supports_scale_pixels(x: Tensor, scale: float, shift: float, like: Tensor) -> bool:
    """Return whether :func:`scale_pixels_triton` can be used: for bytes without gaps in an image."""
    can = x.dtype is torch.uint8 and gpu.can_use_triton(like, family="policies")
    return can and x.numel() > 0 and x[0].is_contiguous()


def scale_pixels_triton(x: Tensor, scale: float, shift: float, like: Tensor) -> Tensor:
    """Compute ``nn/functional.py: scale_pixels``."""
    y, count = torch.empty(x.shape, dtype=like.dtype, device=x.device), x.numel()
    gpu._launch("scale_pixels_kernel", (-(-count // 1024),), x, y, count, count // len(x), x.stride(0), float(scale),
                float(shift), BLOCK=1024)  # fmt: skip
    return y


def compare_policies(numbers: Numbers) -> Compared:
    """Return the results of each kernel and of its definition; ``numbers`` returns random tensors of a shape."""
    outputs, noise, grads = numbers(7, 2, 6), numbers(7, 2, 3), (numbers(7, 2, 3), numbers(7, 2))
    outputs[..., 3:] *= 15  # beyond the limits of ln sigma, too
    outputs.requires_grad_()
    functions: list[Any] = [squash_triton, squash.definition]  # type: ignore[attr-defined]  # without kernels
    results = []
    for function in functions:
        values = function(*outputs.chunk(2, -1), noise)
        results.append([*values, *torch.autograd.grad(values, outputs, grads)])
    compared = list(zip(("squash", "squash", "squash_backward"), *results, strict=True))
    learned, action = [numbers(50, 3).requires_grad_(), (0.3 * numbers(3)).requires_grad_()], numbers(50, 3)
    functions, results = [normal_density_triton, normal_log_density.definition], []  # type: ignore[attr-defined]
    for function in functions:
        y = function(action, *learned)
        results.append([y, *torch.autograd.grad(y, learned, action[:, 0])])
    compared += [("normal_density", *pair) for pair in zip(*results, strict=True)]
    x = (50 * action.abs()).to(torch.uint8)[:, :1]
    pairs: list[tuple[Any, Any, tuple[Any, ...]]] = [
        (clipped_noise_triton, clipped_noise, (action, numbers(50, 3), 0.7, 0.5)),
        (scale_pixels_triton, scale_pixels, (x, 0.1, -0.5, action)),
    ]
    return compared + [(f.__name__, f(*inputs), accelerated.definition(*inputs)) for f, accelerated, inputs in pairs]


gpu.COMPARISONS["policies"] = compare_policies

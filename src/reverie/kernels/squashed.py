"""Samples of SAC's Gaussian with their densities, each direction in one C call (``squashed.c``)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reverie.kernels.call import call, compute, cpu32, first_order
from reverie.nn.distributions import LOG_STD


def fits(mean: Tensor, log_std: Tensor, noise: Tensor) -> bool:
    """Return whether :func:`squashed_sample` can be used; the noise has no gradient."""
    same = mean.shape == log_std.shape == noise.shape and noise.numel() > 0
    return same and cpu32(mean, log_std, noise) and not noise.requires_grad


def squashed_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``distributions.squashed_sample``."""
    action, density = call(_Sample, mean, log_std, noise.contiguous())
    return action, density


class _Sample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, raw: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        flat = [_as_rows(x) for x in (mean, raw)]  # [M, A]
        if flat[0].stride(0) != flat[1].stride(0):
            flat = [x.contiguous() for x in flat]
        action, density = sample(flat[0], flat[1], noise)
        if ctx is not None:
            ctx.save_for_backward(flat[1], noise, action)
        return action, density

    @staticmethod
    @first_order
    def backward(ctx: Any, daction: Tensor, ddensity: Tensor) -> tuple[Tensor, Tensor, None]:
        raw, noise, action = ctx.saved_tensors
        dmean, draw = action.new_empty(raw.shape), action.new_empty(raw.shape)  # [M, A]
        sample_backward(raw, noise, action, daction.contiguous(), ddensity.contiguous(), dmean, draw)
        return dmean.view_as(action), draw.view_as(action), None


def sample(mean: Tensor, raw: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions ``[..., A]`` and log-densities ``[...]``, without autograd.

    ``mean`` and ``raw`` (unclamped ln sigma) are ``[M, A]`` with equal strides, ``noise`` is ``[..., A]``.
    """
    action, density = torch.empty_like(noise), noise.new_empty(noise.shape[:-1])
    compute("squashed_sample", mean, raw, mean.stride(0), noise, action, density, *mean.shape, *LOG_STD)
    return action, density


def sample_backward(
    raw: Tensor, noise: Tensor, action: Tensor, daction: Tensor, ddensity: Tensor, dmean: Tensor, draw: Tensor
) -> None:
    """Write the gradients of :func:`sample` to ``dmean`` and ``draw``, which have equal strides.

    ``daction`` and ``ddensity``, the gradients of the outputs, must be contiguous.
    """
    compute(
        "squashed_sample_backward", raw, raw.stride(0), noise, action, daction, ddensity, dmean, draw, dmean.stride(-2),
        *raw.shape, *LOG_STD,
    )  # fmt: skip


def _as_rows(x: Tensor) -> Tensor:
    """Return ``[..., A]`` as rows ``[M, A]``, each contiguous; there may be gaps between rows."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 else flat.contiguous()

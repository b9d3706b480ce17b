"""Adam and Polyak averaging, in C on CPUs (``adam.c``) and in PyTorch's fused call elsewhere."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from reverie.core.compiled import library, threads
from reverie.kernels.conditions import cpu32
from reverie.nn.adam import cosine_share


def fits(
    params: list[Tensor], grads: list[Tensor], mean: list[Tensor], square: list[Tensor], updates: Tensor, **_: object
) -> bool:
    """Return whether :func:`adam` can be used."""
    everything = zip(params, grads, mean, square, strict=True)
    same = all(p.shape == g.shape == m.shape == v.shape for p, g, m, v in everything)
    return same and cpu32(*params, *grads, *mean, *square) and _contiguous(*params, *grads, *mean, *square)


@torch.no_grad()
def adam(
    params: list[Tensor],
    grads: list[Tensor],
    mean: list[Tensor],
    square: list[Tensor],
    updates: Tensor,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    cosine: int = 0,
) -> None:
    """Compute ``nn/adam.py: adam``; it wakes no second thread for small tensors."""
    settings, count = (ctypes.c_double * 5)(lr, *betas, eps, cosine), updates.data_ptr()
    for p, *others in zip(params, grads, mean, square, strict=True):
        library().adam(p.data_ptr(), *[x.data_ptr() for x in others], p.numel(), settings, count, threads(p))
    torch.autograd.graph.increment_version(params)  # autograd does not see what C code writes


def fits_fused(
    params: list[Tensor], grads: list[Tensor], mean: list[Tensor], square: list[Tensor], updates: Tensor, **_: object
) -> bool:
    """Return whether :func:`fused_adam` can be used: it reads numbers in the order of memory, which has no gaps."""
    everything = zip(params, grads, mean, square, strict=True)
    return all(_alike(p, *others) and _dense(p) for p, *others in everything)


def _alike(x: Tensor, *others: Tensor) -> bool:
    return all(y.shape == x.shape and y.stride() == x.stride() and y.dtype is x.dtype for y in others)


def _dense(x: Tensor) -> bool:
    return 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True)) == x.numel()


@torch.no_grad()
def fused_adam(
    params: list[Tensor],
    grads: list[Tensor],
    mean: list[Tensor],
    square: list[Tensor],
    updates: Tensor,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    cosine: int = 0,
) -> None:
    """Compute ``nn/adam.py: adam`` in one call for all parameters."""
    rate, steps = lr * cosine_share(updates, cosine), [updates.float()] * len(params)
    torch._fused_adam_(
        params, grads, mean, square, [], steps, lr=rate, beta1=betas[0], beta2=betas[1], weight_decay=0.0, eps=eps,
        amsgrad=False, maximize=False,
    )  # fmt: skip


def fits_polyak(slow: Sequence[Tensor], fast: Sequence[Tensor], *_: object) -> bool:
    """Return whether :func:`polyak` can be used."""
    same = all(mine.shape == its.shape for mine, its in zip(slow, fast, strict=True))
    return same and cpu32(*slow, *fast) and _contiguous(*slow, *fast)


def polyak(slow: Sequence[Tensor], fast: Sequence[Tensor], rate: float, count: Tensor | None, every: int) -> None:
    """Compute ``nn/target.py: polyak``; it reads the count itself."""
    calls = 0 if count is None else count.data_ptr()
    for mine, its in zip(slow, fast, strict=True):
        library().polyak(mine.data_ptr(), its.data_ptr(), mine.numel(), rate, calls, every, threads(mine))
    torch.autograd.graph.increment_version(slow)  # autograd does not see what C code writes


def _contiguous(*tensors: Tensor) -> bool:
    return all(x.is_contiguous() for x in tensors)

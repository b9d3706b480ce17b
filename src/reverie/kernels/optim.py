"""Adam and Polyak averaging, in C on CPUs (``adam.c``) and in PyTorch's fused call elsewhere."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from reverie.kernels.call import compute, cpu32, threads
from reverie.nn.adam import AdamSettings, cosine_share
from reverie.nn.optim import Tensors


def _like(*lists: Sequence[Tensor]) -> bool:
    """Return whether tensors of equal places have the same shape."""
    return all(x.shape == first.shape for first, *others in zip(*lists, strict=True) for x in others)


def _plain(*lists: Sequence[Tensor]) -> bool:
    """Return whether C can read and write the tensors of ``lists``, those of equal places together."""
    every = [x for tensors in lists for x in tensors]
    return _like(*lists) and cpu32(*every) and all(x.is_contiguous() for x in every)


def fits(
    params: Tensors, grads: Tensors, mean: Tensors, square: Tensors, updates: Tensor, settings: AdamSettings
) -> bool:
    """Return whether :func:`adam` can be used."""
    return settings.rate is None and _plain(params, grads, mean, square)


@torch.no_grad()
def adam(
    params: Tensors, grads: Tensors, mean: Tensors, square: Tensors, updates: Tensor, settings: AdamSettings
) -> None:
    """Compute ``optim.adam``; it wakes no second thread for small tensors."""
    lr, betas, eps, cosine, _ = settings
    numbers = (ctypes.c_double * 5)(lr, *betas, eps, cosine)
    for p, *others in zip(params, grads, mean, square, strict=True):
        compute("adam", p, *others, p.numel(), numbers, updates, threads(p))
    torch.autograd.graph.increment_version(params)  # autograd does not see what C code writes


def fits_fused(
    params: Tensors, grads: Tensors, mean: Tensors, square: Tensors, updates: Tensor, settings: AdamSettings
) -> bool:
    """Return whether :func:`fused_adam` can be used: it reads numbers in the order of memory, which has no gaps."""
    return _like(params, grads, mean, square) and all(
        _dense(p) and all(x.stride() == p.stride() and x.dtype is p.dtype for x in others)
        for p, *others in zip(params, grads, mean, square, strict=True)
    )


def _dense(x: Tensor) -> bool:
    return 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True)) == x.numel()


@torch.no_grad()
def fused_adam(
    params: Tensors, grads: Tensors, mean: Tensors, square: Tensors, updates: Tensor, settings: AdamSettings
) -> None:
    """Compute ``optim.adam`` in one call for all parameters."""
    lr = settings.lr if settings.rate is None else settings.rate
    (b1, b2), rate = settings.betas, lr * cosine_share(updates, settings.cosine)
    torch._fused_adam_(
        params, grads, mean, square, [], [updates.float()] * len(params), lr=rate, beta1=b1, beta2=b2,
        weight_decay=0.0, eps=settings.eps, amsgrad=False, maximize=False,
    )  # fmt: skip


def fits_polyak(slow: Sequence[Tensor], fast: Sequence[Tensor], *_: object) -> bool:
    """Return whether :func:`polyak` can be used."""
    return _plain(slow, fast)


def polyak(slow: Sequence[Tensor], fast: Sequence[Tensor], rate: float, count: Tensor | None, every: int) -> None:
    """Compute ``target.polyak``; it reads the count itself."""
    for mine, its in zip(slow, fast, strict=True):
        compute("polyak", mine, its, mine.numel(), rate, count, every, threads(mine))
    torch.autograd.graph.increment_version(slow)  # autograd does not see what C code writes

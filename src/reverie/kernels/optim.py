"""Adam and Polyak averaging, in C on CPUs (``adam.c``) and in PyTorch's fused call elsewhere."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from reverie.kernels.ctypes_call import call_compiled, is_cpu_float32, num_threads_for
from reverie.nn.adam import AdamSettings, cosine_share
from reverie.nn.optim import Tensors


def _same_shapes(*lists: Sequence[Tensor]) -> bool:
    """Return whether tensors at the same positions have the same shape."""
    return all(x.shape == first.shape for first, *counterparts in zip(*lists, strict=True) for x in counterparts)


def _is_dense_cpu(*lists: Sequence[Tensor]) -> bool:
    """Return whether C can read and write the tensors of ``lists``, those at the same positions together."""
    every = [x for tensors in lists for x in tensors]
    return _same_shapes(*lists) and is_cpu_float32(*every) and all(x.is_contiguous() for x in every)


def supports_adam(
    params: Tensors, grads: Tensors, mean: Tensors, square: Tensors, updates: Tensor, settings: AdamSettings
) -> bool:
    """Return whether :func:`adam_cpu` can be used."""
    return not isinstance(settings.lr, Tensor) and _is_dense_cpu(params, grads, mean, square)


@torch.no_grad()
def adam_cpu(
    params: Tensors, grads: Tensors, mean: Tensors, square: Tensors, updates: Tensor, settings: AdamSettings
) -> None:
    """Compute ``nn/adam.py: adam``; it wakes no second thread for small tensors."""
    lr, betas, eps, cosine = settings
    numbers = (ctypes.c_double * 5)(float(lr), *betas, eps, cosine)
    for p, *counterparts in zip(params, grads, mean, square, strict=True):
        call_compiled("adam", p, *counterparts, p.numel(), numbers, updates, num_threads_for(p))
    torch.autograd.graph.increment_version(params)  # autograd does not see what C code writes


def supports_fused_adam(
    params: Tensors, grads: Tensors, mean: Tensors, square: Tensors, updates: Tensor, settings: AdamSettings
) -> bool:
    """Return whether :func:`fused_adam` can be used: it reads numbers in the order of memory, which has no gaps.

    PyTorch does not have it on the meta device with a learning rate that is a tensor.
    """
    if isinstance(settings.lr, Tensor) and params[0].is_meta:
        return False
    return have_same_memory(params, grads, mean, square)


def have_same_memory(*lists: Sequence[Tensor]) -> bool:
    """Return whether tensors at the same positions have numbers of one dtype in the same order, without gaps."""
    return _same_shapes(*lists) and all(
        _is_dense(p) and all(x.stride() == p.stride() and x.dtype is p.dtype for x in counterparts)
        for p, *counterparts in zip(*lists, strict=True)
    )


def _is_dense(x: Tensor) -> bool:
    return 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True)) == x.numel()


@torch.no_grad()
def fused_adam(
    params: Tensors, grads: Tensors, mean: Tensors, square: Tensors, updates: Tensor, settings: AdamSettings
) -> None:
    """Compute ``nn/adam.py: adam`` in one call for all parameters."""
    (b1, b2), rate = settings.betas, settings.lr * cosine_share(updates, settings.cosine)
    torch._fused_adam_(
        params, grads, mean, square, [], [updates.float()] * len(params), lr=rate, beta1=b1, beta2=b2,
        weight_decay=0.0, eps=settings.eps, amsgrad=False, maximize=False,
    )  # fmt: skip


def supports_polyak(slow: Sequence[Tensor], fast: Sequence[Tensor], *_: object) -> bool:
    """Return whether :func:`polyak_cpu` can be used."""
    return _is_dense_cpu(slow, fast)


def polyak_cpu(slow: Sequence[Tensor], fast: Sequence[Tensor], rate: float, count: Tensor | None, every: int) -> None:
    """Compute ``nn/target_network.py: polyak_update``; it reads the count itself."""
    for slow_tensor, fast_tensor in zip(slow, fast, strict=True):
        call_compiled(
            "polyak", slow_tensor, fast_tensor, slow_tensor.numel(), rate, count, every, num_threads_for(slow_tensor)
        )
    torch.autograd.graph.increment_version(slow)  # autograd does not see what C code writes

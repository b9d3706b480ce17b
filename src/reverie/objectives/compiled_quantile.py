"""Quantile regression in a few compiled calls (``quantile.c``), for CPUs. ``quantile.py`` defines the functions.

200 quantiles and as many targets make 40,000 pairs. PyTorch's operations go through memory, so ``quantile.py`` sorts
the targets. Compiled loops keep pairs in registers, and going over all of them is faster than sorting.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reverie.core.compiled import call, compiled, first_order, floats, library
from reverie.core.shapes import expect
from reverie.core.types import Batch
from reverie.objectives.compiled_td import Error

PAIRS = 2**17
"""Number of pairs from which several threads are faster than one."""


def fits(quantiles: Tensor, batch: Batch) -> bool:
    """Return whether compiled functions can read these tensors."""
    flags = (batch.is_last, batch.is_terminal)
    fit = compiled(quantiles, batch.reward, batch.action, batch.weight) and quantiles.numel() > 0
    return fit and all(x.dtype is torch.bool for x in flags)


def quantile_huber(prediction: Tensor, target: Tensor, kappa: float = 1.0) -> Tensor:
    """Compute ``quantile.quantile_huber``: ``[..., N]`` and ``[..., N']`` to ``[...]``."""
    loss: Tensor = call(_Pairs, prediction, target.detach(), kappa)
    return loss


class _Pairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, prediction: Tensor, target: Tensor, kappa: float) -> Tensor:
        prediction, target = prediction.contiguous(), target.contiguous()
        n, m = prediction.shape[-1], target.shape[-1]
        expect((*prediction.shape[:-1], m), target=target)
        loss, slope = prediction.new_empty(prediction.shape[:-1]), torch.empty_like(prediction)
        library().quantile_huber(
            prediction.data_ptr(), target.data_ptr(), loss.data_ptr(), slope.data_ptr(), loss.numel(), n, m, kappa,
            _threads(prediction.numel() * m),
        )  # fmt: skip
        if ctx is not None:
            ctx.save_for_backward(slope)
        return loss

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return slope * grad.unsqueeze(-1), None, None


def _threads(pairs: int) -> int:
    return torch.get_num_threads() if pairs >= PAIRS else 1


def best_quantiles(quantiles: Tensor, preferred: Tensor) -> Tensor:
    """Compute ``quantile.best_quantiles``, without gradient: ``[..., A, N]`` twice to ``[..., N]``."""
    expect(quantiles.shape, preferred=preferred)
    quantiles, preferred = quantiles.contiguous(), preferred.contiguous()
    *lead, classes, n = quantiles.shape
    out = quantiles.new_empty(*lead, n)
    library().best_quantiles(quantiles.data_ptr(), preferred.data_ptr(), out.data_ptr(), out.numel() // n, classes, n)
    return out


def means(quantiles: Tensor) -> Tensor:
    """Compute the mean of each distribution, without gradient: ``[..., N]`` to ``[...]``.

    PyTorch would wake its threads for it, which then spin where those of the other compiled functions want to run.
    """
    x = quantiles.contiguous()
    y = floats(x.shape[:-1])
    library().row_means(x.data_ptr(), y.data_ptr(), y.numel(), x.shape[-1])
    return y


def quantile_targets(following: Tensor, batch: Batch, steps: int, discount: float) -> Tensor:
    """Compute ``quantile.quantile_targets``, without gradient: ``[B, T - 1, N]``."""
    following, reward = following.contiguous(), batch.reward.contiguous()
    terminal, last = batch.is_terminal.contiguous(), batch.is_last.contiguous()
    expect(reward.shape, is_terminal=terminal, is_last=last)
    expect((reward.shape[0], reward.shape[1] - 1), following=following[..., 0])
    y = torch.empty_like(following)
    library().quantile_targets(
        following.data_ptr(), reward.data_ptr(), terminal.data_ptr(), last.data_ptr(), y.data_ptr(), *reward.shape,
        y.shape[-1], steps, discount,
    )  # fmt: skip
    return y


def quantile_error(prediction: Tensor, target: Tensor, batch: Batch, kappa: float) -> Error:
    """Compute ``quantile.quantile_error`` of ``[B, T - 1, A, N]`` and ``[B, T - 1, N]``, with gradient."""
    return Error(*call(_Error, prediction, target.detach(), batch, kappa))


def error_and_gradient(prediction: Tensor, target: Tensor, batch: Batch, kappa: float) -> tuple[Error, Tensor]:
    """Compute :func:`quantile_error` and the gradient of its loss by ``prediction``, without autograd."""
    rows = (prediction, batch.action, target.float(), batch.is_last, batch.weight)  # a user's target may be float64
    read = [x.contiguous() for x in rows]
    windows, steps, classes, n = prediction.shape
    expect((windows, steps + 1, classes), action=batch.action)
    expect((windows, steps + 1), is_last=batch.is_last)
    expect((windows, steps, n), target=target)
    expect((windows,), weight=batch.weight)
    gradient, priority = floats(prediction.shape), floats(windows)
    sums, out = floats(3, windows), floats(3)
    library().quantile_error(
        *(x.data_ptr() for x in (*read, gradient, priority, sums, out)), windows, steps, classes, n, kappa,
        _threads(windows * steps * n * n),
    )  # fmt: skip
    loss, predicted, expected = out.unbind()
    return Error(loss, priority, predicted, expected), gradient


class _Error(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, prediction: Tensor, target: Tensor, batch: Batch, kappa: float) -> tuple[Tensor, ...]:
        error, gradient = error_and_gradient(prediction, target, batch, kappa)
        if ctx is not None:
            ctx.save_for_backward(gradient)
            ctx.mark_non_differentiable(*error[1:])
        return tuple(error)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor, *others: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad, None, None, None

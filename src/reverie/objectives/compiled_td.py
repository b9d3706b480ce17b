"""Targets and errors of temporal differences in one compiled call each (``td.c``), as PyTorch's calls cost more."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from reverie.core.compiled import call, compiled, constant, first_order, library
from reverie.core.shapes import expect
from reverie.core.types import Batch


class Error(NamedTuple):
    """The loss of an error, with gradient; priorities and means, without."""

    loss: Tensor  # []
    priority: Tensor  # [B]
    predicted: Tensor  # [], the mean prediction
    target: Tensor  # [], the mean target


def fits(rows: Tensor, *flags: Tensor) -> bool:
    """Return whether compiled functions can read these rows ``[B, T]`` and flags."""
    return compiled(rows) and all(x.dtype is torch.bool and x.device.type == "cpu" for x in flags)


def fits_error(prediction: Tensor, target: Tensor, batch: Batch) -> bool:
    """Return whether :func:`td_error` can read these tensors; its loss has the gradient of the prediction alone."""
    fit = fits(prediction, batch.is_last) and compiled(target, batch.weight)
    return fit and constant(target, batch.weight) and target.numel() > 0


def check_rows(target: Tensor, last: Tensor, weight: Tensor) -> None:
    """Raise ValueError unless the shapes are ``[B, T - 1]``, ``[B, T]`` and ``[B]``."""
    windows, steps = target.shape
    expect((windows, steps + 1), is_last=last)
    expect((windows,), weight=weight)


def td0(reward: Tensor, terminal: Tensor, last: Tensor, value: Tensor, discount: float) -> Tensor:
    """Compute ``returns.td0``, without gradient."""
    reward, terminal, last, value = (x.contiguous() for x in (reward, terminal, last, value))
    windows, rows = reward.shape
    target = reward.new_empty(windows, rows - 1)
    library().td0(
        reward.data_ptr(), terminal.data_ptr(), last.data_ptr(), value.data_ptr(), target.data_ptr(), windows, rows,
        discount,
    )  # fmt: skip
    return target


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Compute ``td.mean_over``, with gradient."""
    mean: Tensor = call(_MaskedMean, x, mask)
    return mean


def mean_and_shares(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``td.mean_over`` and its gradient by ``x``, without autograd."""
    expect(x.shape, mask=mask)
    x, mask = x.contiguous(), mask.contiguous()
    share, mean = torch.empty_like(x), x.new_empty(())
    library().masked_mean(x.data_ptr(), mask.data_ptr(), share.data_ptr(), mean.data_ptr(), x.numel())
    return mean, share


class _MaskedMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        mean, share = mean_and_shares(x, mask)
        if ctx is not None:
            ctx.save_for_backward(share)
        return mean

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (share,) = ctx.saved_tensors
        return share * grad, None


def td_error(
    prediction: Tensor, target: Tensor, last: Tensor, weight: Tensor, scale: float = 1.0, kappa: float = -1.0
) -> Error:
    """Compute ``td.huber_error`` or, with a negative ``kappa``, ``td.squared_error``; the loss has its gradient.

    ``prediction`` is ``[(K,) B, T - 1]``, ``target`` ``[B, T - 1]``, ``last`` ``[B, T]`` and ``weight`` ``[B]``.
    """
    return Error(*call(_Error, prediction, target, last, weight, scale, kappa))


def error_and_gradient(
    prediction: Tensor, target: Tensor, last: Tensor, weight: Tensor, scale: float = 1.0, kappa: float = -1.0
) -> tuple[Error, Tensor]:
    """Compute :func:`td_error` and the gradient of its loss by ``prediction``, without autograd."""
    prediction, target = prediction.contiguous(), target.float().contiguous()  # a user's target may be float64
    last, weight = last.contiguous(), weight.contiguous()
    windows, rows = last.shape
    check_rows(target, last, weight)
    expect(target.shape, prediction=prediction[0] if prediction.ndim > target.ndim else prediction)
    gradient, priority = torch.empty_like(prediction), torch.empty_like(weight)
    out = weight.new_empty(3)
    library().td_error(
        prediction.data_ptr(), target.data_ptr(), last.data_ptr(), weight.data_ptr(), gradient.data_ptr(),
        priority.data_ptr(), out.data_ptr(), prediction.numel() // target.numel(), windows, rows, scale,
        kappa,
    )  # fmt: skip
    loss, predicted, expected = out.unbind()
    return Error(loss, priority, predicted, expected), gradient


class _Error(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, prediction: Tensor, target: Tensor, last: Tensor, weight: Tensor, scale: float, kappa: float
    ) -> tuple[Tensor, ...]:
        error, gradient = error_and_gradient(prediction, target, last, weight, scale, kappa)
        if ctx is not None:
            ctx.save_for_backward(gradient)
            ctx.mark_non_differentiable(*error[1:])
        return tuple(error)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor, *others: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad, None, None, None, None, None

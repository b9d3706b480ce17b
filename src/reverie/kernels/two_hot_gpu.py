"""Two-hot encoded numbers on a GPU: the mean, and the loss with its gradient, are a kernel each.

In PyTorch they are some twenty operations, several of which pass over the logits of all bins.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from reverie.kernels import gpu
from reverie.kernels.ctypes_call import call, has_no_grad, once_differentiable_strict
from reverie.nn.number_distributions import TwoHot


def supports_mean(head: TwoHot) -> bool:
    """Return whether :func:`two_hot_mean_triton` can be used; it has no gradient."""
    return has_no_grad(head.logits) and gpu.can_use_triton(head.logits, head.bins, family="two-hot")


def two_hot_mean_triton(head: TwoHot) -> Tensor:
    """Compute ``TwoHot.mean``."""
    flat = head.logits.detach().reshape(-1, len(head.bins)).contiguous()
    mean, tile = torch.empty(len(flat), dtype=torch.float32, device=flat.device), gpu._tile(*flat.shape)
    grid = (gpu._count(len(flat), tile["ROWS"]),)
    gpu._launch("two_hot_mean_kernel", grid, flat, head.bins, mean, *flat.shape, **tile)
    return mean.view(head.logits.shape[:-1])


def supports_loss(head: TwoHot, value: Tensor, second: Tensor | None = None, counts: float = 1.0) -> bool:
    """Return whether :func:`two_hot_loss_triton` can be used; the numbers have no gradient."""
    values = (value,) if second is None else (value, second)
    fit = has_no_grad(*values) and all(x.shape == head.logits.shape[:-1] for x in values)
    return fit and gpu.can_use_triton(head.logits, head.bins, *values, family="two-hot")


def two_hot_loss_triton(head: TwoHot, value: Tensor, second: Tensor | None = None, counts: float = 1.0) -> Tensor:
    """Compute ``TwoHot.loss``."""
    numbers = [None if x is None else x.float().reshape(-1).contiguous() for x in (value, second)]  # without gaps
    flat = head.logits.reshape(-1, len(head.bins)).contiguous()
    return cast(Tensor, call(_Loss, flat, head.bins, *numbers, counts)).view(value.shape)


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, bins: Tensor, value: Tensor, second: Tensor | None, counts: float) -> Tensor:
        loss, tile = torch.empty_like(value), gpu._tile(*logits.shape)
        grid, constants = (gpu._count(len(logits), tile["ROWS"]),), {**tile, "SECOND": second is not None}
        gpu._launch("two_hot_kernel", grid, logits, bins, value, second, loss, *logits.shape, counts, **constants)
        if ctx is not None:
            ctx.save_for_backward(logits, bins, value, second)
            ctx.counts, ctx.grid, ctx.constants = counts, grid, constants
        return loss

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, bins, value, second = ctx.saved_tensors
        dlogits = torch.empty_like(logits)
        gpu._launch("two_hot_backward_kernel", ctx.grid, logits, bins, value, second, grad.contiguous(), dlogits,
                    *logits.shape, ctx.counts, **ctx.constants)  # fmt: skip
        return dlogits, None, None, None, None


def _compare_two_hot(numbers: gpu.Numbers) -> gpu.Compared:
    """Return the results of every kernel here and PyTorch's, for ``gpu.check_triton_kernels``."""
    bins, logits = torch.arange(-3, 4, device=numbers(1).device).float(), numbers(5, 7).requires_grad_()
    values, grad = (2 * numbers(5), 4 * numbers(5)), numbers(5)
    kernels, both = (two_hot_mean_triton, two_hot_loss_triton), list[list[Tensor]]()
    definitions: Any = TwoHot.mean, TwoHot.loss
    for mean, loss in (kernels, [x.definition for x in definitions]):
        y = loss(TwoHot(logits, bins), *values, 0.5)
        both.append([mean(TwoHot(logits.detach(), bins)), y, *torch.autograd.grad(y, logits, grad)])
    return list(zip(("two_hot_mean", "two_hot", "two_hot_backward"), *both, strict=True))


gpu.COMPARISONS["two-hot"] = _compare_two_hot

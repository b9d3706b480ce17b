"""Linear layers that are applied at every step of a sequence, with one weight gradient for all steps.

Autograd would add up a gradient of the size of the weights at every step. Here the backward pass of a step only records
its input and the gradient of its output; one product over all steps gives the gradient of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from reverie.kernels.call import first_order
from reverie.kernels.matmul import block_gradient, weight_gradient
from reverie.nn.functional import StepLinear, product


def _running() -> int | None:
    """Return PyTorch's number of the backward pass that runs now, -1 outside of one; None if PyTorch does not tell."""
    number: Callable[[], int] | None = getattr(torch._C, "_current_graph_task_id", None)
    return None if number is None else number()


def fits(weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether :class:`Deferred` can be used."""
    return torch.is_grad_enabled() and weight.requires_grad and _running() is not None


class _Notes:
    """Input ``[M, ...]`` and gradient of the output ``[M, ...]`` of each step whose backward pass is done.

    They are of one backward pass; one that does not ask for the weights' gradient leaves them, and the next drops them.
    """

    def __init__(self) -> None:
        self.kept: list[tuple[Tensor, Tensor]] = []
        self.of: int | None = -1  # PyTorch's number of the backward pass

    def add(self, x: Tensor, grad: Tensor) -> None:
        running = _running()
        if running != self.of:
            self.of, self.kept = running, []
        self.kept.append((x.detach(), grad))  # x itself would keep the graph alive, which holds these notes

    def take(self) -> tuple[Tensor, Tensor]:
        x, grad = (torch.cat(side) for side in zip(*self.kept, strict=True))
        self.kept = []
        return x, grad


class _Weights(torch.autograd.Function):
    """Forward the weights and bias, for all steps; backward the product over all steps."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, notes: _Notes) -> tuple[Tensor, Tensor | None]:
        ctx.notes, ctx.blocks, ctx.has_bias = notes, weight.shape[0] if weight.ndim == 3 else 0, bias is not None
        ctx.set_materialize_grads(False)  # the steps return no gradient for the weights
        return weight.view_as(weight), None if bias is None else bias.view_as(bias)

    @staticmethod
    @first_order
    def backward(ctx: Any, *_: None) -> tuple[Tensor | None, ...]:
        x, grad = ctx.notes.take()  # [T * M, inputs], [T * M, outputs]
        bias = grad.sum(0) if ctx.has_bias else None
        return block_gradient(x, grad, ctx.blocks) if ctx.blocks else weight_gradient(x, grad), bias, None


class _Step(torch.autograd.Function):
    """The product of one step, which records its input and gradient instead of computing the weights' gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, base: Tensor | None, notes: _Notes) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.notes, ctx.base_ndim = notes, 0 if base is None else base.ndim
        return product(x, weight, base)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        ctx.notes.add(x, grad)
        base = grad if ctx.base_ndim == 2 else None  # the gradient of a bias is computed with that of the weights
        return product(grad, weight.mT, None) if ctx.needs_input_grad[0] else None, None, base, None


class Deferred(StepLinear):
    """See the module's docstring; one object for each sequence."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.notes: _Notes = _Notes()
        super().__init__(*_Weights.apply(weight, bias, self.notes))  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def __call__(self, x: Tensor, base: Tensor | None = None) -> Tensor:
        """See :class:`StepLinear`."""
        base = self.bias if base is None else base
        out: Tensor = _Step.apply(x, self.weight, base, self.notes)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return out

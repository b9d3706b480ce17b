"""Linear layers that are applied at every step of a sequence, with one weight gradient for all steps.

Autograd would compute a gradient of the size of the weights at every step and add them up; for a batch of 16 rows that
moves more memory than the products themselves. Here the backward pass of each step only records its input and the
gradient of its output. After all steps, one product over them gives the gradient of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from reverie.core.compiled import first_order
from reverie.nn.matmul import block_linear, linear, weight_gradient


def _running() -> int | None:
    """Return PyTorch's number of the backward pass that runs now, -1 outside of one; None if PyTorch does not tell.

    There is no public function for it: ``ctx.needs_input_grad`` does not say what a pass asks for, and PyTorch's own
    ``register_multi_grad_hook`` calls this one.
    """
    number: Callable[[], int] | None = getattr(torch._C, "_current_graph_task_id", None)
    return None if number is None else number()


class _Notes:
    """Input ``[M, ...]`` and gradient of the output ``[M, ...]`` of each step whose backward pass is done.

    They are of one backward pass through the sequence. One that does not ask for the weights' gradient, such as that of
    ``torch.autograd.grad`` for the inputs only, never comes to the weights: the next one drops what it noted.
    """

    def __init__(self) -> None:
        self.kept: list[tuple[Tensor, Tensor]] = []
        self.of: int | None = -1  # PyTorch's number of the backward pass

    def add(self, x: Tensor, grad: Tensor) -> None:
        """Note one step of the backward pass that runs now."""
        running = _running()
        if running != self.of:
            self.of, self.kept = running, []
        self.kept.append((x.detach(), grad))  # x itself would keep the graph alive, which holds these notes

    def take(self) -> tuple[Tensor, Tensor]:
        """Return the inputs and gradients of all T steps, ``[T * M, ...]``, and forget them."""
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
        if not ctx.blocks:
            return weight_gradient(x, grad), bias, None
        parts = zip(x.chunk(ctx.blocks, 1), grad.chunk(ctx.blocks, 1), strict=True)
        return torch.stack([weight_gradient(i.contiguous(), g.contiguous()) for i, g in parts]), bias, None


class _Step(torch.autograd.Function):
    """The product of one step, which records its input and gradient instead of computing the weights' gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, base: Tensor | None, notes: _Notes) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.notes, ctx.base_ndim = notes, 0 if base is None else base.ndim
        return _multiply(x, weight, base)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        ctx.notes.add(x, grad)
        base = grad if ctx.base_ndim == 2 else None  # the gradient of a bias is computed with that of the weights
        return _multiply(grad, weight.mT, None) if ctx.needs_input_grad[0] else None, None, base, None


def _multiply(x: Tensor, weight: Tensor, base: Tensor | None) -> Tensor:
    if weight.ndim == 3:
        return block_linear(x, weight, base)
    return torch.addmm(base, x, weight.T) if base is not None and base.ndim == 2 else linear(x, weight, base)


class StepLinear:
    """``x W^T + b`` at the steps of a sequence; create one object for each sequence.

    W is ``[outputs, inputs]`` or, if block-diagonal, ``[blocks, outputs / blocks, inputs / blocks]``. With a PyTorch
    that does not number its backward passes, autograd computes the weights' gradient at every step, which is slower.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.notes: _Notes | None = None
        self.weight, self.bias = weight, bias
        if torch.is_grad_enabled() and weight.requires_grad and _running() is not None:
            self.notes = _Notes()
            self.weight, self.bias = _Weights.apply(weight, bias, self.notes)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def __call__(self, x: Tensor, base: Tensor | None = None) -> Tensor:
        """Return ``[M, outputs]``. ``base`` ``[M, outputs]`` replaces the bias; give it only if there is no bias."""
        assert base is None or self.bias is None, "a bias and a base"
        base = self.bias if base is None else base
        if self.notes is None:
            return _multiply(x, self.weight, base)
        out: Tensor = _Step.apply(x, self.weight, base, self.notes)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return out

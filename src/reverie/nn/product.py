"""Matrix products on CPUs.

PyTorch hands float32 products to MKL, which reaches less than half of an AMD processor's speed; oneDNN, which PyTorch
carries for other purposes, does not have that problem (``benchmarks/product.py`` measures both). It is called through
an operator that is PyTorch's own and not public, so everything here falls back to ``F.linear`` where it is missing.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_ROWS = 128
"""Below, the products are too small for oneDNN's set-up to pay."""


def _operator() -> Any:
    """The operator for ``x @ weight.T + bias`` in oneDNN if this build has it and it computes that, else None."""
    try:
        product = torch.ops.mkldnn._linear_pointwise
        x, weight = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3)
        right = torch.equal(product(x, weight, None, "none", [], ""), x @ weight.T)
    except (AttributeError, RuntimeError, TypeError):
        return None
    return product if right else None


_product = _operator()


class _OneDNNLinear(torch.autograd.Function):
    """y = x W^T + b, with dx = g W, dW = g^T x and db = sum g through the same operator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        out: Tensor = _product(x, weight, bias, "none", [], "")
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        grad = grad.contiguous()
        return (
            _product(grad, weight.T, None, "none", [], "") if needs_x else None,
            _product(grad.T, x.T, None, "none", [], "") if needs_weight else None,
            grad.sum(0) if needs_bias else None,
        )


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute x W^T + b: ``[..., inputs]``, ``[outputs, inputs]`` and ``[outputs]`` to ``[..., outputs]``.

    In the dtype of x.
    """
    weight, bias = weight.to(x.dtype), bias.to(x.dtype)
    rows = x.numel() // x.shape[-1]
    if _product is None or x.is_cuda or x.dtype != torch.float32 or rows < MIN_ROWS or torch.compiler.is_compiling():
        return F.linear(x, weight, bias)
    # Rows with gaps between them, as in a part of a larger matrix, would take a path a thousand times as slow.
    y: Tensor = _OneDNNLinear.apply(x.reshape(rows, -1).contiguous(), weight.contiguous(), bias)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], -1)

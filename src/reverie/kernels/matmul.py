"""Matrix products on CPUs, by matrix units (AMX) or by oneDNN.

PyTorch computes float32 products by MKL, which on AMD processors reaches less than half of their speed. oneDNN is
called through a private operator of PyTorch; where that is missing, PyTorch computes. Processors with matrix units
compute the same, with the same precision, 1.6 times as fast as both (``products.c``). Of K layers, the same C code
computes each product in place, on all processors.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.kernels.ctypes_call import SHARED, call, call_compiled, has_amx, is_cpu_float32, once_differentiable_strict

MIN_ROWS = 128
"""Smallest number of rows for which oneDNN is used: below, its set-up takes too long."""

MAX_NARROW_INPUTS = 256
"""Largest number of inputs for which a weight gradient is computed as the gradient of a convolution."""

MIN_SIDE, WIDE = 64, 96
"""Smallest sides of a product, and numbers of a layer's inputs and outputs, for which matrix units are used."""


def _operator() -> Any:
    """Return oneDNN's operator for ``x @ weight.T + bias``, or None if it is missing or computes something else."""
    try:
        operator = torch.ops.mkldnn._linear_pointwise
        numbers = torch.arange(12.0, dtype=torch.float32, device="cpu")
        x, weight = numbers[:6].view(2, 3), numbers.view(4, 3)
        right = torch.equal(operator(x, weight, None, "none", [], ""), x @ weight.T)
    except (AttributeError, RuntimeError, TypeError):
        return None
    return operator if right else None


_product = _operator()


def _tiles(*sides: int, min_side: int = MIN_SIDE) -> bool:
    """Return whether matrix units are available, and faster for products of these sides."""
    return min(sides) >= min_side and max(sides) >= MIN_ROWS and is_cpu_float32() and has_amx()


def product_cpu(a: Tensor, b: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Return a b + bias ``[M, N]`` of a ``[M, K]``, b ``[K, N]`` and bias ``[N]``, float32 on the CPU, in ``out``."""
    bias = None if bias is None else bias.contiguous()  # C would read a bias with gaps as if it had none
    if not _tiles(*a.shape, b.shape[1]):
        y: Tensor = F.linear(a, b.T, bias) if _product is None else _product(a, b.T, bias, "none", [], "")
        return y if out is None else out.copy_(y)
    a, b = (x if 1 in x.stride() else x.contiguous() for x in (a, b))
    out = a.new_empty(len(a), b.shape[1]) if out is None else out
    _multiply(a, b, out, bias)
    return out


def needed_input_grads(ctx: Any) -> list[bool]:
    """Return which input gradients the current backward pass needs.

    ``ctx.needs_input_grad`` knows only which inputs can have one: an actor's loss that passes through other networks
    would compute their weights' gradients in vain. PyTorch's ``register_multi_grad_hook`` calls the same private
    function, which refuses ``torch.autograd.grad``.
    """
    runs: Any = getattr(torch._C, "_will_engine_execute_node", None)
    try:
        return [node is not None and (runs is None or runs(node)) for node, _ in ctx.next_functions]
    except RuntimeError:
        return list(ctx.needs_input_grad)


def _is_faster(x: Tensor, rows: int) -> bool:
    """Return whether oneDNN can be used for ``x`` and is faster."""
    is_available = _product is not None and x.device.type == "cpu" and not torch.compiler.is_compiling()
    return is_available and x.dtype is torch.float32 and rows >= MIN_ROWS


# ---------------------------------------------------------------------- linear layers


def supports_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Return whether :func:`linear_cpu` can be used, and is faster."""
    width = x.shape[-1]
    return weight.shape[1] == width and weight.dtype is torch.float32 and _is_faster(x, x.numel() // width)


def linear_cpu(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``functional.linear``."""
    y: Tensor = _FastLinear.apply(x.reshape(-1, x.shape[-1]), weight, bias)  # type: ignore[no-untyped-call]  # untyped
    return y.view(*x.shape[:-1], -1)


class _FastLinear(torch.autograd.Function):
    """y = x W^T + b, with dx = g W and dW = g^T x in the same way, and db = sum of g over rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        if _tiles(*x.shape, len(weight), min_side=WIDE):
            return product_cpu(x, weight.T, bias)
        # Weights with gaps would be a thousand times as slow, a bias with gaps would be read as if it had none.
        out: Tensor = _product(x, weight.contiguous(), None if bias is None else bias.contiguous(), "none", [], "")
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, *needs_bias = needed_input_grads(ctx)  # no third one without a bias
        grad, x = grad.contiguous(), x.contiguous()  # used as the operator's weights, without gaps: see forward()
        return (
            _input_gradient(grad, weight) if needs_x else None,
            weight_gradient(x, grad) if needs_weight else None,
            grad.sum(0) if any(needs_bias) else None,
        )


def _input_gradient(grad: Tensor, weight: Tensor) -> Tensor:
    """Return g W ``[M, inputs]``."""
    if _tiles(*grad.shape, weight.shape[1], min_side=WIDE):
        return product_cpu(grad, weight)
    out: Tensor = _product(grad, weight.contiguous().T, None, "none", [], "")
    return out


def weight_gradient(x: Tensor, grad: Tensor) -> Tensor:
    """Return g^T x ``[outputs, inputs]`` of x ``[M, inputs]`` and g ``[M, outputs]``, both contiguous."""
    (rows, inputs), outputs = x.shape, grad.shape[1]
    if not _is_faster(x, rows):
        return grad.T @ x
    if _tiles(rows, inputs, outputs, min_side=WIDE):
        return product_cpu(grad.T, x)
    if inputs > MAX_NARROW_INPUTS:
        out: Tensor = _product(grad.T, x.T, None, "none", [], "")
        return out
    # Transposing a long, narrow matrix takes longer than multiplying it. Convolutions of 1 x 1 need no transposing.
    weight = grad.new_empty(outputs, inputs, 1, 1)
    _, out, _ = torch.ops.aten.convolution_backward(
        _line(grad), _line(x), weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False]
    )
    return out.view(outputs, inputs)


def block_gradient(x: Tensor, grad: Tensor, blocks: int) -> Tensor:
    """Return the gradient of block-diagonal weights, ``[K, outputs / K, inputs / K]``."""
    parts = zip(x.chunk(blocks, 1), grad.chunk(blocks, 1), strict=True)
    return torch.stack([weight_gradient(i.contiguous(), g.contiguous()) for i, g in parts])


def _line(x: Tensor) -> Tensor:
    """View ``[M, C]`` as an image of one line, ``[1, C, 1, M]``, the channels last in memory."""
    return x.view(1, 1, *x.shape).permute(0, 3, 1, 2)


# ---------------------------------------------------------------------- K linear layers

MIN_OUTPUTS = 16
"""Smallest number of outputs of a layer for which panels of columns are not mostly empty."""


def supports_copied_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Return whether :func:`copied_linear_cpu` can be used, and is faster."""
    fits = weight.ndim == 3 and x.shape == (len(weight), x.shape[1], weight.shape[1]) and x.numel() > 0
    fits = fits and (bias is None or bias.shape == (len(weight), 1, weight.shape[2]))
    return fits and weight.shape[2] >= MIN_OUTPUTS and is_cpu_float32(x, weight, *([] if bias is None else [bias]))


def copied_linear_cpu(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``functional.copied_linear``."""
    y: Tensor = call(_CopiedLinear, x, weight, bias)
    return y


class _CopiedLinear(torch.autograd.Function):
    """y = x W + b, with dx = g W^T, dW = x^T g and db = sum of g over rows, of each copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x, weight = x.contiguous() if x.stride(2) != 1 else x, weight.contiguous()
        y = x.new_empty(*x.shape[:2], weight.shape[2])
        for k, out in enumerate(y):
            _multiply(x[k], weight[k], out, None if bias is None else bias[k, 0].contiguous())
        if ctx is not None:
            ctx.save_for_backward(x, weight)
        return y

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), grad = ctx.saved_tensors, grad.contiguous()
        needs_x, needs_weight, *needs_bias = needed_input_grads(ctx)  # no third one without a bias
        dx = grad.new_empty(x.shape) if needs_x else None
        dweight = torch.empty_like(weight) if needs_weight else None
        for k, g in enumerate(grad):
            if dx is not None:
                _multiply(g, weight[k].T, dx[k])
            if dweight is not None:
                _multiply(x[k].T, g, dweight[k])
        return dx, dweight, grad.sum(1, keepdim=True) if any(needs_bias) else None


def _multiply(a: Tensor, b: Tensor, out: Tensor, bias: Tensor | None = None) -> None:
    """Write a b + bias to ``out`` ``[M, N]``, which has no gaps; one stride of a and of b is 1."""
    threads = torch.get_num_threads() if len(a) * b.numel() >= SHARED else 1
    call_compiled("product", a, *a.stride(), b, *b.stride(), bias, out, *out.shape, len(b), threads)

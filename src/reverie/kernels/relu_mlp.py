"""MLPs with ReLU or tanh in C (``perceptron.c``, ``perceptron_backward.c``): all layers of K copies in one call.

Each layer is a product of a few microseconds, so half of the time would go to PyTorch's calls between layers.

* :func:`perceptron_forward_cpu` returns the output and keeps the hidden layers' values in :class:`Activations`.
* :func:`perceptron_backward_cpu` applies the chain rule from the last layer to the first. With x the input of a layer,
  W its weights and g the gradient of its output, dW = x^T g, db = sum of g over rows, and dx = g W^T, set to 0 where
  ReLU gave 0, or times 1 - x^2 where x is tanh's output.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from reverie.kernels.ctypes_call import SHARED, call, call_compiled, has_amx, is_cpu_float32, once_differentiable_strict
from reverie.nn.relu_mlp import MLPLayout, concat_inputs

TILED = 64
"""Smallest number of rows for which matrix units (AMX) are used: below, converting the weights takes too long."""


class _Network(ctypes.Structure):
    """The C struct ``Network`` of ``perceptron.h``."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("copies", "layers", "stride", "squash", "tanh")),
        *((name, ctypes.c_void_p) for name in ("widths", "parameters")),
    )


class Activations(NamedTuple):
    """The values of a forward pass that the backward pass needs."""

    x: Tensor  # [M, inputs]
    hidden: Tensor  # [K, M, width] of each hidden layer, one after the other, flat
    y: Tensor  # [K, M, outputs]


def supports_perceptron(theta: Tensor, layout: MLPLayout, *parts: Tensor) -> bool:
    """Return whether :func:`perceptron_cpu` can be used."""
    is_dense = theta.shape == (layout.copies, layout.stride) and theta.is_contiguous()
    return is_dense and layout.activation != "gelu" and is_cpu_float32(theta, *parts) and parts[-1].numel() > 0


def perceptron_cpu(theta: Tensor, layout: MLPLayout, *parts: Tensor) -> Tensor:
    """Compute ``nn/relu_mlp.py: perceptron``."""
    return cast(Tensor, call(_Perceptron, theta, layout, *parts))


def perceptron_forward_cpu(theta: Tensor, layout: MLPLayout, *parts: Tensor, keep: bool = True) -> Activations:
    """Compute the forward pass, without autograd. Without ``keep``, :func:`perceptron_backward_cpu` is not possible."""
    layout.check(parts)  # C would read other memory
    last = parts[-1].contiguous()  # [M, I]
    rows = last.shape[0]
    threads, tiled = _threads(layout, rows), _uses_amx(layout, rows)
    shares = not tiled and len(parts) == 2 and len(parts[0]) < rows
    x = last.new_empty(0) if shares and not keep else concat_inputs(*parts)  # [M, inputs]
    hidden = x.new_empty(rows * layout.hidden if keep or not tiled else 0)
    y = x.new_empty(layout.copies, rows, layout.widths[-1])
    arguments = hidden if len(hidden) else None, y, rows, threads
    if tiled:
        call_compiled("perceptron_tiles", _network(layout, theta), x, *arguments)
    elif shares:
        shared = parts[0].contiguous()  # [M / n, I]
        call_compiled(
            "perceptron", _network(layout, theta), last, shared, shared.shape[1], rows // len(shared), *arguments
        )
    else:
        call_compiled("perceptron", _network(layout, theta), x, 0, 0, 1, *arguments)
    return Activations(x, hidden, y)


def perceptron_backward_cpu(
    theta: Tensor, layout: MLPLayout, saved: Activations, grad: Tensor, *, inputs: int = 0, parameters: bool = True
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of x ``[M, inputs]`` and theta ``[K, P]``, given the output's ``[K, M, outputs]``.

    ``inputs`` is the number of last inputs whose gradient is computed, ``parameters`` whether to compute that of theta.
    What is not computed is None.
    """
    x, hidden, y = saved
    grad = torch.ops.aten.tanh_backward(grad.contiguous(), y) if layout.squash else grad.contiguous()
    dtheta = torch.empty_like(theta) if parameters else None
    rows, threads = x.shape[0], _threads(layout, x.shape[0])
    if _uses_amx(layout, rows):
        dx = torch.empty_like(x) if inputs else None
        call_compiled("perceptron_tiles_backward", _network(layout, theta), x, hidden, grad, dx, dtheta, rows, threads)
        return None if dx is None else dx[:, x.shape[1] - inputs :], dtheta
    dx = x.new_empty(rows, inputs) if inputs else None
    skip = x.shape[1] - inputs
    call_compiled("perceptron_backward", _network(layout, theta), x, hidden, grad, dx, dtheta, rows, skip, threads)
    return dx, dtheta


class _Perceptron(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, theta: Tensor, layout: MLPLayout, *parts: Tensor) -> Tensor:
        activations = perceptron_forward_cpu(theta, layout, *parts, keep=ctx is not None)
        if ctx is not None:
            ctx.save_for_backward(theta, *activations)
            ctx.layout, ctx.shapes = layout, [part.shape for part in parts]
        return activations.y

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        theta, *saved = ctx.saved_tensors
        _, _, *needs_grad = ctx.needs_input_grad
        first = needs_grad.index(True) if any(needs_grad) else len(needs_grad)
        shapes, widths = ctx.shapes[first:], [width for _, width in ctx.shapes[first:]]
        needed = {"inputs": sum(widths), "parameters": ctx.needs_input_grad[0]}
        dx, dtheta = perceptron_backward_cpu(theta, ctx.layout, Activations(*saved), grad, **needed)
        gradients = [] if dx is None else zip(torch.split(dx, widths, 1), shapes, strict=True)
        parts = [g if g.shape == s else g.reshape(s[0], -1, s[1]).sum(1) for g, s in gradients]
        return dtheta, None, *[None] * first, *parts


def _network(layout: MLPLayout, parameters: Tensor) -> Any:
    """Return a pointer to the C struct ``Network``; ``parameters`` must outlive it."""
    widths = _widths(layout.widths)
    sizes = layout.copies, len(widths) - 1, layout.stride, layout.squash, layout.activation == "tanh"
    return ctypes.byref(_Network(*sizes, ctypes.addressof(widths), parameters.data_ptr()))


@functools.cache  # recorded calls contain the address
def _widths(widths: tuple[int, ...]) -> Any:
    return (ctypes.c_int64 * len(widths))(*widths)


def _threads(layout: MLPLayout, rows: int) -> int:
    """Return the number of threads for this many rows; for 256 rows and two layers of 64 units, one is faster."""
    return torch.get_num_threads() if rows * layout.copies * layout.multiplications >= 4 * SHARED else 1


def _uses_amx(layout: MLPLayout, rows: int) -> bool:
    """Return whether to use matrix units for this many rows."""
    return rows >= TILED and len(layout.widths) <= 32 and layout.activation == "relu" and has_amx()

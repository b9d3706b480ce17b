"""MLPs with ReLU or tanh in C (``perceptron.c``, ``perceptron_backward.c``): all layers of K copies in one call.

Each layer is a product of a few microseconds, so half of the time would go to PyTorch's calls between layers.

* :func:`_perceptron_forward_cpu` returns the output and keeps the hidden layers' values in :class:`Activations`.
* :func:`_perceptron_backward_cpu` applies the chain rule from the last layer to the first. With x the input of a layer,
  W its weights and g the gradient of its output, dW = x^T g, db = sum of g over rows, and dx = g W^T, set to 0 where
  ReLU gave 0, or times 1 - x^2 where x is tanh's output.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from reverie.kernels.ctypes_call import SHARED, call, call_compiled, is_cpu_float32, once_differentiable_strict
from reverie.nn.relu_mlp import NORM_EPS, Dropout, MLPLayout, concat_inputs

NORM_STRIP = 32
"""Rows of which a thread sums the gradients of scales and shifts: STRIP in ``hidden.c``."""


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


def _perceptron_forward_cpu(theta: Tensor, layout: MLPLayout, *parts: Tensor, keep: bool = True) -> Activations:
    """Compute the forward pass without autograd. Without ``keep``, :func:`_perceptron_backward_cpu` is impossible."""
    layout.check(parts)  # C would read other memory
    last = parts[-1].contiguous()  # [M, I]
    rows = last.shape[0]
    threads, shares = _threads(layout, rows), len(parts) == 2 and len(parts[0]) < rows
    x = last.new_empty(0) if shares and not keep else concat_inputs(*parts)  # [M, inputs]
    hidden = x.new_empty(rows * layout.hidden)
    y = x.new_empty(layout.copies, rows, layout.widths[-1])
    arguments = hidden if len(hidden) else None, y, rows, threads
    if shares:
        shared = parts[0].contiguous()  # [M / n, I]
        call_compiled(
            "perceptron", _network(layout, theta), last, shared, shared.shape[1], rows // len(shared), *arguments
        )
    else:
        call_compiled("perceptron", _network(layout, theta), x, 0, 0, 1, *arguments)
    return Activations(x, hidden, y)


def _perceptron_backward_cpu(
    theta: Tensor, layout: MLPLayout, saved: Activations, grad: Tensor, *, inputs: int = 0, parameters: bool = True
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of x ``[M, inputs]`` and theta ``[K, P]``, given the output's ``[K, M, outputs]``.

    ``inputs`` is the number of last inputs whose gradient is computed, ``parameters`` whether to compute theta's.
    What is not computed is None.
    """
    x, hidden, y = saved
    grad = torch.ops.aten.tanh_backward(grad.contiguous(), y) if layout.squash else grad.contiguous()
    dtheta = torch.empty_like(theta) if parameters else None
    rows, threads = x.shape[0], _threads(layout, x.shape[0])
    dx = x.new_empty(rows, inputs) if inputs else None
    skip = x.shape[1] - inputs
    call_compiled("perceptron_backward", _network(layout, theta), x, hidden, grad, dx, dtheta, rows, skip, threads)
    return dx, dtheta


class _Perceptron(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, theta: Tensor, layout: MLPLayout, *parts: Tensor) -> Tensor:
        activations = _perceptron_forward_cpu(theta, layout, *parts, keep=ctx is not None)
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
        dx, dtheta = _perceptron_backward_cpu(theta, ctx.layout, Activations(*saved), grad, **needed)
        gradients = [] if dx is None else zip(torch.split(dx, widths, 1), shapes, strict=True)
        parts = [g if g.shape == s else g.reshape(s[0], -1, s[1]).sum(1) for g, s in gradients]
        return dtheta, None, *[None] * first, *parts


def _network(layout: MLPLayout, parameters: Tensor) -> Any:
    """Return a pointer to the C struct ``Network``; ``parameters`` must outlive it."""
    widths = _widths(layout.widths)
    sizes = layout.copies, len(widths) - 1, parameters.shape[-1], layout.squash, layout.activation == "tanh"
    return ctypes.byref(_Network(*sizes, ctypes.addressof(widths), parameters.data_ptr()))


@functools.cache  # recorded calls contain the address
def _widths(widths: tuple[int, ...]) -> Any:
    return (ctypes.c_int64 * len(widths))(*widths)


def _threads(layout: MLPLayout, rows: int) -> int:
    """Return the number of threads for this many rows: 1 for small products (256 rows, two layers of 64)."""
    return torch.get_num_threads() if rows * layout.copies * layout.multiplications >= 4 * SHARED else 1


# ---------------------------------------------------------------------- layer by layer, with layer norms or GELU


def supports_perceptron_by_layers(theta: Tensor, layout: MLPLayout, *parts: Tensor) -> bool:
    """Return whether :func:`perceptron_by_layers_cpu` can be used: with GELU, whose inputs it keeps."""
    is_dense = theta.shape == (layout.copies, layout.stride) and theta.is_contiguous()
    fits = is_dense and not layout.squash and layout.activation == "gelu"
    return fits and is_cpu_float32(theta, *parts) and parts[-1].numel() > 0


def perceptron_by_layers_cpu(theta: Tensor, layout: MLPLayout, *parts: Tensor) -> Tensor:
    """Compute ``nn/relu_mlp.py: perceptron``, with one call in C for each product and activation."""
    return cast(Tensor, call(_Layers, theta, None, None, layout, *parts))


def supports_normed_perceptron(
    theta: Tensor, norms: Tensor | None, dropout: object, layout: MLPLayout, *parts: Tensor
) -> bool:
    """Return whether :func:`normed_perceptron_cpu` can be used."""
    if norms is None or layout.squash or layout.activation == "tanh":
        return False
    is_dense = theta.shape == (layout.copies, layout.stride) and theta.is_contiguous()
    are_norms = norms.shape == (layout.copies, 2, sum(layout.widths[1:-1])) and norms.is_contiguous()
    return is_dense and are_norms and is_cpu_float32(theta, norms, *parts) and parts[-1].numel() > 0


def normed_perceptron_cpu(
    theta: Tensor, norms: Tensor, dropout: Dropout | None, layout: MLPLayout, *parts: Tensor
) -> Tensor:
    """Compute ``nn/relu_mlp.py: regularized_perceptron``, with one call in C for each product and norm."""
    masks: list[Tensor] | None = None
    if dropout is not None and dropout.training:
        shapes = [torch.Size((layout.copies, len(parts[-1]), width)) for width in layout.widths[1:-1]]
        masks = [dropout.factors(shape, theta) for shape in shapes]
    return cast(Tensor, call(_Layers, theta, norms, masks, layout, *parts))


class _Layers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, theta: Tensor, norms: Tensor | None, masks: list[Tensor] | None, layout: MLPLayout, *parts: Tensor
    ) -> Tensor:
        layout.check(parts)
        x = concat_inputs(*parts)  # [M, inputs]
        y = x.new_empty(layout.copies, len(x), layout.widths[-1])
        activations: list[Tensor] = []
        for k, parameters in enumerate(theta.unbind()):
            inner = x
            for i, (layer, affine) in enumerate(
                zip(_layers(parameters, layout), _affine(norms, layout, k), strict=False)
            ):
                out = _linear(layer, inner, inner.new_empty(len(x), layer.widths[1]))
                out = out if masks is None else out.mul_(masks[i][k])
                inner = _activate(out, affine, layout)
                activations += [out, inner]
            _linear(_layers(parameters, layout)[-1], inner, y[k])
        if ctx is not None:
            ctx.save_for_backward(theta, norms, x, *activations)
            ctx.layout, ctx.masks, ctx.shapes = layout, masks, [part.shape for part in parts]
        return y

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        theta, norms, x, *activations = ctx.saved_tensors
        layout, masks, (needs_theta, needs_norms, _, _, *needs_parts) = ctx.layout, ctx.masks, ctx.needs_input_grad
        dtheta = torch.zeros_like(theta) if needs_theta else None
        dnorms = torch.empty_like(norms) if needs_norms else None
        first = needs_parts.index(True) if any(needs_parts) else len(needs_parts)
        widths = [width for _, width in ctx.shapes[first:]]
        dx, depth = x.new_zeros(len(x), sum(widths)), len(layout.widths) - 2
        for k, parameters in enumerate(theta.unbind()):
            layers, affine, to = _layers(parameters, layout), _affine(norms, layout, k), _affine(dnorms, layout, k)
            g, saved = grad[k].contiguous(), activations[2 * depth * k : 2 * depth * (k + 1)]
            for i in range(depth, 0, -1):
                out, inner = saved[2 * i - 2 : 2 * i]
                g = _linear_backward(layers[i], inner, g, torch.empty_like(inner), dtheta, k)
                g = _activate_backward(out, affine[i - 1], g, to[i - 1], layout)
                g = g if masks is None else g.mul_(masks[i - 1][k])
            part = torch.empty_like(dx) if widths else None
            _linear_backward(layers[0], x, g, part, dtheta, k)
            dx = dx if part is None else dx + part
        gradients = zip(torch.split(dx, widths, 1), ctx.shapes[first:], strict=True) if widths else []
        parts = [g if g.shape == s else g.reshape(s[0], -1, s[1]).sum(1) for g, s in gradients]
        return dtheta, dnorms, None, None, *[None] * first, *parts


class _Layer(NamedTuple):
    """One layer of one copy."""

    widths: tuple[int, int]  # inputs, outputs
    start: int  # where its weights begin in the copy's parameters
    parameters: Tensor  # weights and biases, one after the other


def _layers(parameters: Tensor, layout: MLPLayout) -> list[_Layer]:
    """Return the layers of one copy, whose parameters are ``parameters`` ``[P]``."""
    return [_Layer((i, o), start, parameters[start:end]) for i, o, start, _, end in layout.places]


def _affine(norms: Tensor | None, layout: MLPLayout, copy: int) -> list[tuple[Tensor | None, Tensor | None]]:
    """Return the scale and the shift of each hidden layer of one copy, as views; None where there is no norm."""
    widths = list(layout.widths[1:-1])
    if norms is None:
        return [(None, None)] * len(widths)
    return list(zip(*(torch.split(part, widths) for part in norms[copy]), strict=True))


def _linear(layer: _Layer, x: Tensor, out: Tensor) -> Tensor:
    """Write x W + b ``[M, outputs]`` to ``out``, and return it."""
    layout, rows = MLPLayout(layer.widths, 1), len(x)
    network = _network(layout, layer.parameters)
    call_compiled("perceptron", network, x, 0, 0, 1, None, out, rows, _threads(layout, rows))
    return out


def _linear_backward(
    layer: _Layer, x: Tensor, grad: Tensor, dx: Tensor | None, dtheta: Tensor | None, copy: int
) -> Tensor:
    """Write the gradients of the last inputs to ``dx`` ``[M, I]`` and of the parameters to ``dtheta`` ``[K, P]``."""
    layout, rows = MLPLayout(layer.widths, 1), len(x)
    gradient = None if dtheta is None else dtheta[copy, layer.start : layer.start + len(layer.parameters)]
    skip = 0 if dx is None else layer.widths[0] - dx.shape[1]
    network = _network(layout, layer.parameters)
    call_compiled("perceptron_backward", network, x, None, grad, dx, gradient, rows, skip, _threads(layout, rows))
    return grad if dx is None else dx


def _activate(x: Tensor, affine: tuple[Tensor | None, Tensor | None], layout: MLPLayout) -> Tensor:
    """Return the activation of x ``[M, width]``, with its layer norm if there is one."""
    y, kinds = torch.empty_like(x), (layout.activation == "gelu", layout.norm != "before_relu")
    call_compiled("hidden", x, *affine, y, *x.shape, *kinds, NORM_EPS, _threads(layout, len(x)))
    return y


def _activate_backward(
    x: Tensor, affine: tuple[Tensor | None, Tensor | None], grad: Tensor, to: tuple[Tensor | None, Tensor | None],
    layout: MLPLayout,
) -> Tensor:  # fmt: skip
    """Return the gradient of x, and write those of scale and shift to ``to``."""
    (rows, width), dx = x.shape, torch.empty_like(x)
    partial = None if to[0] is None else x.new_empty(-(-rows // NORM_STRIP), 2, width)
    kinds = layout.activation == "gelu", layout.norm != "before_relu"
    call_compiled(
        "hidden_backward", x, *affine, grad, dx, *to, partial, rows, width, *kinds, NORM_EPS, _threads(layout, rows)
    )
    return dx

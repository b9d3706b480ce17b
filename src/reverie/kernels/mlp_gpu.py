"""MLPs on a GPU (``triton_mlp.py``): each layer is one launch, forwards and backwards, for all copies.

PyTorch starts ten kernels for such a layer: products, sums over rows, masks, and copies into the gradient of theta. Of
a large layer, whose products take longer than their launch, the products are cuBLAS's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from reverie.kernels import gpu
from reverie.kernels.ctypes_call import call, once_differentiable_strict
from reverie.kernels.gpu import Compared, Numbers
from reverie.nn.relu_mlp import MLPLayout, concat_inputs, perceptron

MULTIPLICATIONS = 2**26
"""Multiplications of a layer from which cuBLAS is faster."""

CUBLAS_MIN_LENGTH = 1024
"""Number of inputs or rows from which cuBLAS is faster, as a program sums over them one tile after the other."""

TILE = 32
"""Rows and columns of a program's tile."""

FULL_GPU_PROGRAMS = 100
"""Programs that occupy most of a GPU's processors; for fewer, the tiles have half the rows."""


def supports_perceptron_triton(theta: Tensor, layout: MLPLayout, *parts: Tensor) -> bool:
    """Return whether :func:`perceptron_triton` can be used."""
    tensors = theta, *parts
    if not gpu.can_use_triton(*tensors, family="perceptrons") or any(x.dtype is not torch.float32 for x in tensors):
        return False
    is_dense = theta.shape == (layout.copies, layout.stride) and theta.is_contiguous()
    return is_dense and layout.activation != "gelu" and min(layout.widths) > 0 and len(parts[-1]) > 0


def perceptron_triton(theta: Tensor, layout: MLPLayout, *parts: Tensor) -> Tensor:
    """Compute ``nn/relu_mlp.py: perceptron``."""
    return cast(Tensor, call(_Perceptron, theta, layout, *parts))


class _Perceptron(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, theta: Tensor, layout: MLPLayout, *parts: Tensor) -> Tensor:
        layout.check(parts)
        rows, copies = len(parts[-1]), layout.copies
        are_read = len(parts) < 3 and all(len(x) == rows and (x.shape[1] < 2 or x.stride(1) == 1) for x in parts)
        read = parts if are_read else (concat_inputs(*parts),)
        values: list[Tensor] = []  # of each layer, [K, M, width]
        for n, activation in enumerate(_activations(layout)):
            inputs, outputs, start, *_ = layout.places[n]
            if _is_large(layout, n, rows):
                x = values[-1] if values else concat_inputs(*read)
                values.append(_large_layer(theta, layout, n, x, activation))
                continue
            y = theta.new_empty(copies, rows, outputs)
            out = TILE if outputs > TILE // 2 else TILE // 2
            tall = _rows_of_tile(rows, -(-outputs // out) * copies)
            gpu._launch("layer_kernel", (-(-rows // tall), -(-outputs // out), copies), *_input(read, values), theta, y,
                        rows, inputs, outputs, *_strides(read, values), layout.stride, start, ACTIVATION=activation,
                        PARTS=1 if values else len(read), ROWS=tall, OUT=out, IN=TILE)  # fmt: skip
            values.append(y)
        if ctx is not None:
            ctx.save_for_backward(theta, *read, *values)
            ctx.layout, ctx.num_read, ctx.shapes = layout, len(read), [x.shape for x in parts]
        return values[-1]

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        theta, *saved = ctx.saved_tensors
        layout, read, values = ctx.layout, saved[: ctx.num_read], saved[ctx.num_read :]
        learns, _, *needed = ctx.needs_input_grad
        first = needed.index(True) if any(needed) else len(needed)
        shapes = ctx.shapes[first:]
        rows, copies, grad = len(read[0]), layout.copies, grad.contiguous()
        dtheta = torch.empty_like(theta) if learns else None
        last = len(values) - 1
        for n in range(last, -1, -1):
            inputs, outputs, start, _, end = layout.places[n]
            earlier_values = values[:n]
            width = inputs if n else sum(width for _, width in shapes)  # of dx
            if _is_large(layout, n, rows):
                x = earlier_values[-1] if earlier_values else concat_inputs(*read)
                grad = _large_gradients(theta, layout, n, x, values[n], grad, dtheta, width)
                continue
            dx = grad.new_empty(copies if n else 1, rows, width) if width else None
            out = TILE if outputs > TILE // 2 else TILE // 2
            tall = _rows_of_tile(rows, -(-width // TILE) * (copies if n else 1))
            tiles = [-(-n // size) for n, size in ((rows, tall), (width, TILE), (inputs, TILE), (outputs, out))]
            row_tiles, dx_tiles, in_tiles, out_tiles = tiles
            programs = row_tiles * dx_tiles * (copies if n else 1)
            total = programs + (in_tiles * out_tiles * copies if learns else 0)
            gpu._launch("layer_backward_kernel", (total,), *_input(read, earlier_values), theta, values[n], grad,
                        grad if dx is None else dx, theta if dtheta is None else dtheta,
                        rows, inputs, outputs, *_strides(read, earlier_values), layout.stride, start, inputs - width,
                        1 if n else copies, programs, *tiles,
                        layout.stride - end if n == last else 0,
                        ACTIVATION=layout.activation if n else "none", SQUASH=layout.squash and n == last,
                        PARTS=1 if n else len(read), ROWS=tall, OUT=out, IN=TILE)  # fmt: skip
            if dx is not None:
                grad = dx
        if not shapes:
            return dtheta, None, *[None] * len(needed)
        gradients = zip(torch.split(grad[0], [width for _, width in shapes], 1), shapes, strict=True)
        parts = [g if g.shape == s else g.reshape(s[0], -1, s[1]).sum(1) for g, s in gradients]
        return dtheta, None, *[None] * first, *parts


def _is_large(layout: MLPLayout, n: int, rows: int) -> bool:
    """Return whether layer n is left to cuBLAS."""
    inputs, outputs = layout.widths[n : n + 2]
    return max(inputs, rows) > CUBLAS_MIN_LENGTH or rows * inputs * outputs * layout.copies > MULTIPLICATIONS


def _large_layer(theta: Tensor, layout: MLPLayout, n: int, x: Tensor, activation: str) -> Tensor:
    """Return the values ``[K, M, outputs]`` of layer n, whose input is x ``[K, M, inputs]``, or ``[M, inputs]``."""
    weight, bias = layout.layers(theta)[n]
    y = torch.baddbmm(bias, x.expand(layout.copies, *x.shape[-2:]), weight)
    return y if activation == "none" else torch.relu_(y) if activation == "relu" else torch.tanh_(y)


def _large_gradients(
    theta: Tensor, layout: MLPLayout, n: int, x: Tensor, y: Tensor, grad: Tensor, dtheta: Tensor | None, width: int
) -> Tensor:
    """Return the gradient of the last ``width`` inputs of layer n, and write those of its parameters to ``dtheta``."""
    (weight, _), aten = layout.layers(theta)[n], torch.ops.aten
    if layout.squash and n == len(layout.places) - 1:
        grad = aten.tanh_backward(grad, y)
    if dtheta is not None:
        dweight, dbias = layout.layers(dtheta)[n]
        torch.bmm(x.expand(layout.copies, *x.shape[-2:]).mT, grad, out=dweight)
        torch.sum(grad, 1, keepdim=True, out=dbias)
        if n == len(layout.places) - 1:
            dtheta[:, layout.places[n][-1] :].zero_()  # the padding
    if not width:
        return grad
    dx = torch.bmm(grad, weight[:, -width:].mT)
    if n:
        is_relu = layout.activation == "relu"
        return cast(Tensor, aten.threshold_backward(dx, x, 0) if is_relu else aten.tanh_backward(dx, x))
    return dx.sum(0, keepdim=True) if layout.copies > 1 else dx


def _activations(layout: MLPLayout) -> list[str]:
    """Return the function after each layer."""
    return [layout.activation] * (len(layout.widths) - 2) + ["tanh" if layout.squash else "none"]


def _rows_of_tile(rows: int, num_tiles: int) -> int:
    """Return the number of rows of a tile, for ``num_tiles`` tiles at the same rows."""
    return TILE if -(-rows // TILE) * num_tiles >= FULL_GPU_PROGRAMS else TILE // 2


def _input(read: Sequence[Tensor], values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the one or two tensors that are the input of the layer after ``values``."""
    return (values[-1], values[-1]) if values else (read[0], read[-1])


def _strides(read: Sequence[Tensor], values: list[Tensor]) -> tuple[int, int, int, int]:
    """Return the kernels' arguments ``first``, ``x_stride``, ``x2_stride`` and ``x_copy``."""
    if values:
        return 0, values[-1].stride(1), 0, values[-1].stride(0)
    return read[0].shape[1], read[0].stride(0), read[-1].stride(0), 0


def compare_perceptrons(numbers: Numbers) -> Compared:
    """Return the results of each kernel and of its definition; ``numbers`` returns random tensors of a shape."""
    compared: Compared = []
    for widths, copies, squash, activation in (((9, 40, 33, 1), 2, False, "relu"), ((9, 5, 18), 1, True, "tanh")):
        layout = MLPLayout(widths, copies, squash, activation)  # type: ignore[arg-type]
        theta = (0.3 * numbers(copies, layout.stride)).requires_grad_()
        inputs = [theta, numbers(36, 6).requires_grad_(), numbers(36, 3).requires_grad_()]
        grad = numbers(copies, 36, widths[-1])
        ours = perceptron_triton(theta, layout, *inputs[1:])
        gradients = torch.autograd.grad(ours, inputs, grad)
        exact = [x.double() for x in inputs]  # of which there is no TF32
        defined = perceptron.definition(exact[0], layout, *exact[1:]).float()  # type: ignore[attr-defined]
        pairs = zip(gradients, torch.autograd.grad(defined, inputs, grad), strict=True)
        compared += [("perceptron", ours, defined), *(("perceptron_backward", *pair) for pair in pairs)]
    return compared


gpu.COMPARISONS["perceptrons"] = compare_perceptrons

"""Triton kernels of MLPs: one launch for a layer of all copies. ``kernels/mlp_gpu.py`` launches them.

A layer of copy k has its weights ``[inputs, outputs]`` at ``theta + k * stride + start``, and its biases after them.
Its input is ``[M, inputs]``, with rows ``x_stride`` apart and copies ``x_copy``, which is 0 if they share it. With
PARTS = 2 its columns from ``first`` on are those of ``x2``. Products are those of float32, never of TF32.
"""

import triton
import triton.language as tl


@triton.jit
def fast_tanh(x):
    """Triton has no tanh that its interpreter knows."""
    e = tl.exp(-2 * tl.abs(x))
    return tl.where(x < 0, e - 1, 1 - e) / (1 + e)


@triton.jit
def _load_input(x, x2, row, column, rows, inputs, first, x_stride, x2_stride, PARTS: tl.constexpr):
    """Return a tile of the input."""
    mask = (row < rows)[:, None] & (column < inputs)[None, :]
    at = x + row[:, None] * x_stride + column[None, :]
    if PARTS == 1:
        return tl.load(at, mask=mask, other=0.0)
    at_second = x2 + row[:, None] * x2_stride + (column - first)[None, :]
    part = tl.load(at, mask=mask & (column < first)[None, :], other=0.0)
    return part + tl.load(at_second, mask=mask & (column >= first)[None, :], other=0.0)


@triton.jit
def _load_grad(grad, y, row, column, rows, outputs, SQUASH: tl.constexpr):
    """Return a tile of the gradient of the layer's product; with SQUASH, y is tanh of it."""
    mask = (row < rows)[:, None] & (column < outputs)[None, :]
    at = row[:, None] * outputs + column[None, :]
    g = tl.load(grad + at, mask=mask, other=0.0)
    if SQUASH:
        v = tl.load(y + at, mask=mask, other=0.0)
        g *= 1 - v * v
    return g


@triton.jit
def layer_kernel(
    x, x2, theta, y, rows, inputs, outputs, first, x_stride, x2_stride, x_copy, stride, start,
    ACTIVATION: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr,
):  # fmt: skip
    """Write y = f(x W + b) ``[K, M, outputs]``, with f by ACTIVATION: relu, tanh or none."""
    copy = tl.program_id(2)
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * OUT + tl.arange(0, OUT)
    weight = theta + copy * stride + start
    total = tl.zeros([ROWS, OUT], tl.float32)
    for at in range(0, inputs, IN):
        i = at + tl.arange(0, IN)
        v = _load_input(x + copy * x_copy, x2, row, i, rows, inputs, first, x_stride, x2_stride, PARTS)
        mask = (i < inputs)[:, None] & (column < outputs)[None, :]
        w = tl.load(weight + i[:, None] * outputs + column[None, :], mask=mask, other=0.0)
        total = tl.dot(v, w, total, input_precision="ieee")
    total += tl.load(weight + inputs * outputs + column, mask=column < outputs, other=0.0)[None, :]
    if ACTIVATION == "relu":
        total = tl.where(total < 0, 0.0, total)  # NaN stays NaN
    if ACTIVATION == "tanh":
        total = fast_tanh(total)
    mask = (row < rows)[:, None] & (column < outputs)[None, :]
    tl.store(y + (copy * rows + row)[:, None] * outputs + column[None, :], total, mask=mask)


@triton.jit
def layer_backward_kernel(
    x, x2, theta, y, grad, dx, dtheta, rows, inputs, outputs, first, x_stride, x2_stride, x_copy, stride, start,
    skip, shared, programs, row_tiles, dx_tiles, in_tiles, out_tiles, padding,
    ACTIVATION: tl.constexpr, SQUASH: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr,
):  # fmt: skip
    """Write the gradients of :func:`layer_kernel`, whose output has the gradient ``grad``.

    The first ``programs`` compute :func:`input_gradient`, the others :func:`_layer_weight_gradient`; 0 is none.
    """
    program = tl.program_id(0)
    if program < programs:
        input_gradient(
            x, theta + start, y, grad, dx, program % row_tiles, program // row_tiles % dx_tiles,
            program // (row_tiles * dx_tiles), shared, rows, inputs, outputs, x_stride, x_copy, stride, skip,
            ACTIVATION, SQUASH, ROWS, OUT, IN,
        )  # fmt: skip
    else:
        program -= programs
        _layer_weight_gradient(
            x, x2, y, grad, dtheta + start, program % in_tiles, program // in_tiles % out_tiles,
            program // (in_tiles * out_tiles), rows, inputs, outputs, first, x_stride, x2_stride, x_copy, stride,
            padding, SQUASH, PARTS, OUT, IN,
        )  # fmt: skip


@triton.jit
def input_gradient(
    x, weight, y, grad, dx, row_tile, tile, copy, shared, rows, inputs, outputs, x_stride, x_copy, stride, skip,
    ACTIVATION: tl.constexpr, SQUASH: tl.constexpr, ROWS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr,
):  # fmt: skip
    """Write a tile of dx ``[K, M, inputs - skip]``, of the last inputs.

    It is the sum of ``shared`` copies from ``copy`` on: of one, or of all that share the input. ACTIVATION is the
    function whose values the input is, and dx the gradient of its argument.
    """
    row, column = row_tile * ROWS + tl.arange(0, ROWS), skip + tile * IN + tl.arange(0, IN)
    total = tl.zeros([ROWS, IN], tl.float32)
    for k in range(copy, copy + shared):
        for begin in range(0, outputs, OUT):
            o = begin + tl.arange(0, OUT)
            g = _load_grad(grad + k * rows * outputs, y + k * rows * outputs, row, o, rows, outputs, SQUASH)
            inside = (o < outputs)[:, None] & (column < inputs)[None, :]
            w = tl.load(weight + k * stride + column[None, :] * outputs + o[:, None], mask=inside, other=0.0)
            total = tl.dot(g, w, total, input_precision="ieee")
    mask = (row < rows)[:, None] & (column < inputs)[None, :]
    if ACTIVATION != "none":
        v = tl.load(x + copy * x_copy + row[:, None] * x_stride + column[None, :], mask=mask, other=0.0)
        if ACTIVATION == "relu":
            total = tl.where(v <= 0, 0.0, total)
        else:
            total *= 1 - v * v
    tl.store(dx + (copy * rows + row)[:, None] * (inputs - skip) + (column - skip)[None, :], total, mask=mask)


@triton.jit
def _layer_weight_gradient(
    x, x2, y, grad, dweight, tile, out_tile, copy, rows, inputs, outputs, first, x_stride, x2_stride, x_copy,
    stride, padding, SQUASH: tl.constexpr, PARTS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr,
):  # fmt: skip
    """Write a tile of the gradient of a copy's weights; the first one also the biases', and 0 to ``padding`` after."""
    i, column = tile * IN + tl.arange(0, IN), out_tile * OUT + tl.arange(0, OUT)
    offset = copy * rows * outputs
    total, bias = tl.zeros([IN, OUT], tl.float32), tl.zeros([OUT], tl.float32)
    for begin in range(0, rows, IN):
        row = begin + tl.arange(0, IN)
        v = _load_input(x + copy * x_copy, x2, row, i, rows, inputs, first, x_stride, x2_stride, PARTS)
        g = _load_grad(grad + offset, y + offset, row, column, rows, outputs, SQUASH)
        total = tl.dot(tl.trans(v), g, total, input_precision="ieee")
        bias += tl.sum(g, 0)
    start = dweight + copy * stride
    mask = (i < inputs)[:, None] & (column < outputs)[None, :]
    tl.store(start + i[:, None] * outputs + column[None, :], total, mask=mask)
    if tile == 0:
        tl.store(start + inputs * outputs + column, bias, mask=column < outputs)
        unused = tl.arange(0, 16)
        tl.store(start + (inputs + 1) * outputs + unused, tl.zeros([16], tl.float32), mask=unused < padding)

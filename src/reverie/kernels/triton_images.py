"""Triton kernels for the stages of encoder and decoder after their convolutions. ``images_gpu.py`` launches them.

All compute in float32, regardless of the dtype of their inputs and outputs. Loads and stores convert.

Shapes: M images, C channels of the output (``width``), h and w the height and width of the small image of a stage.
"""

import triton
import triton.language as tl

from reverie.kernels.triton_source import norm_silu_slope


@triton.jit
def _largest_pixel(x, at, mask, has_right, has_below, width, below):
    """Return the largest of four pixels and its position: as in PyTorch, the first of equal ones, and the last NaN."""
    best = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    position = tl.zeros_like(best)
    for k in tl.static_range(1, 4):
        inside = mask
        if k % 2 == 1:
            inside &= has_right
        if k >= 2:
            inside &= has_below
        v = tl.load(x + at + (k % 2) * width + (k // 2) * below, mask=inside, other=float("-inf")).to(tl.float32)
        is_larger = (v > best) | (v != v)
        best = tl.where(is_larger, v, best)
        position = tl.where(is_larger, k, position)
    return best, position


@triton.jit
def pool_norm_silu_kernel(
    x, bias, scale, out, rows, width, h, w, height, full_width, image_stride, line_stride, pixel_stride, below, eps,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write out = SiLU(scale v / sqrt(mean(v^2) + eps)) ``[M, h, w, C]``, v the largest of four pixels, plus bias.

    ``rows`` = M * h * w. The four pixels of (m, i, j) lie at m * image_stride + i * line_stride + j * pixel_stride, the
    right one C further, the lower ones ``below`` further; ``height`` and ``full_width``: of the image that they are of.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    column_mask = column < width
    mask = (row < rows)[:, None] & column_mask[None, :]
    i, j = (row // w) % h, row % w
    first = (row // (h * w)).to(tl.int64) * image_stride + i * line_stride + j * pixel_stride
    has_right, has_below = (2 * j + 1 < full_width)[:, None], (2 * i + 1 < height)[:, None]
    v, _ = _largest_pixel(x, first[:, None] + column[None, :], mask, has_right, has_below, width, below)
    v += tl.load(bias + column, mask=column_mask, other=0.0)[None, :]
    s = tl.load(scale + column, mask=column_mask, other=0.0)[None, :]
    z = v * tl.rsqrt(tl.sum(v * v, 1) / width + eps)[:, None] * s
    tl.store(out + row.to(tl.int64)[:, None] * width + column[None, :], z * tl.sigmoid(z), mask=mask)


@triton.jit
def pool_norm_silu_backward_kernel(
    x, bias, scale, dout, dx, dscale, dbias, rows, width, h, w, height, full_width, image_stride, line_stride,
    pixel_stride, below, eps, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the gradient dx of :func:`pool_norm_silu_kernel`'s x, and each program's parts of those of scale and bias.

    The parts are ``[programs, C]``. A program takes every P-th tile.
    """
    column = tl.arange(0, WIDTH)
    column_mask = column < width
    b = tl.load(bias + column, mask=column_mask, other=0.0)[None, :]
    s = tl.load(scale + column, mask=column_mask, other=0.0)[None, :]
    scale_total, bias_total = tl.zeros([WIDTH], tl.float32), tl.zeros([WIDTH], tl.float32)
    for start in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & column_mask[None, :]
        i, j = (row // w) % h, row % w
        first = (row // (h * w)).to(tl.int64) * image_stride + i * line_stride + j * pixel_stride
        at = first[:, None] + column[None, :]
        has_right, has_below = (2 * j + 1 < full_width)[:, None], (2 * i + 1 < height)[:, None]
        v, position = _largest_pixel(x, at, mask, has_right, has_below, width, below)
        g = tl.load(dout + row.to(tl.int64)[:, None] * width + column[None, :], mask=mask, other=0.0).to(tl.float32)
        d, part = norm_silu_slope(v + b, g, s, width, eps)
        scale_total += tl.sum(part, 0)
        bias_total += tl.sum(d, 0)
        for k in tl.static_range(4):
            inside = mask
            if k % 2 == 1:
                inside &= has_right
            if k >= 2:
                inside &= has_below
            tl.store(dx + at + (k % 2) * width + (k // 2) * below, tl.where(position == k, d, 0.0), mask=inside)
    part_at = tl.program_id(0) * width + column
    tl.store(dscale + part_at, scale_total, mask=column_mask)
    tl.store(dbias + part_at, bias_total, mask=column_mask)


@triton.jit
def _unfolded_offset(row, w, width):
    """Return where pixel ``row`` of ``[M, h, w, 2, 2, C]`` lies in ``[M, 2 h, 2 w, C]``."""
    four, k = row // 4, row % 4
    return ((four // w * 2 + k // 2).to(tl.int64) * 2 * w + four % w * 2 + k % 2) * width


@triton.jit
def unfold_norm_silu_kernel(x, bias, scale, out, rows, width, w, eps, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Write SiLU(scale v / sqrt(mean(v^2) + eps)) of v = x + bias ``[M, h, w, 4, C]`` to out ``[M, 2 h, 2 w, C]``.

    ``rows`` = M * h * w * 4. The bias is ``[4, C]``.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    column_mask = column < width
    mask = (row < rows)[:, None] & column_mask[None, :]
    v = tl.load(x + row.to(tl.int64)[:, None] * width + column[None, :], mask=mask, other=0.0).to(tl.float32)
    v += tl.load(bias + (row % 4 * width)[:, None] + column[None, :], mask=mask, other=0.0)
    s = tl.load(scale + column, mask=column_mask, other=0.0)[None, :]
    z = v * tl.rsqrt(tl.sum(v * v, 1) / width + eps)[:, None] * s
    tl.store(out + _unfolded_offset(row, w, width)[:, None] + column[None, :], z * tl.sigmoid(z), mask=mask)


@triton.jit
def unfold_norm_silu_backward_kernel(
    x, bias, scale, dout, dx, dscale, dbias, rows, width, w, eps, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Write the gradient dx of :func:`unfold_norm_silu_kernel`'s x, and each program's parts of scale's and bias's.

    The parts are ``[programs, C]`` and ``[programs, 4, C]``. A program takes every P-th tile. ROWS is a multiple of 4.
    """
    lane = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    column_mask = column < width
    b = tl.load(bias + (lane % 4 * width)[:, None] + column[None, :], mask=column_mask[None, :], other=0.0)
    s = tl.load(scale + column, mask=column_mask, other=0.0)[None, :]
    scale_total, bias_total = tl.zeros([WIDTH], tl.float32), tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = start + lane
        mask = (row < rows)[:, None] & column_mask[None, :]
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        v = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) + b
        from_ = _unfolded_offset(row, w, width)[:, None] + column[None, :]
        g = tl.load(dout + from_, mask=mask, other=0.0).to(tl.float32)
        d, part = norm_silu_slope(v, g, s, width, eps)
        scale_total += tl.sum(part, 0)
        bias_total += d
        tl.store(dx + at, d, mask=mask)
    tl.store(dscale + tl.program_id(0) * width + column, scale_total, mask=column_mask)
    for k in tl.static_range(4):
        total = tl.sum(tl.where((lane % 4 == k)[:, None], bias_total, 0.0), 0)
        tl.store(dbias + (tl.program_id(0) * 4 + k) * width + column, total, mask=column_mask)


@triton.jit
def unfold_sigmoid_kernel(
    x, bias, out, rows, width, w, padded, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Write sigmoid(x + bias) of x ``[M, h, w, 4, padded]`` to out ``[M, 2 h, 2 w, C]``; the bias is ``[4, C]``.

    ``rows`` = M * h * w * 4.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    mask = (row < rows)[:, None] & (column < width)[None, :]
    v = tl.load(x + row.to(tl.int64)[:, None] * padded + column[None, :], mask=mask, other=0.0).to(tl.float32)
    v += tl.load(bias + (row % 4 * width)[:, None] + column[None, :], mask=mask, other=0.0)
    tl.store(out + _unfolded_offset(row, w, width)[:, None] + column[None, :], tl.sigmoid(v), mask=mask)


@triton.jit
def unfold_sigmoid_backward_kernel(
    out, dout, dx, dbias, rows, width, w, padded, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Write the gradient dx of :func:`unfold_sigmoid_kernel`'s x, 0 where it is padded, and parts of bias's.

    The parts are ``[programs, 4, C]``. A program takes every P-th tile. ROWS is a multiple of 4.
    """
    lane = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    column_mask = column < width
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = start + lane
        mask = (row < rows)[:, None] & column_mask[None, :]
        at = _unfolded_offset(row, w, width)[:, None] + column[None, :]
        p = tl.load(out + at, mask=mask, other=0.0).to(tl.float32)
        d = tl.load(dout + at, mask=mask, other=0.0).to(tl.float32) * p * (1 - p)
        total += d
        into = row.to(tl.int64)[:, None] * padded + column[None, :]
        tl.store(dx + into, d, mask=(row < rows)[:, None] & (column < padded)[None, :])
    for k in tl.static_range(4):
        part = tl.sum(tl.where((lane % 4 == k)[:, None], total, 0.0), 0)
        tl.store(dbias + (tl.program_id(0) * 4 + k) * width + column, part, mask=column_mask)


@triton.jit
def squared_error_kernel(pixels, target, loss, steps, size, b_stride, t_stride, low, span, BLOCK: tl.constexpr):
    """Write sum((pixels - (target - low) / span)^2) over images ``[B, T, size]`` to loss ``[B, T]``.

    A program sums one image. ``steps`` = T. The images of the target lie ``b_stride`` and ``t_stride`` apart.
    """
    image = tl.program_id(0).to(tl.int64)
    truth = target + (image // steps) * b_stride + (image % steps) * t_stride
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        t = (tl.load(truth + i, mask=i < size, other=0).to(tl.float32) - low) / span
        error = tl.load(pixels + image * size + i, mask=i < size, other=0.0).to(tl.float32) - t
        total += tl.where(i < size, error * error, 0.0)
    tl.store(loss + image, tl.sum(total, 0))


@triton.jit
def squared_error_backward_kernel(
    pixels, target, dloss, dpixels, steps, size, b_stride, t_stride, low, span, BLOCK: tl.constexpr
):  # fmt: skip
    """Write the gradient of the pixels of :func:`squared_error_kernel`. A program writes one block of one image."""
    image = tl.program_id(0).to(tl.int64)
    truth = target + (image // steps) * b_stride + (image % steps) * t_stride
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    t = (tl.load(truth + i, mask=i < size, other=0).to(tl.float32) - low) / span
    error = tl.load(pixels + image * size + i, mask=i < size, other=0.0).to(tl.float32) - t
    tl.store(dpixels + image * size + i, 2 * error * tl.load(dloss + image), mask=i < size)

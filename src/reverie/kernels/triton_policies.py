"""Triton kernels of policies' distributions. ``kernels/policies_gpu.py`` launches them."""

import triton
import triton.language as tl

from reverie.kernels.triton_mlp import fast_tanh


@triton.jit
def squash_kernel(
    center, log_std, noise, action, log_prob, rows, width, center_stride, std_stride, low, high,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the actions ``[M, A]`` and log-densities ``[M]`` of ``nn/normals.py: squash``. Strides are of rows."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    mask = (row < rows)[:, None] & (column < width)[None, :]
    at = row[:, None] * width + column[None, :]
    s = tl.load(log_std + row[:, None] * std_stride + column[None, :], mask=mask, other=0.0)
    s = tl.where(s < low, low, tl.where(s > high, high, s))  # NaN stays NaN
    n = tl.load(noise + at, mask=mask, other=0.0)
    u = tl.load(center + row[:, None] * center_stride + column[None, :], mask=mask, other=0.0) + tl.exp(s) * n
    tl.store(action + at, fast_tanh(u), mask=mask)
    size = tl.abs(u)
    # ln(1 - tanh(u)^2) = 2 (ln 2 - |u| - ln(1 + exp(-2 |u|)))
    squashing = 2 * (0.6931471805599453 - size - tl.log(1 + tl.exp(-2 * size)))
    density = -0.5 * n * n - s - 0.9189385332046727 - squashing
    tl.store(log_prob + row, tl.sum(tl.where(mask, density, 0.0), 1), mask=row < rows)


@triton.jit
def squash_backward_kernel(
    center, log_std, noise, daction, dlog_prob, dmean, dlog_std, rows, width, center_stride, std_stride, low, high,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the gradients of :func:`squash_kernel`, whose outputs have the gradients daction and dlog_prob."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    mask = (row < rows)[:, None] & (column < width)[None, :]
    at = row[:, None] * width + column[None, :]
    raw_log_std = tl.load(log_std + row[:, None] * std_stride + column[None, :], mask=mask, other=0.0)
    s = tl.where(raw_log_std < low, low, tl.where(raw_log_std > high, high, raw_log_std))
    spread = tl.exp(s) * tl.load(noise + at, mask=mask, other=0.0)
    y = fast_tanh(tl.load(center + row[:, None] * center_stride + column[None, :], mask=mask, other=0.0) + spread)
    g = tl.load(dlog_prob + row, mask=row < rows, other=0.0)[:, None]
    du = tl.load(daction + at, mask=mask, other=0.0) * (1 - y * y) + 2 * y * g  # d ln(1 - tanh(u)^2) / du = -2 tanh(u)
    tl.store(dmean + at, du, mask=mask)
    tl.store(dlog_std + at, tl.where((raw_log_std >= low) & (raw_log_std <= high), du * spread - g, 0.0), mask=mask)


@triton.jit
def normal_density_kernel(action, center, log_std, log_prob, rows, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Write the log-densities ``[M]`` of ``nn/normals.py: normal_log_density``, for log_std ``[A]``."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    mask = (row < rows)[:, None] & (column < width)[None, :]
    at = row[:, None] * width + column[None, :]
    s = tl.load(log_std + column, mask=column < width, other=0.0)[None, :]
    z = tl.load(action + at, mask=mask, other=0.0) - tl.load(center + at, mask=mask, other=0.0)
    z *= tl.exp(-s)
    density = tl.where(mask, -0.5 * z * z - s - 0.9189385332046727, 0.0)
    tl.store(log_prob + row, tl.sum(density, 1), mask=row < rows)


@triton.jit
def normal_density_backward_kernel(
    action, center, log_std, grad, dcenter, dlog_std, rows, width, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Write the gradients of :func:`normal_density_kernel`. One program sums those of log_std."""
    column = tl.arange(0, WIDTH)
    s = tl.load(log_std + column, mask=column < width, other=0.0)[None, :]
    total = tl.zeros([WIDTH], tl.float32)
    for begin in range(0, rows, ROWS):
        row = begin + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & (column < width)[None, :]
        at = row[:, None] * width + column[None, :]
        z = tl.load(action + at, mask=mask, other=0.0) - tl.load(center + at, mask=mask, other=0.0)
        z *= tl.exp(-s)
        g = tl.load(grad + row, mask=row < rows, other=0.0)[:, None]
        tl.store(dcenter + at, g * z * tl.exp(-s), mask=mask)
        total += tl.sum(tl.where(mask, g * (z * z - 1), 0.0), 0)
    tl.store(dlog_std + column, total, mask=column < width)


@triton.jit
def clipped_noise_kernel(action, noise, y, count, std, limit, BLOCK: tl.constexpr):
    """Write ``nn/functional.py: clipped_noise`` of ``count`` numbers."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = std * tl.load(noise + i, mask=i < count, other=0.0)
    n = tl.where(n < -limit, -limit, tl.where(n > limit, limit, n))  # NaN stays NaN
    a = tl.load(action + i, mask=i < count, other=0.0) + n
    tl.store(y + i, tl.where(a < -1, -1.0, tl.where(a > 1, 1.0, a)), mask=i < count)


@triton.jit
def scale_pixels_kernel(x, y, count, width, stride, scale, shift, BLOCK: tl.constexpr):
    """Write scale x + shift of ``count`` pixels, in images of ``width`` numbers that are ``stride`` apart."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + (i // width) * stride + i % width, mask=i < count, other=0).to(tl.float32)
    tl.store(y + i, v * scale + shift, mask=i < count)

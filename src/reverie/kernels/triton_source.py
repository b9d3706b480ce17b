"""Triton kernels for the chains of small operations in the world model's recurrence. ``kernels/gpu.py`` launches them.

All compute in float32, regardless of the dtype of their inputs and outputs. Loads and stores convert.

Shapes: M rows, C the width of a norm, D = blocks * ``width`` the deterministic state, S latents of ``classes`` classes.
"""

import triton
import triton.language as tl

from reverie.kernels.triton_losses import (  # noqa: F401
    clipped_objective_kernel,
    masked_mean_kernel,
    standardize_kernel,
    td0_kernel,
    td_error_kernel,
)
from reverie.kernels.triton_mlp import fast_tanh, layer_backward_kernel, layer_kernel  # noqa: F401
from reverie.kernels.triton_optim import adam_kernel, clip_kernel, polyak_kernel, squares_kernel  # noqa: F401
from reverie.kernels.triton_policies import (  # noqa: F401
    clipped_noise_kernel,
    normal_density_backward_kernel,
    normal_density_kernel,
    scale_pixels_kernel,
    squash_backward_kernel,
    squash_kernel,
)
from reverie.kernels.triton_rows import gather_rows_kernel  # noqa: F401
from reverie.kernels.triton_search import search_backup_kernel, search_select_kernel  # noqa: F401


@triton.jit
def norm_silu_kernel(
    x, scale, y, rows, width, groups, x_stride, y_stride, eps, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Write y = SiLU(scale x / sqrt(mean(x^2) + eps)) over the last axis of x ``[M, groups, C]``.

    ``rows`` = M * groups. Each group has its own scale, ``[groups, C]``. Strides are those of axis M.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    mask = (row < rows)[:, None] & (column < width)[None, :]
    lane = ((row % groups) * width)[:, None] + column[None, :]
    line = (row // groups)[:, None]
    v = tl.load(x + line * x_stride + lane, mask=mask, other=0.0).to(tl.float32)
    z = v * tl.rsqrt(tl.sum(v * v, 1) / width + eps)[:, None] * tl.load(scale + lane, mask=mask, other=0.0)
    tl.store(y + line * y_stride + lane, z * tl.sigmoid(z), mask=mask)


@triton.jit
def norm_silu_slope(v, g, s, width, eps):
    """Return the gradients of v and of the scale s, ``[rows, C]`` each, of SiLU(s v / sqrt(mean(v^2) + eps)), given g.

    Where g is 0 in a whole row, they are 0. Columns from ``width`` on have v = s = 0.
    """
    inverse = tl.rsqrt(tl.sum(v * v, 1) / width + eps)[:, None]
    normed = v * inverse
    z = normed * s
    gate = tl.sigmoid(z)
    dz = g * gate * (1 + z * (1 - gate))
    dnormed = dz * s
    return inverse * (dnormed - normed * (tl.sum(dnormed * normed, 1) / width)[:, None]), dz * normed


@triton.jit
def norm_silu_backward_kernel(
    x, scale, dy, dx, dscale, rows, width, x_stride, dy_stride, dx_stride, eps,
    ADD: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write dx ``[M, groups, C]``, and each program's part of scale's gradient to dscale ``[programs, groups, C]``.

    ``rows`` = M. Program (p, g) takes every P-th tile of group g. With ADD, parts are added to dscale. The
    parts are summed afterwards: atomic additions would not be reproducible.
    """
    group = tl.program_id(1)
    column = tl.arange(0, WIDTH)
    column_mask = column < width
    lane = group * width + column
    s = tl.load(scale + lane, mask=column_mask, other=0.0)
    total = tl.zeros([WIDTH], tl.float32)
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = (first + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        mask = (row < rows) & column_mask[None, :]
        v = tl.load(x + row * x_stride + lane[None, :], mask=mask, other=0.0).to(tl.float32)
        g = tl.load(dy + row * dy_stride + lane[None, :], mask=mask, other=0.0).to(tl.float32)
        d, slope = norm_silu_slope(v, g, s[None, :], width, eps)
        total += tl.sum(slope, 0)
        tl.store(dx + row * dx_stride + lane[None, :], d, mask=mask)
    part = dscale + tl.program_id(0) * tl.num_programs(1) * width + lane
    if ADD:
        total += tl.load(part, mask=column_mask, other=0.0)
    tl.store(part, total, mask=column_mask)


@triton.jit
def _load_gates(gates, bias, row, j, mask, deter, width):
    """Return sigmoid(reset), candidate and sigmoid(update - 1) of units j in rows of gates + bias."""
    lane = (j // width) * 3 * width + j % width
    at = gates + row * 3 * deter + lane
    reset = tl.load(at, mask=mask, other=0.0).to(tl.float32) + tl.load(bias + lane)
    candidate = tl.load(at + width, mask=mask, other=0.0).to(tl.float32) + tl.load(bias + lane + width)
    update = tl.load(at + 2 * width, mask=mask, other=0.0).to(tl.float32) + tl.load(bias + lane + 2 * width)
    return tl.sigmoid(reset), candidate, tl.sigmoid(update - 1)


@triton.jit(do_not_specialize_on_alignment=["keep"])
def gru_kernel(
    gates, bias, h, out, before, keep, rows, deter, width, h_stride, out_stride, before_stride,
    BEFORE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write out = h + z (n - h) ``[M, D]``, with n = tanh(sigmoid(reset) candidate) and z = sigmoid(update - 1).

    gates + bias are ``[M, blocks, 3, width]``: reset, candidate and update. With BEFORE, before ``[M, D]`` is keep *
    out, for keep ``[M]``.
    """
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row, j = i // deter, i % deter
    mask = row < rows
    reset, candidate, update = _load_gates(gates, bias, row, j, mask, deter, width)
    new = fast_tanh(reset * candidate)
    old = tl.load(h + row * h_stride + j, mask=mask, other=0.0).to(tl.float32)
    y = old + update * (new - old)
    tl.store(out + row * out_stride + j, y, mask=mask)
    if BEFORE:
        tl.store(before + row * before_stride + j, y * tl.load(keep + row, mask=mask, other=0.0), mask=mask)


@triton.jit(do_not_specialize_on_alignment=["keep"])
def gru_backward_kernel(
    gates, bias, h, dout, extra, carried, keep, dgates, dh, rows, deter, width, h_stride, extra_stride, dh_stride,
    CARRIED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradients of :func:`gru_kernel`, whose output has the gradient dout + extra ``[M, D]``.

    With CARRIED, keep * carried is added to it. ``carried`` may be the same memory as ``dh``, and has its stride.
    """
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row, j = i // deter, i % deter
    mask = row < rows
    at = row * 3 * deter + (j // width) * 3 * width + j % width
    reset, candidate, update = _load_gates(gates, bias, row, j, mask, deter, width)
    new = fast_tanh(reset * candidate)
    g = tl.load(dout + i, mask=mask, other=0.0).to(tl.float32)
    g += tl.load(extra + row * extra_stride + j, mask=mask, other=0.0).to(tl.float32)
    if CARRIED:
        carried_grad = tl.load(carried + row * dh_stride + j, mask=mask, other=0.0).to(tl.float32)
        g += carried_grad * tl.load(keep + row, mask=mask, other=0.0)
    d = g * update * (1 - new * new)
    tl.store(dgates + at, d * candidate * reset * (1 - reset), mask=mask)
    tl.store(dgates + at + width, d * reset, mask=mask)
    change = new - tl.load(h + row * h_stride + j, mask=mask, other=0.0).to(tl.float32)
    tl.store(dgates + at + 2 * width, g * change * update * (1 - update), mask=mask)
    tl.store(dh + row * dh_stride + j, g * (1 - update), mask=mask)


@triton.jit(do_not_specialize_on_alignment=["keep", "uniform"])
def sample_kernel(
    logits, uniform, probs, onehot, before, keep, rows, stoch, classes, onehot_stride, before_stride, mix,
    PROBS: tl.constexpr, BEFORE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write probs = (1 - mix) softmax(logits) + mix / classes ``[M, S, C]``, and a one-hot sample of them.

    ``rows`` = M * S. The sample inverts the cumulative distribution at ``uniform`` ``[M, S]``. With BEFORE, before is
    keep * onehot, for keep ``[M]``.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    row_mask = row < rows
    mask = row_mask[:, None] & (column < classes)[None, :]
    at = row[:, None] * classes + column[None, :]
    v = tl.load(logits + at, mask=mask, other=float("-inf")).to(tl.float32)
    weight = tl.where(mask, tl.exp(v - tl.where(row_mask, tl.max(v, 1), 0.0)[:, None]), 0.0)
    p = weight / tl.where(row_mask, tl.sum(weight, 1), 1.0)[:, None]
    p = tl.where(mask, (1 - mix) * p + mix / classes, 0.0)
    if PROBS:
        tl.store(probs + at, p, mask=mask)
    cumulative = tl.cumsum(p, 1)
    # The last sum is not exactly 1 because of rounding; scaling by it keeps every index within the classes.
    last = tl.sum(tl.where((column == classes - 1)[None, :], cumulative, 0.0), 1)
    limit = tl.load(uniform + row, mask=row_mask, other=0.0) * last
    index = tl.sum(tl.where(mask & (cumulative < limit[:, None]), 1, 0), 1)
    drawn = tl.where(column[None, :] == index[:, None], 1.0, 0.0)
    line = row // stoch
    lane = at - line[:, None] * stoch * classes
    tl.store(onehot + line[:, None] * onehot_stride + lane, drawn, mask=mask)
    if BEFORE:
        kept_sample = drawn * tl.load(keep + line, mask=row_mask, other=0.0)[:, None]
        tl.store(before + line[:, None] * before_stride + lane, kept_sample, mask=mask)


@triton.jit(do_not_specialize_on_alignment=["keep"])
def sample_backward_kernel(
    probs, dprobs, donehot, carried, keep, dlogits, rows, stoch, classes, carried_stride, mix,
    CARRIED: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the logits of :func:`sample_kernel`.

    The gradient of the one-hot sample passes straight to the probabilities. Their gradient is dprobs + donehot + keep *
    carried, ``[M, S, C]`` each; the last with CARRIED, and carried is then set to 0.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    row_mask = row < rows
    mask = row_mask[:, None] & (column < classes)[None, :]
    at = row[:, None] * classes + column[None, :]
    g = tl.load(dprobs + at, mask=mask, other=0.0).to(tl.float32)
    g += tl.load(donehot + at, mask=mask, other=0.0).to(tl.float32)
    if CARRIED:
        line = row // stoch
        carried_at = carried + line[:, None] * carried_stride + (at - line[:, None] * stoch * classes)
        row_keep = tl.load(keep + line, mask=row_mask, other=0.0)[:, None]
        g += tl.load(carried_at, mask=mask, other=0.0).to(tl.float32) * row_keep
        tl.debug_barrier()  # several threads may have read the same number
        tl.store(carried_at, tl.zeros_like(g), mask=mask)
    # (1 - mix) softmax(logits)
    p = tl.load(probs + at, mask=mask, other=0.0) - tl.where(mask, mix / classes, 0.0)
    mean = tl.sum(p * g, 1) / (1 - mix)
    tl.store(dlogits + at, p * (g - mean[:, None]), mask=mask)


@triton.jit(do_not_specialize_on_alignment=["rate", "first", "second"])
def laprop_kernel(
    g, clip, owner, square, momentum, step, rate, first, second, count, keep1, keep2, new1, new2, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Update LaProp's moments ``square`` and ``momentum`` ``[count]``, and write what to subtract to ``step``.

    The gradients g have the factors ``clip`` ``[P]``; ``owner`` has the index of each one's. rate, first = 1 - beta1^t
    and second = 1 - beta2^t are in memory; keep1, keep2 are the betas, new1 and new2 what they lack to 1.
    """
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = i < count
    d = tl.load(g + i, mask=mask, other=0.0) * tl.load(clip + tl.load(owner + i, mask=mask, other=0))
    v = keep2 * tl.load(square + i, mask=mask, other=0.0) + new2 * d * d
    u = tl.div_rn(d, tl.sqrt_rn(tl.div_rn(v, tl.load(second))) + eps)
    m = keep1 * tl.load(momentum + i, mask=mask, other=0.0) + new1 * u
    tl.store(square + i, v, mask=mask)
    tl.store(momentum + i, m, mask=mask)
    tl.store(step + i, m * tl.load(rate) / tl.load(first), mask=mask)


# ---------------------------------------------------------------------- two-hot encoded numbers


@triton.jit
def two_hot_mean_kernel(logits, bins, mean, rows, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Write the mean ``[M]`` of softmax(logits) ``[M, K]`` over ``bins`` ``[K]``, which are symmetric about zero."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    row_mask = row < rows
    mask = row_mask[:, None] & (column < width)[None, :]
    v = tl.load(logits + row[:, None] * width + column[None, :], mask=mask, other=float("-inf")).to(tl.float32)
    largest = tl.where(row_mask, tl.max(v, 1), 0.0)[:, None]
    weight = tl.exp(v - largest)
    upper = mask & (column >= width - width // 2)[None, :]
    opposite = tl.load(logits + row[:, None] * width + (width - 1 - column)[None, :], mask=upper, other=0.0)
    b = tl.load(bins + column, mask=column < width, other=0.0)[None, :]
    parts = tl.where(upper, (weight - tl.exp(opposite.to(tl.float32) - largest)) * b, 0.0)
    tl.store(mean + row, tl.sum(parts, 1) / tl.where(row_mask, tl.sum(weight, 1), 1.0), mask=row_mask)


@triton.jit
def _nearest_bins(x, b, column_mask, bins, width):
    """Return the bins around each x ``[M]``, and the weight of the upper one."""
    count = tl.sum(tl.where(column_mask & (b <= x[:, None]), 1, 0), 1)  # how many bins are <= x
    below, above = tl.maximum(count - 1, 0), tl.minimum(count, width - 1)
    to_below, to_above = tl.abs(tl.load(bins + below) - x), tl.abs(tl.load(bins + above) - x)
    same = below == above
    weight = tl.where(same, 0.0 * x, to_below / tl.where(same, 1.0, to_below + to_above))
    return below, above, weight


@triton.jit
def two_hot_kernel(
    logits, bins, value, second, loss, rows, width, counts,
    SECOND: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the cross-entropy ``[M]`` of softmax(logits) ``[M, K]`` with the two-hot weights of ``value`` ``[M]``.

    With SECOND, that of ``second`` times ``counts`` is added.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    row_mask = row < rows
    column_mask = (column < width)[None, :]
    mask = row_mask[:, None] & column_mask
    v = tl.load(logits + row[:, None] * width + column[None, :], mask=mask, other=float("-inf")).to(tl.float32)
    largest = tl.where(row_mask, tl.max(v, 1), 0.0)
    total = tl.log(tl.where(row_mask, tl.sum(tl.exp(v - largest[:, None]), 1), 1.0)) + largest
    b = tl.load(bins + column, mask=column < width, other=0.0)[None, :]
    at = logits + row * width
    below, above, w = _nearest_bins(tl.load(value + row, mask=row_mask, other=0.0), b, column_mask, bins, width)
    out = (1 - w) * (total - tl.load(at + below, mask=row_mask, other=0.0).to(tl.float32))
    out += w * (total - tl.load(at + above, mask=row_mask, other=0.0).to(tl.float32))
    if SECOND:
        below, above, w = _nearest_bins(tl.load(second + row, mask=row_mask, other=0.0), b, column_mask, bins, width)
        second_loss = (1 - w) * (total - tl.load(at + below, mask=row_mask, other=0.0).to(tl.float32))
        out += counts * (second_loss + w * (total - tl.load(at + above, mask=row_mask, other=0.0).to(tl.float32)))
    tl.store(loss + row, out, mask=row_mask)


@triton.jit
def two_hot_backward_kernel(
    logits, bins, value, second, dloss, dlogits, rows, width, counts,
    SECOND: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the logits of :func:`two_hot_kernel`."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    row_mask = row < rows
    column_mask = (column < width)[None, :]
    mask = row_mask[:, None] & column_mask
    v = tl.load(logits + row[:, None] * width + column[None, :], mask=mask, other=float("-inf")).to(tl.float32)
    weight = tl.exp(v - tl.where(row_mask, tl.max(v, 1), 0.0)[:, None])
    p = weight / tl.where(row_mask, tl.sum(weight, 1), 1.0)[:, None]
    b = tl.load(bins + column, mask=column < width, other=0.0)[None, :]
    below, above, w = _nearest_bins(tl.load(value + row, mask=row_mask, other=0.0), b, column_mask, bins, width)
    d = p * ((1 - w) + w)[:, None]
    d -= tl.where(column[None, :] == below[:, None], (1 - w)[:, None], 0.0)
    d -= tl.where(column[None, :] == above[:, None], w[:, None], 0.0)
    if SECOND:
        below, above, w = _nearest_bins(tl.load(second + row, mask=row_mask, other=0.0), b, column_mask, bins, width)
        d += counts * p * ((1 - w) + w)[:, None]
        d -= counts * tl.where(column[None, :] == below[:, None], (1 - w)[:, None], 0.0)
        d -= counts * tl.where(column[None, :] == above[:, None], w[:, None], 0.0)
    d *= tl.load(dloss + row, mask=row_mask, other=0.0)[:, None]
    tl.store(dlogits + row[:, None] * width + column[None, :], d, mask=mask)

"""Triton kernels of critics' targets and losses. ``kernels/losses_gpu.py`` launches them.

One program computes a whole loss, because a batch of a few thousand numbers takes no longer than a launch.
"""

import triton
import triton.language as tl


@triton.jit
def td0_kernel(reward, terminal, last, value, target, count, steps, discount, BLOCK: tl.constexpr):
    """Write the targets ``[B, T - 1]`` of ``objectives/returns.py: td0``; ``value`` is that of rows 1 ... T-1.

    ``count`` = B * (T - 1), ``steps`` = T - 1.
    """
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask, t = i < count, i % steps
    row = (i // steps) * (steps + 1) + t
    continues = 1 - tl.load(terminal + row + 1, mask=mask, other=0).to(tl.float32)
    y = tl.load(reward + row + 1, mask=mask, other=0.0)
    y += continues * discount * tl.load(value + i, mask=mask, other=0.0)
    own_value = tl.load(value + i - 1, mask=mask & (t > 0), other=0.0)
    tl.store(target + i, tl.where(tl.load(last + row, mask=mask, other=0) != 0, own_value, y), mask=mask)


@triton.jit
def _total_of(x):
    """Return the sum of a tile."""
    return tl.sum(tl.sum(x, 1), 0)


@triton.jit
def _largest_of(x, keep):
    """Return the largest number of a tile where ``keep`` is 1: 0 if there is none, NaN if one is NaN."""
    has_nan = _total_of(tl.where((keep > 0) & (x != x), 1.0, 0.0))
    largest = tl.max(tl.max(tl.where(keep > 0, x, float("-inf")), 1), 0)
    return tl.where(has_nan > 0, float("nan"), tl.where(_total_of(keep) > 0, largest, 0.0))


@triton.jit
def td_error_kernel(
    prediction, target, last, weight, slope, priority, out, critics, windows, steps, scale, kappa,
    HUBER: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write ``objectives/td.py: squared_error``, or with HUBER ``huber_error``, and the slope of its loss.

    prediction and slope are ``[K, B, T - 1]``, ``steps`` = T - 1. out: the loss, the mean and the largest value, the
    mean and the largest target.
    """
    row, t = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    mask = (row < windows)[:, None] & (t < steps)[None, :]
    at = row[:, None] * steps + t[None, :]
    ended = tl.load(last + row[:, None] * (steps + 1) + t[None, :], mask=mask, other=0) != 0
    keep = tl.where(mask & (ended == 0), 1.0, 0.0)
    count = tl.maximum(_total_of(keep), 1.0)
    share = keep * (scale * tl.load(weight + row, mask=row < windows, other=0.0) / count)[:, None]
    y = tl.load(target + at, mask=mask, other=0.0)
    loss, error, value = tl.zeros_like(y), tl.zeros_like(y), tl.zeros_like(y)
    for k in range(critics):
        offset = at + k * windows * steps
        q = tl.load(prediction + offset, mask=mask, other=0.0)
        e = q - y
        size = tl.abs(e)
        if HUBER:
            beyond = size > kappa
            loss += share * tl.where(beyond, kappa * (size - 0.5 * kappa), 0.5 * e * e)
            tl.store(slope + offset, share * tl.where(beyond, tl.where(e > 0, kappa, -kappa), e), mask=mask)
        else:
            loss += share * e * e
            tl.store(slope + offset, share * 2 * e, mask=mask)
        error += size
        value += q
    error /= critics
    value /= critics
    windowed = tl.sum(error * keep, 1) / tl.maximum(tl.sum(keep, 1), 1.0)
    tl.store(priority + row, windowed, mask=row < windows)
    tl.store(out, _total_of(loss))
    tl.store(out + 1, _total_of(value * keep) / count)
    tl.store(out + 2, _largest_of(value, keep))
    tl.store(out + 3, _total_of(y * keep) / count)
    tl.store(out + 4, _largest_of(y, keep))


@triton.jit
def masked_mean_kernel(x, mask, share, mean, count, BLOCK: tl.constexpr):
    """Write ``objectives/td.py: masked_mean`` of ``count`` numbers and its slope, 1 / n where the mask is 1."""
    i = tl.arange(0, BLOCK)
    keep = tl.load(mask + i, mask=i < count, other=0).to(tl.float32)
    weight = keep / tl.maximum(tl.sum(keep, 0), 1.0)
    tl.store(share + i, weight, mask=i < count)
    tl.store(mean, tl.sum(tl.load(x + i, mask=i < count, other=0.0) * keep, 0) / tl.maximum(tl.sum(keep, 0), 1.0))


@triton.jit
def standardize_kernel(x, mask, y, count, BLOCK: tl.constexpr):
    """Write ``objectives/policy.py: standardize`` of ``count`` numbers."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < count, other=0.0)
    keep = tl.load(mask + i, mask=i < count, other=0).to(tl.float32)
    num_kept = tl.sum(keep, 0)
    centered = v - tl.sum(v * keep, 0) / tl.maximum(num_kept, 1.0)
    square = centered * keep * centered * keep
    std = tl.sqrt(tl.sum(square, 0) / tl.maximum(num_kept - 1, 1.0))
    tl.store(y + i, tl.where(num_kept > 1, centered / (std + 1e-8), v), mask=i < count)


@triton.jit
def clipped_objective_kernel(
    log_prob, before, advantage, last, slope, loss, divergence, clipped, count, clip, BLOCK: tl.constexpr
):  # fmt: skip
    """Write ``objectives/policy.py: clipped_objective`` of ``count`` numbers and the slope of its loss."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < count
    ended = tl.load(last + i, mask=mask, other=1) != 0
    difference = tl.load(log_prob + i, mask=mask, other=0.0) - tl.load(before + i, mask=mask, other=0.0)
    difference = tl.where(ended, 0.0, difference)
    ratio, a = tl.exp(difference), tl.load(advantage + i, mask=mask, other=0.0)
    low, high = 1 - clip, 1 + clip
    plain = ratio * a
    limited = tl.where(ratio < low, low, tl.where(ratio > high, high, ratio)) * a
    outside = (ratio < low) | (ratio > high)
    tl.store(loss + i, -tl.where(plain < limited, plain, limited), mask=mask)
    tl.store(slope + i, tl.where(ended | (outside & (plain > limited)), 0.0, -plain), mask=mask)
    tl.store(divergence + i, ratio - 1 - difference, mask=mask)
    tl.store(clipped + i, tl.where(tl.abs(ratio - 1) > clip, 1.0, 0.0), mask=mask)

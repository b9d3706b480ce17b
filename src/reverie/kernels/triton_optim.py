"""Triton kernels of optimizers and target networks: one launch for all tensors. ``kernels/optim_gpu.py`` launches them.

Tuples hold one tensor for each parameter. Parameter k has ``counts[k]`` numbers, and the programs from ``first[k]`` to
``first[k + 1]`` process BLOCK of them each.
"""

import triton
import triton.language as tl


@triton.jit
def adam_kernel(
    weights, grads, mean, square, updates, rate, counts, first, lr, keep1, keep2, log_b1, log_b2, eps, cosine,
    RATE: tl.constexpr, COSINE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Move the weights of all parameters, and their moments: ``nn/adam.py: adam``.

    ``keep1`` = 1 - b1, ``log_b1`` = ln b1. With RATE, ``rate`` ``[]`` replaces lr. With COSINE, it decays over
    ``cosine`` updates. Corrections are computed in float64, since b2^t is near 1.
    """
    t = tl.load(updates)
    if RATE:
        lr = tl.load(rate)
    if COSINE:
        lr *= 0.5 + 0.5 * tl.cos(tl.minimum(t - 1, cosine).to(tl.float32) * (3.141592653589793 / cosine))
    steps = t.to(tl.float64)
    step = (lr / (1 - tl.exp(steps * log_b1))).to(tl.float32)
    root = tl.sqrt(1 - tl.exp(steps * log_b2)).to(tl.float32)
    program = tl.program_id(0)
    for k in tl.static_range(len(weights)):
        if (program >= first[k]) & (program < first[k + 1]):
            i = (program - first[k]).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            mask = i < counts[k]
            g = tl.load(grads[k] + i, mask=mask, other=0.0)
            m = tl.load(mean[k] + i, mask=mask, other=0.0)
            v = tl.load(square[k] + i, mask=mask, other=0.0)
            m += keep1 * (g - m)
            v += keep2 * (g * g - v)
            tl.store(mean[k] + i, m, mask=mask)
            tl.store(square[k] + i, v, mask=mask)
            p = tl.load(weights[k] + i, mask=mask, other=0.0)
            tl.store(weights[k] + i, p - step * m / (tl.sqrt(v) / root + eps), mask=mask)


@triton.jit
def polyak_kernel(slow, fast, count, counts, first, rate, every, COUNTED: tl.constexpr, BLOCK: tl.constexpr):
    """Move target networks: ``nn/target_network.py: polyak_update``. COUNTED: if ``every`` divides ``count`` ``[]``."""
    program = tl.program_id(0)
    is_due = True
    if COUNTED:
        is_due = tl.load(count) % every == 0
    for k in tl.static_range(len(slow)):
        if is_due & (program >= first[k]) & (program < first[k + 1]):
            i = (program - first[k]).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            mask = i < counts[k]
            old = tl.load(slow[k] + i, mask=mask, other=0.0)
            new = tl.load(fast[k] + i, mask=mask, other=0.0)
            # As torch.lerp does, so that a rate of 1 copies exactly.
            moved = tl.where(rate < 0.5, old + rate * (new - old), new - (new - old) * (1 - rate))
            tl.store(slow[k] + i, moved, mask=mask)


@triton.jit
def squares_kernel(grads, parts, counts, first, BLOCK: tl.constexpr):
    """Write each program's sum of squares to ``parts`` ``[programs]``."""
    program = tl.program_id(0)
    for k in tl.static_range(len(grads)):
        if (program >= first[k]) & (program < first[k + 1]):
            i = (program - first[k]).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            g = tl.load(grads[k] + i, mask=i < counts[k], other=0.0)
            tl.store(parts + program, tl.sum(g * g, 0))


@triton.jit
def clip_kernel(
    grads, parts, clipped, norm, counts, first, programs, limit, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Write gradients scaled to a joint norm of at most ``limit``, and their norm ``[]`` before, from the squares."""
    program_index = tl.arange(0, PROGRAMS)
    total = tl.sqrt(tl.sum(tl.load(parts + program_index, mask=program_index < programs, other=0.0), 0))
    scale = tl.where((total <= limit) | (limit == float("inf")), 1.0, limit / total)  # NaN stays NaN
    program = tl.program_id(0)
    if program == 0:
        tl.store(norm, total)
    for k in tl.static_range(len(grads)):
        if (program >= first[k]) & (program < first[k + 1]):
            i = (program - first[k]).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            mask = i < counts[k]
            tl.store(clipped[k] + i, scale * tl.load(grads[k] + i, mask=mask, other=0.0), mask=mask)

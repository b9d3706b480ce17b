"""Adam, clipping by the global norm and Polyak averaging on a GPU: one launch for all tensors (``triton_optim.py``).

PyTorch's own calls give each of a GPU's processors 65,536 numbers: an update of a small network occupies two or three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from reverie.kernels import gpu
from reverie.kernels.gpu import Compared, Numbers
from reverie.kernels.optim import have_same_memory
from reverie.nn import adam as nn_adam
from reverie.nn import target_network
from reverie.nn.adam import AdamSettings
from reverie.nn.optim import Tensors

MAX_TENSORS = 64
"""Maximum number of tensors in a launch, whose addresses are arguments."""

BLOCKS = (1024, 4096)
"""Numbers that a program processes: of few and of many in all."""

MAX_PROGRAMS = 4096
"""Programs up to which the smaller block is used, and whose sums another program adds up."""


def _fit(*lists: Sequence[Tensor]) -> bool:
    """Return whether the kernels can process the tensors of ``lists``, those at the same positions together."""
    if not 0 < len(lists[0]) <= MAX_TENSORS or any(x.dtype is not torch.float32 for tensors in lists for x in tensors):
        return False
    return gpu.can_use_triton(lists[0][0], family="optimizers") and have_same_memory(*lists)


def _places(tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], int, int]:
    """Return the kernels' arguments ``counts`` and ``first``, the number of programs and their block."""
    counts = tuple(x.numel() for x in tensors)
    block = BLOCKS[sum(counts) > MAX_PROGRAMS * BLOCKS[0]]
    first = tuple(accumulate((-(-n // block) for n in counts), initial=0))
    return (counts, first), first[-1], block


def supports_adam_triton(
    params: Tensors, grads: Tensors, mean: Tensors, square: Tensors, updates: Tensor, settings: AdamSettings
) -> bool:
    """Return whether :func:`adam_triton` can be used."""
    return _fit(params, grads, mean, square)


@torch.no_grad()
def adam_triton(
    params: Tensors, grads: Tensors, mean: Tensors, square: Tensors, updates: Tensor, settings: AdamSettings
) -> None:
    """Compute ``nn/adam.py: adam``."""
    lr, (b1, b2), eps, cosine = settings
    rate = lr if isinstance(lr, Tensor) else None
    places, programs, block = _places(params)
    logs = (math.log(b) if b else -math.inf for b in (b1, b2))
    numbers = 0.0 if isinstance(lr, Tensor) else float(lr), 1 - b1, 1 - b2, *logs, eps, cosine
    arrays = tuple(params), tuple(grads), tuple(mean), tuple(square), updates, rate
    gpu._launch("adam_kernel", (programs,), *arrays, *places, *numbers, RATE=rate is not None, COSINE=cosine > 0,
                BLOCK=block)  # fmt: skip
    torch.autograd.graph.increment_version(params)  # autograd does not see what kernels write


def supports_clip_triton(grads: Tensors, limit: float) -> bool:
    """Return whether :func:`clip_by_norm_triton` can be used."""
    return _fit(grads) and sum(x.numel() for x in grads) <= MAX_PROGRAMS * BLOCKS[-1]


def clip_by_norm_triton(grads: Tensors, limit: float) -> tuple[Tensors, Tensor]:
    """Compute ``nn/adam.py: clip_by_norm``."""
    clipped = [torch.empty_like(x) for x in grads]
    return clipped, _clip_into(clipped, grads, limit)


def _clip_into(clipped: Sequence[Tensor], grads: Tensors, limit: float) -> Tensor:
    """Write the gradients, scaled to a joint norm of at most ``limit``, to ``clipped``; return their norm ``[]``."""
    places, programs, block = _places(grads)
    parts, norm = grads[0].new_empty(programs), grads[0].new_empty(())
    gpu._launch("squares_kernel", (programs,), tuple(grads), parts, *places, BLOCK=block)
    gpu._launch("clip_kernel", (programs,), tuple(grads), parts, tuple(clipped), norm, *places, programs, float(limit),
                PROGRAMS=1 << (programs - 1).bit_length(), BLOCK=block)  # fmt: skip
    return norm


def supports_clip_grad_norm(grads: Tensors, limit: float) -> bool:
    """Return whether :func:`clip_grad_norm_triton` can be used."""
    return supports_clip_triton(grads, limit) and all(x.is_contiguous() for x in grads)


def clip_grad_norm_triton(grads: Tensors, limit: float) -> tuple[Tensor, Tensor]:
    """Compute ``nn/optim.py: clip_grad_norm``."""
    sizes = [x.numel() for x in grads]
    flat = grads[0].new_empty(sum(sizes))
    return flat, _clip_into(torch.split(flat, sizes), grads, limit or math.inf)


def supports_polyak_triton(slow: Sequence[Tensor], fast: Sequence[Tensor], *_: object) -> bool:
    """Return whether :func:`polyak_triton` can be used."""
    return _fit(slow, fast)


def polyak_triton(
    slow: Sequence[Tensor], fast: Sequence[Tensor], rate: float, count: Tensor | None, every: int
) -> None:
    """Compute ``nn/target_network.py: polyak_update``; between two moves it reads the count alone."""
    places, programs, block = _places(slow)
    gpu._launch("polyak_kernel", (programs,), tuple(slow), tuple(fast), count, *places, float(rate), every,
                COUNTED=count is not None, BLOCK=block)  # fmt: skip
    torch.autograd.graph.increment_version(slow)


def _compare_optimizers(numbers: Numbers) -> Compared:
    """Return the results of each kernel and of its definition; ``numbers`` returns random tensors of a shape."""
    shapes = (3, 700), (5,)
    params, grads, mean, slow = ([numbers(*shape) for shape in shapes] for _ in range(4))
    square, updates = [x.square() for x in mean], torch.full((), 7, device=params[0].device)
    small = [0.02 * x for x in grads]
    clipped, norm = clip_by_norm_triton(small, 0.5)
    defined, expected = nn_adam.clip_by_norm.definition(small, 0.5)  # type: ignore[attr-defined]  # without kernels
    compared = [("clip", norm, expected), *(("clip", *pair) for pair in zip(clipped, defined, strict=True))]
    copies = [[x.clone() for x in tensors] for tensors in (params, mean, square)]
    settings = AdamSettings(0.1, (0.9, 0.99), 1e-3, 20)
    adam_triton(params, grads, mean, square, updates, settings)
    nn_adam.adam.definition(copies[0], grads, *copies[1:], updates, settings)  # type: ignore[attr-defined]
    updated = [x for tensors in (params, mean, square) for x in tensors]
    compared += [("adam", *pair) for pair in zip(updated, (x for tensors in copies for x in tensors), strict=True)]
    for count in (None, updates):
        moved = [x.clone() for x in slow]
        polyak_triton(slow, params, 0.3, count, 7)
        target_network.polyak_update.definition(moved, params, 0.3, count, 7)  # type: ignore[attr-defined]
        compared += [("polyak", a.clone(), b) for a, b in zip(slow, moved, strict=True)]
    return compared


gpu.COMPARISONS["optimizers"] = _compare_optimizers

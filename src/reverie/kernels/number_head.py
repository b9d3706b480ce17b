"""The last layer of a two-hot head, fused with its loss so that the logits are never stored (``number_head.c``).

In a head with 64 units and 255 bins, the logits take four times the memory of a layer, and their gradient as much
again. On CPUs they are computed for a few rows at a time, where they are used, and again in the backward pass. That is
one more matrix product, but no logits go through memory.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from reverie.kernels.call import call, compute, cpu32, first_order, threads, untracked
from reverie.nn.distributions import TwoHot
from reverie.nn.functional import linear

PANEL, STRIP, PIECES = 32, 64, 16
"""As in ``panels.h`` and ``number_head.c``: columns and rows computed at once, and parts of a sum over rows."""


def _wide(bins: int) -> int:
    """Return the length of a row of logits in memory, padded to whole panels."""
    return -(-bins // PANEL) * PANEL


def _read(x: Tensor, weight: Tensor, bias: Tensor, bins: Tensor, mean: bool) -> tuple[Tensor | None, Tensor]:
    """Return sum_j softmax(y)_j bins_j, if ``mean``, and ln sum_j exp(y_j), both ``[M]``, where y = x W^T + b."""
    (rows, inputs), bins, wide, workers = x.shape, bins.contiguous(), _wide(len(bins)), _workers(x, bins)
    means, lse = x.new_empty(rows) if mean else None, x.new_empty(rows)
    panels, scratch = x.new_empty(wide * inputs), x.new_empty(workers * (STRIP + 1) * wide)
    compute("head_read", x, weight, bias, bins, means, lse, rows, inputs, len(bins), panels, scratch, workers)
    return means, lse


def _workers(x: Tensor, bins: Tensor) -> int:
    """Return the number of threads to use for the logits of ``x``."""
    return threads(bins.expand(len(x), -1))


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, lse: Tensor, index: Tensor, counts: Tensor
    ) -> Tensor:
        out, (rows, inputs) = x.new_empty(len(x)), x.shape
        compute("head_loss", x, weight, bias, lse, index, counts, out, rows, inputs, index.shape[1], threads(x))
        if ctx is not None:
            ctx.save_for_backward(x, weight, bias, lse, index, counts)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, lse, index, counts = ctx.saved_tensors
        grad, workers = grad.contiguous(), _workers(x, bias)
        dx, dweight, dbias = (torch.empty_like(k) for k in (x, weight, bias))
        (rows, inputs), bins, wide = x.shape, len(bias), _wide(len(bias))
        panels, sums = x.new_empty(wide * inputs), x.new_empty(PIECES * bins * (inputs + 1))
        scratch = x.new_empty(workers * (STRIP * wide + PANEL * max(STRIP, wide)))
        compute(
            "head_backward", x, weight, bias, lse, index, counts, grad, dx, dweight, dbias, rows, inputs, bins,
            index.shape[1], panels, sums, scratch, workers,
        )  # fmt: skip
        return dx, dweight, dbias, None, None, None


def fits(x: Tensor, weight: Tensor, bias: Tensor, bins: Tensor) -> bool:
    """Return whether :class:`LayerTwoHot` can be used."""
    same = weight.shape == (len(bins), x.shape[-1]) and bias.shape == bins.shape
    return same and cpu32(x, weight, bias, bins) and x.numel() > 0 and untracked(bins)


class LayerTwoHot(TwoHot):
    """A :class:`TwoHot` given by a linear layer and its input; logits are computed only when asked for."""

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor, bins: Tensor, lse: Tensor | None = None) -> None:
        """``x`` is ``[..., U]``, ``weight`` ``[K, U]``, ``bias`` ``[K]``; ``lse``: log-sum-exp ``[...]``, if known."""
        self.x, self.weight, self.bias, self.bins = x, weight, bias, bins
        self._lse = lse

    @property
    def logits(self) -> Tensor:
        """The logits, ``[..., K]``."""
        return linear(self.x, self.weight, self.bias)

    @property
    def shape(self) -> torch.Size:
        """The shape ``[...]`` of the numbers."""
        return self.x.shape[:-1]

    def __getitem__(self, rows: Any) -> TwoHot:
        """Return the distributions of some rows."""
        lse = None if self._lse is None else self._lse[rows]
        return LayerTwoHot(self.x[rows], self.weight, self.bias, self.bins, lse)

    def mean(self) -> Tensor:
        """Return the expected value, ``[...]``."""
        if torch.is_grad_enabled() and any(k.requires_grad for k in (self.x, self.weight, self.bias)):
            return TwoHot(self.logits, self.bins).mean()
        mean, lse = _read(*self._flat(), self.bins, mean=True)
        self._lse = lse.view(self.x.shape[:-1])
        return cast(Tensor, mean).view(self.x.shape[:-1])

    def _flat(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.x.reshape(-1, self.x.shape[-1]).contiguous(), self.weight.contiguous(), self.bias.contiguous()

    def _cross_entropy(self, index: Tensor, counts: Tensor) -> Tensor:
        layer, picks = self._flat(), index.shape[-1]
        if self._lse is None:
            _, lse = _read(*layer, self.bins, mean=False)
            self._lse = lse.view(self.x.shape[:-1])
        numbers = self._lse.reshape(-1).contiguous(), index.reshape(-1, picks), counts.reshape(-1, picks)
        loss: Tensor = call(_CrossEntropy, *layer, *(k.contiguous() for k in numbers))
        return loss.view(self.x.shape[:-1])

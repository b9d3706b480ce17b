"""The last layer of a head whose number is a distribution over bins, without the logits (``number_head.c``).

Of a head with 64 units and 255 bins the logits take four times the memory of a layer, and their gradient as much again.
On CPUs they are made some rows at a time, where they are used, and once more on the way back: a product more, but
nothing goes through memory.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from reverie.core.compiled import call, compiled, library, threads
from reverie.nn.distributions import TwoHot
from reverie.nn.product import linear

PANEL, STRIP, PIECES = 32, 64, 16
"""As in ``panels.h`` and ``number_head.c``: columns that are computed at once, rows, and parts of sums over rows."""


def _wide(bins: int) -> int:
    """The room that a row of logits takes."""
    return -(-bins // PANEL) * PANEL


def _read(x: Tensor, weight: Tensor, bias: Tensor, bins: Tensor, mean: bool) -> tuple[Tensor | None, Tensor]:
    """sum_j softmax(y)_j bins_j, if wanted, and ln sum_j exp(y_j), ``[M]``, of y = x W^T + b."""
    (rows, inputs), wide, workers = x.shape, _wide(len(bins)), _workers(x, bins)
    means, lse = x.new_empty(rows) if mean else None, x.new_empty(rows)
    panels, scratch = x.new_empty(wide * inputs), x.new_empty(workers * (STRIP + 1) * wide)
    library().head_read(
        x.data_ptr(), weight.data_ptr(), bias.data_ptr(), bins.data_ptr(), 0 if means is None else means.data_ptr(),
        lse.data_ptr(), rows, inputs, len(bins), panels.data_ptr(), scratch.data_ptr(), workers,
    )  # fmt: skip
    return means, lse


def _workers(x: Tensor, bins: Tensor) -> int:
    """How many threads are worth their while for so many logits."""
    return threads(bins.expand(len(x), -1))


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, lse: Tensor, index: Tensor, counts: Tensor
    ) -> Tensor:
        out, (rows, inputs) = x.new_empty(len(x)), x.shape
        library().head_loss(
            x.data_ptr(), weight.data_ptr(), bias.data_ptr(), lse.data_ptr(), index.data_ptr(), counts.data_ptr(),
            out.data_ptr(), rows, inputs, index.shape[1], threads(x),
        )  # fmt: skip
        if ctx is not None:
            ctx.save_for_backward(x, weight, bias, lse, index, counts)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, lse, index, counts = ctx.saved_tensors
        grad, workers = grad.contiguous(), _workers(x, bias)
        dx, dweight, dbias = (torch.empty_like(k) for k in (x, weight, bias))
        (rows, inputs), bins, wide = x.shape, len(bias), _wide(len(bias))
        panels, sums = x.new_empty(wide * inputs), x.new_empty(PIECES * bins * (inputs + 1))
        scratch = x.new_empty(workers * (STRIP * wide + PANEL * max(STRIP, wide)))
        library().head_backward(
            x.data_ptr(), weight.data_ptr(), bias.data_ptr(), lse.data_ptr(), index.data_ptr(), counts.data_ptr(),
            grad.data_ptr(), dx.data_ptr(), dweight.data_ptr(), dbias.data_ptr(), rows, inputs, bins, index.shape[1],
            panels.data_ptr(), sums.data_ptr(), scratch.data_ptr(), workers,
        )  # fmt: skip
        return dx, dweight, dbias, None, None, None


class LayerTwoHot(TwoHot):
    """A :class:`TwoHot` that knows the last layer and what goes into it; logits are made for those who ask for them."""

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor, bins: Tensor, lse: Tensor | None = None) -> None:
        """``x`` ``[..., U]``, ``weight`` ``[K, U]``, ``bias`` ``[K]``; ``lse`` ``[...]`` if it is known already."""
        self.x, self.weight, self.bias, self.bins = x, weight, bias, bins
        self._lse = lse

    @staticmethod
    def fits(x: Tensor, weight: Tensor, bias: Tensor, bins: Tensor) -> bool:
        """Whether compiled functions can compute it."""
        return compiled(x, weight, bias, bins) and x.numel() > 0

    @property
    def logits(self) -> Tensor:
        """``[..., K]``."""
        return linear(self.x, self.weight, self.bias)

    def __getitem__(self, rows: Any) -> TwoHot:
        """The same of some rows."""
        lse = None if self._lse is None else self._lse[rows]
        return LayerTwoHot(self.x[rows], self.weight, self.bias, self.bins, lse)

    def mean(self) -> Tensor:
        """``[...]``."""
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

"""Networks that a loss looks through without moving them: slow copies, and networks that are held still."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


@contextlib.contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Within, gradients pass through ``module`` to its inputs and leave its own parameters alone."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    for p in parameters:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in parameters:
            p.requires_grad_(True)


class SlowCopy(nn.Module):
    """A copy that follows its source at every n-th call of :meth:`update`: theta' <- rate theta + (1 - rate) theta'.

    A small rate at every call is Polyak averaging, a rate of 1 at every n-th call a hard update. The count is a buffer,
    so that a captured update counts as well and a checkpoint holds it. Buffers of the source, such as the statistics of
    a norm, are copied as they are at every call.
    """

    count: Tensor

    def __init__(self, source: nn.Module, rate: float, every: int = 1) -> None:
        super().__init__()
        self.model = copy.deepcopy(source).requires_grad_(False)
        self.rate, self.every = rate, every
        self._source = (source,)  # a tuple hides it from torch: it is no part of this module, only what it follows
        if every > 1:
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def update(self) -> None:
        """One call of the n after which the copy moves."""
        (source,) = self._source
        slow, fast = tuple(self.model.parameters()), tuple(source.parameters())
        for mine, its in zip(self.model.buffers(), source.buffers(), strict=True):
            mine.copy_(its)
        if self.every == 1:
            torch._foreach_lerp_(slow, fast, self.rate)
            return
        self.count += 1
        rate = self.rate * (self.count % self.every == 0)  # 0 in between: no decision that a graph could not hold
        for mine, its in zip(slow, fast, strict=True):
            mine.lerp_(its, rate.to(mine.dtype))

    @torch.no_grad()
    def forward(self, *inputs: Any) -> Any:
        """The copy's answer, without gradient."""
        return self.model(*inputs)

"""Target networks: copies that follow their source slowly."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from reverie.core.kernel_dispatch import NotesChanges, accelerated


class TargetNetwork(NotesChanges, nn.Module):
    """A frozen copy, updated at every n-th (``every``) :meth:`update`: theta' <- rate theta + (1 - rate) theta'.

    A small rate at every call is Polyak averaging; a rate of 1 at every n-th call is a hard update. With
    ``at_first`` the first call moves the copy, then every n-th after it. Buffers of the source, such as the statistics
    of a norm, are copied at every call.
    """

    count: Tensor

    def __init__(self, source: nn.Module, rate: float, every: int = 1, at_first: bool = False) -> None:
        super().__init__()
        self.model: nn.Module = copy.deepcopy(source).requires_grad_(False)
        self.rate = rate
        self.interval = every
        self._source = (source,)  # a tuple hides it from torch, so that it is not a submodule
        if every > 1:
            self.register_buffer("count", torch.tensor(every - 1 if at_first else 0))

    @property
    def source(self) -> nn.Module:
        """The network that it follows."""
        return self._source[0]

    @torch.no_grad()
    def update(self) -> None:
        """Count one call, and move the copy toward the source if it is the n-th."""
        source = self._source[0]
        parameters = zip(self.model.parameters(), source.parameters(), strict=True)
        own_pairs = (pair for pair in parameters if pair[0] is not pair[1])  # without those of a shared encoder
        slow, fast = zip(*own_pairs, strict=True)
        for copied, buffer in zip(self.model.buffers(), source.buffers(), strict=True):
            copied.copy_(buffer)
        if self.interval > 1:
            self.count.add_(1)
        polyak_update(slow, fast, self.rate, self.count if self.interval > 1 else None, self.interval)

    @torch.no_grad()
    def forward(self, *inputs: object) -> Any:
        return self.model(*inputs)


@accelerated
def polyak_update(
    slow: tuple[Tensor, ...], fast: tuple[Tensor, ...], rate: float, count: Tensor | None, every: int
) -> None:
    """Move ``slow`` in place: theta' <- rate theta + (1 - rate) theta', if ``every`` divides ``count`` (if given)."""
    if count is None:
        torch._foreach_lerp_(slow, fast, rate)
        return
    share = rate * (count % every == 0)  # 0 in between, as a CUDA graph cannot contain an ``if``
    for copied, parameter in zip(slow, fast, strict=True):
        copied.lerp_(parameter, share.to(copied.dtype))


class DelayedTargetNetwork(TargetNetwork):
    """DreamerV2's slow critic: copied after the first update, then moved after every n-th from there on.

    In the authors' code it is another network until then.
    """

    def __init__(self, source: nn.Module, rate: float, every: int) -> None:
        super().__init__(source, rate, every)
        if every == 1:
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def update(self) -> None:
        """Move the copy if it is due, then count one call."""
        rate = torch.where(self.count == 0, 1.0, self.rate) * (self.count % self.interval == 0)
        for copied, parameter in zip(self.model.parameters(), self.source.parameters(), strict=True):
            copied.lerp_(parameter, rate.to(copied.dtype))
        self.count.add_(1)

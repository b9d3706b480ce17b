"""Buffers that stay in this computer's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Self

from torch import Tensor, nn


class HostBuffers(nn.Module):
    """A module of which some buffers stay on the CPU, as float64 or what they are, wherever and whatever it becomes.

    They are what Python looks at with every row that is lived. On a GPU each look would wait for the update that runs.
    """

    on_host: ClassVar[tuple[str, ...]] = ()
    """Names of these buffers."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        kept = {name: self._buffers[name] for name in self.on_host}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._buffers.update(kept)
        return self

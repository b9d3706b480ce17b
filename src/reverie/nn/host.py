"""Modules with buffers that always stay on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Self

from torch import Tensor, nn


class HostBuffers(nn.Module):
    """A module some of whose buffers keep their device (CPU) and dtype when the module is moved or converted.

    Python reads these buffers with every new row of experience. On a GPU each read would wait for the running update.
    """

    on_host: ClassVar[tuple[str, ...]] = ()
    """Names of the buffers that stay on the CPU."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        kept = {name: self._buffers[name] for name in self.on_host}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._buffers.update(kept)
        return self

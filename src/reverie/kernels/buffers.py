"""Repeated copies into fixed tensors and out of them: the inputs and outputs of a captured update.

One compiled call copies them all. PyTorch takes 10 microseconds for each of a dozen small copies, because an update has
evicted its code from the caches.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from reverie.kernels.call import pointers
from reverie.kernels.compiler import kernels

MAX_SETS, MAX_BYTES = 64, 2**18
"""Limits of what is allocated in advance: sets of outputs, and their bytes in all."""


class InputBuffers:
    """Fixed tensors into which others of the same shapes and dtypes are copied."""

    def __init__(self, to: Sequence[Tensor]) -> None:
        self.to: list[Tensor] = list(to)
        self._library = kernels() if all(_side_by_side(x) for x in self.to) else None
        self._places, self._bytes = pointers(*self.to), _bytes(self.to)

    def __call__(self, tensors: Sequence[Tensor]) -> None:
        """Copy ``tensors``; in one compiled call if all are contiguous on the CPU."""
        if self._library is None or not all(_side_by_side(x) for x in tensors):
            for to, x in zip(self.to, tensors, strict=True):
                to.copy_(x, non_blocking=True)
        else:
            self._library.move(self._places, pointers(*tensors), self._bytes, len(self.to))


class OutputBuffers:
    """Fixed tensors of which each call returns new copies. Memory for many calls is allocated at once, to save time."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors: list[Tensor] = list(tensors)
        self._library = kernels() if all(_side_by_side(x) for x in self.tensors) else None
        self._places, self._bytes = pointers(*self.tensors), _bytes(self.tensors)
        self._many = max(1, min(MAX_SETS, MAX_BYTES // max(1, sum(self._bytes))))
        self._ready: list[tuple[Any, Sequence[Tensor]]] = []

    def __call__(self) -> Sequence[Tensor]:
        """Return copies of the current values, which belong to the caller."""
        if self._library is None or not self.tensors:
            return [x.clone() for x in self.tensors]
        if not self._ready:
            self._take()
        places, own = self._ready.pop()
        self._library.move(places, self._places, self._bytes, len(own))
        return own

    def _take(self) -> None:
        blocks = [x.new_empty(self._many, *x.shape) for x in self.tensors]
        begin = [(block.data_ptr(), size) for block, size in zip(blocks, self._bytes, strict=True)]
        for i, own in enumerate(zip(*(block.unbind() for block in blocks), strict=True)):
            places = (ctypes.c_void_p * len(own))(*[at + i * size for at, size in begin])
            self._ready.append((places, own))


def _bytes(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_int64 * len(tensors))(*[x.nbytes for x in tensors])


def _side_by_side(x: Tensor) -> bool:
    return x.is_contiguous() and x.is_cpu

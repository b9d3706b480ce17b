"""Copies of tensors into fixed memory, for captured updates, and out of it."""

from __future__ import annotations

import ctypes
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from reverie.core.columns import are_in_block, block_of, view_in_block
from reverie.kernels.compiler import load_kernels
from reverie.kernels.ctypes_call import data_pointers

is_on_cpu: Callable[[Tensor], bool] = operator.attrgetter("is_cpu")
layout_of: Callable[[Tensor], tuple[Any, ...]] = operator.attrgetter("shape", "dtype", "is_cpu")
MAX_GROUPED_BYTES = 2**16
"""Maximum bytes of a tensor on a GPU that is copied together with others: a larger one is copied faster alone."""
MAX_SETS, MAX_BYTES = 64, 2**18
"""Limits of what is allocated in advance: sets of outputs, and their bytes in all."""


class InputBuffers:
    """Fixed tensors into which others of the same shapes and dtypes are copied, 10 us faster each than by PyTorch.

    If they are parts of a ``block``, the parts of another block are copied in one call.
    """

    def __init__(self, to: Sequence[Tensor], block: Tensor | None = None) -> None:
        self.to: list[Tensor] = list(to)
        self.block = block
        self._offsets: list[int] = [int(x.storage_offset()) * x.itemsize for x in to]
        by_dtype: dict[torch.dtype, list[int]] = {}
        for i, x in enumerate(self.to):
            if x.is_cuda and x.nbytes <= MAX_GROUPED_BYTES:
                by_dtype.setdefault(x.dtype, []).append(i)
        self._groups: list[list[int]] = [numbers for numbers in by_dtype.values() if len(numbers) > 1]
        grouped = {i for numbers in self._groups for i in numbers}
        self._alone: list[int] = [i for i in range(len(self.to)) if i not in grouped]
        self._library = load_kernels() if _side_by_side(self.to) else None
        self._addresses, self._bytes = data_pointers(*self.to), _bytes(self.to)
        self._pack = struct.Struct(f"{len(self.to)}P").pack

    def __call__(self, tensors: Sequence[Tensor]) -> None:
        """Copy ``batch_tensors``; in one compiled call if all are contiguous on the CPU."""
        block = self.block
        if block is not None and self._lie_alike(tensors, block.nbytes):
            block.copy_(block_of(tensors[0]), non_blocking=True)
        elif self._library is None or not _side_by_side(tensors):
            alone = [*self._alone]
            for numbers in self._groups:
                targets, sources = [self.to[i] for i in numbers], [tensors[i] for i in numbers]
                if all(x.is_cuda for x in sources):
                    torch._foreach_copy_(targets, sources, non_blocking=True)
                else:
                    alone += numbers
            for i in alone:
                self.to[i].copy_(tensors[i], non_blocking=True)
        else:
            self._library.move(self._addresses, self._pack(*map(Tensor.data_ptr, tensors)), self._bytes, len(self.to))

    def _lie_alike(self, tensors: Sequence[Tensor], nbytes: int) -> bool:
        """Return whether ``tensors`` lie in a block of ``nbytes`` of host memory as ``to`` lie in theirs."""
        storage = tensors[0].untyped_storage()
        begin = storage.data_ptr()
        offsets = [x.data_ptr() - begin for x in tensors]
        return offsets == self._offsets and storage.nbytes() == nbytes and _side_by_side(tensors)


class OutputBuffers:
    """Fixed tensors. Each call returns new copies, in memory that is allocated for many calls at once."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors: list[Tensor] = list(tensors)
        self._library = load_kernels() if _side_by_side(self.tensors) else None
        self._addresses, self._bytes = data_pointers(*self.tensors), _bytes(self.tensors)
        self._pack = struct.Struct(f"{len(tensors)}P").pack
        self._num_sets = max(1, min(MAX_SETS, MAX_BYTES // max(1, sum(self._bytes))))
        self._ready: list[tuple[Any, Sequence[Tensor]]] = []

    def __call__(self) -> Sequence[Tensor]:
        """Return copies of the current values, which belong to the caller."""
        if self._library is None or not self.tensors:
            return [x.clone() for x in self.tensors]
        if not self._ready:
            self._take()
        addresses, copies = self._ready.pop()
        self._library.move(addresses, self._addresses, self._bytes, len(copies))
        return copies

    def _take(self) -> None:
        blocks = [x.new_empty(self._num_sets, *x.shape) for x in self.tensors]
        begin = [(block.data_ptr(), size) for block, size in zip(blocks, self._bytes, strict=True)]
        for i, copies in enumerate(zip(*(block.unbind() for block in blocks), strict=True)):
            addresses = self._pack(*[address + i * size for address, size in begin])
            self._ready.append((addresses, copies))


def allocate_like(tensors: Sequence[Tensor], device: torch.device) -> tuple[list[Tensor], Tensor | None]:
    """Return tensors of the same shapes on ``device``; on a GPU also the block of which they are parts.

    They are if ``tensors`` are parts of one block of host memory.
    """
    if device.type != "cuda" or not (_side_by_side(tensors) and are_in_block(tensors)):
        return [torch.empty_like(x, device=device) for x in tensors], None
    block = torch.empty(block_of(tensors[0]).nbytes, dtype=torch.uint8, device=device)
    return [view_in_block(block, x) for x in tensors], block


def _bytes(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_int64 * len(tensors))(*[x.nbytes for x in tensors])


def _side_by_side(tensors: Sequence[Tensor]) -> bool:
    return all(map(Tensor.is_contiguous, tensors)) and all(map(is_on_cpu, tensors))

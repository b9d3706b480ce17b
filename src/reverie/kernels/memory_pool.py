"""Memory for the results of a tape (``kernels/tape.py``), reused as soon as no tensor refers to it.

Results of recorded calls lie in blocks of memory. These may be reused by reference counts, because the storage of a
tensor holds one reference to its block; the tensor's views and what autograd saved share that storage. Once the pool's
own reference is the only one left, no operation recorded later can read the old value, so a later result may take the
block. Replays keep the order of calls, so a value is overwritten only after its last reader. Recorded calls use tensors
over the same bytes that hold no reference to the block (``MemoryPool.uncounted``); the pool keeps all bytes allocated
as long as the tape exists.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import torch
from torch import Tensor

ALIGNED = 64
"""Alignment of blocks, in bytes."""


class MemoryPool:
    """A pool of memory. A block is reused as soon as no tensor refers to it; see the module's docstring.

    Each block is a ctypes array over a bytearray: the reference count of the array tells whether a tensor uses it.
    """

    def __init__(self) -> None:
        self._made: dict[int, list[Any]] = {}
        self._memory: dict[int, tuple[bytearray, int]] = {}

    def like(self, x: Tensor) -> Tensor:
        """Return an uninitialised tensor of the same dtype, shape and strides in a free block."""
        size = -(-max(1, x.untyped_storage().nbytes()) // ALIGNED) * ALIGNED
        return torch.frombuffer(self._block(size), dtype=x.dtype).as_strided(x.shape, x.stride(), x.storage_offset())

    def holds(self, x: Tensor) -> bool:
        """Return whether ``x`` lies in a block of this pool."""
        return x.untyped_storage().data_ptr() in self._memory

    def uncounted(self, x: Tensor) -> Tensor:
        """Return the same memory as a tensor without gradient that does not count as a user of its block."""
        memory, start = self._memory.get(x.untyped_storage().data_ptr(), (None, 0))
        if memory is None:
            return x.detach()
        flat = torch.frombuffer(memory, dtype=x.dtype, offset=start, count=(len(memory) - start) // x.element_size())
        return flat.as_strided(x.shape, x.stride(), x.storage_offset())

    def _block(self, size: int) -> Any:
        made = self._made.setdefault(size, [])
        for i in range(len(made)):
            if _references(made, i) == _UNUSED:
                return made[i]
        memory = bytearray(size + ALIGNED)
        start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % ALIGNED
        block = (ctypes.c_char * size).from_buffer(memory, start)
        self._made[size].append(block)
        self._memory[ctypes.addressof(block)] = memory, start
        return block


def _references(blocks: list[Any], i: int) -> int:
    """Return the reference count of block ``i``. The call itself adds some; how many depends on the Python version."""
    return sys.getrefcount(blocks[i])


_UNUSED = _references([object()], 0)
"""Reference count of a block that no tensor uses, measured with an object that only a list holds."""

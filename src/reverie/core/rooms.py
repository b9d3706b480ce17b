"""Memory for the results of a tape (``core/tape.py``), reused as soon as no tensor refers to it.

Results of recorded calls lie in blocks of memory, "rooms". These may be reused by reference counts, because the
storage of a tensor holds one reference to its room; the tensor's views and what autograd saved share that storage.
Once the pool's own reference is the only one left, no operation recorded later can read the old value, so a later
result may take the room. Replays keep the order of calls, so a value is overwritten only after its last reader.
Recorded calls use tensors over the same bytes that hold no reference to the room (``Rooms.uncounted``); the pool keeps
all bytes allocated as long as the tape exists.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import torch
from torch import Tensor

ALIGNED = 64
"""Alignment of rooms, in bytes."""


class Rooms:
    """A pool of memory. A room is reused as soon as no tensor refers to it; see the module's docstring.

    Each room is a ctypes array over a bytearray: the reference count of the array tells whether a tensor uses it.
    """

    def __init__(self) -> None:
        self._made: dict[int, list[Any]] = {}
        self._memory: dict[int, tuple[bytearray, int]] = {}

    def like(self, x: Tensor) -> Tensor:
        """Return an uninitialised tensor of the same dtype, shape and strides in a free room."""
        size = -(-max(1, x.untyped_storage().nbytes()) // ALIGNED) * ALIGNED
        return torch.frombuffer(self._room(size), dtype=x.dtype).as_strided(x.shape, x.stride(), x.storage_offset())

    def holds(self, x: Tensor) -> bool:
        """Return whether ``x`` lies in a room of this pool."""
        return x.untyped_storage().data_ptr() in self._memory

    def uncounted(self, x: Tensor) -> Tensor:
        """Return the same memory as a tensor without gradient that does not count as a user of its room."""
        memory, start = self._memory.get(x.untyped_storage().data_ptr(), (None, 0))
        if memory is None:
            return x.detach()
        flat = torch.frombuffer(memory, dtype=x.dtype, offset=start, count=(len(memory) - start) // x.element_size())
        return flat.as_strided(x.shape, x.stride(), x.storage_offset())

    def _room(self, size: int) -> Any:
        made = self._made.setdefault(size, [])
        for i in range(len(made)):
            if _references(made, i) == _UNUSED:
                return made[i]
        memory = bytearray(size + ALIGNED)
        start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % ALIGNED
        room = (ctypes.c_char * size).from_buffer(memory, start)
        self._made[size].append(room)
        self._memory[ctypes.addressof(room)] = memory, start
        return room


def _references(rooms: list[Any], i: int) -> int:
    """Return the reference count of room ``i``. The call itself adds some; how many depends on the Python version."""
    return sys.getrefcount(rooms[i])


_UNUSED = _references([object()], 0)
"""Reference count of a room that no tensor uses, measured with an object that only a list holds."""

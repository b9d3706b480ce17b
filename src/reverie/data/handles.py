"""Handles of windows (``data/starts.py``) in memory."""

from __future__ import annotations

import numpy as np

NEAR = 64
"""Of the oldest handles so many are looked at first for those that leave."""


class HandleQueue:
    """Ascending handles, one after the other in memory: new ones come at the end, evicted ones leave in front."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Hold none."""
        self._take(64)
        self.head = self.tail = 0

    def _take(self, size: int) -> None:
        """Take memory; asking NumPy where it is takes long."""
        self.buffer = np.empty(size, np.int64)
        self._begin = self.buffer.ctypes.data

    def __len__(self) -> int:
        return self.tail - self.head

    @property
    def held(self) -> np.ndarray:
        """All of them; not a copy."""
        return self.buffer[self.head : self.tail]

    @property
    def address(self) -> int:
        """Where the oldest is in memory, and the others after it."""
        return self._begin + 8 * self.head

    def reserve(self, count: int) -> None:
        """Make room for ``count`` handles in all, which is then not taken twice while they come."""
        if count > len(self.buffer):
            held = self.held.copy()
            self._take(count)
            self.buffer[: len(held)] = held
            self.head, self.tail = 0, len(held)

    def add(self, fresh: np.ndarray | list[int]) -> None:
        """Put ``fresh`` at the end."""
        if self.tail + len(fresh) > len(self.buffer):
            self._make_room(len(fresh))
        self.buffer[self.tail : self.tail + len(fresh)] = fresh
        self.tail += len(fresh)

    def drop(self, below: int) -> None:
        """Let go of the handles below ``below``."""
        if self.head == self.tail or self.buffer[self.head] >= below:
            return
        # One more row evicts a few at most. Bisecting all of them would fetch their memory from everywhere: 15 us.
        near = self.held[:NEAR]
        gone = int(near.searchsorted(below))
        self.head += gone if gone < len(near) else int(self.held.searchsorted(below))

    def _make_room(self, more: int) -> None:
        """Move to the front of a buffer of twice what is needed: each handle moves about once while it is held."""
        held = self.held.copy()
        needed = 2 * (len(held) + more)
        if len(self.buffer) < needed:
            self._take(needed)
        self.buffer[: len(held)] = held
        self.head, self.tail = 0, len(held)

"""A queue of window handles (``replay/window_index.py``)."""

from __future__ import annotations

import numpy as np

NEAR = 64
"""Number of the oldest handles that are searched first for evicted ones."""


class HandleQueue:
    """Ascending handles in contiguous memory: new ones are added at the end, evicted ones dropped at the front."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop all handles."""
        self._take(64)
        self.head = self.tail = 0

    def _take(self, size: int) -> None:
        """Allocate memory, and keep its address because asking NumPy for it is slow."""
        self.buffer = np.empty(size, np.int64)
        self._begin = self.buffer.ctypes.data

    def __len__(self) -> int:
        return self.tail - self.head

    @property
    def held(self) -> np.ndarray:
        """All handles, as a view."""
        return self.buffer[self.head : self.tail]

    @property
    def address(self) -> int:
        """Memory address of the oldest handle; the others follow it."""
        return self._begin + 8 * self.head

    def reserve(self, count: int) -> None:
        """Allocate memory for ``count`` handles in all, so that it need not grow while they are added."""
        if count > len(self.buffer):
            held = self.held.copy()
            self._take(count)
            self.buffer[: len(held)] = held
            self.head, self.tail = 0, len(held)

    def add(self, fresh: np.ndarray | list[int]) -> None:
        """Append ``fresh``."""
        if self.tail + len(fresh) > len(self.buffer):
            self._make_room(len(fresh))
        self.buffer[self.tail : self.tail + len(fresh)] = fresh
        self.tail += len(fresh)

    def drop(self, below: int) -> None:
        """Drop the handles that are less than ``below``."""
        if self.head == self.tail or self.buffer[self.head] >= below:
            return
        # One more row evicts a few at most. A bisection of all handles takes 15 us of cache misses.
        near = self.held[:NEAR]
        gone = int(near.searchsorted(below))
        self.head += gone if gone < len(near) else int(self.held.searchsorted(below))

    def _make_room(self, more: int) -> None:
        """Move to the front of a buffer of twice the needed size, so that each handle is moved about once."""
        held = self.held.copy()
        needed = 2 * (len(held) + more)
        if len(self.buffer) < needed:
            self._take(needed)
        self.buffer[: len(held)] = held
        self.head, self.tail = 0, len(held)

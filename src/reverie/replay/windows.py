"""The windows of rows that can be sampled. A window is identified by the handle of its first row (``storage.py``).

One stream of a storage with capacity 8, after 11 rows of two episodes. x: a window of 3 rows may start here::

                                        oldest row held             write head: row 11 will replace row 3
                                        v                           v
    row                       0  1  2   3  4  5   6  7  8  9  10
    slot                      -  -  -   3  4  5   6  7  0  1  2
    episode                   A  A  A   A  A  A   B  B  B  B  B
    crossing episodes         .  .  .   x  x  x   x  x  x  .  .
    of one episode            .  .  .   x  .  .   x  x  x  .  .
    of one, 1 free row        .  .  .   x  .  x   x  x  x  .  .     the first row (context) may be of another

Invariants, on which samplers and the batch sampler rely:

1. A handle is ``row * streams + stream``. Windows become complete, and are evicted, in the order of their handles.
2. All rows of a window are stored. Only free rows (``Window.num_free_rows``) may lie before row 0: the handle may then
   be negative, and copies of row 0 replace them.
3. In a window of one episode no row but the first that is not free is ``is_first``; free rows may be of other episodes.
4. ``add`` returns a window once, when its last row is added, if its first row is still stored.
5. Rows are stored first, then registered with ``FirstFlags`` and ``Windows``, and only then with the samplers: none
   draws a handle below ``Windows.oldest``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.core.kernel_dispatch import accelerated
from reverie.replay.storage import Storage

SEARCH_FIRST = 64
"""Number of the oldest handles that are searched first for evicted ones."""


class HandleQueue:
    """Ascending handles in contiguous memory: new ones are added at the end, evicted ones dropped at the front."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop all handles."""
        self._allocate(64)
        self.head: int = 0
        self.tail: int = 0

    def _allocate(self, size: int) -> None:
        self.buffer: np.ndarray = np.empty(size, np.int64)
        self._begin = self.buffer.ctypes.data  # asking NumPy for it is slow

    def __len__(self) -> int:
        return self.tail - self.head

    @property
    def handles(self) -> np.ndarray:
        """All handles, as a view."""
        return self.buffer[self.head : self.tail]

    @property
    def address(self) -> int:
        """Memory address of the oldest handle; the others follow it."""
        return self._begin + 8 * self.head

    def reserve(self, count: int) -> None:
        """Move to memory for ``count`` handles in all, so that it need not grow while they are added."""
        handles = self.handles.copy()
        if count > len(self.buffer):
            self._allocate(count)
        self.buffer[: len(handles)] = handles
        self.head, self.tail = 0, len(handles)

    def add(self, new: np.ndarray | list[int]) -> None:
        """Append ``new``."""
        if self.tail + len(new) > len(self.buffer):
            self.reserve(2 * (len(self) + len(new)))  # so that each handle is moved about once
        if len(new) == 1:
            self.buffer[self.tail] = new[0]  # a slice takes 1 us more
        else:
            self.buffer[self.tail : self.tail + len(new)] = new
        self.tail += len(new)

    def drop(self, below: int) -> None:
        """Drop the handles that are less than ``below``."""
        if self.head == self.tail or self.buffer[self.head] >= below:
            return
        # One more row evicts a few at most. A bisection of all handles takes 15 us of cache misses.
        near = self.handles[:SEARCH_FIRST]
        gone = int(near.searchsorted(below))
        self.head += gone if gone < len(near) else int(self.handles.searchsorted(below))


class RandomIntegers:
    """A source of random integers. Others may draw from ``rng`` as well."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.fast: Any = None  # addresses that a kernel has looked up


@accelerated
def random_integers(
    source: RandomIntegers, bound: int, count: int, among: HandleQueue | None = None, out: Tensor | None = None
) -> Tensor:
    """Return ``count`` int64 numbers in ``0..bound - 1``, or the handles ``among`` (``bound``) at these positions.

    ``out``: memory that a kernel uses for them.
    """
    positions = source.rng.integers(bound, size=count)
    return torch.from_numpy(positions if among is None else among.handles[positions])


class Windows:
    """The windows of ``length`` rows that can be sampled now, oldest first.

    Windows of one episode have no ``is_first`` row but the first after the ``free`` rows in front, which is stored.
    A queue holds their handles; handles of windows that may cross episodes are consecutive integers.
    """

    def __init__(self, storage: Storage, length: int, free: int = 0, crosses: bool = False) -> None:
        """Offer windows of an empty ``storage``. ``crosses``: windows may contain several episodes."""
        self.storage = storage
        self.length = length
        self.free = free
        self.needed: int = 0 if crosses else length - free
        """How many rows of one episode a window must end with; 0 if it may cross episodes."""
        self.run: list[int] = [0] * storage.streams  # by stream: number of rows from the newest is_first on
        self.queue: HandleQueue = HandleQueue()

    @property
    def oldest(self) -> int:
        """Lower bound of the handles of all windows, now and later: older rows are no longer stored."""
        storage = self.storage
        earliest = storage.first or -self.free  # free rows before row 0 are of no episode; others there are lost
        return max(earliest, storage.count - storage.capacity) * storage.streams

    def add(self, is_first: np.ndarray) -> np.ndarray:
        """Register ``n`` more rows of each stream, ``[N, n]``; return the handles of the windows that they complete."""
        streams, n = is_first.shape
        stop, oldest = (self.storage.count - self.length + 1) * streams, self.oldest
        if not self.needed:
            return np.arange(max(stop - n * streams, oldest), stop)
        broken = _spread_flags(is_first, self.needed - 1)
        for stream, run in enumerate(self.run):
            broken[stream, : max(0, self.needed - 1 - run)] = True
        new: np.ndarray = np.flatnonzero(~broken.T)  # index of the last row among the new ones, times N, plus stream
        new += stop - n * streams
        since = np.where(is_first.any(1), is_first[:, ::-1].argmax(1) + 1, np.add(self.run, n)) if n else self.run
        self.run = list(map(int, since))
        new = new[np.searchsorted(new, oldest) :]
        self.queue.drop(oldest)
        self.queue.add(new)
        return new

    def add_one(self, is_first: list[bool]) -> list[int]:
        """Register one row of each of N streams; faster than ``add``, as lists are faster than small arrays."""
        begin, oldest, needed = (self.storage.count - self.length) * len(self.run), self.oldest, self.needed
        if not needed:
            return list(range(begin, begin + len(self.run))) if begin >= oldest else []
        self.run = [1 if first else run + 1 for first, run in zip(is_first, self.run, strict=True)]
        new = [begin + stream for stream, run in enumerate(self.run) if run >= needed] if begin >= oldest else []
        self.queue.drop(oldest)
        self.queue.add(new)
        return new

    def reserve(self, rows: int) -> None:
        """Allocate memory for the windows of this many rows."""
        if self.needed:
            self.queue.reserve(rows)

    def clear(self) -> None:
        """Forget all windows: the storage is empty now."""
        self.run = [0] * len(self.run)
        self.queue.clear()

    def __len__(self) -> int:
        if self.needed:
            return len(self.queue)
        return max(0, (self.storage.count - self.length + 1) * self.storage.streams - self.oldest)

    def handles_at(self, positions: np.ndarray) -> np.ndarray:
        """Return the handles at ``positions`` ``[B]`` in ``0..len - 1``."""
        return np.asarray(self.queue.handles[positions] if self.needed else positions + self.oldest)

    def positions(self, handles: np.ndarray) -> np.ndarray:
        """Return the positions of ``handles`` ``[B]`` of available windows: the inverse of ``handles_at``."""
        return np.searchsorted(self.queue.handles, handles) if self.needed else handles - self.oldest

    def draw(self, integers: RandomIntegers, count: int, out: Tensor | None = None) -> Tensor:
        """Return ``count`` handles, drawn uniformly with replacement; ``out``: see ``Sampler.draw``."""
        if self.needed:
            return random_integers(integers, len(self.queue), count, self.queue, out)
        return random_integers(integers, len(self), count, None, out).add_(self.oldest)


def _spread_flags(flags: np.ndarray, width: int) -> np.ndarray:
    """Set every flag of ``[N, n]`` for which it or one of the ``width - 1`` flags before it is set; return a copy."""
    spread, width_done = flags.copy() if width > 0 else np.zeros_like(flags), 1
    while width_done < width:  # each iteration doubles the range
        step = min(width_done, width - width_done)
        spread[:, step:] |= spread[:, :-step].copy()
        width_done += step
    return spread


class FirstFlags:
    """``is_first`` of all stored rows, in host memory, and ``ended``: the newest ``is_last`` of each stream."""

    def __init__(self, storage: Storage) -> None:
        """Keep the flags of ``storage``."""
        self.storage = storage
        self.ring: np.ndarray = np.zeros((storage.capacity, storage.streams), bool)  # in the order of handles
        self.ended: list[bool] = [False] * storage.streams

    def add(self, is_first: np.ndarray, is_last: np.ndarray) -> None:
        """Register ``n`` more rows of each stream, ``[N, n]``, already stored; at most the capacity."""
        n = is_first.shape[1]
        if n:
            self.ended = is_last[:, -1].tolist()
        begin = (self.storage.count - n) % self.storage.capacity
        until_end = self.storage.capacity - begin
        self.ring[begin : begin + n] = is_first.T[:until_end]
        self.ring[: max(0, n - until_end)] = is_first.T[until_end:]

    def add_one(self, is_first: list[bool], is_last: list[bool]) -> None:
        """Register one row of each of N streams; faster than ``add``."""
        self.ring[(self.storage.count - 1) % self.storage.capacity] = is_first
        self.ended = is_last

    def at(self, handles: np.ndarray) -> np.ndarray:
        """Return whether the rows ``handles``, all of them stored, are ``is_first``."""
        return np.asarray(self.ring.reshape(-1)[handles % self.ring.size])

    def next_first(self, row: int, stream: int, limit: int) -> int:
        """Return the first ``is_first`` row among the ``limit`` rows after ``row``, else the row after these."""
        stop = min(row + 1 + limit, self.storage.count)
        slots = np.arange(row + 1, stop) % self.storage.capacity
        firsts = np.flatnonzero(self.ring[slots, stream])
        return row + 1 + int(firsts[0]) if len(firsts) else stop

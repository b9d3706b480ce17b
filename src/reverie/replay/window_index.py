"""The windows of rows that can be sampled. A window is identified by the handle of its first row (``storage.py``).

One stream of a storage with capacity 8, after 11 rows of two episodes. x: a window of 3 rows may start here::

                                        oldest row held             write head: row 11 will replace row 3
                                        v                           v
    row                       0  1  2   3  4  5   6  7  8  9  10
    slot                      -  -  -   3  4  5   6  7  0  1  2
    episode                   A  A  A   A  A  A   B  B  B  B  B
    AllStarts(3)              .  .  .   x  x  x   x  x  x  .  .     windows may cross episodes
    EpisodeStarts(3)          .  .  .   x  .  .   x  x  x  .  .     windows of one episode
    EpisodeStarts(3, free=1)  .  .  .   x  .  x   x  x  x  .  .     ... but for the first row (context)

Invariants, on which samplers (``replay/sampling.py``, ``replay/sequence.py``) and the batch sampler
(``replay/batch_sampler.py``) rely:

1. A handle is ``row * streams + stream``. Windows are ordered by their handles, which is the order in which they become
   complete and the order in which they are evicted. A handle never means another window later.
2. All rows of a window are held. Only free rows (``Window.free``) may lie before row 0, if the stream began there: the
   handle may then be negative, and copies of row 0 stand in.
3. In a window of one episode no row but the first that is not free is ``is_first``. The free rows before it may be of
   other episodes, and hold any number of ``is_first``.
4. A window appears once: ``add`` returns it when its last row is added, if its first row is still held. It disappears
   when its first row is evicted.
5. Rows are stored first, then registered with ``Beginnings`` and ``Starts``, and only then with the samplers. So all of
   them agree whenever something is drawn, and no sampler draws a handle below ``Starts.oldest``.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from torch import Tensor

from reverie.replay.handles import HandleQueue
from reverie.replay.randint import Integers
from reverie.replay.storage import Storage


class Starts(Protocol):
    """The windows of ``length`` rows that can be sampled now, oldest first."""

    @property
    def oldest(self) -> int:
        """Lower bound of the handles of all windows, now and later: older rows are not held any more."""
        ...

    def add(self, is_first: np.ndarray) -> np.ndarray:
        """Register ``n`` more rows of each stream, ``[N, n]``, already stored.

        Return the handles of the windows that these rows complete and that are still held, in ascending order.
        """
        ...

    def add_one(self, is_first: list[bool]) -> list[int]:
        """Register one row of each of N streams; faster than ``add``, as lists are faster than small arrays."""
        ...

    def clear(self) -> None:
        """Forget all windows: the storage is empty now."""
        ...

    def __len__(self) -> int:
        """Return the number of windows."""
        ...

    def at(self, positions: np.ndarray) -> np.ndarray:
        """Return the handles at ``positions`` ``[B]`` in ``0..len - 1``."""
        ...

    def draw(self, integers: Integers, count: int) -> Tensor:
        """Return ``count`` handles, drawn uniformly with replacement."""
        ...

    def positions(self, handles: np.ndarray) -> np.ndarray:
        """Return the positions of ``handles`` ``[B]`` of available windows: the inverse of ``at``."""
        ...


def oldest_start(rows: Storage, free: int) -> int:
    """Return the lower bound of the handles of all windows with ``free`` free rows in front."""
    whole = rows.first == 0  # the stream began with row 0: free rows before it are of no episode
    earliest = -free if whole else rows.first  # otherwise rows before the first one existed, and are lost
    return max(earliest, rows.count - rows.capacity) * rows.streams


class AllStarts:
    """Windows that may cross episodes: they begin at every row that has ``length - 1`` rows after it.

    Their handles are consecutive integers, so nothing needs to be stored. With ``free`` rows in front, the first of
    them may lie before row 0, so that every row of the stream is learned from.
    """

    def __init__(self, rows: Storage, length: int, free: int = 0) -> None:
        """Offer windows of ``length`` rows of the storage ``rows``, ``free`` free rows included."""
        self.rows, self.length, self.free = rows, length, free

    @property
    def oldest(self) -> int:
        """See ``Starts``."""
        return oldest_start(self.rows, self.free)

    def add(self, is_first: np.ndarray) -> np.ndarray:
        """See ``Starts``."""
        streams, stop = self.rows.streams, self.rows.count - self.length + 1
        return np.arange(max((stop - is_first.shape[1]) * streams, self.oldest), stop * streams)

    def add_one(self, is_first: list[bool]) -> list[int]:
        """See ``Starts``."""
        streams = self.rows.streams
        begin = (self.rows.count - self.length) * streams
        return list(range(begin, begin + streams)) if begin >= self.oldest else []

    def clear(self) -> None:
        """See ``Starts``."""

    def __len__(self) -> int:
        return max(0, (self.rows.count - self.length + 1) * self.rows.streams - self.oldest)

    def at(self, positions: np.ndarray) -> np.ndarray:
        """See ``Starts``."""
        return positions + self.oldest

    def draw(self, integers: Integers, count: int) -> Tensor:
        """See ``Starts``."""
        return integers(len(self), count).add_(self.oldest)

    def positions(self, handles: np.ndarray) -> np.ndarray:
        """See ``Starts``."""
        return handles - self.oldest


class EpisodeStarts:
    """Windows within one episode: after the ``free`` rows in front, only the first row may be ``is_first``.

    The free rows may be of any episode, or before row 0. They must not have been evicted, because the context of the
    episode would be unknown. A storage with a capacity of ``free`` more rows therefore offers exactly the windows that
    there would be without free rows.

    Windows become complete in the order in which they are evicted. So a queue holds the handles of all of them, and
    drawing is O(1) however short the episodes are.
    """

    def __init__(self, rows: Storage, length: int, free: int = 0) -> None:
        """Offer windows of ``length`` rows of the storage ``rows``, ``free`` free rows included."""
        self.rows, self.length, self.free = rows, length, free
        self.run = [0] * rows.streams  # by stream: number of rows from the newest is_first on
        self.queue = HandleQueue()

    @property
    def oldest(self) -> int:
        """See ``Starts``."""
        return oldest_start(self.rows, self.free)

    def add(self, is_first: np.ndarray) -> np.ndarray:
        """See ``Starts``."""
        streams, more = is_first.shape
        needed = self.length - self.free - 1  # number of rows after the first learned one: none may be is_first
        broken = spread(is_first, needed)
        for stream, run in enumerate(self.run):
            broken[stream, : max(0, needed - run)] = True
        fresh: np.ndarray = np.flatnonzero(~broken.T)  # index of the last row among the new ones, times N, plus stream
        fresh += (self.rows.count - more - self.length + 1) * streams
        since = np.where(is_first.any(1), is_first[:, ::-1].argmax(1) + 1, np.add(self.run, more)) if more else self.run
        self.run = list(map(int, since))
        oldest = self.oldest
        fresh = fresh[np.searchsorted(fresh, oldest) :]
        self.queue.drop(oldest)
        self.queue.add(fresh)
        return fresh

    def add_one(self, is_first: list[bool]) -> list[int]:
        """See ``Starts``. All windows that one row of each stream completes begin with the same row number."""
        self.run = [1 if first else run + 1 for first, run in zip(is_first, self.run, strict=True)]
        begin, oldest, needed = (self.rows.count - self.length) * len(self.run), self.oldest, self.length - self.free
        fresh = [begin + stream for stream, run in enumerate(self.run) if run >= needed] if begin >= oldest else []
        self.queue.drop(oldest)
        self.queue.add(fresh)
        return fresh

    def clear(self) -> None:
        """See ``Starts``."""
        self.run = [0] * len(self.run)
        self.queue.clear()

    def __len__(self) -> int:
        return len(self.queue)

    def at(self, positions: np.ndarray) -> np.ndarray:
        """See ``Starts``."""
        handles: np.ndarray = self.queue.held[positions]
        return handles

    def draw(self, integers: Integers, count: int) -> Tensor:
        """See ``Starts``."""
        return integers(len(self.queue), count, self.queue)

    def positions(self, handles: np.ndarray) -> np.ndarray:
        """See ``Starts``."""
        positions: np.ndarray = np.searchsorted(self.queue.held, handles)
        return positions


def spread(flags: np.ndarray, width: int) -> np.ndarray:
    """Return for each place of ``flags`` ``[N, n]`` whether it or one of the ``width - 1`` before it is set; a copy."""
    found, seen = flags.copy() if width > 0 else np.zeros_like(flags), 1
    while seen < width:  # each iteration doubles the range
        step = min(seen, width - seen)
        found[:, step:] |= found[:, :-step].copy()
        seen += step
    return found


class Beginnings:
    """A copy of ``is_first`` of all rows held, in host memory even if the rows are on a GPU or in files.

    Also ``is_last`` of the newest row of each stream, ``ended``: whether its episode is over, or still being collected.
    """

    def __init__(self, rows: Storage) -> None:
        """Keep the flags of the storage ``rows``."""
        self.rows = rows
        self.ring = np.zeros((rows.capacity, rows.streams), bool)  # in the order of handles
        self.ended = [False] * rows.streams

    def add(self, is_first: np.ndarray, is_last: np.ndarray) -> None:
        """Register ``n`` more rows of each stream, ``[N, n]``, already stored; at most the capacity."""
        more = is_first.shape[1]
        if more:
            self.ended = is_last[:, -1].tolist()
        begin = (self.rows.count - more) % self.rows.capacity
        until_end = self.rows.capacity - begin
        self.ring[begin : begin + more] = is_first.T[:until_end]
        self.ring[: max(0, more - until_end)] = is_first.T[until_end:]

    def add_one(self, is_first: list[bool], is_last: list[bool]) -> None:
        """Register one row of each of N streams; faster than ``add``."""
        self.ring[(self.rows.count - 1) % self.rows.capacity] = is_first
        self.ended = is_last

    def at(self, handles: np.ndarray) -> np.ndarray:
        """Return whether the rows ``handles``, all of them held, are ``is_first``."""
        first: np.ndarray = self.ring.reshape(-1)[handles % self.ring.size]
        return first

    def next(self, row: int, stream: int, most: int) -> int:
        """Return the first ``is_first`` row among the ``most`` rows after ``row``, else the row after these.

        The row that comes next counts as ``is_first``.
        """
        stop = min(row + 1 + most, self.rows.count)
        slots = np.arange(row + 1, stop) % self.rows.capacity
        found = np.flatnonzero(self.ring[slots, stream])
        return row + 1 + int(found[0]) if len(found) else stop

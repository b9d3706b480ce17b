"""Which windows of rows there are. A window is known by the handle of its first row (``data/storage.py``).

Of a window with free context (``Window.free``) that row may lie before the first row of all, and its handle below 0.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from torch import Tensor

from reverie.data.chance import Integers
from reverie.data.handles import HandleQueue
from reverie.data.storage import Storage


class Starts(Protocol):
    """The windows of ``length`` rows that may be drawn now, oldest first."""

    @property
    def oldest(self) -> int:
        """The handles of all windows, now and later, are at least this: what they begin with is held."""
        ...

    def add(self, is_first: np.ndarray) -> np.ndarray:
        """Take note of ``n`` more rows in each stream, ``[N, n]``, already stored.

        Returns the handles of the windows that these rows end, of those still held, in ascending order.
        """
        ...

    def add_one(self, is_first: list[bool]) -> list[int]:
        """``add`` of one row in each of N streams, which happens all the time: lists are faster for a few."""
        ...

    def clear(self) -> None:
        """The storage holds nothing any more."""
        ...

    def __len__(self) -> int:
        """How many there are."""
        ...

    def at(self, positions: np.ndarray) -> np.ndarray:
        """The handles at ``positions`` ``[B]`` in ``0..len - 1``."""
        ...

    def draw(self, integers: Integers, count: int) -> Tensor:
        """``count`` handles ``[B]``, each with the same probability, with replacement."""
        ...

    def positions(self, handles: np.ndarray) -> np.ndarray:
        """Where ``handles`` ``[B]``, all of which may be drawn, stand: what ``at`` turns into them."""
        ...


class AllStarts:
    """Every row with ``length - 1`` rows after it: windows may reach into the next episode.

    Their handles are consecutive integers, so nothing needs to be stored.
    """

    def __init__(self, rows: Storage, length: int) -> None:
        """Windows of ``length`` of ``rows``."""
        self.rows, self.length = rows, length

    @property
    def oldest(self) -> int:
        """See ``Starts``."""
        return self.rows.oldest * self.rows.streams

    def add(self, is_first: np.ndarray) -> np.ndarray:
        """See ``Starts``."""
        stop = self.rows.count - self.length + 1
        start = max(stop - is_first.shape[1], self.rows.oldest)
        return np.arange(start * self.rows.streams, stop * self.rows.streams)

    def add_one(self, is_first: list[bool]) -> list[int]:
        """See ``Starts``."""
        begin, streams = self.rows.count - self.length, self.rows.streams
        return list(range(begin * streams, (begin + 1) * streams)) if begin >= self.rows.oldest else []

    def clear(self) -> None:
        """See ``Starts``."""

    def __len__(self) -> int:
        return max(0, self.rows.count - self.rows.oldest - self.length + 1) * self.rows.streams

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
    """Rows whose window stays within one episode: no row but its first may be ``is_first``.

    Its ``free`` rows in front are exempt. They need not be there in the beginning of all, but they must not have been
    evicted: nobody could tell what an episode had shown before. A storage with room for as many rows more offers the
    windows that there would be without them, exactly.

    Windows become complete in the order in which they will be evicted, so a queue of handles holds them all and
    drawing stays O(1) however short the episodes are.
    """

    def __init__(self, rows: Storage, length: int, free: int = 0) -> None:
        """Windows of ``length`` of ``rows``, of which the first ``free`` may be of any episode or none."""
        self.rows, self.length, self.free = rows, length, free
        self.run = [0] * rows.streams  # rows since the newest is_first, that one included
        self.queue = HandleQueue()

    @property
    def oldest(self) -> int:
        """See ``Starts``."""
        rows = self.rows
        whole = rows.first == 0  # nothing was there before: free rows in front of row 0 are of no episode
        earliest = -self.free if whole else rows.first  # else they would be rows that nobody holds any more
        return max(earliest, rows.count - rows.capacity) * rows.streams

    def add(self, is_first: np.ndarray) -> np.ndarray:
        """See ``Starts``."""
        streams, more = is_first.shape
        needed = self.length - self.free - 1  # so many rows before the last one go on with its episode
        broken = spread(is_first, needed)
        for stream, run in enumerate(self.run):
            broken[stream, : max(0, needed - run)] = True
        fresh: np.ndarray = np.flatnonzero(~broken.T)  # a row's number among the new ones, times N, plus the stream
        fresh += (self.rows.count - more - self.length + 1) * streams
        since = np.where(is_first.any(1), is_first[:, ::-1].argmax(1) + 1, np.add(self.run, more)) if more else self.run
        self.run = list(map(int, since))
        oldest = self.oldest
        fresh = fresh[np.searchsorted(fresh, oldest) :]
        self.queue.drop(oldest)
        self.queue.add(fresh)
        return fresh

    def add_one(self, is_first: list[bool]) -> list[int]:
        """See ``Starts``. All windows that one row in each stream ends begin with the same row."""
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
    """Whether any of the newest ``width`` of ``flags`` ``[N, n]`` up to each place is set; a copy."""
    found, seen = flags.copy() if width > 0 else np.zeros_like(flags), 1
    while seen < width:  # each turn sees twice as far
        step = min(seen, width - seen)
        found[:, step:] |= found[:, :-step].copy()
        seen += step
    return found


class Beginnings:
    """Which of the rows held are ``is_first``, here where it can be looked up at once wherever the rows are."""

    def __init__(self, rows: Storage) -> None:
        """Of ``rows``."""
        self.rows = rows
        self.ring = np.zeros((rows.capacity, rows.streams), bool)  # in the order of handles

    def add(self, is_first: np.ndarray) -> None:
        """Take note of ``n`` more rows in each stream, ``[N, n]``, already stored; not more than fit."""
        more = is_first.shape[1]
        begin = (self.rows.count - more) % self.rows.capacity
        until_end = self.rows.capacity - begin
        self.ring[begin : begin + more] = is_first.T[:until_end]
        self.ring[: max(0, more - until_end)] = is_first.T[until_end:]

    def add_one(self, is_first: list[bool]) -> None:
        """``add`` of one row in each of N streams, which happens all the time."""
        self.ring[(self.rows.count - 1) % self.rows.capacity] = is_first

    def at(self, handles: np.ndarray) -> np.ndarray:
        """Whether the rows ``handles``, all of them held, begin an episode."""
        first: np.ndarray = self.ring.reshape(-1)[handles % self.ring.size]
        return first

    def next(self, row: int, stream: int, most: int) -> int:
        """The first row after ``row`` that begins an episode, of the ``most`` rows after it; else the row after those.

        Rows that have not been lived yet count as beginnings.
        """
        stop = min(row + 1 + most, self.rows.count)
        slots = np.arange(row + 1, stop) % self.rows.capacity
        found = np.flatnonzero(self.ring[slots, stream])
        return row + 1 + int(found[0]) if len(found) else stop

"""Which windows of rows a batch is made of.

A window is known by the handle of its first row (``data.storage``: ``row * streams + stream``). Two questions are kept
apart: which starts there are (``AllStarts``, ``EpisodeStarts``) and which of them are drawn (``Uniform``,
``OnlineQueue``). A new way of drawing is a class with the methods of ``Sampler``.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np

from reverie.core.types import State


class Starts(Protocol):
    """The windows of ``length`` rows that may be drawn now, oldest first."""

    def add(self, is_first: np.ndarray) -> np.ndarray:
        """Take note of one more row in each stream, ``[N]``; the handles of the windows that this row ends."""
        ...

    def __len__(self) -> int:
        """How many there are."""
        ...

    def at(self, positions: np.ndarray) -> np.ndarray:
        """The handles at ``positions`` ``[B]`` in ``0..len - 1``."""
        ...


class AllStarts:
    """Every row with ``length - 1`` rows after it: windows may reach into the next episode.

    Their handles are consecutive integers, so nothing needs to be stored.
    """

    def __init__(self, streams: int, capacity: int, length: int) -> None:
        self.streams, self.capacity, self.length = streams, capacity, length
        self.count = 0

    def add(self, is_first: np.ndarray) -> np.ndarray:
        """See ``Starts``."""
        self.count += 1
        start = self.count - self.length
        return np.arange(self.streams if start >= 0 else 0) + start * self.streams

    def __len__(self) -> int:
        return max(0, min(self.count, self.capacity) - self.length + 1) * self.streams

    def at(self, positions: np.ndarray) -> np.ndarray:
        """See ``Starts``."""
        return positions + max(0, self.count - self.capacity) * self.streams


class EpisodeStarts:
    """Rows whose window stays within one episode: no row but its first may be ``is_first``.

    Windows become complete in the order in which they will be evicted, so a ring of handles holds them all and
    drawing stays O(1) however short the episodes are.
    """

    def __init__(self, streams: int, capacity: int, length: int) -> None:
        self.streams, self.capacity, self.length = streams, capacity, length
        self.count = 0
        self.run = np.zeros(streams, np.int64)  # rows since the newest is_first, that one included
        self.ring = np.empty(streams * capacity, np.int64)
        self.head = self.tail = 0

    def add(self, is_first: np.ndarray) -> np.ndarray:
        """See ``Starts``."""
        self.count += 1
        self.run = np.where(is_first, 1, self.run + 1)
        evicted = (self.count - self.capacity) * self.streams  # handles below this are gone
        while self.head < self.tail and self.ring[self.head % len(self.ring)] < evicted:
            self.head += 1
        fresh = np.flatnonzero(self.run >= self.length) + (self.count - self.length) * self.streams
        if len(fresh):
            self.ring[np.arange(self.tail, self.tail + len(fresh)) % len(self.ring)] = fresh
            self.tail += len(fresh)
        return fresh

    def __len__(self) -> int:
        return self.tail - self.head

    def at(self, positions: np.ndarray) -> np.ndarray:
        """See ``Starts``."""
        handles: np.ndarray = self.ring[(self.head + positions) % len(self.ring)]
        return handles


class Sampler(Protocol):
    """Draws windows."""

    def add(self, fresh: np.ndarray, oldest: int) -> None:
        """Take note of the windows that the newest rows end; handles below ``oldest`` are evicted."""
        ...

    def draw(self, count: int) -> np.ndarray:
        """Up to ``count`` handles."""
        ...

    def state_dict(self) -> State:
        """Generators and counters."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Continue from them."""
        ...


class Uniform:
    """Every window with the same probability, with replacement."""

    def __init__(self, starts: Starts, seed: int) -> None:
        self.starts = starts
        self.rng = np.random.default_rng(seed)

    def add(self, fresh: np.ndarray, oldest: int) -> None:
        """Nothing to note: ``starts`` knows."""

    def draw(self, count: int) -> np.ndarray:
        """``count`` handles."""
        return self.starts.at(self.rng.integers(len(self.starts), size=count))

    def state_dict(self) -> State:
        """The generator."""
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: State) -> None:
        """Draw on as before."""
        self.rng.bit_generator.state = dict(state["rng"])


class OnlineQueue:
    """Hands out each stream's newest rows once, in windows that do not overlap, before anything else is drawn.

    As in the authors' replay: whenever ``length`` rows have come since a stream's last window, its newest window is
    queued. Windows evicted before their turn are dropped, which also bounds the queue.
    """

    def __init__(self, streams: int, length: int) -> None:
        self.streams, self.length = streams, length
        self.due = np.zeros(streams, np.int64)  # from which first row on the next window does not overlap the last
        self.soonest = 0  # the least of them
        self.queue: deque[int] = deque()

    def add(self, fresh: np.ndarray, oldest: int) -> None:
        """See ``Sampler``."""
        if len(fresh) and (row := int(fresh[0]) // self.streams) >= self.soonest:
            stream = fresh % self.streams
            ready = self.due[stream] <= row
            self.queue.extend(fresh[ready].tolist())
            self.due[stream[ready]] = row + self.length
            self.soonest = int(self.due.min())
        while self.queue and self.queue[0] < oldest:
            self.queue.popleft()

    def draw(self, count: int) -> np.ndarray:
        """The oldest handles of the queue, fewer than ``count`` if it runs empty."""
        return np.array([self.queue.popleft() for _ in range(min(count, len(self.queue)))], np.int64)

    def state_dict(self) -> State:
        """Nothing yet: handles mean nothing without the rows, and those are not saved."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """See ``state_dict``."""

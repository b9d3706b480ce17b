"""Which of the windows that there are a batch is made of.

A new way of drawing is a class with the methods of ``Sampler``; one that is mixed with others (``data/mixture.py``)
has those of ``Component`` as well. ``data/starts.py`` knows which windows there are, ``data/priorities.py`` draws by
priority, ``data/sequence.py`` whole episodes, and ``data/dealer.py`` puts them together.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from reverie.core.types import State
from reverie.data.chance import Integers
from reverie.data.handles import HandleQueue
from reverie.data.starts import Beginnings, Starts
from reverie.data.storage import Storage


class Sampler(Protocol):
    """Draws windows."""

    listens: bool
    """Whether ``add`` does anything."""

    def add(self, fresh: np.ndarray, lived: bool = True) -> None:
        """Take note of the windows that the newest rows end. Rows may be evicted now, ``Storage.oldest`` says which.

        They have just been ``lived``, or come from elsewhere: a checkpoint, another run.
        """
        ...

    def clear(self) -> None:
        """The storage holds nothing any more. Generators stay where they are."""
        ...

    def draw(self, count: int) -> Tensor:
        """Up to ``count`` handles, int64."""
        ...

    def state_dict(self) -> State:
        """Generators, and whatever does not follow from the rows."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Continue from there. ``state`` may be a part of what ``state_dict`` gave: the generator ``rng`` alone."""
        ...


class Component(Sampler, Protocol):
    """A sampler that always draws as many as asked for, and knows how likely each window was."""

    def probability(self, handles: np.ndarray) -> np.ndarray:
        """The probability ``[B]`` with which ``draw`` takes each of ``handles`` ``[B]``."""
        ...


class Drawing:
    """What samplers have in common that draw with a generator and follow from the rows otherwise."""

    listens = False

    def __init__(self, starts: Starts, rng: np.random.Generator) -> None:
        self.starts, self.rng = starts, rng
        self.integers = Integers(rng)

    def add(self, fresh: np.ndarray, lived: bool = True) -> None:
        """Nothing to note: ``starts`` knows."""

    def clear(self) -> None:
        """See ``add``."""

    def state_dict(self) -> State:
        """The generator."""
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: State) -> None:
        """Draw on as before."""
        self.rng.bit_generator.state = dict(state["rng"])


class Uniform(Drawing):
    """Every window with the same probability, with replacement."""

    def draw(self, count: int) -> Tensor:
        """``count`` handles."""
        return self.starts.draw(self.integers, count)

    def probability(self, handles: np.ndarray) -> np.ndarray:
        """``1 / M`` of M windows."""
        return np.full(len(handles), 1.0 / len(self.starts))


class Recency(Drawing):
    """Newer windows more often.

    Of M windows the one of age a, the newest having age 0, is drawn with probability

        p(a) = (G(a + 1) - G(a)) / G(M),    G(x) = integral of (1 + t)^-exponent from 0 to x.

    This is the law of the authors' selector, (1 + a)^-exponent, smoothed so that ages are drawn by inverting G and no
    table is needed however many windows there are. Theirs stretches ages until a replay is full, which gives the very
    newest window half of all draws in the beginning; here the law always holds for the windows that there are.

    Source: github.com/danijar/dreamerv3, embodied/core/selectors.py: Recency, with exponent 1.
    """

    def __init__(self, starts: Starts, rng: np.random.Generator, exponent: float) -> None:
        super().__init__(starts, rng)
        self.exponent = exponent

    def mass(self, x: np.ndarray | int) -> np.ndarray:
        """G, up to a factor."""
        power = 1 - self.exponent
        mass: np.ndarray = np.log1p(x) if power == 0 else np.expm1(power * np.log1p(x)) / power
        return mass

    def inverse(self, g: np.ndarray) -> np.ndarray:
        """The x whose ``mass`` is ``g``."""
        power = 1 - self.exponent
        x: np.ndarray = np.expm1(g) if power == 0 else np.expm1(np.log1p(power * g) / power)
        return x

    def draw(self, count: int) -> Tensor:
        """``count`` handles."""
        windows = len(self.starts)
        ages = self.inverse(self.rng.random(count) * self.mass(windows))
        return torch.from_numpy(self.starts.at(windows - 1 - np.minimum(ages, windows - 1).astype(np.int64)))

    def probability(self, handles: np.ndarray) -> np.ndarray:
        """The law above."""
        windows = len(self.starts)
        age = windows - 1 - self.starts.positions(handles)
        probability: np.ndarray = (self.mass(age + 1) - self.mass(age)) / self.mass(windows)
        return probability


class Ends(Drawing):
    """The last windows of episodes more often: they count ``1 + T`` times, T being the rows of a window of an episode.

    With M windows of which E end with an episode, p = (1 + T) / (M + E T) for those and 1 / (M + E T) for all others.
    Without it the last row of an episode is learned from T times less often than one in the middle.

    Source: github.com/Eclectic-Sheep/sheeprl, sheeprl/data/buffers.py: EpisodeBuffer with ``prioritize_ends``, which
    draws the start of a window from 0..L and lets the T + 1 largest values mean the last window of L rows. Its episodes
    are complete; here an episode has an end once the first row of the next has come.
    """

    listens = True

    def __init__(
        self, starts: Starts, rng: np.random.Generator, rows: Storage, beginnings: Beginnings, length: int, free: int
    ) -> None:
        super().__init__(starts, rng)
        self.rows, self.beginnings, self.length, self.free = rows, beginnings, length - free, free
        self.ends = HandleQueue()
        self.clear()

    def clear(self) -> None:
        """See ``Sampler``."""
        self.ends.clear()
        self.undecided = np.empty(0, np.int64)  # the row after them has not come yet

    def add(self, fresh: np.ndarray, lived: bool = True) -> None:
        """See ``Sampler``."""
        windows = np.concatenate([self.undecided, fresh])
        after = windows + (self.free + self.length) * self.rows.streams
        known = np.searchsorted(after, self.rows.count * self.rows.streams)
        windows, self.undecided = windows[:known], windows[known:]
        self.ends.add(windows[self.beginnings.at(after[:known])])
        self.ends.drop(self.starts.oldest)

    def draw(self, count: int) -> Tensor:
        """``count`` handles."""
        windows, ends = len(self.starts), self.ends.held
        drawn = self.integers(windows + len(ends) * self.length, count).numpy()
        last = drawn >= windows
        handles = self.starts.at(np.where(last, 0, drawn))
        handles[last] = ends[(drawn[last] - windows) // self.length]
        return torch.from_numpy(handles)

    def probability(self, handles: np.ndarray) -> np.ndarray:
        """The law above."""
        ends = self.ends.held
        is_end = np.searchsorted(ends, handles, "right") > np.searchsorted(ends, handles)
        total = len(self.starts) + len(ends) * self.length
        probability: np.ndarray = (1 + self.length * is_end) / total
        return probability


class OnlineQueue:
    """Hands out each stream's newest rows once, in windows that do not overlap, before anything else is drawn.

    As in the authors' replay: whenever ``length`` rows have come since a stream's last window, its newest window is
    queued. Windows evicted before their turn are dropped, which also bounds the queue.
    """

    listens = True

    def __init__(self, starts: Starts, rows: Storage, length: int, free: int) -> None:
        """Windows of ``length`` of ``rows``, of which the first ``free`` may be those of another window."""
        self.starts, self.rows, self.length, self.free = starts, rows, length - free, free
        self.clear()

    def clear(self) -> None:
        """See ``Sampler``."""
        self.soonest = self.rows.count - self.free  # the least of them:
        self.due = [self.soonest] * self.rows.streams  # from this row on the next window overlaps no other
        self.queue: deque[int] = deque()

    def add(self, fresh: np.ndarray, lived: bool = True) -> None:
        """See ``Sampler``. Only rows that were just ``lived``, one of each stream, are queued."""
        if not lived:
            self.clear()
        self.add_one(fresh.tolist() if lived else [])

    def add_one(self, fresh: list[int]) -> None:
        """``add`` of the windows that one row of each stream, just lived, ends."""
        streams = self.rows.streams
        if fresh and (row := fresh[0] // streams) >= self.soonest:
            for handle in fresh:
                if self.due[handle % streams] <= row:
                    self.queue.append(handle)
                    self.due[handle % streams] = row + self.length
            self.soonest = min(self.due)
        oldest = self.starts.oldest
        while self.queue and self.queue[0] < oldest:
            self.queue.popleft()

    def draw(self, count: int) -> Tensor:
        """The oldest handles of the queue, fewer than ``count`` if it runs empty."""
        return torch.tensor([self.queue.popleft() for _ in range(min(count, len(self.queue)))], dtype=torch.int64)

    def state_dict(self) -> State:
        """What waits, and from where on windows are due."""
        return {"queue": np.array(self.queue, np.int64), "due": np.array(self.due)}

    def load_state_dict(self, state: State) -> None:
        """See ``Sampler``."""
        if "queue" not in state:
            return
        held: list[Any] = state["queue"][state["queue"] >= self.starts.oldest].tolist()
        self.queue, self.due = deque(held), state["due"].tolist()
        self.soonest = min(self.due)

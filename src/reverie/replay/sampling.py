"""Samplers: which of the available windows make a batch.

A new way of sampling is a class with the methods of ``Sampler``, and those of ``Component`` if it can be mixed with
others (``mixture.py``). ``window_index.py`` knows which windows are available, and has a figure of them.
``priorities.py`` samples by priority and ``sequence.py`` whole episodes; ``batch_sampler.py`` combines
all.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from reverie.core.types import State
from reverie.replay.handles import HandleQueue
from reverie.replay.randint import Integers
from reverie.replay.storage import Storage
from reverie.replay.window_index import Beginnings, Starts


class Sampler(Protocol):
    """Draws windows."""

    listens: bool
    """Whether ``add`` has an effect."""

    def add(self, fresh: np.ndarray, lived: bool = True) -> None:
        """Register the windows that the newest rows complete. Older rows may be evicted now, see ``Storage.oldest``.

        ``lived`` rows were just collected by this run; others come from a checkpoint or another run.
        """
        ...

    def clear(self) -> None:
        """Forget all windows: the storage is empty now. Generators keep their states."""
        ...

    def draw(self, count: int) -> Tensor:
        """Return up to ``count`` handles, int64."""
        ...

    def state_dict(self) -> State:
        """Return the generators, and everything else that does not follow from the rows."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Restore a saved state, which may be reduced to the generator ``rng``."""
        ...


class Component(Sampler, Protocol):
    """A sampler that always draws exactly ``count`` windows and knows the probability of each."""

    def probability(self, handles: np.ndarray) -> np.ndarray:
        """Return the probability ``[B]`` of each of ``handles`` ``[B]`` in one draw."""
        ...


class Drawing:
    """Base class of samplers whose only state, apart from the rows, is a generator."""

    listens = False

    def __init__(self, starts: Starts, rng: np.random.Generator) -> None:
        self.starts, self.rng = starts, rng
        self.integers = Integers(rng)

    def add(self, fresh: np.ndarray, lived: bool = True) -> None:
        """Do nothing: ``starts`` keeps track of the windows."""

    def clear(self) -> None:
        """Do nothing, as ``add``."""

    def state_dict(self) -> State:
        """Return the state of the generator."""
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: State) -> None:
        """Restore the generator."""
        self.rng.bit_generator.state = dict(state["rng"])


class Uniform(Drawing):
    """Draws every window with the same probability, with replacement."""

    def draw(self, count: int) -> Tensor:
        """Return ``count`` handles."""
        return self.starts.draw(self.integers, count)

    def probability(self, handles: np.ndarray) -> np.ndarray:
        """Return ``1 / M`` for each handle, with M windows."""
        return np.full(len(handles), 1.0 / len(self.starts))


class Recency(Drawing):
    """Draws newer windows more often.

    Of M windows the one of age a, the newest having age 0, is drawn with probability

        p(a) = (G(a + 1) - G(a)) / G(M),    G(x) = integral of (1 + t)^-exponent from 0 to x.

    This is the distribution of the authors' selector, (1 + a)^-exponent, smoothed so that ages can be drawn by
    inverting G, without a table of all windows. Theirs stretches ages until the replay is full, which gives the newest
    window half of all draws in the beginning; here the distribution always applies to the windows that exist.

    Source: github.com/danijar/dreamerv3, embodied/core/selectors.py: Recency, with exponent 1.
    """

    def __init__(self, starts: Starts, rng: np.random.Generator, exponent: float) -> None:
        super().__init__(starts, rng)
        self.exponent = exponent

    def mass(self, x: np.ndarray | int) -> np.ndarray:
        """Return G(x) up to a constant factor."""
        power = 1 - self.exponent
        mass: np.ndarray = np.log1p(x) if power == 0 else np.expm1(power * np.log1p(x)) / power
        return mass

    def inverse(self, g: np.ndarray) -> np.ndarray:
        """Return the x whose ``mass`` is ``g``."""
        power = 1 - self.exponent
        x: np.ndarray = np.expm1(g) if power == 0 else np.expm1(np.log1p(power * g) / power)
        return x

    def draw(self, count: int) -> Tensor:
        """Return ``count`` handles."""
        windows = len(self.starts)
        ages = self.inverse(self.rng.random(count) * self.mass(windows))
        return torch.from_numpy(self.starts.at(windows - 1 - np.minimum(ages, windows - 1).astype(np.int64)))

    def probability(self, handles: np.ndarray) -> np.ndarray:
        """Return the p(a) above for each handle."""
        windows = len(self.starts)
        age = windows - 1 - self.starts.positions(handles)
        probability: np.ndarray = (self.mass(age + 1) - self.mass(age)) / self.mass(windows)
        return probability


class Ends(Drawing):
    """Draws the last window of each episode 1 + T times as often, T being the rows of a window without its free ones.

    With M windows of which E end with an episode, p = (1 + T) / (M + E T) for those and 1 / (M + E T) for all others.
    With uniform sampling the last row of an episode is learned from T times less often than one in the middle.

    Source: github.com/Eclectic-Sheep/sheeprl, sheeprl/data/buffers.py: EpisodeBuffer with ``prioritize_ends``, which
    draws the start of a window from 0..L and maps the T + 1 largest values to the last window of L rows. Its episodes
    are complete; here the end of an episode is known once the first row of the next one has come.
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
        self.undecided = np.empty(0, np.int64)  # windows whose following row has not come yet

    def add(self, fresh: np.ndarray, lived: bool = True) -> None:
        """See ``Sampler``."""
        windows = np.concatenate([self.undecided, fresh])
        after = windows + (self.free + self.length) * self.rows.streams
        known = np.searchsorted(after, self.rows.count * self.rows.streams)
        windows, self.undecided = windows[:known], windows[known:]
        self.ends.add(windows[self.beginnings.at(after[:known])])
        self.ends.drop(self.starts.oldest)

    def draw(self, count: int) -> Tensor:
        """Return ``count`` handles."""
        windows, ends = len(self.starts), self.ends.held
        drawn = self.integers(windows + len(ends) * self.length, count).numpy()
        last = drawn >= windows
        handles = self.starts.at(np.where(last, 0, drawn))
        handles[last] = ends[(drawn[last] - windows) // self.length]
        return torch.from_numpy(handles)

    def probability(self, handles: np.ndarray) -> np.ndarray:
        """Return the p above for each handle."""
        ends = self.ends.held
        is_end = np.searchsorted(ends, handles, "right") > np.searchsorted(ends, handles)
        total = len(self.starts) + len(ends) * self.length
        probability: np.ndarray = (1 + self.length * is_end) / total
        return probability


class OnlineQueue:
    """Draws each stream's newest rows once, in windows that do not overlap, before other windows are drawn.

    As in the replay of DreamerV3's authors: when ``length`` rows have come since a stream's last queued window, its
    newest window is queued. Windows that are evicted before they are drawn are dropped, which bounds the queue.
    """

    listens = True

    def __init__(self, starts: Starts, rows: Storage, length: int, free: int) -> None:
        """Queue windows of ``length`` of ``rows``; their first ``free`` rows may overlap another window."""
        self.starts, self.rows, self.length, self.free = starts, rows, length - free, free
        self.clear()

    def clear(self) -> None:
        """See ``Sampler``."""
        self.soonest = self.rows.count - self.free  # the minimum of due
        self.due = [self.soonest] * self.rows.streams  # by stream: the first row at which the next window may begin
        self.queue: deque[int] = deque()

    def add(self, fresh: np.ndarray, lived: bool = True) -> None:
        """See ``Sampler``. Only windows of newly collected rows (``lived``), one of each stream, are queued."""
        if not lived:
            self.clear()
        self.add_one(fresh.tolist() if lived else [])

    def add_one(self, fresh: list[int]) -> None:
        """Register the windows that one newly collected row of each stream completes."""
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
        """Return the oldest handles of the queue, fewer than ``count`` if it runs empty."""
        oldest = [self.queue.popleft() for _ in range(min(count, len(self.queue)))]
        return torch.tensor(oldest, dtype=torch.int64, device="cpu")

    def state_dict(self) -> State:
        """Return the queue, and the row from which each stream's next window is due."""
        return {"queue": np.array(self.queue, np.int64), "due": np.array(self.due)}

    def load_state_dict(self, state: State) -> None:
        """See ``Sampler``."""
        if "queue" not in state:
            return
        held: list[Any] = state["queue"][state["queue"] >= self.starts.oldest].tolist()
        self.queue, self.due = deque(held), state["due"].tolist()
        self.soonest = min(self.due)

"""Samplers: which of the available windows make a batch. ``windows.py`` has a figure of them.

``priority.py`` samples by priority and ``sequence.py`` whole episodes; ``batch_sampler.py`` combines all.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from torch import Tensor

from reverie.core.types import State
from reverie.replay.storage import Storage
from reverie.replay.windows import FirstFlags, HandleQueue, RandomIntegers, Windows, random_integers


class Sampler:
    """Draws windows. Of this base class, the state is a generator; everything else follows from the rows."""

    listens = False
    """Whether ``add`` has an effect."""

    def __init__(self, windows: Windows, rng: np.random.Generator) -> None:
        self.windows = windows
        self.rng = rng
        self.integers: RandomIntegers = RandomIntegers(rng)

    def add(self, new: np.ndarray, collected: bool = True) -> None:
        """Register the windows that the newest rows complete. Older rows may be evicted now, see ``Storage.oldest``.

        ``collected`` rows were just collected by this run; others come from a checkpoint or another run.
        """

    def clear(self) -> None:
        """Forget all windows: the storage is empty now. Generators keep their states."""

    def draw(self, count: int) -> Tensor:
        """Return up to ``count`` handles, int64."""
        raise NotImplementedError

    def probability(self, handles: np.ndarray) -> np.ndarray:
        """Return the probability ``[B]`` of each of ``handles`` ``[B]`` in one draw, for samplers that are mixed."""
        raise NotImplementedError

    def state_dict(self) -> State:
        """Return the generators, and everything else that does not follow from the rows."""
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: State) -> None:
        """Restore a saved state; the storage holds the same rows."""
        self.rng.bit_generator.state = dict(state["rng"])


class Uniform(Sampler):
    """Draws every window with the same probability, with replacement."""

    def draw(self, count: int) -> Tensor:
        return self.windows.draw(self.integers, count)

    def probability(self, handles: np.ndarray) -> np.ndarray:
        """Return ``1 / M`` for each handle, with M windows."""
        return np.full(len(handles), 1.0 / len(self.windows))


class Recency(Sampler):
    """Draws newer windows more often.

    Of M windows the one of age a, the newest having age 0, is drawn with probability

        p(a) = (G(a + 1) - G(a)) / G(M),    G(x) = integral of (1 + t)^-exponent from 0 to x.

    This is the distribution of the authors' selector, (1 + a)^-exponent, smoothed so that ages can be drawn by
    inverting G, without a table of all windows. Theirs stretches ages until the replay is full, which gives the newest
    window half of all draws in the beginning; here the distribution always applies to the windows that exist.

    Source: github.com/danijar/dreamerv3, embodied/core/selectors.py: Recency, with exponent 1.
    """

    def __init__(self, windows: Windows, rng: np.random.Generator, exponent: float) -> None:
        super().__init__(windows, rng)
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
        windows = len(self.windows)
        ages = self.inverse(self.rng.random(count) * self.mass(windows))
        return torch.from_numpy(self.windows.at(windows - 1 - np.minimum(ages, windows - 1).astype(np.int64)))

    def probability(self, handles: np.ndarray) -> np.ndarray:
        """Return the p(a) above for each handle."""
        windows = len(self.windows)
        age = windows - 1 - self.windows.positions(handles)
        probability: np.ndarray = (self.mass(age + 1) - self.mass(age)) / self.mass(windows)
        return probability


class EpisodeEnds(Sampler):
    """Draws the last window of each episode 1 + T times as often, T being the rows of a window without its free ones.

    With M windows of which E end with an episode, p = (1 + T) / (M + E T) for those and 1 / (M + E T) for all others.
    With uniform sampling the last row of an episode is learned from T times less often than one in the middle.

    Source: github.com/Eclectic-Sheep/sheeprl, sheeprl/data/buffers.py: EpisodeBuffer with ``prioritize_ends``, which
    draws the start of a window from 0..L and maps the T + 1 largest values to the last window of L rows. Its episodes
    are complete; here the end of an episode is known once the first row of the next one has come.
    """

    listens = True

    def __init__(self, windows: Windows, rng: np.random.Generator, flags: FirstFlags) -> None:
        super().__init__(windows, rng)
        self.flags = flags
        self.rows: Storage = windows.rows
        self.learned: int = windows.length - windows.free
        self.ends: HandleQueue = HandleQueue()
        self.clear()

    def clear(self) -> None:
        self.ends.clear()
        self.undecided: np.ndarray = np.empty(0, np.int64)  # windows whose following row has not come yet

    def add(self, new: np.ndarray, collected: bool = True) -> None:
        windows = np.concatenate([self.undecided, new])
        after = windows + self.windows.length * self.rows.streams
        known = np.searchsorted(after, self.rows.count * self.rows.streams)
        windows, self.undecided = windows[:known], windows[known:]
        self.ends.add(windows[self.flags.at(after[:known])])
        self.ends.drop(self.windows.oldest)

    def draw(self, count: int) -> Tensor:
        windows, ends = len(self.windows), self.ends.held
        drawn = random_integers(self.integers, windows + len(ends) * self.learned, count).numpy()
        last = drawn >= windows
        handles = self.windows.at(np.where(last, 0, drawn))
        handles[last] = ends[(drawn[last] - windows) // self.learned]
        return torch.from_numpy(handles)

    def probability(self, handles: np.ndarray) -> np.ndarray:
        """Return the p above for each handle."""
        ends = self.ends.held
        is_end = np.searchsorted(ends, handles, "right") > np.searchsorted(ends, handles)
        total = len(self.windows) + len(ends) * self.learned
        probability: np.ndarray = (1 + self.learned * is_end) / total
        return probability


class OnlineQueue(Sampler):
    """Draws each stream's newest rows once, in windows that do not overlap, before other windows are drawn.

    As in the replay of DreamerV3's authors: when ``length`` rows have come since a stream's last queued window, its
    newest window is queued; only its free rows may overlap another. Windows that are evicted before they are drawn are
    dropped, which bounds the queue.
    """

    listens = True

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self.rows: Storage = windows.rows
        self.learned: int = windows.length - windows.free
        self.clear()

    def clear(self) -> None:
        self.soonest: int = self.rows.count - self.windows.free  # the minimum of due
        # By stream: the first row at which the next window may begin.
        self.due: list[int] = [self.soonest] * self.rows.streams
        self.queue: deque[int] = deque()

    def add(self, new: np.ndarray, collected: bool = True) -> None:
        """See ``Sampler``. Only windows of newly collected rows, one of each stream, are queued."""
        if not collected:
            self.clear()
        self.add_one(new.tolist() if collected else [])

    def add_one(self, new: list[int]) -> None:
        """Register the windows that one newly collected row of each stream completes."""
        streams = self.rows.streams
        if new and (row := new[0] // streams) >= self.soonest:
            for handle in new:
                if self.due[handle % streams] <= row:
                    self.queue.append(handle)
                    self.due[handle % streams] = row + self.learned
            self.soonest = min(self.due)
        oldest = self.windows.oldest
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
        self.queue = deque(state["queue"][state["queue"] >= self.windows.oldest].tolist())
        self.due = state["due"].tolist()
        self.soonest = min(self.due)

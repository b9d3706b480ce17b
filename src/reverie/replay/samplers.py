"""Samplers: which windows make a batch. ``prioritized.py`` has another, ``batch_sampler.py`` combines all."""

from __future__ import annotations

from bisect import insort
from collections import deque

import numpy as np
import torch
from torch import Tensor

from reverie.core.errors import DataError
from reverie.core.seeding import GeneratorState
from reverie.core.types import State, Window
from reverie.replay.storage import Storage
from reverie.replay.windows import FirstFlags, HandleQueue, RandomIntegers, Windows, random_integers


class Sampler(GeneratorState):
    """Draws windows. The base class has a generator as its state; everything else follows from the rows."""

    listens = False
    """Whether ``add`` has an effect."""

    def __init__(self, windows: Windows, rng: np.random.Generator) -> None:
        self.windows = windows
        self.rng = rng
        self.integers: RandomIntegers = RandomIntegers(rng)

    def add(self, new: np.ndarray, collected: bool = True) -> None:
        """Register the windows that the newest rows complete, ``collected`` by this run or read from elsewhere."""

    def clear(self) -> None:
        """Forget all windows: the storage is empty now. Generators keep their states."""

    def draw(self, count: int, out: Tensor | None = None) -> Tensor:
        """Return up to ``count`` handles, int64; in ``out`` ``[count]`` if that is faster."""
        raise NotImplementedError

    def probability(self, handles: np.ndarray) -> np.ndarray:
        """Return the probability ``[B]`` of each of ``handles`` ``[B]`` in one draw, for samplers that are mixed."""
        raise NotImplementedError


def check_draws(sampler: Sampler) -> Sampler:
    """Return a custom ``sampler`` whose ``draw`` raises DataError if a handle is not one of a window.

    The rows of other handles, such as evicted ones, would be learned from.
    """
    draw, windows = sampler.draw, sampler.windows

    def checked_draw(count: int, out: Tensor | None = None) -> Tensor:
        handles = torch.as_tensor(draw(count), dtype=torch.int64)
        positions = windows.positions(handles.numpy())
        in_range = positions.clip(0, len(windows) - 1)
        wrong = handles.numpy()[(positions != in_range) | (windows.handles_at(in_range) != handles.numpy())]
        if handles.shape != (count,) or len(wrong):
            problem = f"the handle {wrong[0]}, which is no window" if len(wrong) else f"the shape {list(handles.shape)}"
            raise DataError(
                f"replay.sampler: {type(sampler).__name__}.draw({count}) returned {problem}. Return {count} of the "
                "handles that windows.handles_at returns."
            )
        return handles

    sampler.draw = checked_draw  # type: ignore[method-assign]
    return sampler


class UniformSampler(Sampler):
    """Draws every window with the same probability, with replacement."""

    def draw(self, count: int, out: Tensor | None = None) -> Tensor:
        return self.windows.draw(self.integers, count, out)

    def probability(self, handles: np.ndarray) -> np.ndarray:
        """Return ``1 / M`` for each handle, with M windows."""
        return np.full(len(handles), 1.0 / len(self.windows))


class RecencySampler(Sampler):
    """Draws newer windows more often.

    Among M windows, the window of age a, 0 for the newest, is drawn with probability

        p(a) = (G(a + 1) - G(a)) / G(M),    G(x) = integral of (1 + t)^-exponent from 0 to x.

    This is the distribution of the authors' selector, (1 + a)^-exponent, smoothed so that ages can be drawn by
    inverting G. Theirs stretches ages until the replay is full; here it always applies to the windows that exist.

    Source: github.com/danijar/dreamerv3, embodied/core/selectors.py: Recency, with exponent 1.
    """

    def __init__(self, windows: Windows, rng: np.random.Generator, exponent: float) -> None:
        super().__init__(windows, rng)
        self.exponent = exponent

    def mass(self, x: np.ndarray | int) -> np.ndarray:
        """Return G(x) up to a constant factor."""
        power = 1 - self.exponent
        return np.asarray(np.log1p(x) if power == 0 else np.expm1(power * np.log1p(x)) / power)

    def inverse(self, g: np.ndarray) -> np.ndarray:
        """Return the x whose ``mass`` is ``g``."""
        power = 1 - self.exponent
        return np.asarray(np.expm1(g) if power == 0 else np.expm1(np.log1p(power * g) / power))

    def draw(self, count: int, out: Tensor | None = None) -> Tensor:
        windows = len(self.windows)
        ages = self.inverse(self.rng.random(count) * self.mass(windows))
        return torch.from_numpy(self.windows.handles_at(windows - 1 - np.minimum(ages, windows - 1).astype(np.int64)))

    def probability(self, handles: np.ndarray) -> np.ndarray:
        """Return the p(a) above for each handle."""
        windows = len(self.windows)
        age = windows - 1 - self.windows.positions(handles)
        return np.asarray((self.mass(age + 1) - self.mass(age)) / self.mass(windows))


class EpisodeEndSampler(Sampler):
    """Draws the last window of each episode 1 + T times as often, where T is a window's rows without its free rows.

    Among M windows, E end with an episode: p = (1 + T) / (M + E T) for these E, and 1 / (M + E T) for all others.
    With uniform sampling the last row of an episode is learned from T times less often than one in the middle.

    Source: github.com/Eclectic-Sheep/sheeprl, sheeprl/data/buffers.py: EpisodeBuffer with ``prioritize_ends``. Its
    episodes are complete; here the end of an episode is known once the first row of the next episode is stored.
    """

    listens = True

    def __init__(self, windows: Windows, rng: np.random.Generator, flags: FirstFlags) -> None:
        super().__init__(windows, rng)
        self.flags = flags
        self.storage: Storage = windows.storage
        self.learned: int = windows.length - windows.free
        self.ends: HandleQueue = HandleQueue()
        self.clear()

    def clear(self) -> None:
        self.ends.clear()
        self.undecided: np.ndarray = np.empty(0, np.int64)  # windows whose following row is not stored yet

    def add(self, new: np.ndarray, collected: bool = True) -> None:
        windows = np.concatenate([self.undecided, new])
        after = windows + self.windows.length * self.storage.streams
        num_decided = np.searchsorted(after, self.storage.count * self.storage.streams)
        windows, self.undecided = windows[:num_decided], windows[num_decided:]
        self.ends.add(windows[self.flags.at(after[:num_decided])])
        self.ends.drop(self.windows.oldest)

    def draw(self, count: int, out: Tensor | None = None) -> Tensor:
        windows, ends = len(self.windows), self.ends.handles
        drawn = random_integers(self.integers, windows + len(ends) * self.learned, count).numpy()
        last = drawn >= windows
        handles = self.windows.handles_at(np.where(last, 0, drawn))
        handles[last] = ends[(drawn[last] - windows) // self.learned]
        return torch.from_numpy(handles)

    def probability(self, handles: np.ndarray) -> np.ndarray:
        """Return the p above for each handle."""
        ends = self.ends.handles
        is_end = np.searchsorted(ends, handles, "right") > np.searchsorted(ends, handles)
        return np.asarray((1 + self.learned * is_end) / (len(self.windows) + len(ends) * self.learned))


class OnlineQueue(Sampler):
    """Draws each stream's newest rows once, in windows that overlap as little as possible, before other windows.

    ``stride`` rows after a stream's last queued window, its newest window is queued. In the replay of DreamerV3's
    authors, windows do not overlap. Learners of transitions need more: the last row of a window, from which they only
    bootstrap, is the first learned row of the next window. If the stride steps over the end of an episode, and windows
    do not cross it, the episode's last window is queued with the first window of the next. Windows that are evicted
    before they are drawn are dropped, which bounds the queue.
    """

    listens = True

    def __init__(self, windows: Windows, stride: int) -> None:
        self.windows = windows
        self.storage: Storage = windows.storage
        self.stride = stride
        self.clear()

    def clear(self) -> None:
        self.soonest: int = self.storage.count - self.windows.free  # the minimum of due
        self.due: list[int] = [self.soonest] * self.storage.streams  # the first row at which the next window may begin
        self.queue: deque[int] = deque()

    def add(self, new: np.ndarray, collected: bool = True) -> None:
        """See ``Sampler``. Only windows of newly collected rows, one of each stream, are queued."""
        if not collected:
            self.clear()
        self.add_one(new.tolist() if collected else [])

    def add_one(self, new: list[int]) -> None:
        """Register the windows that one newly collected row of each stream completes."""
        streams = self.storage.streams
        if new and (row := new[0] // streams) >= self.soonest:
            if self.stride == 1:  # each window is queued
                self.queue.extend(new)
                self.soonest = row + 1
                self.due = [self.soonest] * streams
            else:
                self._add_due(new, row)
        oldest = self.windows.oldest
        while self.queue and self.queue[0] < oldest:
            self.queue.popleft()

    def _add_due(self, new: list[int], row: int) -> None:
        """Queue those of the ``new`` windows, which begin with ``row``, whose stream's next window is due."""
        streams = self.storage.streams
        for handle in new:
            if self.due[handle % streams] <= row:
                if self.due[handle % streams] < row:
                    self._add_skipped_window(handle % streams)
                self.queue.append(handle)
                self.due[handle % streams] = row + self.stride
        self.soonest = min(self.due)

    def _add_skipped_window(self, stream: int) -> None:
        """Queue the last window that began before the next one was due, and after the last queued window."""
        due, streams, handles = self.due[stream], self.storage.streams, self.windows.queue.handles
        begin, end = handles.searchsorted([(due - self.stride + 1) * streams, due * streams])
        skipped = handles[begin:end][handles[begin:end] % streams == stream]
        if len(skipped):
            insort(self.queue, int(skipped[-1]))  # in order, for evictions

    @property
    def oldest_row(self) -> int:
        """Number of the first row of the windows that are queued, or will be."""
        return min(self.soonest, self.queue[0] // self.storage.streams if self.queue else self.soonest)

    def draw_queued(self, count: int) -> list[int]:
        """Return the oldest handles of the queue, fewer than ``count`` if it runs empty."""
        if len(self.queue) > count:
            return [self.queue.popleft() for _ in range(count)]
        queued = [*self.queue]
        self.queue.clear()
        return queued

    def state_dict(self) -> State:
        """Return the queue, and the row from which each stream's next window is due."""
        return {"queue": np.array(self.queue, np.int64), "due": np.array(self.due)}

    def load_state_dict(self, state: State) -> None:
        self.queue = deque(state["queue"][state["queue"] >= self.windows.oldest].tolist())
        self.due = state["due"].tolist()
        self.soonest = min(self.due)


class SequentialSampler(Sampler):
    """B cursors, each reading one episode after another to its end; the learner's state is carried along.

    A cursor's next window begins ``window.length`` rows after the last one, so its context rows are the last rows of
    that window. The next window starts from the latents that the learner has just written back to those rows.

    The first window of each cursor is drawn from all windows: otherwise cursors would stay synchronized where all
    episodes have one length. When an episode is over or its rows have been evicted, the cursor continues with an
    episode drawn uniformly from those that contain a window and whose first row is stored; if there is none, with any
    window. If the rest of an episode is shorter than a window, its last window is moved back to end with the episode.
    If that episode is still being collected, the rest is skipped, or all cursors would wait at the newest rows.
    An episode shorter than a window is left out, unless windows may continue into the next one.

    If windows may cross episodes, the first learned row is the first of the episode, after context rows of another one.
    Otherwise the first rows of an episode are context only. The same applies to the first row of the stream.

    If the learner carries the state itself (``Window.carries``), the last window of an episode continues into the rows
    after it, as it must begin where the carried state ended; only at the end of the stream it is moved back. ``resets``
    marks the latest windows that do not continue the cursor's previous window. With probability ``reset_chance`` other
    windows are reset too, so that batches decorrelate: T / 2R, for windows of T rows, is PyDreamer's interval R.

    Source: github.com/jurgisp/pydreamer, data.py: DataSequential.
    """

    listens = True

    def __init__(
        self, windows: Windows, rng: np.random.Generator, flags: FirstFlags, window: Window, reset_chance: float = 0.0
    ) -> None:
        super().__init__(windows, rng)
        self.storage: Storage = windows.storage
        self.flags = flags
        self.window = window
        self.reset_chance = reset_chance
        self.ahead: int = window.context if window.crosses_episodes else 0  # rows of a first window before its episode
        self.episodes: HandleQueue = HandleQueue()
        self.clear()

    def clear(self) -> None:
        self.episodes.clear()
        self.cursors: list[int] = []  # the handle of each cursor's last window
        self.resets: np.ndarray = np.empty(0, bool)

    def add(self, new: np.ndarray, collected: bool = True) -> None:
        self.episodes.add(new[self.episode_begins(new)])
        self.episodes.drop(self.storage.oldest * self.storage.streams)

    def episode_begins(self, new: np.ndarray) -> np.ndarray:
        """Return a mask of the windows ``new`` that are the first of an episode."""
        streams = self.storage.streams
        of_all = (new < streams) & self.flags.at(new)
        return np.asarray(self.flags.at(new + self.ahead * streams) | of_all)

    def draw(self, count: int, out: Tensor | None = None) -> Tensor:
        """Return the next window of each of ``count`` cursors."""
        previous, step = self.cursors, self.window.length * self.storage.streams
        if len(previous) != count:
            previous = []
            self.cursors = self.windows.handles_at(self.rng.integers(len(self.windows), size=count)).tolist()
        else:
            following = map(self.next_window, previous)
            self.cursors = [self.random_start() if handle is None else handle for handle in following]
        self.resets = np.array(self.cursors) != np.array(previous or self.cursors) + step
        if self.reset_chance:
            self.resets |= self.rng.random(count) < self.reset_chance
        return torch.tensor(self.cursors, dtype=torch.int64, device="cpu")

    def next_window(self, handle: int) -> int | None:
        """Return the window after ``handle``, or None if the episode is over or evicted."""
        streams, window = self.storage.streams, self.window
        row, stream = divmod(handle, streams)
        if row < self.storage.oldest:
            return None
        begun, learned = row + self.ahead, row + window.rows  # row begun may begin the episode, a later one the next
        end = self.flags.next_first(begun, stream, limit=learned + window.length - begun - 1)
        running = end == self.storage.count < learned + window.length and not self.flags.ended[stream]
        if end <= learned or running:
            return None
        end = self.storage.count if window.carries else end
        return (min(learned + window.length, end) - window.rows) * streams + stream

    def random_start(self) -> int:
        """Return the first window of a random episode."""
        episodes = self.episodes.handles
        if len(episodes):
            return int(episodes[self.rng.integers(len(episodes))])
        return int(self.windows.handles_at(self.rng.integers(len(self.windows), size=1))[0])

    def state_dict(self) -> State:
        """Return the generator and the positions of the cursors."""
        return {**super().state_dict(), "cursors": list(self.cursors)}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.cursors = list(state["cursors"])

"""Sampling whole episodes in order, for truncated backpropagation through time.

``windows.py`` has a figure of windows, episodes and eviction.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from reverie.core.types import State, Window
from reverie.replay.samplers import Sampler
from reverie.replay.storage import Storage
from reverie.replay.windows import FirstFlags, HandleQueue, Windows


class Sequence(Sampler):
    """B cursors; each one reads an episode to its end, then another, and the learner's state is carried along.

    A cursor's next window begins ``window.length`` rows after the last one, so its context rows are the last rows of
    that window. The next window starts from the latents that the learner has just written back to those rows.

    The first window of each cursor is drawn from all windows: otherwise cursors would stay synchronised where all
    episodes have one length. When an episode is over or its rows have been evicted, the cursor continues with an
    episode drawn uniformly from those that hold a window and whose first row is held; if there is none, with any
    window. If the rest of an episode is shorter than a window, its last window is moved back to end with the episode.
    So all rows are learned from, some of the last ones twice, and the state still comes from the window before. The
    rest of an episode that is still being collected is skipped instead, or all cursors would end up waiting at the
    newest rows. An episode shorter than a window is in a window that continues into the next episode if the algorithm
    allows that, and is left out otherwise.

    If windows may cross episodes, the first learned row is the first of the episode: the context rows before it are of
    another one, and do not affect the state, which is reset. Otherwise the first rows of an episode are context only
    and never learned from. The same applies to the first row of the stream, as there is none before it.

    If the learner carries the state itself (``Window.carries``), the last window of an episode goes on into the rows
    after it, as it must begin where the carried state ended; only at the end of the stream it is moved back. ``resets``
    says which of the windows drawn last do not go on from the cursor's window before. With probability ``reset_chance``
    others are reset too, so that batches decorrelate. With T / 2R, for windows of T rows, that happens as often as with
    PyDreamer's ``reset_interval`` of R, which cuts an episode into a random number of pieces.

    Source: github.com/jurgisp/pydreamer, data.py: DataSequential, which reads files of episodes in this way and
    completes the last window of one from the next.
    """

    listens = True

    def __init__(
        self, windows: Windows, rng: np.random.Generator, flags: FirstFlags, window: Window, reset_chance: float = 0.0
    ) -> None:
        super().__init__(windows, rng)
        self.rows: Storage = windows.rows
        self.flags = flags
        self.window = window
        self.reset_chance = reset_chance
        self.ahead: int = window.context if window.crosses_episodes else 0  # rows of a first window before its episode
        self.episodes: HandleQueue = HandleQueue()
        self.clear()

    def clear(self) -> None:
        self.episodes.clear()
        self.cursors: list[int] = []  # the handle of each one's last window
        self.resets: np.ndarray = np.empty(0, bool)

    def add(self, new: np.ndarray, collected: bool = True) -> None:
        self.episodes.add(new[self.begins(new)])
        self.episodes.drop(self.rows.oldest * self.rows.streams)

    def begins(self, new: np.ndarray) -> np.ndarray:
        """Return a mask of the windows ``new`` that are the first of an episode."""
        streams = self.rows.streams
        of_all = (new < streams) & self.flags.at(new)
        found: np.ndarray = self.flags.at(new + self.ahead * streams) | of_all
        return found

    def draw(self, count: int) -> Tensor:
        """Return the next window of each of ``count`` cursors."""
        before, step = self.cursors, self.window.length * self.rows.streams
        if len(before) != count:
            before, self.cursors = [], self.windows.at(self.rng.integers(len(self.windows), size=count)).tolist()
        else:
            following = map(self.after, before)
            self.cursors = [self.anew() if handle is None else handle for handle in following]
        self.resets = np.array(self.cursors) != np.array(before or self.cursors) + step
        if self.reset_chance:
            self.resets |= self.rng.random(count) < self.reset_chance
        return torch.tensor(self.cursors, dtype=torch.int64, device="cpu")

    def after(self, handle: int) -> int | None:
        """Return the window after ``handle``, or None if the episode is over or evicted."""
        streams, window = self.rows.streams, self.window
        row, stream = divmod(handle, streams)
        if row < self.rows.oldest:
            return None
        begun, learned = row + self.ahead, row + window.rows  # row begun may begin the episode, a later one the next
        end = self.flags.next(begun, stream, most=learned + window.length - begun - 1)
        running = end == self.rows.count < learned + window.length and not self.flags.ended[stream]
        if end <= learned or running:
            return None
        end = self.rows.count if window.carries else end
        return (min(learned + window.length, end) - window.rows) * streams + stream

    def anew(self) -> int:
        """Return the first window of a random episode."""
        held = self.episodes.held
        if len(held):
            return int(held[self.rng.integers(len(held))])
        return int(self.windows.at(self.rng.integers(len(self.windows), size=1))[0])

    def state_dict(self) -> State:
        """Return the generator and the positions of the cursors."""
        return {**super().state_dict(), "cursors": list(self.cursors)}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.cursors = list(state["cursors"])

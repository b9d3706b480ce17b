"""Whole episodes in their order: truncated backpropagation through time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from reverie.core.types import State, Window
from reverie.data.handles import HandleQueue
from reverie.data.starts import Beginnings, Starts
from reverie.data.storage import Storage


class Sequence:
    """B cursors, each of which reads one episode after the other; what it has learned is carried along.

    A cursor's next window begins ``window.length`` rows later, so that its context rows are the last rows of the window
    before. The latents that the learner has just written back there are the state that the next window starts from.

    The first window of a run starts anywhere, or cursors would stay in step where all episodes are of one length. From
    then on, whenever an episode is over or its rows have been evicted, the cursor goes on with an episode drawn
    uniformly from all that hold a window (anywhere, if none of which the beginning is held does). If what is left of an
    episode is shorter than a window, its last window is moved back to end with it: all rows are learned from, some of
    the last twice, and the state still comes from the window before. What has been lived of an episode that still goes
    on is left instead, or all cursors would come to wait at the newest rows. An episode shorter than a window is part
    of one that runs on into the next episode where the algorithm allows that, and left out where it does not.

    Where the algorithm allows that, the first row that is learned from is the first of the episode: the context rows
    before it are of another one, and nothing of them is left in a state that begins anew. Otherwise the episode's first
    rows are context and never learned from, and so is the first row of all, as there is none before it.

    Source: github.com/jurgisp/pydreamer, data.py: DataSequential, which reads files of episodes in this way and
    completes the last window of one from the next.
    """

    listens = True

    def __init__(
        self, starts: Starts, rng: np.random.Generator, rows: Storage, beginnings: Beginnings, window: Window
    ) -> None:
        """Draws from ``starts``, windows of ``rows``."""
        self.starts, self.rng, self.rows, self.beginnings, self.window = starts, rng, rows, beginnings, window
        self.ahead = window.context if window.crosses_episodes else 0  # rows of a first window before its episode
        self.episodes = HandleQueue()
        self.clear()

    def clear(self) -> None:
        """See ``Sampler``."""
        self.episodes.clear()
        self.cursors: list[int] = []  # the handle of each one's last window

    def add(self, fresh: np.ndarray, lived: bool = True) -> None:
        """See ``Sampler``."""
        self.episodes.add(fresh[self.begins(fresh)])
        self.episodes.drop(self.rows.oldest * self.rows.streams)

    def begins(self, fresh: np.ndarray) -> np.ndarray:
        """Which of the windows ``fresh`` are the first of an episode."""
        streams = self.rows.streams
        of_all = (fresh < streams) & self.beginnings.at(fresh)
        found: np.ndarray = self.beginnings.at(fresh + self.ahead * streams) | of_all
        return found

    def draw(self, count: int) -> Tensor:
        """The next window of each of ``count`` cursors."""
        if len(self.cursors) != count:
            self.cursors = self.starts.at(self.rng.integers(len(self.starts), size=count)).tolist()
        else:
            following = map(self.after, self.cursors)
            self.cursors = [self.anew() if handle is None else handle for handle in following]
        return torch.tensor(self.cursors, dtype=torch.int64)

    def after(self, handle: int) -> int | None:
        """The window after ``handle``, or None if its episode is over or evicted."""
        streams, window = self.rows.streams, self.window
        row, stream = divmod(handle, streams)
        if row < self.rows.oldest:
            return None
        begun, learned = row + self.ahead, row + window.rows  # that row may begin the episode, later ones the next
        end = self.beginnings.next(begun, stream, most=learned + window.length - begun - 1)
        if end <= learned or end == self.rows.count < learned + window.length:
            return None
        return (min(learned + window.length, end) - window.rows) * streams + stream

    def anew(self) -> int:
        """The first window of some episode."""
        held = self.episodes.held
        if len(held):
            return int(held[self.rng.integers(len(held))])
        return int(self.starts.at(self.rng.integers(len(self.starts), size=1))[0])

    def state_dict(self) -> State:
        """The generator and where the cursors are."""
        return {"rng": self.rng.bit_generator.state, "cursors": list(self.cursors)}

    def load_state_dict(self, state: State) -> None:
        """See ``Sampler``."""
        self.rng.bit_generator.state = dict(state["rng"])
        self.cursors = list(state.get("cursors", []))

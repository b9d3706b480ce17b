"""The replays of several actors as one source of batches, and their stores as one part of a checkpoint.

A replay receives rows of all its streams at once, and no actor waits for another, so each actor has its own replay. All
of them write to one store, each to its own segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from torch import Tensor

from reverie.core.types import Batch, State, Update, Window
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.persistent import PersistentReplay
from reverie.replay.rollout import RolloutQueue
from reverie.replay.sources import concat_batches, split_feedback
from reverie.store.store import ReplayStore


class MultiReplay:
    """A ``BatchSource`` of the windows of several replays, sampled uniformly."""

    def __init__(self, replays: Sequence[ReplayBuffer], seed: int) -> None:
        self.replays: list[ReplayBuffer] = list(replays)
        self.window: Window = self.replays[0].window
        self.rng: np.random.Generator = np.random.default_rng(seed)
        self.drawn: list[tuple[ReplayBuffer, int]] = []
        storages = [replay.storage for replay in replays]
        streams = sum(storage.streams for storage in storages)
        on = {"device": storages[0].device} if hasattr(storages[0], "device") else {}
        self.storage: SimpleNamespace = SimpleNamespace(streams=streams, capacity=storages[0].capacity, **on)
        self.nbytes: int = sum(replay.nbytes for replay in replays)

    def __len__(self) -> int:
        return sum(map(len, self.replays))

    def sample(self) -> Batch:
        """Return B windows, some of each replay."""
        if not len(self):
            return self.replays[0].sample()  # raises the error about missing rows
        self.drawn = [(replay, count) for replay, count in zip(self.replays, self.draw_counts(), strict=True) if count]
        return concat_batches([replay.sample(count) for replay, count in self.drawn])

    def draw_counts(self) -> list[int]:
        """Return how many of B windows come from each replay, drawn in proportion to its windows."""
        windows = np.array([len(replay) for replay in self.replays])
        counts: list[int] = self.rng.multinomial(self.window.batch, windows / windows.sum()).tolist()
        return counts

    def feedback(self, index: Tensor, update: Update) -> None:
        """Pass each replay its part of the update, for the windows sampled last."""
        split_feedback(self.drawn, index, update)


class MultiQueue(MultiReplay):
    """A ``BatchSource`` of the rollouts of several actors, each learned from once."""

    def __len__(self) -> int:
        """Return the number of complete batches."""
        return sum(self.queue_lengths) // self.window.batch

    @property
    def queue_lengths(self) -> list[int]:
        """Number of complete rollouts of each actor."""
        return [replay.num_queued for replay in self.replays if isinstance(replay, RolloutQueue)]

    def draw_counts(self) -> list[int]:
        """Return how many of B rollouts come from each queue, as if all queues were one."""
        counts: list[int] = self.rng.multivariate_hypergeometric(self.queue_lengths, self.window.batch).tolist()
        return counts


class MultiReplayStores:
    """Several replays with their stores as one :class:`reverie.replay.persistent.PersistentReplay`."""

    prunable = True

    def __init__(self, stores: Sequence[PersistentReplay], lanes: MultiReplay) -> None:
        self.stores: list[PersistentReplay] = list(stores)
        self.lanes = lanes

    @property
    def is_copied(self) -> bool:
        """Whether loaded rows were copied to a new segment."""
        return any(store.is_copied for store in self.stores)

    def check(self) -> None:
        for store in self.stores:
            store.check()

    def check_writable(self) -> None:
        for store in self.stores:
            store.check_writable()

    def begin(self) -> bool:
        """Begin with empty replays: see ``PersistentReplay``."""
        for store in self.stores:
            store.begin()
        return False

    def on_checkpoint(self, name: str, retained: Sequence[str]) -> None:
        for store in self.stores:
            store.on_checkpoint(name, retained)

    def close(self, *, failed: bool) -> None:
        for store in self.stores:
            store.close(failed=failed)

    def state_dict(self) -> State:
        """Return the states of all replays, and of the random generator that chooses among them."""
        return {"lanes": [store.state_dict() for store in self.stores], "rng": self.lanes.rng.bit_generator.state}

    def load_state_dict(self, state: State) -> None:
        """Restore the rows of the replays. With a different number of actors, the rows are redistributed."""
        self.lanes.rng.bit_generator.state = dict(state["rng"])
        if len(state["lanes"]) != len(self.stores):
            return self.load_share([(self.stores[0].find_store(saved), saved) for saved in state["lanes"]], 0, 1)
        for store, saved in zip(self.stores, state["lanes"], strict=True):
            store.load_state_dict(saved)
        return None

    def complete(self, state: State) -> None:
        for store, saved in zip(self.stores, state.get("lanes", ()), strict=False):  # they may have become fewer
            store.complete(saved)

    def load_share(self, saved: Sequence[tuple[ReplayStore | None, State]], rank: int, count: int) -> None:
        """Load the share of learner ``rank`` of ``count`` of the rows in other replays."""
        per_learner = len(self.stores)
        for number, store in enumerate(self.stores):
            store.load_share(saved, rank * per_learner + number, count * per_learner)

    def save_files(self, folder: Path) -> None:
        for number, store in enumerate(self.stores):
            (folder / str(number)).mkdir()
            store.save_files(folder / str(number))

    def load_files(self, folder: Path) -> None:
        for number, store in enumerate(self.stores if self.stores[0].loaded else ()):
            store.load_files(folder / str(number))

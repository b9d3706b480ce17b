"""The replays of several actors as one source of batches, and their stores as one part of a checkpoint.

Rows of one replay come from all of its streams at once, and no actor waits for another: so each has its own replay.
All of them write to one store, each its own segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from reverie.core.types import Batch, State, Step, Update, Window
from reverie.replay.replay import Replay
from reverie.replay.run_store import RunStore
from reverie.store.store import Store


class Lanes:
    """A ``Source`` of the windows of several replays, each window as likely as any other."""

    def __init__(self, replays: Sequence[Replay], seed: int) -> None:
        self.replays: list[Replay] = list(replays)
        self.window: Window = self.replays[0].window
        self.rng: np.random.Generator = np.random.default_rng(seed)
        self.drawn: list[tuple[Replay, int]] = []
        storages = [replay.storage for replay in replays]
        streams = sum(storage.streams for storage in storages)
        on = {"device": storages[0].device} if hasattr(storages[0], "device") else {}
        self.storage: SimpleNamespace = SimpleNamespace(streams=streams, capacity=storages[0].capacity, **on)
        self.nbytes: int = sum(replay.nbytes for replay in replays)

    def __len__(self) -> int:
        return sum(map(len, self.replays))

    def sample(self) -> Batch:
        """Return B windows; how many come from each replay is drawn by their numbers of windows."""
        windows = np.array([len(replay) for replay in self.replays])
        if not windows.any():
            return self.replays[0].sample()  # raises the error that says what is missing
        counts = self.rng.multinomial(self.window.batch, windows / windows.sum()).tolist()
        self.drawn = [(replay, count) for replay, count in zip(self.replays, counts, strict=True) if count]
        return joined([replay.sample(count) for replay, count in self.drawn])

    def feedback(self, index: Tensor, update: Update) -> None:
        """Pass each replay the part of the update that concerns its windows, those sampled last."""
        start = 0
        for replay, count in self.drawn:
            part = slice(start, start + count)
            priority = None if update.priority is None else update.priority[part]
            extras = {key: value[part] for key, value in update.extras.items()}
            replay.feedback(index[part], replace(update, priority=priority, extras=extras))
            start += count


T = TypeVar("T", Batch, Step)


def joined(parts: Sequence[T]) -> T:
    """Return the windows, or rows, of all ``parts`` as one."""
    if len(parts) == 1:
        return parts[0]
    found: dict[str, Any] = {}
    for field in fields(parts[0]):
        values = [getattr(part, field.name) for part in parts]
        one = values[0]
        found[field.name] = {k: torch.cat([v[k] for v in values]) for k in one} if isinstance(one, dict) else (
            torch.cat(values)
        )  # fmt: skip
    return type(parts[0])(**found)


class LaneStores:
    """The stores of several replays as one: see :class:`reverie.replay.run_store.RunStore`. A part of a checkpoint."""

    spare = True

    def __init__(self, stores: Sequence[RunStore], lanes: Lanes) -> None:
        self.stores: list[RunStore] = list(stores)
        self.lanes = lanes

    @property
    def part(self) -> LaneStores:
        """What a checkpoint holds of the replays."""
        return self

    @property
    def copied(self) -> bool:
        """Whether loaded rows were copied to a new segment."""
        return any(store.part.copied for store in self.stores)

    def check(self) -> None:
        for store in self.stores:
            store.check()

    def claim(self) -> None:
        for store in self.stores:
            store.claim()

    def begin(self) -> bool:
        """See ``RunStore``; no replay has rows."""
        for store in self.stores:
            store.begin()
        return False

    def saved(self, name: str, kept: Sequence[str]) -> None:
        for store in self.stores:
            store.saved(name, kept)

    def close(self, *, failed: bool) -> None:
        for store in self.stores:
            store.close(failed=failed)

    def state_dict(self) -> State:
        """Return the states of all replays, and of the generator that chooses among them."""
        return {"lanes": [store.part.state_dict() for store in self.stores], "rng": self.lanes.rng.bit_generator.state}

    def load_state_dict(self, state: State) -> None:
        """Fill the replays with the rows that they held. Those of another number of actors are dealt out anew."""
        self.lanes.rng.bit_generator.state = dict(state["rng"])
        if len(state["lanes"]) != len(self.stores):
            return self.deal([(self.stores[0].part.holder(saved), saved) for saved in state["lanes"]], 0, 1)
        for store, saved in zip(self.stores, state["lanes"], strict=True):
            store.part.load_state_dict(saved)
        return None

    def deal(self, saved: Sequence[tuple[Store | None, State]], rank: int, count: int) -> None:
        """Take the part of learner ``rank`` of ``count`` of the rows that other replays held."""
        own = len(self.stores)
        for number, store in enumerate(self.stores):
            store.part.deal(saved, rank * own + number, count * own)

    def save_files(self, folder: Path) -> None:
        for number, store in enumerate(self.stores):
            (folder / str(number)).mkdir()
            store.part.save_files(folder / str(number))

    def load_files(self, folder: Path) -> None:
        for number, store in enumerate(self.stores if self.stores[0].part.saved else ()):
            store.part.load_files(folder / str(number))

"""The store of a run's rows: in the run's folder or elsewhere, trimmed to what the run needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from reverie.core.errors import RunError, plural
from reverie.core.logger import logger
from reverie.core.specs import VERSION
from reverie.replay.config import ReplayConfig, parse_size
from reverie.replay.durable import PATIENCE, DurableReplay
from reverie.replay.replay import Replay
from reverie.store.store import Store


def place_of(store: str) -> str:
    """Return ``replay.store`` as an absolute path, so that the working directory of a process does not matter."""
    return store if store in ("auto", "none") or "://" in store else os.path.abspath(os.path.expanduser(store))


class RunStore:
    """The replay of a run with its store, if it has one."""

    def __init__(self, replay: Replay, config: ReplayConfig, run: Path, *, stop: Callable[[], bool]) -> None:
        """Open the store of the run for reading; ``replay`` is empty. ``stop`` says whether the run is about to end."""
        place = place_of(config.store)
        self.config = config
        self.run = run
        self.replay = replay
        self.store: Store | None = self._open(place)
        self.part: DurableReplay = DurableReplay(replay, self.store, place, former=self._open)
        if self.store is not None:
            self.store.stopping = stop
        self.sources: dict[str, Store] = {}
        self._counts: dict[str, int] = {}  # rows of the replay at each checkpoint that this process wrote

    def _open(self, place: str) -> Store | None:
        """Open the store at ``place``: ``auto`` is in the run's folder; ``none`` returns None."""
        if place == "none":
            return None
        buffer = parse_size(self.config.buffer, "replay.buffer").amount
        where, owner = (self.run / "replay", "") if place == "auto" else (place, str(self.run.resolve()))
        return Store(where, buffer_bytes=buffer, keep=self.config.keep, run=owner)

    def check(self) -> None:
        """Check that the store holds rows of the same spaces, if any."""
        if self.store is not None:
            self._check_columns(self.store, f"replay.store = '{self.config.store}'")

    def claim(self) -> None:
        """Check that a run without a checkpoint can write to its store, and open those that it begins with."""
        self.sources = {path: self._init_store(path) for path in self.config.init}
        self.check()
        if self.store is not None:
            self.store.claim()

    def begin(self) -> bool:
        """Begin to store, in a run without a checkpoint, after ``claim``; return whether the replay has rows."""
        self.part.begin(self.sources)
        if self.sources:
            rows = self.replay.count * self.part.streams
            logger.info(f"the replay starts with {plural(rows, 'row')} from {', '.join(self.sources)}")
        return bool(self.sources)

    def saved(self, name: str, kept: Sequence[str]) -> None:
        """Let the store delete the rows that none of the ``kept`` checkpoints needs, after one called ``name``."""
        self._counts[name] = self.replay.count
        if self.store is not None and all(one in self._counts for one in kept):
            self.store.drop(min(self._counts[one] for one in kept) - self.replay.storage.capacity)

    def close(self, *, failed: bool) -> None:
        """Stop the store's thread, at once after an error. Rows that it has not written are in the last checkpoint."""
        if self.store is not None:
            self.store.close(0.0 if failed else PATIENCE)

    def _init_store(self, path: str) -> Store:
        """Open the store of an earlier run: ``path`` is the run's folder, or the store itself."""
        inside = Path(path) / "replay"
        store = Store(inside if inside.is_dir() else path)
        if not store.segments:
            raise RunError(
                f"replay.init = '{path}': no store there. Pass a run folder, or the folder or URL of a store. Recorded "
                f"data are passed as data.path, or made a store: reverie data convert {path} FOLDER --to store"
            )
        self._check_columns(store, f"replay.init = '{path}'")
        return store

    def _check_columns(self, store: Store, what: str) -> None:
        """Check that the rows in ``store`` have the same spaces as those of the replay."""
        own = self.part.columns
        for segment in store.segments:
            names = {*segment.columns, *own} - {VERSION}
            if differing := sorted(name for name in names if segment.columns.get(name) != own.get(name)):
                raise RunError(
                    f"{what}: the stored rows do not fit this environment's observations and actions. "
                    f"Different columns: {', '.join(differing)}. Choose another store."
                )

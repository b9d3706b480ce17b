"""Keeps a run: opens its store, writes its checkpoints, and takes it up again."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from types import TracebackType

import torch

from reverie.core.errors import RunError
from reverie.core.protocols import Stateful
from reverie.core.randomness import Randomness
from reverie.core.specs import ObsSpec
from reverie.core.types import Batch, State
from reverie.data.replay import Replay, ReplayConfig
from reverie.data.sizes import parse_size
from reverie.data.store.store import Store
from reverie.experiment import Experiment
from reverie.folder import RunFolder, writing
from reverie.offline import DurableDataset
from reverie.run.checkpoint import Checkpoints
from reverie.run.lock import RunLock
from reverie.run.schedule import position
from reverie.training.durable import PATIENCE, DurableCollector, DurableReplay
from reverie.training.pieces import Say

LEARNER = ("algo", "clock", "best")
"""What is loaded to see whether there is anything to go on with."""


class Best:
    """The best score of an evaluation during training so far, as a part of a checkpoint."""

    def __init__(self) -> None:
        self.score: float | None = None
        self.step = 0

    def state_dict(self) -> State:
        """The score, and the env step at which it was reached."""
        return {"score": self.score, "step": self.step}

    def load_state_dict(self, state: State) -> None:
        """Go on with them."""
        self.score, self.step = state["score"], int(state["step"])


class Keeper:
    """The checkpoints of a run and the store of its replay. A run that lives nothing has no store."""

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        checkpoints: Checkpoints,
        say: Say,
        *,
        anew: bool,
        keep_newer: bool = False,
    ) -> None:
        """Opens stores to look at them; writes nothing. ``anew``: there is no checkpoint to go on from.

        Raises:
            ReverieError: a store cannot be reached, is damaged beyond use, or holds rows of other spaces.
        """
        self.experiment, self.folder, self.checkpoints, self.say = experiment, folder, checkpoints, say
        config = experiment.config.replay
        place = place_of("none" if experiment.collector is None else config.store)
        store = open_store(place, folder, config, say)
        if store is not None:
            store.stopping = lambda: experiment.clock.stop
        self.replay = DurableReplay(
            experiment.replay,
            store,
            place,
            say,
            former=lambda place: open_store(place, folder, config, say),
            keep_newer=keep_newer,
        )
        if store is not None:
            check_columns(store, self.replay, f"replay.store = '{config.store}'")
        self.sources = {path: init_store(path, self.replay, say) for path in config.init if anew}
        self.data = None
        if experiment.dataset is not None:
            self.data = DurableDataset(experiment.dataset, experiment.config.data.path, experiment.estimator)
        self.best = Best()
        self.lock = contextlib.ExitStack()
        self.elsewhere = None if "://" in place or place in ("auto", "none") else Path(place)
        self.counts: dict[str, int] = {}  # rows of the replay at each checkpoint that this process wrote

    def parts(self) -> dict[str, Stateful]:
        """What a checkpoint holds, in the order in which it is loaded; generators last, as loading may draw."""
        experiment = self.experiment
        parts: dict[str, Stateful] = {"algo": experiment.algo, "clock": experiment.clock, "best": self.best}
        if experiment.collector is not None:
            parts["replay"] = self.replay
            parts["collector"] = DurableCollector(experiment.collector, self.replay, self.say)
        if self.data is not None:
            parts["data"] = self.data
        return parts | {"random": Randomness()}

    def claim(self) -> None:
        """Make sure that a run that has no checkpoint to go on from may write to its store.

        Raises:
            RunError: it cannot be written, another process writes it, or it holds the rows of another run.
        """
        self._lock()
        if self.replay.store is not None:
            check_free(self.replay.store, self.folder)
            self.replay.store.claim()

    def begin(self) -> None:
        """Begin to store, in a run that has no checkpoint to go on from, once it may write to the store."""
        given: list[Replay] = [] if self.experiment.dataset is None else [self.experiment.dataset]
        if self.experiment.collector is not None:
            self.replay.begin(self.sources)
        if self.sources:
            replay = self.experiment.replay
            self.say(f"the replay starts with {replay.count * self.replay.streams:,} rows of {', '.join(self.sources)}")
            given.append(replay)
        self._show(given)

    def _show(self, given: list[Replay]) -> None:
        """Statistics are of the recorded rows, or of those that the replay begins with; or of another run's agent."""
        watcher = self.experiment.algo.watcher
        if watcher is None:
            return
        for number, replay in enumerate(given):
            rows = held(replay, self.experiment.obs_spec)
            if number == 0 and self.experiment.config.init is None:
                watcher.fit(rows)
            else:
                watcher.widen(rows)

    def load_learner(self, path: Path) -> None:
        """Take the weights and counters of the checkpoint at ``path``; nothing is written.

        Raises:
            RunError: they do not fit the settings.
        """
        parts = self.parts()
        self.checkpoints.load(path, {name: parts[name] for name in LEARNER})

    def why_done(self) -> str:
        """In a few words why the run that was loaded is over; nothing if it is not."""
        config, best = self.experiment.config, self.best.score
        wanted = config.stop_score if config.evaluates_on_the_way else None
        if wanted is not None and best is not None and best >= wanted:
            return f"reached {best:g}, and stop_score = {wanted:g} ends it: a higher one, or none,"
        if self.experiment.clock.done and config.data.alone:
            return f"had its {config.updates:,} updates already: more updates"
        if self.experiment.clock.done:
            return f"had its {config.steps:,} env steps already: more steps"
        return ""

    def load(self, path: Path) -> None:
        """Go on from the checkpoint at ``path``, in its store as well.

        Raises:
            RunError: it does not fit the settings or the environment, or the store cannot be written.
        """
        self._lock()
        replay, parts = self.experiment.replay, self.parts()
        unit = "update" if self.experiment.collector is None else "env step"
        self.say(f"continuing {self.folder.path} from {unit} {position(self.experiment.clock):,}")
        self.checkpoints.load(path, {name: parts[name] for name in parts if name not in LEARNER})
        if self.best.step and self.checkpoints.best() is None:  # it was not marked any more
            self.checkpoints.mark_best(path)
        if self.experiment.collector is not None:
            self.say(f"its replay holds {self.replay.streams * (replay.count - replay.oldest):,} rows")

    def save(self, *, diverged: bool = False) -> Path:
        """Write a checkpoint of everything that the run is.

        Raises:
            RunError: the disk is full or not writable; earlier checkpoints are untouched.
        """
        path = self.checkpoints.save(position(self.experiment.clock), self.parts(), diverged=diverged)
        if not diverged:
            self.counts[path.name] = self.experiment.replay.count
            self._drop()
        return path

    def scored(self, score: float) -> None:
        """Save and mark as best what has just had ``score`` in an evaluation, if nothing had a better one."""
        if math.isfinite(score) and (self.best.score is None or score > self.best.score):
            self.best.score, self.best.step = score, position(self.experiment.clock)
            self.checkpoints.mark_best(self.save())

    def close(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the store's thread; at once after an error. What it has not written is in the last checkpoint."""
        if self.replay.store is not None:
            self.replay.store.close(PATIENCE if kind is None else 0.0)
        self.lock.close()

    def _lock(self) -> None:
        """Take the lock of a store outside of the run's folder. Stores behind URLs have a lease of their own."""
        if self.elsewhere is not None:
            with writing(self.elsewhere):
                self.elsewhere.mkdir(parents=True, exist_ok=True)
            self.lock.enter_context(RunLock(self.elsewhere, "another place with --replay.store"))

    def _drop(self) -> None:
        """Let the store delete rows that no checkpoint needs, if it is not to keep all."""
        kept = [path.name for path in self.checkpoints.all()][-self.checkpoints.keep :]
        if self.replay.store is not None and all(name in self.counts for name in kept):
            self.replay.store.drop(min(self.counts[name] for name in kept) - self.experiment.replay.storage.capacity)


def held(replay: Replay, spec: ObsSpec) -> Batch:
    """All rows of the replay ``[N, n]``, but for its images and latents."""
    names = ["action", "reward", "is_first", "is_last", "is_terminal"]
    vectors = [key for key, part in spec.items() if part.kind == "vector"]
    rows = replay.storage.read(replay.oldest, replay.count, [*names, *(f"obs/{key}" for key in vectors)])
    action, reward, first, last, terminal = (torch.from_numpy(rows[name]) for name in names)
    streams = replay.storage.streams
    return Batch(
        obs={key: torch.from_numpy(rows[f"obs/{key}"]) for key in vectors},
        action=action,
        reward=reward,
        is_first=first,
        is_last=last,
        is_terminal=terminal,
        weight=torch.ones(streams),
        index=torch.arange(streams),
    )


def place_of(store: str) -> str:
    """What ``replay.store`` says, whatever folder this process was started in."""
    return store if store in ("auto", "none") or "://" in store else os.path.abspath(os.path.expanduser(store))


def name_of(folder: RunFolder) -> str:
    """What a run is called in a store that others can write to as well."""
    return str(folder.path.resolve())


def open_store(place: str, folder: RunFolder, config: ReplayConfig, say: Say) -> Store | None:
    """The store at ``place``: ``auto`` is in the folder of the run, ``none`` is nowhere."""
    if place == "none":
        return None
    buffer = parse_size(config.buffer, "replay.buffer").amount
    where, run = (folder.replay, "") if place == "auto" else (place, name_of(folder))
    return Store(where, say=say, buffer_bytes=buffer, keep=config.keep, run=run)


def check_free(store: Store, folder: RunFolder) -> None:
    """A new run may begin in ``store``: no other has rows there. One without checkpoints may have begun there before.

    Raises:
        RunError: another has.
    """
    others = [segment for segment in store.segments if not store.owns(segment) and segment.own_rows]
    unknown = [] if folder.config.is_file() else [s for s in store.segments if store.run and not s.run and s.own_rows]
    if found := (*others, *unknown):
        whose = f"the run {others[0].run}" if others else "another run"
        raise RunError(
            f"the store {store.objects.where} holds {sum(s.own_rows for s in found):,} rows of {whose}: a new run "
            "needs a place of its own. Choose another with --replay.store; --replay.init with this one begins with its "
            "rows."
        )


def init_store(path: str, replay: DurableReplay, say: Say) -> Store:
    """The store of an earlier run, at its own place or that of the run.

    Raises:
        RunError: there is none, or it has rows of other spaces.
    """
    inside = Path(path) / "replay"
    store = Store(inside if inside.is_dir() else path, say=say)
    if not store.segments:
        raise RunError(
            f"replay.init = '{path}': there is no replay store there. Give the folder of a run, or of a store."
        )
    check_columns(store, replay, f"replay.init = '{path}'")
    return store


def check_columns(store: Store, replay: DurableReplay, what: str) -> None:
    """The rows in ``store`` are of the same spaces as those of ``replay``.

    Raises:
        RunError: they are not; calls the store ``what`` and names the columns that differ.
    """
    for segment in store.segments:
        names = {*segment.columns, *replay.columns}
        if differing := sorted(n for n in names if segment.columns.get(n) != replay.columns.get(n)):
            raise RunError(
                f"{what}: the rows there are of other spaces than this environment's; they differ in "
                f"{', '.join(differing)}. Choose another place."
            )

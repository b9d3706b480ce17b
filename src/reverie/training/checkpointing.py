"""Keep a run: open its store, write its checkpoints, resume it from them.

What ``training/run.py`` may find in the run folder, and what is called:

=============================================  =========================================================================
In the run folder                              Calls
=============================================  =========================================================================
nothing                                        ``claim``: the store must hold no rows of another run; then ``begin``
a run without a checkpoint (killed early)      the same; rows that this run has stored already stay in the store, unused
a checkpoint, and the run is over              ``load_learner``; ``why_done`` says why; the store is not written
a checkpoint, and steps are left               ``load_learner``, then ``load``: the rest, and writing to the store
damaged checkpoints                            the newest that is whole counts (``run/checkpoint.py``)
=============================================  =========================================================================

``load`` of the replay has cases of its own: see ``training/replay_state.py``.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from reverie.core.errors import ConfigError, RunError
from reverie.core.protocols import Stateful
from reverie.core.randomness import RngState
from reverie.core.specs import ObsSpec
from reverie.core.types import FLAGS, Batch, State
from reverie.core.words import Say, plural
from reverie.experiment import Experiment
from reverie.folder import RunFolder, writing
from reverie.log.meter import Meter
from reverie.offline import DurableDataset
from reverie.replay.replay import Replay, ReplayConfig
from reverie.replay.sizes import parse_size
from reverie.run.checkpoint import Checkpoints, name_of
from reverie.run.lock import RunLock
from reverie.run.schedule import Due, position
from reverie.run.verify import problem_of
from reverie.saved import as_read
from reverie.store.store import Store
from reverie.training.replay_state import PATIENCE, DurableCollector, DurableReplay

LEARNER = ("algo", "clock", "best", "settings")
"""Parts loaded first, to decide whether there is anything left to do."""


class Best:
    """Best score of the evaluations during training so far, as one part of a checkpoint."""

    def __init__(self) -> None:
        self.score: float | None = None
        self.step = 0

    def state_dict(self) -> State:
        """Return the score and the env step at which it was reached."""
        return {"score": self.score, "step": self.step}

    def load_state_dict(self, state: State) -> None:
        """Restore score and step."""
        self.score, self.step = state["score"], int(state["step"])


class Settings:
    """The settings that a checkpoint was made with, as one part of it."""

    def __init__(self, now: Mapping[str, Any]) -> None:
        """``now``: those of this process, in plain values."""
        self.now = as_read(now)
        self.saved: dict[str, Any] | None = None
        """Those of the checkpoint that was loaded; None if none was."""

    def state_dict(self) -> State:
        """Return the settings of this process."""
        return self.now

    def load_state_dict(self, state: State) -> None:
        """Keep those of the checkpoint, to compare."""
        self.saved = dict(state)


class Keeper:
    """Checkpoints of a run, and the store of its replay. A run on recorded data alone has no store."""

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
        """Open the stores for reading; nothing is written. ``anew``: there is no checkpoint to resume from.

        Raises:
            ReverieError: a store cannot be reached, is damaged beyond use, or holds rows of other spaces.
        """
        self.experiment, self.folder, self.checkpoints, self.say = experiment, folder, checkpoints, say
        config = experiment.config.replay
        place = place_of("none" if experiment.collector is None else config.store)
        store = open_store(place, folder, config, say)
        if store is not None:
            store.stopping = lambda: experiment.clock.stop
        if keep_newer and (anew or store is None):
            why = "there is no checkpoint to continue from" if anew else "this run stores no rows"
            say(f"keep_newer has no effect: {why}")
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
        self.best, self.meter = Best(), Meter()
        self.settings = Settings(experiment.config.to_dict())
        self.lock = contextlib.ExitStack()
        self.elsewhere = None if "://" in place or place in ("auto", "none") else Path(place)
        self.counts: dict[str, int] = {}  # rows of the replay at each checkpoint that this process wrote

    def parts(self) -> dict[str, Stateful]:
        """Return the parts of a checkpoint in the order in which they are loaded.

        Random generators come last, because loading the other parts may draw from them.
        """
        experiment = self.experiment
        parts: dict[str, Stateful] = {"algo": experiment.algo, "clock": experiment.clock, "best": self.best}
        parts |= {"settings": self.settings, "meter": self.meter}
        if experiment.collector is not None:
            parts["replay"] = self.replay
            parts["collector"] = DurableCollector(experiment.collector, self.replay, self.say)
        if self.data is not None:
            parts["data"] = self.data
        return parts | {"random": RngState()}

    def claim(self) -> None:
        """Check that a run without a checkpoint to resume from may write to its store.

        Raises:
            RunError: the store cannot be written, another process writes to it, or it holds the rows of another run.
        """
        self._lock()
        if self.replay.store is not None:
            check_free(self.replay.store, self.folder)
            self.replay.store.claim()

    def begin(self) -> None:
        """Begin to store, in a run without a checkpoint to resume from, after ``claim``."""
        given: list[Replay] = [] if self.experiment.dataset is None else [self.experiment.dataset]
        if self.experiment.collector is not None:
            self.replay.begin(self.sources)
        if self.sources:
            replay = self.experiment.replay
            rows = replay.count * self.replay.streams
            self.say(f"the replay starts with {plural(rows, 'row')} from {', '.join(self.sources)}")
            given.append(replay)
        self._show(given)

    def _show(self, given: list[Replay]) -> None:
        """Fit the normalisation to the recorded rows, or else to the rows that the replay begins with.

        With ``init`` the statistics stay those of the other run's agent, and the rows only widen the value bounds.
        """
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
        """Load weights and counters of the checkpoint at ``path``; nothing is written.

        Raises:
            RunError: they do not fit the settings.
        """
        parts = self.parts()
        self.checkpoints.load(path, {name: parts[name] for name in LEARNER})

    def load_estimator(self, path: Path) -> None:
        """Load the estimator of a run that is over, so that a missing estimate continues the training of earlier ones.

        Raises:
            RunError: the checkpoint at ``path`` is of other data.
        """
        if self.data is not None:
            self.checkpoints.load(path, {"data": self.data})

    def why_done(self) -> str:
        """Return why the loaded run is over and how to continue it, as a predicate, or "" if it is not."""
        config, clock, best = self.experiment.config, self.experiment.clock, self.best.score
        wanted = config.stop_score if config.evaluates_on_the_way else None
        if wanted is not None and best is not None and best >= wanted:
            return (
                f"has reached stop_score = {wanted:g} (best score {best:g}): increase it or set it to None to continue"
            )
        if self.owes_evaluation():
            return ""
        if clock.done and config.data.alone:
            made = plural(clock.updates, "update")
            return f"has already made {made} (updates = {config.updates}): increase updates to continue"
        if clock.done:
            return (
                f"has already made {clock.env_steps:,} env steps (steps = {config.steps}): increase steps to continue"
            )
        return ""

    def owes_evaluation(self) -> bool:
        """Return whether the loaded run was stopped before an evaluation that was due, perhaps in its last turn."""
        config = self.experiment.config
        estimates = self.experiment.estimator is not None
        wanted = config.estimates_on_the_way if estimates else config.evaluates_on_the_way
        return wanted and Due(config.schedule.eval_every, self.experiment.clock, "eval").owed

    def load(self, path: Path) -> None:
        """Resume from the checkpoint at ``path``: all parts that ``load_learner`` left, and writing to the store.

        Raises:
            RunError: the checkpoint does not fit the settings or the environment, or the store cannot be written.
        """
        self._lock()
        replay, parts = self.experiment.replay, self.parts()
        unit = "update" if self.experiment.collector is None else "env step"
        self.say(f"continuing {self.folder.path} from {unit} {position(self.experiment.clock):,}")
        self.checkpoints.load(path, {name: parts[name] for name in parts if name not in LEARNER})
        self.mark_again(path)
        if self.experiment.collector is not None:
            self.say(f"the replay holds {plural(self.replay.streams * (replay.count - replay.oldest), 'row')}")

    def mark_again(self, path: Path) -> None:
        """Mark the best checkpoint if the mark is missing or on another: a process may have ended before it was set.

        If the best is damaged or not there any more, mark the one at ``path``, which has been loaded.

        Raises:
            RunError: the disk is full or not writable.
        """
        if self.best.score is None:
            return
        folder, marked = self.checkpoints.folder, self.checkpoints.best()
        best = folder / name_of(self.best.step)
        why = "" if best == path else problem_of(best)
        right = best if not why else path if marked in (None, best) else marked
        if marked == right:
            return
        if why:
            self.say(f"the best checkpoint {best.name} is damaged ({why}): {right.name} is marked in its place")
        elif marked is None and (folder / "best").exists():
            self.say(f"{folder / 'best'}, the mark of the best checkpoint, is damaged: {right.name} is marked again")
        self.checkpoints.mark_best(right)

    def save(self, *, diverged: bool = False) -> Path:
        """Write a checkpoint of the whole state of the run.

        Raises:
            RunError: the disk is full or not writable; earlier checkpoints are untouched.
        """
        path = self.checkpoints.save(position(self.experiment.clock), self.parts(), diverged=diverged)
        if not diverged:
            self.counts[path.name] = self.experiment.replay.count
            self._drop()
        return path

    def scored(self, score: float) -> None:
        """Save the agent that has just had ``score`` in an evaluation and mark it as best, if no score was as good."""
        if math.isfinite(score) and (self.best.score is None or score > self.best.score):
            self.best.score, self.best.step = score, position(self.experiment.clock)
            self.checkpoints.mark_best(self.save())

    def close(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop the store's thread, at once after an error. Rows that it has not written are in the last checkpoint."""
        if self.replay.store is not None:
            self.replay.store.close(PATIENCE if kind is None else 0.0)
        self.lock.close()

    def _lock(self) -> None:
        """Lock a store outside of the run's folder. One behind a URL has a lease of its own (store/lease.py)."""
        if self.elsewhere is not None:
            with writing(self.elsewhere):
                self.elsewhere.mkdir(parents=True, exist_ok=True)
            self.lock.enter_context(RunLock(self.elsewhere, "another place with --replay.store"))

    def _drop(self) -> None:
        """Let the store delete the rows that no checkpoint needs; with replay.keep = all it keeps them."""
        kept = [path.name for path in self.checkpoints.all()][-self.checkpoints.keep :]
        if self.replay.store is not None and all(name in self.counts for name in kept):
            self.replay.store.drop(min(self.counts[name] for name in kept) - self.experiment.replay.storage.capacity)


def held(replay: Replay, spec: ObsSpec) -> Batch:
    """Return all rows of the replay ``[N, n]``, without images and latents, to be read only: they may lie on a disk."""
    names = ["action", "reward", *FLAGS, *(f"obs/{key}" for key, part in spec.items() if part.kind == "vector")]
    rows = replay.storage.read(replay.oldest, replay.count, names, copy=False)
    columns = {name: torch.from_numpy(x) for name, x in rows.items()}
    return Batch.of_columns(columns, torch.arange(replay.storage.streams))


def place_of(store: str) -> str:
    """Return ``replay.store`` as an absolute path, so that the working directory of a process does not matter."""
    return store if store in ("auto", "none") or "://" in store else os.path.abspath(os.path.expanduser(store))


def check_store(place: str, folder: RunFolder) -> None:
    """Raise ConfigError if ``replay.store``, from :func:`place_of`, is the run folder: both are locked."""
    if os.path.realpath(place) == os.path.realpath(folder.path):
        raise ConfigError(
            f"replay.store = '{place}' is the run folder: expected another folder, or auto for the folder replay in it."
        )


def owner_name(folder: RunFolder) -> str:
    """Return the name of a run in a store that other runs can write to as well."""
    return str(folder.path.resolve())


def open_store(place: str, folder: RunFolder, config: ReplayConfig, say: Say) -> Store | None:
    """Open the store at ``place``: ``auto`` is in the run's folder; ``none`` returns None."""
    if place == "none":
        return None
    buffer = parse_size(config.buffer, "replay.buffer").amount
    where, run = (folder.replay, "") if place == "auto" else (place, owner_name(folder))
    return Store(where, say=say, buffer_bytes=buffer, keep=config.keep, run=run)


def check_free(store: Store, folder: RunFolder) -> None:
    """Check that a new run may begin in ``store``: no other run has rows there.

    Rows of this run itself are allowed: it may have been killed before its first checkpoint.

    Raises:
        RunError: the store holds rows of another run.
    """
    others = [segment for segment in store.segments if not store.owns(segment) and segment.own_rows]
    unknown = [] if folder.config.is_file() else [s for s in store.segments if store.run and not s.run and s.own_rows]
    if found := (*others, *unknown):
        whose = f"the run {others[0].run}" if others else "another run"
        raise RunError(
            f"the store {store.objects.where} already holds {sum(s.own_rows for s in found):,} rows of {whose}. Choose "
            "another place with --replay.store. To start with these rows, pass this store as --replay.init."
        )


def init_store(path: str, replay: DurableReplay, say: Say) -> Store:
    """Open the store of an earlier run: ``path`` is the run's folder, or the store itself.

    Raises:
        RunError: there is no store, or its rows have other spaces.
    """
    if Path(path).is_file():
        raise RunError(
            f"replay.init = '{path}' is a file: expected a run folder, or the folder or URL of a replay store. Pass "
            f"recorded data as data.path, or make a store of them: reverie data convert {path} FOLDER --to store"
        )
    inside = Path(path) / "replay"
    store = Store(inside if inside.is_dir() else path, say=say)
    if not store.segments:
        raise RunError(
            f"replay.init = '{path}': no replay store found there. Pass a run folder, or the folder or URL of a store."
        )
    check_columns(store, replay, f"replay.init = '{path}'")
    return store


def check_columns(store: Store, replay: DurableReplay, what: str) -> None:
    """Check that the rows in ``store`` have the same spaces as those of ``replay``.

    Raises:
        RunError: they have not. The message calls the store ``what`` and names the columns that differ.
    """
    for segment in store.segments:
        names = {*segment.columns, *replay.columns}
        if differing := sorted(n for n in names if segment.columns.get(n) != replay.columns.get(n)):
            raise RunError(
                f"{what}: the stored rows do not fit this environment's observations and actions. Different columns: "
                f"{', '.join(differing)}. Choose another store."
            )

"""Keeps a run: opens its store, writes its checkpoints, and takes it up again."""

from __future__ import annotations

import math
from pathlib import Path

from reverie.core.errors import RunError
from reverie.core.protocols import Stateful
from reverie.core.randomness import Randomness
from reverie.core.types import State
from reverie.data.replay import ReplayConfig
from reverie.data.sizes import parse_size
from reverie.data.store import Store
from reverie.durable import PATIENCE, DurableCollector, DurableReplay, Say
from reverie.experiment import Experiment
from reverie.folder import RunFolder
from reverie.run.checkpoint import Checkpoints


class Best:
    """The best score of an evaluation during training so far, as a part of a checkpoint."""

    def __init__(self) -> None:
        self.score: float | None = None

    def state_dict(self) -> State:
        """It."""
        return {"score": self.score}

    def load_state_dict(self, state: State) -> None:
        """It."""
        self.score = state["score"]


class Keeper:
    """The checkpoints of a run and the store of its replay."""

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
        store = open_store(config.store, folder, config, say)
        if store is not None:
            store.stopping = lambda: experiment.clock.stop
        self.replay = DurableReplay(
            experiment.replay,
            store,
            config.store,
            say,
            former=lambda place: open_store(place, folder, config, say),
            keep_newer=keep_newer,
        )
        if store is not None:
            check_columns(store, self.replay, f"replay.store = '{config.store}'")
        self.sources = {path: init_store(path, self.replay, say) for path in config.init if anew}
        self.best = Best()
        self.counts: dict[str, int] = {}  # rows of the replay at each checkpoint that this process wrote

    def parts(self) -> dict[str, Stateful]:
        """What a checkpoint holds, in the order in which it is loaded; generators last, as loading may draw."""
        experiment = self.experiment
        return {
            "algo": experiment.algo,
            "clock": experiment.clock,
            "best": self.best,
            "replay": self.replay,
            "collector": DurableCollector(experiment.collector, self.replay, self.say),
            "random": Randomness(),
        }

    def begin(self) -> None:
        """Begin to store, in a run that has no checkpoint to go on from."""
        self.replay.begin(self.sources)
        if self.sources:
            rows = self.experiment.replay.count * self.replay.streams
            self.say(f"the replay starts with {rows:,} rows of {', '.join(self.sources)}")

    def load_learner(self, path: Path) -> None:
        """Take the weights and counters of the checkpoint at ``path``; nothing is written.

        Raises:
            RunError: they do not fit the settings.
        """
        parts = self.parts()
        self.checkpoints.load(path, {name: parts[name] for name in ("algo", "clock")})

    def load(self, path: Path) -> None:
        """Go on from the checkpoint at ``path``, in its store as well.

        Raises:
            RunError: it does not fit the settings or the environment, or the store cannot be written.
        """
        replay, parts = self.experiment.replay, self.parts()
        self.say(f"continuing {self.folder.path} from env step {self.experiment.clock.env_steps:,}")
        self.checkpoints.load(path, {name: parts[name] for name in parts if name not in ("algo", "clock")})
        self.say(f"its replay holds {self.replay.streams * (replay.count - replay.oldest):,} rows")

    def save(self, *, diverged: bool = False) -> Path:
        """Write a checkpoint of everything that the run is.

        Raises:
            RunError: the disk is full or not writable; earlier checkpoints are untouched.
        """
        path = self.checkpoints.save(self.experiment.clock.env_steps, self.parts(), diverged=diverged)
        if not diverged:
            self.counts[path.name] = self.experiment.replay.count
            self._drop()
        return path

    def scored(self, score: float) -> None:
        """Save and mark as best what has just had ``score`` in an evaluation, if nothing had a better one."""
        if math.isfinite(score) and (self.best.score is None or score > self.best.score):
            self.best.score = score
            self.checkpoints.mark_best(self.save())

    def close(self) -> None:
        """End the store's thread. What it could not write by now is in the last checkpoint."""
        if self.replay.store is not None:
            self.replay.store.close(PATIENCE if self.experiment.clock.done else 0.0)

    def _drop(self) -> None:
        """Let the store delete rows that no checkpoint needs, if it is not to keep all."""
        kept = [path.name for path in self.checkpoints.all()][-self.checkpoints.keep :]
        if self.replay.store is not None and all(name in self.counts for name in kept):
            self.replay.store.drop(min(self.counts[name] for name in kept) - self.experiment.replay.storage.capacity)


def open_store(place: str, folder: RunFolder, config: ReplayConfig, say: Say) -> Store | None:
    """The store at ``place``: ``auto`` is in the folder of the run, ``none`` is nowhere."""
    if place == "none":
        return None
    buffer = parse_size(config.buffer, "replay.buffer").amount
    return Store(folder.replay if place == "auto" else place, say=say, buffer_bytes=buffer, keep=config.keep)


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

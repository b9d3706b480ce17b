"""The learners of a run: N processes that collect rows of their own and take every gradient step together.

Learner 0 lives the life of the run (``run/run.py``): settings, logs, evaluations, checkpoints. The others follow it.
They build their part of the experiment when it does, run the same loop, and write what is theirs into its checkpoints,
whose manifest it writes last: a checkpoint is of all learners or does not exist.

====================  ==================================================================================================
What the loop reads   Of several learners
====================  ==================================================================================================
``collect()``         the env steps of all, exchanged once a turn (:meth:`Team.sync_turn`) with what follows. Actors are
                      each learner's own; or, fewer than learners, those of learner 0, and each learner gets the rows of
                      a part of their environments
``len(source)``       the fewest windows that a learner has
``clock.stop``        whether any was asked to stop, by the turn before
``clock.seconds``     those of learner 0, so that all agree on when to log, evaluate and save
``update.metrics``    means over all (``algos/base.py``)
====================  ==================================================================================================
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from reverie.algos.base import Algorithm
from reverie.core.clock import Clock, Watch
from reverie.core.errors import RunError, plural
from reverie.core.learners import alone, average
from reverie.core.learners import joined as learning
from reverie.core.logger import logger
from reverie.core.protocols import Annealed, Env, RunningStatistics, Source, Stateful
from reverie.core.specs import ObsSpec
from reverie.core.types import Batch, State, Step, Update
from reverie.distributed.actor_feed import Feed
from reverie.distributed.actor_replays import LaneStores
from reverie.distributed.ranks import Group
from reverie.distributed.wire import Block, blank
from reverie.experiment.build import Experiment
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.resolve import saved_settings
from reverie.replay.durable import DurableReplay
from reverie.replay.sources import concat_batches
from reverie.run import train as training
from reverie.run.checkpoint import Checkpoints, read, write
from reverie.run.collect import Collector, EpisodeStats
from reverie.run.folder import RunFolder, Saved
from reverie.run.manifest import TENSORS, encode
from reverie.run.result import TrainResult
from reverie.run.trainable import MeasurementResult, Which
from reverie.store.store import Store

GO, SAVE, END = range(3)
"""What learner 0 tells the others at the beginning of each turn."""


class Team(Group):
    """What one learner knows of all. A team of one is a run as any other.

    A part of a checkpoint: one folder for each other learner, with its own manifest.
    """

    spare = False

    def __init__(self, store: Any = None) -> None:
        super().__init__(store)
        self.before: int = self.count  # learners that the loaded checkpoint was written by
        self.loaded: Path | None = None
        self.windows: int = 0
        self.restarts = 0
        self.ended = False
        self.training: bool = False  # whether the others have been told all that comes before the first turn
        self.save: Callable[[Path], None] = lambda folder: None  # of the others: write what is theirs

    def use_group(self) -> contextlib.AbstractContextManager[None]:
        """Average gradients, statistics and metrics over all learners inside the context."""
        return learning(self) if self.count > 1 else contextlib.nullcontext()

    def end(self, result: Any) -> None:
        """Tell the other learners how the run ended."""
        if self.training:
            self.broadcast_int(END)
            self.broadcast_object(result)
        else:
            self.broadcast_object(("end", result))

    def listen(self) -> None:
        """Begin a turn, or end: learner 0 says so, and the others save first whenever it does."""
        while self.broadcast_int(GO) == SAVE:
            self.write()

    def state_dict(self) -> State:
        """Return the number of learners."""
        return {"count": self.count}

    def load_state_dict(self, state: State) -> None:
        """Keep the number of learners that wrote the checkpoint."""
        self.before = int(state["count"])
        if self.before != self.count:
            logger.info(
                f"the run was saved with {plural(self.before, 'learner')} and now has {plural(self.count, 'learner')}: "
                "the replay rows are redistributed episode by episode, and the environments start new episodes"
            )

    def save_files(self, folder: Path) -> None:
        """Have the other learners write their parts."""
        if self.count == 1:
            return
        if sys.exception() is not None:  # after an error the others are elsewhere
            raise RunError("one of several learners cannot save alone, continue from the newest checkpoint")
        self.broadcast_int(SAVE)
        self.broadcast_object(folder)
        self.all_gather_object(None)

    def load_files(self, folder: Path) -> None:
        """Have the other learners load the same checkpoint."""
        self.loaded = folder.parent
        self.training = True
        self.broadcast_object(("load", folder.parent, self.before))

    def write(self) -> None:
        """Write this learner's parts into the checkpoint that learner 0 writes; return once all learners have."""
        self.save(self.broadcast_object())
        self.all_gather_object(None)

    def sync_turn(self, clock: Clock, windows: int, env_steps: int = 0, *extra: float) -> np.ndarray:
        """Exchange the numbers of a turn; return the sums of ``env_steps`` and ``extra`` over all."""
        watch = clock.watch
        assert isinstance(watch, GroupWatch)
        numbers = [watch.stop_requested, watch.local.total_seconds(clock.seconds_before), windows, env_steps, *extra]
        gathered = self.gather(torch.tensor(numbers, dtype=torch.float64)).numpy()  # [N, 4 + M]
        watch.stop_agreed, watch.seconds = bool(gathered[:, 0].any()), float(gathered[0, 1])
        self.windows = int(gathered[:, 2].min())
        if watch.stop_agreed and self.rank == 0 and not watch.stop_requested:
            signal.raise_signal(signal.SIGTERM)  # another learner had a signal that did not reach this one
        return gathered[:, 3:].sum(0)  # type: ignore[no-any-return]

    def distribute_blocks(self, feed: Feed) -> list[tuple[int, Block]]:
        """Return the rows of this learner's environments of the actors, which send all of them to learner 0."""
        parts: list[list[tuple[int, Block]]] = [[] for _ in range(self.count)]
        for index, block in feed.receive_blocks() if self.rank == 0 else ():
            for rank, part in enumerate(parts):
                cut = slice(rank * feed.config.env.num, (rank + 1) * feed.config.env.num)
                rows = {name: column[cut].copy() for name, column in block.rows.items()}
                part.append((index, block._replace(rows=rows, episodes=[] if rank else block.episodes)))
        blocks: list[tuple[int, Block]] = self.scatter_object(parts)
        return blocks


# ---------------------------------------------------------------- what the loop reads


class GroupWatch(Watch):
    """The watch of several learners, which agree on it once a turn (:meth:`Team.sync_turn`).

    Setting ``stop`` asks all learners to stop after their next turn.
    """

    def __init__(self, local: Watch, is_main: bool) -> None:
        self.local = local
        self.is_main = is_main
        self.seconds: float = 0.0  # of the run, by learner 0's watch
        self.stop_requested: bool = local.stop
        self.stop_agreed: bool = False

    def total_seconds(self, before: float) -> float:
        return max(self.seconds, before)

    @property
    def stop(self) -> bool:
        """Whether the run ends after this turn, as the learners have agreed."""
        return self.stop_agreed

    @stop.setter
    def stop(self, value: bool) -> None:
        self.stop_requested = value


class SharedSource:
    """The batches of one learner, each a part of the common batch."""

    def __init__(self, source: Source, team: Team, clock: Clock, collects: bool) -> None:
        self.source = source
        self.team = team
        self.clock = clock
        self.collects = collects
        self.sample: Callable[[], Batch] = source.sample
        self.feedback: Callable[[Tensor, Update], None] = source.feedback

    def __len__(self) -> int:
        """Return the fewest windows that a learner has. Without a collector, this is where learners meet."""
        if not self.collects:
            self.team.listen()
            self.team.sync_turn(self.clock, len(self.source))
        return self.team.windows


class SharedCollector:
    """The collector of one learner, or its feed of actors, whose env steps, restarts and episodes are those of all."""

    def __init__(self, local: Collector | Feed, experiment: Experiment, team: Team, clock: Clock) -> None:
        """``experiment``: of this learner."""
        self.local = local
        self.source: Source = experiment.source
        self.team = team
        self.clock = clock
        self.unlogged: list[EpisodeStats] = local.unlogged
        self.seconds: dict[str, float] = local.seconds
        self.close: Callable[[], None] = local.close
        self.state_dict: Callable[[], State] = local.state_dict
        self.load_state_dict: Callable[[State], None] = local.load_state_dict
        self.seen: list[Step] = []
        self.running_statistics: RunningStatistics | None = experiment.algo.running_statistics
        self.spec: ObsSpec = experiment.obs_spec
        if isinstance(local, Feed):
            local.rank, local.learners = team.rank, team.count
            local.watch = None if self.running_statistics is None else self.seen.append
            if local.dealt:
                local.incoming = lambda: team.distribute_blocks(local)

    @property
    def restarts(self) -> int:
        return self.team.restarts

    def collect(self) -> int:
        """Make a turn; return the env steps of all, which schedules of exploration go by."""
        local = self.local
        self.team.listen()
        steps = local.collect()
        sums = local.sums if isinstance(local, Feed) else ()
        totals = self.team.sync_turn(self.clock, len(self.source), steps, len(local.finished), local.restarts, *sums)
        total, self.team.ended, self.team.restarts = int(totals[0]), bool(totals[1]), int(totals[2])
        if isinstance(local, Feed):
            local.measure(totals[3:])
            if self.running_statistics is not None:  # all at once, as some may have rows and others none
                self.running_statistics.watch(concat_batches([*self.seen, blank(self.spec, 0)]))
                self.seen.clear()
        elif isinstance(local.policy, Annealed):
            local.state = local.policy.after(local.state, self.clock.env_steps + total)
        return total

    def drain(self, *, at_the_end: bool = False) -> list[EpisodeStats]:
        if not (self.team.ended or at_the_end):
            return []
        episodes = [(score, length, dict(info)) for score, length, info in self.local.drain(at_the_end=at_the_end)]
        return [EpisodeStats(*episode) for part in self.team.all_gather_object(episodes) for episode in part]


# ---------------------------------------------------------------- parts of a checkpoint


class ReplayPart:
    """The replay of one learner; from a checkpoint of another number of learners it takes its share of all rows."""

    spare = True

    def __init__(self, team: Team, part: DurableReplay | LaneStores, run: Path) -> None:
        self.team = team
        self.part = part
        self.run = run
        self.state_dict: Callable[[], State] = part.state_dict
        self.save_files: Callable[[Path], None] = part.save_files

    def load_state_dict(self, state: State) -> None:
        """Load the rows."""
        team, path = self.team, self.team.loaded
        if team.before == team.count or path is None:
            return self.part.load_state_dict(state)
        saved: list[tuple[Store | None, State]] = []
        for rank in range(team.before):
            saved_state = read(folder_of(path, rank), ["replay"], verified=True)["replay"]
            for lane in saved_state.get("lanes", [saved_state]):
                location = folder_of(self.run, rank) / "replay" if lane.get("place") == "auto" else lane.get("place")
                saved.append((None if location is None else Store(location), lane))
        return self.part.deal(saved, team.rank, team.count)

    def load_files(self, folder: Path) -> None:
        """Load latents and samplers, of the same rows."""
        if self.team.before == self.team.count:
            self.part.load_files(folder)


def folder_of(path: Path, rank: int) -> Path:
    """Return the folder that holds what is a learner's own in a run or a checkpoint at ``path``."""
    return path / "ranks" / str(rank) if rank else path


class CollectorPart:
    """The collector of one learner; one of another number of learners begins new episodes."""

    spare = False

    def __init__(self, team: Team, collector: Collector, clock: Clock) -> None:
        self.team = team
        self.collector = collector
        self.clock = clock
        self.state_dict: Callable[[], State] = collector.state_dict
        self.save_files: Callable[[Path], None] = collector.save_files
        self.load_files: Callable[[Path], None] = collector.load_files

    def load_state_dict(self, state: State) -> None:
        """Continue; random actions at the beginning of the run are those of all learners together."""
        if self.team.before != self.team.count:
            state = {**state, "env_steps": self.clock.env_steps // self.team.count}
        self.collector.load_state_dict(state)


# ---------------------------------------------------------------- the life of one learner


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnerExperiment(Experiment):
    """One learner's part of an experiment. Its settings are its share; what is saved are those of the run."""

    run_config: ExperimentConfig
    team: Team
    run: Path

    @property
    def saved(self) -> Saved:
        return saved_settings(self.run_config, self.user_env, self.user_eval_env)

    def parts(self) -> dict[str, Stateful]:
        parts: dict[str, Stateful] = {"ranks": self.team, **super().parts()}
        if self.store is not None:
            parts["replay"] = ReplayPart(self.team, self.store, self.run)
            if isinstance(collector := local_collector(self.collector), Collector):
                parts["collector"] = CollectorPart(self.team, collector, self.clock)
        return parts

    def measure(self, which: Which) -> MeasurementResult:
        with alone():
            return super().measure(which)

    def reach(self, which: Literal["training", "evaluation"]) -> Env:
        if which == "training" and self.team.count > 1:
            raise RunError(
                f"learners = {self.team.count}: callbacks run in the first learner, and cannot reach the environments "
                "of the others. Use one learner."
            )
        return super().reach(which)

    def begin(self) -> None:
        if self.team.rank == 0:
            self.team.broadcast_object(("begin",))
            self.team.training = True
        super().begin()

    def describe(self) -> None:
        if (n := self.team.count) > 1:
            envs = plural(self.config.env.num, "environment")
            if isinstance(feed := local_collector(self.collector), Feed):
                envs = f"the rows of {envs} of each actor" if feed.dealt else plural(len(feed.lanes), "actor")
            logger.info(
                f"{n} learners, each in a process of its own, with {self.algo.window.batch} of the "
                f"{n * self.algo.window.batch} windows of a batch and {envs} of its own; of each:"
            )
        super().describe()


def local_collector(collector: Any) -> Any:
    """Return what collects the rows of one learner."""
    return collector.local if isinstance(collector, SharedCollector) else collector


def make_learner_experiment(
    experiment: Experiment, run_config: ExperimentConfig, team: Team, run: Path
) -> LearnerExperiment:
    """Return ``experiment``, the share of one learner of the run in the folder ``run``, with what speaks for all."""
    parts = {field.name: getattr(experiment, field.name) for field in dataclasses.fields(experiment)}
    if team.count > 1:
        clock, collector = experiment.clock, experiment.collector
        clock.watch = GroupWatch(clock.watch, is_main=team.rank == 0)
        if isinstance(collector, Feed):
            collector.dealt = run_config.actors < team.count
        if isinstance(collector, Collector | Feed):
            parts["collector"] = SharedCollector(collector, experiment, team, clock)
        parts["source"] = SharedSource(experiment.source, team, clock, collector is not None)
        for optim in experiment.algo.optimisers().values():
            if isinstance(optim, torch.optim.Optimizer):
                optim.register_step_pre_hook(averaging)
    return LearnerExperiment(**parts, run_config=run_config, team=team, run=run)


def averaging(optim: torch.optim.Optimizer, *_: Any) -> None:
    """Average the gradients of one of PyTorch's own optimisers over all learners, before its step."""
    average([p.grad for group in optim.param_groups for p in group["params"] if p.grad is not None])


def run_follower(team: Team, build: Callable[[int | None], LearnerExperiment], folder: RunFolder) -> TrainResult:
    """Live the life of a learner beside learner 0; return its result.

    ``build`` builds its part of the experiment that goes on at a step; None begins anew.
    """
    command = team.broadcast_object()
    if command[0] == "end":
        return command[1]  # type: ignore[no-any-return]
    with contextlib.ExitStack() as stack:
        experiment = build(command[1])
        stack.push(lambda kind, *_: experiment.close(failed=kind is not None))
        command = team.broadcast_object()
        if command[0] == "end":
            return command[1]  # type: ignore[no-any-return]
        follower = Follower(experiment, folder)
        if command[0] == "load":
            follower.load(*command[1:])
        else:
            if experiment.store is not None:
                experiment.store.claim()
            experiment.load_initial()
            experiment.begin()
        team.save = follower.save
        with team.use_group():
            training.train_loop(
                experiment.algo, experiment.source, experiment.clock, experiment.meter,
                collector=experiment.collector, checkpoint=follower.checkpoint, schedule=experiment.schedule,
            )  # fmt: skip
        team.listen()
        return team.broadcast_object()  # type: ignore[no-any-return]


class Follower:
    """Loads and saves a learner beside learner 0, which alone logs, evaluates and writes checkpoints.

    A part of a checkpoint: what of the learner's state is not that of learner 0, such as the returns of its unfinished
    episodes.
    """

    def __init__(self, experiment: LearnerExperiment, folder: RunFolder) -> None:
        self.experiment = experiment
        self.team: Team = experiment.team
        self.algo: Algorithm = experiment.algo
        self.checkpoints: Checkpoints = Checkpoints(folder.checkpoints, experiment.run_config.keep_checkpoints)
        self.main: Path = Path()  # the checkpoint of learner 0
        parts = {name: part for name, part in experiment.parts().items() if name not in ("ranks", "meter")}
        self.parts: dict[str, Stateful] = {"own": self, **parts}

    def load(self, path: Path, before: int) -> None:
        """Load the checkpoint at ``path``, that ``before`` learners have written."""
        team, clock = self.team, self.experiment.clock
        team.before, team.loaded, self.main = before, path, path
        self.checkpoints.load(path, {"algo": self.algo, "clock": clock})
        if before == team.count:
            self.checkpoints.load(folder_of(path, team.rank), self.parts)
        elif "replay" in self.parts:
            self.parts["replay"].load_state_dict({})
            if isinstance(collector := local_collector(self.experiment.collector), Collector):
                collector.env_steps = clock.env_steps // team.count

    def save(self, folder: Path) -> None:
        """Write the parts to the folder of this learner below ``folder``, in the checkpoint that learner 0 writes."""
        experiment, learner_dir = self.experiment, folder / str(self.team.rank)
        self.main = folder.parent
        learner_dir.mkdir()
        write(learner_dir, experiment.clock.position, self.parts)
        if experiment.store is not None:
            name = folder.parent.name.removeprefix(".tmp-").rpartition("-")[0]
            experiment.store.saved(name, [*(path.name for path in self.checkpoints.kept_paths()), name])

    def checkpoint(self, *, diverged: bool = False) -> Path:
        """Write into the checkpoint of a ``diverged`` state; others are written when learner 0 says so."""
        if diverged:  # learner 0 has found the same, and is saving
            self.team.broadcast_int(SAVE)
            self.team.write()
        elif sys.exception() is not None:
            raise RunError("one of several learners cannot save alone: the newest checkpoint is that of all")
        return self.experiment.run

    def state_dict(self) -> State:
        """Return the tensors by their names in the checkpoint, whose file learner 0 has written to ``main``."""
        tensors: dict[str, Tensor] = {}
        encode(self.algo.state_dict(), "algo", tensors)
        with safe_open(self.main / TENSORS, framework="pt") as file:
            local = {name: x for name, x in tensors.items() if not same(x, file.get_tensor(name))}
        learned = {f"algo/model/{name}" for name, _ in self.algo.named_parameters()}
        if far := [name for name in local if name in learned or "optim/" in name]:
            raise RunError(f"{far[0]} differs between the learners of this run: they do not take the same steps.")
        return {"tensors": local}

    def load_state_dict(self, state: State) -> None:
        """Load the state of learner 0 with these tensors in it, from the checkpoint at ``main``."""
        self.algo.load_state_dict(read(self.main, ["algo"], verified=True, instead=state["tensors"])["algo"])


def same(x: Tensor, y: Tensor) -> bool:
    """Return whether two tensors hold the same numbers; NaN is itself."""
    return x.shape == y.shape and bool(((x == y) | (x != x)).all())

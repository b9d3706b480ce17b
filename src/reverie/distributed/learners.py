"""The learners of a run: N processes that collect their own rows and take every gradient step together.

Learner 0 manages the run (``experiment/lifecycle.py``): settings, logs, evaluations, checkpoints. The others follow it.
They build their share of the experiment at the same time, run the same loop, and write their state into its
checkpoints. Learner 0 writes the manifest last, so a checkpoint contains all learners or does not exist.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors import safe_open
from torch import Tensor

from reverie.algos.base import Algorithm
from reverie.core.clock import Clock
from reverie.core.collectives import all_reduce_mean, single_rank
from reverie.core.errors import RunError, count_noun
from reverie.core.locations import check_location
from reverie.core.logger import logger
from reverie.core.protocols import Env, Stateful
from reverie.core.types import State
from reverie.distributed.actor_collector import ActorCollector
from reverie.distributed.actor_replays import MultiReplayStores
from reverie.distributed.team import GroupWatch, LearnerGroup, SharedCollector, SharedSource, TurnCommand
from reverie.experiment.build import Experiment
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.lifecycle import complete_store
from reverie.replay.persistent import PersistentReplay
from reverie.run import loop as training
from reverie.run.checkpoint import Checkpoints, read_checkpoint, write_checkpoint
from reverie.run.collect import EnvCollector
from reverie.run.evaluate import EvaluationPurpose, MeasurementResult
from reverie.run.folder import RunFolder, SavedConfig
from reverie.run.manifest import TENSORS, encode_state
from reverie.run.result import TrainResult
from reverie.run.signal_handling import handle_signals
from reverie.store.store import ReplayStore

# ---------------------------------------------------------------- parts of a checkpoint


class ReplayPart:
    """The replay of one learner; from a checkpoint with another number of learners, it loads its share of all rows."""

    prunable = True

    def __init__(self, team: LearnerGroup, part: PersistentReplay | MultiReplayStores, run: Path) -> None:
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
        saved: list[tuple[ReplayStore | None, State]] = []
        for rank in range(team.before):
            saved_state = read_checkpoint(learner_folder(path, rank), ["replay"], verified=True)["replay"]
            for lane in saved_state.get("lanes", [saved_state]):
                location = (
                    learner_folder(self.run, rank) / "replay" if lane.get("place") == "auto" else lane.get("place")
                )
                if location is not None:
                    check_location(str(location).removesuffix(f"/rank-{rank}"), f"a checkpoint of {self.run}")
                saved.append((None if location is None else ReplayStore(location), lane))
        return self.part.load_share(saved, team.rank, team.count)

    def load_files(self, folder: Path) -> None:
        """Load latents and samplers, if the rows are the same."""
        if self.team.before == self.team.count:
            self.part.load_files(folder)


def learner_folder(path: Path, rank: int) -> Path:
    """Return the folder with a learner's own state in a run or a checkpoint at ``path``."""
    return path / "ranks" / str(rank) if rank else path


class CollectorPart:
    """The collector of one learner; with another number of learners, it begins new episodes."""

    prunable = False

    def __init__(self, team: LearnerGroup, collector: EnvCollector, clock: Clock) -> None:
        self.team = team
        self.collector = collector
        self.clock = clock
        self.state_dict: Callable[[], State] = collector.state_dict
        self.save_files: Callable[[Path], None] = collector.save_files
        self.load_files: Callable[[Path], None] = collector.load_files

    def load_state_dict(self, state: State) -> None:
        """Restore the state; initial random actions are counted over all learners."""
        if self.team.before != self.team.count:
            state = {**state, "env_steps": self.clock.env_steps // self.team.count}
        self.collector.load_state_dict(state)


# ---------------------------------------------------------------- the life of one learner


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnerExperiment(Experiment):
    """One learner's share of an experiment. Its settings are divided; the saved settings are the run's."""

    run_config: ExperimentConfig
    team: LearnerGroup
    run: Path

    @property
    def saved(self) -> SavedConfig:
        return dataclasses.replace(super().saved, experiment=self.run_config.to_dict())

    def parts(self) -> dict[str, Stateful]:
        parts: dict[str, Stateful] = {"ranks": self.team, **super().parts()}
        if self.store is not None:
            stores = cast(PersistentReplay | MultiReplayStores, self.store)
            parts["replay"] = ReplayPart(self.team, stores, self.run)
            if isinstance(collector := _local_collector(self.collector), EnvCollector):
                parts["collector"] = CollectorPart(self.team, collector, self.clock)
        return parts

    def measure(self, which: EvaluationPurpose) -> MeasurementResult:
        with single_rank():
            return super().measure(which)

    def callback_env(self, which: Literal["training", "evaluation"]) -> Env:
        if which == "training" and self.team.count > 1:
            raise RunError(
                f"learners = {self.team.count}: callbacks run in the first learner, and cannot access the "
                "environments of the others. Use one learner."
            )
        return super().callback_env(which)

    def begin(self) -> None:
        if self.team.rank == 0:
            self.team.broadcast_object(("begin",))
            self.team.training = True
        super().begin()

    def describe(self, folder: Path) -> None:
        if (n := self.team.count) > 1:
            envs = count_noun(self.config.env.num, "environment")
            if isinstance(feed := _local_collector(self.collector), ActorCollector):
                envs = f"the rows of {envs} of each actor" if feed.dealt else count_noun(len(feed.lanes), "actor")
            logger.info(
                f"{n} learners, each in its own process, with {self.algo.window.batch} of the "
                f"{n * self.algo.window.batch} windows of a batch and its own {envs}; each:"
            )
        super().describe(folder)


def _local_collector(collector: object) -> Any:
    """Return the collector of one learner."""
    return collector.local if isinstance(collector, SharedCollector) else collector


def make_learner_experiment(
    experiment: Experiment, run_config: ExperimentConfig, team: LearnerGroup, run: Path
) -> LearnerExperiment:
    """Return one learner's share ``experiment`` of the run in the folder ``run``, connected with all learners."""
    parts = {field.name: getattr(experiment, field.name) for field in dataclasses.fields(experiment)}
    if team.count > 1:
        clock, collector = experiment.clock, experiment.collector
        clock.watch = GroupWatch(clock.watch, is_main=team.rank == 0)
        if isinstance(collector, ActorCollector):
            collector.dealt = run_config.actors < team.count
        if isinstance(collector, EnvCollector | ActorCollector):
            parts["collector"] = SharedCollector(collector, experiment, team, clock)
        parts["source"] = SharedSource(experiment.source, team, clock, collector is not None)
        for optim in experiment.algo.optimizers().values():
            if isinstance(optim, torch.optim.Optimizer):
                optim.register_step_pre_hook(_average_gradients)
    return LearnerExperiment(**parts, run_config=run_config, team=team, run=run)


def _average_gradients(optim: torch.optim.Optimizer, *_: object) -> None:
    """Average the gradients of a PyTorch optimizer over all learners, before its step."""
    all_reduce_mean([p.grad for group in optim.param_groups for p in group["params"] if p.grad is not None])


def run_follower(
    team: LearnerGroup, build: Callable[[int | None], LearnerExperiment], folder: RunFolder
) -> TrainResult:
    """Run a learner that follows learner 0; return its result.

    ``build`` builds its share of the experiment, to continue from a step; None: start a new run.
    """
    command = team.broadcast_object()
    if command[0] == "end":
        return command[1]  # type: ignore[no-any-return]
    with contextlib.ExitStack() as stack:
        experiment = build(command[1])
        stack.push(lambda kind, *_: experiment.close(failed=kind is not None))
        command = team.broadcast_object()
        if command[0] == "end":  # the run was finished before
            if (newest := Checkpoints(folder.checkpoints).latest()) is not None:
                complete_store(experiment.store, learner_folder(newest, team.rank))
            return command[1]  # type: ignore[no-any-return]
        follower = Follower(experiment, folder)
        if command[0] == "load":
            follower.load(*command[1:])
        else:
            if experiment.store is not None:
                experiment.store.check_writable()
            experiment.load_initial()
            experiment.begin()
        team.save = follower.save
        with handle_signals(lambda *_: None):  # one that has stopped the others may arrive after the loop
            with team.use_group():
                training.train_loop(
                    experiment.algo, experiment.source, experiment.clock, experiment.meter,
                    collector=experiment.collector, checkpoint=follower.checkpoint, schedule=experiment.config.schedule,
                )  # fmt: skip
            team.await_command()
            return team.broadcast_object()  # type: ignore[no-any-return]


class Follower:
    """Loads and saves a learner that follows learner 0, which alone logs, evaluates and writes checkpoints.

    Part of a checkpoint: the state that differs from learner 0's, such as the returns of unfinished episodes.
    """

    def __init__(self, experiment: LearnerExperiment, folder: RunFolder) -> None:
        self.experiment = experiment
        self.team: LearnerGroup = experiment.team
        self.algo: Algorithm = experiment.algo
        self.checkpoints: Checkpoints = Checkpoints(folder.checkpoints, experiment.run_config.keep_checkpoints)
        self.main: Path = Path()  # the checkpoint of learner 0
        parts = {name: part for name, part in experiment.parts().items() if name not in ("ranks", "meter")}
        self.parts: dict[str, Stateful] = {"own": self, **parts}

    def load(self, path: Path, before: int) -> None:
        """Load the checkpoint at ``path``, written by ``before`` learners."""
        team, clock = self.team, self.experiment.clock
        team.before, team.loaded, self.main = before, path, path
        self.checkpoints.load(path, {"algo": self.algo, "clock": clock})
        if before == team.count:
            self.checkpoints.load(learner_folder(path, team.rank), self.parts)
        elif "replay" in self.parts:
            self.parts["replay"].load_state_dict({})
            if isinstance(collector := _local_collector(self.experiment.collector), EnvCollector):
                collector.env_steps = clock.env_steps // team.count

    def save(self, folder: Path) -> None:
        """Write the parts to the folder of this learner below ``folder``, in the checkpoint that learner 0 writes."""
        experiment, learner_dir = self.experiment, folder / str(self.team.rank)
        self.main = folder.parent
        learner_dir.mkdir()
        write_checkpoint(learner_dir, experiment.clock.position, self.parts)
        if experiment.store is not None:
            name = folder.parent.name.removeprefix(".tmp-").rpartition("-")[0]
            experiment.store.on_checkpoint(name, [*(path.name for path in self.checkpoints.kept_paths()), name])

    def checkpoint(self, *, diverged: bool = False) -> Path:
        """Write into the checkpoint of a ``diverged`` state; other checkpoints are written at learner 0's command."""
        if diverged:  # learner 0 has detected it too, and is saving
            self.team.broadcast_int(TurnCommand.SAVE)
            self.team.write()
        elif sys.exception() is not None:
            raise RunError(
                "one of several learners cannot save alone: the newest checkpoint is the last one by all learners"
            )
        return self.experiment.run

    def state_dict(self) -> State:
        """Return the tensors by their names in the checkpoint, whose file learner 0 has written to ``main``."""
        tensors: dict[str, Tensor] = {}
        encode_state(self.algo.state_dict(), "algo", tensors)
        with safe_open(self.main / TENSORS, framework="pt") as file:
            local = {name: x for name, x in tensors.items() if not _tensors_equal(x, file.get_tensor(name))}
        learned = {f"algo/model/{name}" for name, _ in self.algo.named_parameters()}
        if far := [name for name in local if name in learned or "optim/" in name]:
            raise RunError(
                f"{far[0]} differs between the learners of this run: they have taken different gradient steps."
            )
        return {"tensors": local}

    def load_state_dict(self, state: State) -> None:
        """Load the state of learner 0 with these tensors replaced, from the checkpoint at ``main``."""
        self.algo.load_state_dict(read_checkpoint(self.main, ["algo"], verified=True, instead=state["tensors"])["algo"])


def _tensors_equal(x: Tensor, y: Tensor) -> bool:
    """Return whether two tensors are equal; NaN equals NaN."""
    return x.shape == y.shape and bool(((x == y) | (x != x)).all())

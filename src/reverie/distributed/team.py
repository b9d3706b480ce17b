"""The communication between the learners of a run, and the loop's view of all learners' rows and time.

====================  ==================================================================================================
What the loop reads   Of several learners
====================  ==================================================================================================
``collect()``         the env steps of all, exchanged once a turn (:meth:`LearnerGroup.sync_turn`) with what follows.
                      Actors are each learner's own; or, fewer than learners, those of learner 0, and each learner gets
                      the rows of a part of their environments
``len(source)``       the fewest windows that a learner has
``clock.stop``        whether any was asked to stop, by the turn before
``clock.seconds``     those of learner 0, so that all agree on when to log, evaluate and save
``update.metrics``    means over all (``algos/base.py``)
====================  ==================================================================================================
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.core.clock import Clock, Watch
from reverie.core.collectives import use_ranks as learning
from reverie.core.columns import zero_step
from reverie.core.errors import RunError, count_noun
from reverie.core.logger import logger
from reverie.core.protocols import BatchSource, RunningStatistics, ScheduledPolicy
from reverie.core.specs import ObsSpec
from reverie.core.types import Batch, State, Step, Update
from reverie.distributed.actor_collector import ActorCollector
from reverie.distributed.actor_connection import RowBlock
from reverie.distributed.process_group import ProcessGroup
from reverie.experiment.build import Experiment
from reverie.replay.sources import concat_batches
from reverie.run.collect import EnvCollector
from reverie.run.episodes import Episodes, join_episodes


class TurnCommand(IntEnum):
    """Commands of learner 0 to the others at the beginning of each turn."""

    GO = 0
    SAVE = 1
    END = 2


class LearnerGroup(ProcessGroup):
    """One learner's view of all learners.

    A group of one is an ordinary run. Part of a checkpoint: one folder per other learner, with its own manifest.
    """

    prunable = False

    def __init__(self, store: Any = None) -> None:
        super().__init__(store)
        self.before: int = self.count  # number of learners that wrote the loaded checkpoint
        self.loaded: Path | None = None
        self.windows: int = 0
        self.restarts = 0
        self.ended = False
        self.training: bool = False  # whether the others have received everything before the first turn
        self.save: Callable[[Path], None] = lambda folder: None  # called in the other learners to write their state

    def use_group(self) -> contextlib.AbstractContextManager[None]:
        """Average gradients, statistics and metrics over all learners inside the context."""
        return learning(self) if self.count > 1 else contextlib.nullcontext()

    def end(self, result: object) -> None:
        """Send the result of the run to the other learners."""
        if self.training:
            self.broadcast_int(TurnCommand.END)
            self.broadcast_object(result)
        else:
            self.broadcast_object(("end", result))

    def await_command(self) -> None:
        """Begin a turn, or end, at learner 0's command; the others save first whenever learner 0 saves."""
        while self.broadcast_int(TurnCommand.GO) == TurnCommand.SAVE:
            self.write()

    def state_dict(self) -> State:
        """Return the number of learners."""
        return {"count": self.count}

    def load_state_dict(self, state: State) -> None:
        """Keep the number of learners that wrote the checkpoint."""
        self.before = int(state["count"])
        if self.before != self.count:
            logger.info(
                f"the run was saved with {count_noun(self.before, 'learner')} and now has "
                f"{count_noun(self.count, 'learner')}: "
                "the replay rows are redistributed episode by episode, and the environments start new episodes"
            )

    def save_files(self, folder: Path) -> None:
        """Make the other learners write their parts."""
        if self.count == 1:
            return
        if sys.exception() is not None:  # after an error the others are not in the same state
            raise RunError("one of several learners cannot save alone, continue from the newest checkpoint")
        self.broadcast_int(TurnCommand.SAVE)
        self.broadcast_object(folder)
        self.all_gather_object(None)

    def load_files(self, folder: Path) -> None:
        """Make the other learners load the same checkpoint."""
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
            signal.raise_signal(signal.SIGTERM)  # another learner received a signal that this one did not
        return gathered[:, 3:].sum(0)  # type: ignore[no-any-return]

    def distribute_blocks(self, feed: ActorCollector) -> list[tuple[int, RowBlock]]:
        """Return the actors' rows of this learner's environments; the actors send all rows to learner 0."""
        parts: list[list[tuple[int, RowBlock]]] = [[] for _ in range(self.count)]
        for index, block in feed.receive_blocks() if self.rank == 0 else ():
            for rank, part in enumerate(parts):
                cut = slice(rank * feed.config.env.num, (rank + 1) * feed.config.env.num)
                rows = {name: column[cut].copy() for name, column in block.rows.items()}
                part.append((index, block._replace(rows=rows, episodes=join_episodes([]) if rank else block.episodes)))
        blocks: list[tuple[int, RowBlock]] = self.scatter_object(parts)
        return blocks


# ---------------------------------------------------------------- what the loop reads


class GroupWatch(Watch):
    """The watch of several learners, synchronized once a turn (:meth:`LearnerGroup.sync_turn`).

    Setting ``stop`` asks all learners to stop after their next turn.
    """

    def __init__(self, local: Watch, is_main: bool) -> None:
        self.local = local
        self.is_main = is_main
        self.seconds: float = 0.0  # time of the run on learner 0's watch
        self.stop_requested: bool = local.stop
        self.stop_agreed: bool = False

    def total_seconds(self, before: float) -> float:
        return max(self.seconds, before)

    @property
    def stop(self) -> bool:
        """Whether the learners have agreed to end the run after this turn."""
        return self.stop_agreed

    @stop.setter
    def stop(self, value: bool) -> None:
        self.stop_requested = value


class SharedSource:
    """The batches of one learner, each a share of the common batch."""

    def __init__(self, source: BatchSource, team: LearnerGroup, clock: Clock, collects: bool) -> None:
        self.source = source
        self.team = team
        self.clock = clock
        self.collects = collects
        self.sample: Callable[[], Batch] = source.sample
        self.feedback: Callable[[Tensor, Update], None] = source.feedback

    def __len__(self) -> int:
        """Return the smallest number of windows of any learner. Without a collector, this synchronizes the learners."""
        if not self.collects:
            self.team.await_command()
            self.team.sync_turn(self.clock, len(self.source))
        return self.team.windows


class SharedCollector:
    """The collector of one learner, or of its actors, with the env steps, restarts and episodes of all learners."""

    def __init__(
        self, local: EnvCollector | ActorCollector, experiment: Experiment, team: LearnerGroup, clock: Clock
    ) -> None:
        """``experiment``: of this learner."""
        self.local = local
        self.source: BatchSource = experiment.source
        self.team = team
        self.clock = clock
        self.unlogged_episodes: list[Episodes] = local.unlogged_episodes
        self.seconds: dict[str, float] = local.seconds
        self.close: Callable[[], None] = local.close
        self.pop_action_rates: Callable[[], dict[str, float]] = local.pop_action_rates
        self.state_dict: Callable[[], State] = local.state_dict
        self.load_state_dict: Callable[[State], None] = local.load_state_dict
        self.seen: list[Step] = []
        self.running_statistics: RunningStatistics | None = experiment.algo.running_statistics
        self.spec: ObsSpec = experiment.obs_spec
        if isinstance(local, ActorCollector):
            local.rank, local.learners = team.rank, team.count
            local.watch = None if self.running_statistics is None else self.seen.append
            if local.dealt:
                local.incoming = lambda: team.distribute_blocks(local)

    @property
    def restarts(self) -> int:
        return self.team.restarts

    def collect(self) -> int:
        """Do one turn; return the env steps of all learners, on which exploration schedules depend."""
        local = self.local
        self.team.await_command()
        steps = local.collect()
        sums = local.sums if isinstance(local, ActorCollector) else ()
        totals = self.team.sync_turn(self.clock, len(self.source), steps, len(local.finished), local.restarts, *sums)
        total, self.team.ended, self.team.restarts = int(totals[0]), bool(totals[1]), int(totals[2])
        if isinstance(local, ActorCollector):
            local.add_metrics(totals[3:])
            if self.running_statistics is not None:  # all together, since some can have rows and others none
                self.running_statistics.update_statistics(concat_batches([*self.seen, zero_step(self.spec, 0)]))
                self.seen.clear()
        elif isinstance(local.policy, ScheduledPolicy):
            local.state = local.policy.advance_schedule(local.state, self.clock.env_steps + total)
        return total

    def pop_episodes(self, *, at_the_end: bool = False) -> list[Episodes]:
        if not (self.team.ended or at_the_end):
            return []
        episodes = vars(join_episodes(self.local.pop_episodes(at_the_end=at_the_end)))
        return [Episodes(**part) for part in self.team.all_gather_object(episodes)]

    def pop_late_episodes(self) -> list[Episodes]:
        """Return []: environments on a device have one learner."""
        return []

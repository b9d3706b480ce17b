"""The learner's side of actors: it starts them, takes their rows, and gives them weights."""

from __future__ import annotations

import contextlib
import functools
import math
import multiprocessing
import selectors
import time
from collections import deque
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.vector.utils import CloudpickleWrapper

from reverie.algos.base import Algorithm
from reverie.core.clock import Clock, LooseRatio
from reverie.core.columns import columns_of
from reverie.core.errors import DataError, RunError
from reverie.core.protocols import Env, Meter
from reverie.core.randomness import derived_seeds
from reverie.core.specs import EXTRAS
from reverie.core.types import FLAGS, State, Step, Window
from reverie.core.words import Say
from reverie.envs.make import MakeEnv
from reverie.experiment import ExperimentConfig
from reverie.replay.config import ReplayConfig, check_capacity, check_memory, most_rows, parse_size
from reverie.replay.replay import Replay
from reverie.replay.run_store import RunStore
from reverie.replay.storage import bytes_of
from reverie.run.collect import EpisodeStats
from reverie.scale.actors import Work, act
from reverie.scale.lanes import Lanes, LaneStores
from reverie.scale.weights import Board, acting, packed
from reverie.scale.wire import Block, Failure, Wire, check_rows

DEATHS, WITHIN = 3, 60.0
"""An actor that dies so often within so many seconds ends the run."""
IDLE = 0.1
"""Longest time in seconds that the learner waits for rows before it looks at everything else."""
SHARE = 0.05
"""Part of the learner's time that publishing weights may take."""
PATIENCE = 5.0
"""Seconds that an actor has to end."""


class Lane:
    """One actor, over all its processes, and its replay."""

    def __init__(self, number: int, replay: Replay) -> None:
        self.number, self.replay = number, replay
        self.process: Any = None
        self.wire: Wire
        self.end: Finalize
        self.ended = np.ones(replay.storage.streams, bool)  # no episode is running
        self.taken = 0  # env steps of the present process
        self.restarts, self.restarts_before = 0, 0  # of environments, in the present process and in earlier ones
        self.deaths: deque[float] = deque(maxlen=DEATHS)
        self.starts = 0
        self.acted = False  # whether any of its processes has sent rows

    def begin(self, process: Any, wire: Wire) -> None:
        """Go on with a new process, in new episodes: those of an earlier process end as truncated."""
        self.process, self.wire = process, wire
        self.end = Finalize(self, kill, (process, wire.pipe), exitpriority=0)
        self.ended[:] = True
        self.taken, self.starts = 0, self.starts + 1
        self.restarts_before += self.restarts
        self.restarts = 0

    def count(self, block: Block) -> int:
        """Count the rows of a block; return its env steps."""
        last = block.rows["is_last"]
        self.ended, self.restarts, self.acted = last[:, -1].copy(), block.restarts, True
        steps = last.size - int(last.sum())
        self.taken += steps
        return steps

    def stop(self, seconds: float) -> None:
        """End the process, by force after so many ``seconds``."""
        if self.process is not None:
            self.process.join(seconds)
            self.end()
            self.wire.close()
            self.process = None


class Feed:
    """Takes the rows of actors into their replays, in place of a ``Collector``. A part of a checkpoint.

    ``collect`` takes what there is. It waits only if the clock's ratio forbids an update. Actors begin with the first
    call, and are asked to end when the run is over.
    """

    def __init__(
        self, config: ExperimentConfig, factory: MakeEnv | None, algo: Algorithm, env: Env, source: Lanes,
        clock: Clock, meter: Meter, seed: int, say: Say,
    ) -> None:  # fmt: skip
        """``env`` has the spaces of the environments that actors make by ``config`` and ``factory``."""
        assert isinstance(clock.ratio, LooseRatio)
        self.config, self.factory, self.seed = config, factory, seed
        self.source, self.clock, self.meter, self.say = source, clock, meter, say
        self.algo, self.obs_spec, self.ratio = algo, env.obs_spec, clock.ratio
        self.columns = columns_of(env.obs_spec, env.action_spec, algo.extra_spec)
        self.lanes = [Lane(number, replay) for number, replay in enumerate(source.replays)]
        self.published, self.due = -1, 0.0  # version of the newest weights; when others may follow
        self.taken, self.restarts_before = 0, 0  # env steps that the loop does not know of yet
        self.finished: list[EpisodeStats] = []
        self.unlogged: list[EpisodeStats] = []
        """Finished episodes that are not logged yet; see ``Collector``."""
        self.board: Board | None = None  # not before the weights are those that the run begins with
        self.selector = selectors.DefaultSelector()
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        self.context: Any = multiprocessing.get_context(method)

    # ------------------------------------------------------------ the loop's side

    def collect(self) -> int:
        """Take the rows that have arrived. Return their env steps: one for each row that is not ``is_last``.

        Raises:
            RunError: an actor fails again and again, or before it has acted.
            DataError: rows arrived that no environment can have sent.
        """
        if self.board is None:
            self.begin()
        self.publish()
        self.allow()
        waits = self.ratio.waits
        for _ in range(len(self.lanes) * self.lanes[0].wire.slots):  # or fast actors would keep the learner for ever
            ready = self.selector.select(IDLE if waits and not self.taken else 0)
            if not ready:
                break
            for key, _ in ready:
                self.take(key.data)
        taken, self.taken = self.taken, 0
        return taken

    def drain(self, *, at_the_end: bool = False) -> list[EpisodeStats]:
        """Return the episodes that ended since the last call. ``at_the_end``: let the actors end."""
        if at_the_end:
            self.close()
        finished, self.finished = self.finished, []
        return finished

    @property
    def restarts(self) -> int:
        """How often failed environments were started again in this run, including earlier processes."""
        return self.restarts_before + sum(lane.restarts_before + lane.restarts for lane in self.lanes)

    def state_dict(self) -> State:
        """Return the counters. Exploration follows the clock; episodes and generators of actors begin anew."""
        unlogged = [[score, length, dict(info)] for score, length, info in self.unlogged]
        return {"taken": self.taken, "restarts": self.restarts, "unlogged": unlogged,
                "starts": [lane.starts for lane in self.lanes]}  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        """Restore the counters; actors begin new episodes."""
        self.taken, self.restarts_before = int(state["taken"]), int(state["restarts"])
        self.unlogged[:] = [EpisodeStats(*episode) for episode in state["unlogged"]]
        for lane, starts in zip(self.lanes, state["starts"], strict=True):
            lane.starts = int(starts)
        self.say("actors start new episodes: a run with actors is not resumed within them")

    def close(self) -> None:
        """Let all actors end, and wait for it. May be called twice."""
        for lane in self.lanes:
            if lane.process is not None:
                lane.wire.sign("stop", 1)
                with contextlib.suppress(KeyError, ValueError):
                    self.selector.unregister(lane.wire.pipe)
        deadline = time.monotonic() + PATIENCE
        for lane in self.lanes:
            lane.stop(max(0.0, deadline - time.monotonic()))

    # ------------------------------------------------------------ the actors' side

    def begin(self) -> None:
        """Publish the first weights, and start the actors."""
        self.weights = acting(self.algo, self.obs_spec)
        self.board = Board(self.context, len(packed(self.weights)))
        self.publish()
        for lane in self.lanes:
            self.start(lane)

    def start(self, lane: Lane) -> None:
        """Start a process of an actor, whose seed is that of no other."""
        seed = int(np.random.SeedSequence([self.seed, lane.number, lane.starts]).generate_state(1)[0]) >> 1
        work: Any = functools.partial(Work, self.config, self.factory, lane.number, seed)
        wire = Wire(self.context, self.columns, lane.replay.storage.streams)
        process = self.context.Process(target=act, args=(CloudpickleWrapper(work), wire.port, self.board))
        process.start()
        wire.far.close()
        lane.begin(process, wire)
        self.allow()
        self.selector.register(wire.pipe, selectors.EVENT_READ, lane)

    def publish(self) -> None:
        """Publish the weights if they are newer, and as often as leaves the learner most of its time."""
        now = time.monotonic()
        if self.published == self.clock.updates or now < self.due:
            return
        assert self.board is not None
        self.board.publish(packed(self.weights), self.clock.updates)
        self.published, spent = self.clock.updates, time.monotonic() - now
        self.due = now + spent / SHARE

    def allow(self) -> None:
        """Tell each actor how far it may go: by the ratio, and to the end of the run."""
        missing = 0 if self.ratio.counts else max(0, self.clock.learning_starts - len(self.source))
        room = min(missing + self.ratio.room, self.clock.length - self.clock.env_steps)
        each = max(0, math.ceil(room / len(self.lanes)))
        for lane in self.lanes:
            if lane.process is not None:
                lane.wire.sign("env_steps", self.clock.env_steps)
                lane.wire.sign("limit", lane.taken + each)
                lane.wire.sign("waits", int(self.ratio.waits))

    def take(self, lane: Lane) -> None:
        """Take one message of an actor."""
        message: Block | Failure
        try:
            message = lane.wire.receive()
        except (EOFError, OSError):
            message = Failure("", final=False)
        if isinstance(message, Failure):
            self.lost(lane, message)
            return
        try:
            check_rows(message.rows, lane.ended, self.obs_spec)
        except DataError as error:
            raise DataError(f"actor {lane.number}: {error}") from None
        self.add(lane, message)
        self.taken += lane.count(message)
        lane.wire.free()

    def add(self, lane: Lane, block: Block) -> None:
        """Add the rows of a block to the actor's replay."""
        columns = {name: torch.from_numpy(column) for name, column in block.rows.items()}
        for turn in range(columns["reward"].shape[1]):
            row = {name: column[:, turn] for name, column in columns.items()}
            step = Step(
                obs={key: row[f"obs/{key}"] for key in self.obs_spec},
                reward=row["reward"],
                **{name: row[name] for name in FLAGS},
            )
            if self.algo.watcher is not None:
                self.algo.watcher.watch(step)
            extras = {name.removeprefix(EXTRAS): x for name, x in row.items() if name.startswith(EXTRAS)}
            lane.replay.add(step, row["action"], extras, block.version)
        self.finished += block.episodes
        behind = float(self.clock.updates - block.version)
        measured = {"train/staleness": behind, "actors/queue": float(lane.wire.waiting)}
        self.meter.add({name: torch.tensor(value) for name, value in measured.items()})

    def lost(self, lane: Lane, failure: Failure) -> None:
        """Start an actor again that has ended.

        Raises:
            RunError: it fails too often, or would fail again.
        """
        process = lane.process
        self.selector.unregister(lane.wire.pipe)
        lane.stop(PATIENCE)
        lane.deaths.append(time.monotonic())
        often = len(lane.deaths) == DEATHS and lane.deaths[-1] - lane.deaths[0] < WITHIN
        why = failure.text.rstrip() or f"its process died (exit code {process.exitcode}); its output is above, if any"
        if often or failure.final or (failure.text and not lane.acted):
            early = "" if lane.acted else " before it acted"
            times = f" {DEATHS} times within {WITHIN:.0f} seconds" if often else early
            raise RunError(f"actor {lane.number} failed{times}: {why}")
        self.say(f"actor {lane.number} is started again, in new episodes: {why.splitlines()[-1]}")
        self.start(lane)


def kill(process: Any, pipe: Connection) -> None:
    """End a process at once."""
    pipe.close()
    if process.pid is not None:
        process.kill()
        process.join()


def feeding(
    factory: MakeEnv | None, meter: Meter, config: ExperimentConfig, algo: Algorithm, env: Env, window: Window,
    seeds: Mapping[str, int], run: Path | None, say: Say, clock: Clock,
) -> tuple[Lanes, Feed, LaneStores | None]:  # fmt: skip
    """Build what takes the rows of actors and keeps them; ``build.py: collecting`` is the same without actors.

    ``env`` has the spaces of the environments of actors.
    """
    each = lane_config(config, bytes_of(columns_of(env.obs_spec, env.action_spec, algo.extra_spec)))
    replays = []
    for number in range(config.actors):
        replay = each.build(
            obs_spec=env.obs_spec,
            action_spec=env.action_spec,
            extra_spec=algo.extra_spec,
            num_envs=config.env.num,
            window=window,
            seed=derived_seeds(seeds["replay"], number)["replay"],
            most=most_rows(each, config.steps, config.env.num),
            scratch=run,
            versions=True,
        )
        replay.hindsight = algo.hindsight
        replays.append(replay)
    lanes = Lanes(replays, seeds["replay"])
    whole: Any = lanes
    check_memory(config.replay, whole, config.steps)
    check_capacity(config.replay, whole, config.learning_starts)
    stores = None
    if run is not None:
        own = [RunStore(replay, each, run, say, stop=lambda: clock.stop) for replay in replays]
        stores = LaneStores(own, lanes)
    return lanes, Feed(config, factory, algo, env, lanes, clock, meter, seeds["collector"], say), stores


def lane_config(config: ExperimentConfig, row_bytes: int) -> ReplayConfig:
    """Return the settings of each actor's replay: its part of the capacity and of the buffer."""
    buffer = parse_size(config.replay.buffer, "replay.buffer").amount // config.actors
    return config.replay.merge({"capacity": max(1, config.replay.rows(row_bytes) // config.actors),
                                "buffer": f"{max(1, buffer)}B"})  # fmt: skip

"""The learner's side of actors: starts them, receives their rows, and sends them weights."""

from __future__ import annotations

import functools
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reverie.algos.base import Algorithm
from reverie.core.clock import Clock, UpdateRatio
from reverie.core.columns import ColumnSpec, row_columns
from reverie.core.errors import RunError
from reverie.core.logger import logger
from reverie.core.protocols import Env, MeterLike
from reverie.core.seeding import derived_seeds
from reverie.core.specs import EXTRAS, IS_INTERVENTION, LATE_COLUMNS, ObsSpec
from reverie.core.types import FLAGS, State, Step, Window
from reverie.distributed.actor_connection import BLOCKS, Failure, RowBlock, acting_weights, serialize_weights
from reverie.distributed.actor_replays import MultiQueue, MultiReplay, MultiReplayStores
from reverie.distributed.actors import ActorTask
from reverie.distributed.local_actors import ACTOR_END_SECONDS, PUBLISH_TIME_SHARE, LocalActorConnection, LocalActors
from reverie.distributed.ray_actors import RayActorConnection, RayActors
from reverie.distributed.ray_learners import PLACEMENT_VAR
from reverie.envs.config import MakeEnv
from reverie.envs.worker import STARTUP_ADVICE
from reverie.experiment.config import ExperimentConfig
from reverie.replay.build import build_replay, check_capacity, check_memory, max_rows
from reverie.replay.config import parse_size
from reverie.replay.persistent import PersistentReplay
from reverie.replay.storage import row_nbytes
from reverie.run.episodes import Episodes, join_episodes

MAX_DEATHS, DEATH_WINDOW_SECONDS = 3, 60.0
"""The run fails if an actor dies ``MAX_DEATHS`` times within ``DEATH_WINDOW_SECONDS`` seconds."""
MAX_WAIT = 0.1
"""Maximum seconds that the learner waits for rows before it handles other events."""


@dataclass
class ActorHandle:
    """One actor, over all its processes."""

    number: int
    link: LocalActorConnection | RayActorConnection | None = None
    env_steps: int = 0
    """Env steps of the current process."""
    restarts: int = 0
    """Number of environment restarts in the current process."""
    starts: int = 0
    has_sent_rows: bool = False
    """Whether any of its processes has sent rows."""
    deaths: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_DEATHS))


class ActorCollector:
    """Receives the rows of actors into their replays, instead of a ``EnvCollector``.

    Part of a checkpoint. ``collect`` takes all rows that have arrived. It waits only if the clock's ratio forbids an
    update. Actors start with the first call, and are stopped at the end of the run.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        factory: MakeEnv | None,
        algo: Algorithm,
        env: Env,
        source: MultiReplay,
        clock: Clock,
        meter: MeterLike,
        seed: int,
    ) -> None:
        """``env`` has the spaces of the environments that actors make by ``config`` and ``factory``."""
        self.config = config
        self.factory = factory
        self.seed = seed
        self.source = source
        self.clock = clock
        self.meter = meter
        self.algo = algo
        self.obs_spec: ObsSpec = env.obs_spec
        self.ratio: UpdateRatio = clock.ratio
        self.columns: dict[str, ColumnSpec] = row_columns(env.obs_spec, env.action_spec, algo.extra_spec)
        self.columns[IS_INTERVENTION] = LATE_COLUMNS[IS_INTERVENTION]
        self.lanes: list[ActorHandle] = [ActorHandle(number) for number in range(len(source.replays))]
        self.rank = 0
        self.learners = 1
        self.dealt = False
        """Number of this learner, number of learners, and whether all learn from the actors of learner 0
        (``team.py``)."""
        self.home: LocalActors | RayActors | None = None  # only after the initial weights are loaded
        self.incoming: Callable[[], Iterable[tuple[int, RowBlock]]] = self.receive_blocks
        statistics = algo.running_statistics
        self.watch: Callable[[Step], None] | None = None if statistics is None else statistics.update_statistics
        self.sums: np.ndarray = np.zeros(3)  # number of blocks, lag of their versions in updates, blocks that waited
        self.published: int = -1  # version of the newest weights; earliest time of the next
        self.due: float = 0.0
        self.new_steps: int = 0  # env steps not yet reported to the loop
        self.restarts: int = 0  # of environments in this run
        self.finished: list[Episodes] = []
        self.unlogged_episodes: list[Episodes] = []
        self.seconds: dict[str, float] = {"time/update_seconds": 0.0}

    # ------------------------------------------------------------ the loop's side

    def collect(self) -> int:
        """Take the rows that have arrived. Return their env steps: one for each row that is not ``is_last``."""
        if self.home is None and (self.rank == 0 or not self.dealt):
            self.begin()
        self.publish_weights()
        self.send_step_limits()
        for number, block in self.incoming():
            self.add(number, block)
        if self.learners == 1:
            self.add_metrics(self.sums)
        steps, self.new_steps = self.new_steps, 0
        return steps

    def add_metrics(self, sums: np.ndarray) -> None:
        """Add the ``sums`` over all learners for the blocks of this turn to the metrics."""
        if sums[0]:
            self.meter.add({"train/staleness": sums[1] / sums[0], "actors/queue": sums[2] / sums[0]})
        self.sums[:] = 0

    def pop_episodes(self, *, at_the_end: bool = False) -> list[Episodes]:
        if at_the_end:
            self.close()
        finished, self.finished = self.finished, []
        return finished

    def pop_late_episodes(self) -> list[Episodes]:
        """Return []: actors step no environments on a device."""
        return []

    def state_dict(self) -> State:
        """Return the counters. Exploration follows the clock; episodes and random generators of actors restart."""
        return {"taken": self.new_steps, "restarts": self.restarts,
                "unlogged": vars(join_episodes(self.unlogged_episodes)),
                "starts": [lane.starts for lane in self.lanes]}  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        """Restore the counters; actors begin new episodes."""
        self.new_steps, self.restarts = int(state["taken"]), int(state["restarts"])
        self.unlogged_episodes[:] = [Episodes(**state["unlogged"])]
        for lane, starts in zip(self.lanes, state["starts"], strict=False):  # the number of actors can have changed
            lane.starts = int(starts)
        logger.info("actors start new episodes: a run with actors does not resume in mid-episode")

    def close(self) -> None:
        """Stop all actors and wait for them. Can be called twice."""
        links = [lane.link for lane in self.lanes if lane.link is not None]
        for link in links:
            link.sign("stop", 1)
        deadline = time.monotonic() + ACTOR_END_SECONDS
        for link in links:
            link.end(deadline)
        for lane in self.lanes:
            lane.link = None

    # ------------------------------------------------------------ the actors' side

    @property
    def envs(self) -> int:
        """Number of environments per actor."""
        return self.config.env.num * (self.learners if self.dealt else 1)

    def begin(self) -> None:
        """Publish the first weights, and start the actors."""
        self.home = (RayActors if PLACEMENT_VAR in os.environ else LocalActors)(self.columns, self.envs)
        self.weights: dict[str, torch.Tensor] = acting_weights(self.algo, self.obs_spec)
        self.publish_weights()
        for lane in self.lanes:
            lane.number += 0 if self.dealt else self.rank * len(self.lanes)
            self.start(lane)

    def start(self, lane: ActorHandle) -> None:
        """Start a process of an actor, with a unique seed; episodes of an earlier process are truncated."""
        assert self.home is not None
        seed = int(np.random.SeedSequence([self.seed, lane.number, lane.starts]).generate_state(1)[0]) >> 1
        config = self.config.merge({"env.num": self.envs})
        work = functools.partial(ActorTask, config, self.factory, lane.number, seed)
        lane.link, lane.env_steps, lane.restarts = self.home.start(work, lane.number), 0, 0
        lane.starts += 1
        self.send_step_limits()

    def publish_weights(self) -> None:
        """Publish the weights if they are newer, limited to a small fraction of the learner's time."""
        start = time.monotonic()
        if self.home is None or self.published == self.clock.updates or start < self.due:
            return
        self.home.publish(serialize_weights(self.weights), self.clock.updates)
        self.published, spent = self.clock.updates, time.monotonic() - start
        self.due = start + spent / PUBLISH_TIME_SHARE

    def send_step_limits(self) -> None:
        """Send each actor its step limit, from the ratio and the end of the run."""
        missing = 0 if self.ratio.is_counting else max(0, self.clock.learning_starts - len(self.source)) * self.learners
        room = min(missing + self.ratio.env_steps_allowed, self.clock.length - self.clock.env_steps)
        quota = max(0, math.ceil(room / (len(self.lanes) * (1 if self.dealt else self.learners))))
        for lane in self.lanes:
            if lane.link is not None:
                lane.link.sign("env_steps", self.clock.env_steps)
                lane.link.sign("limit", lane.env_steps + quota)
                lane.link.sign("waits", int(self.ratio.must_wait))

    def receive_blocks(self) -> Iterator[tuple[int, RowBlock]]:
        """Yield the blocks that have arrived, each with the index of its actor. Its memory is then reused."""
        assert self.home is not None
        waits = self.ratio.must_wait
        for _ in range(len(self.lanes) * BLOCKS):  # otherwise fast actors would block the learner forever
            ready: list[LocalActorConnection | RayActorConnection] = list(
                self.home.ready(MAX_WAIT if waits and not self.new_steps else 0)
            )
            if not ready:
                break
            for link in ready:
                index, lane = next((i, lane) for i, lane in enumerate(self.lanes) if lane.link is link)
                try:
                    message = link.receive()
                except (EOFError, OSError):
                    message = Failure("", is_permanent=False)
                if isinstance(message, Failure):
                    self.restart_actor(lane, message)
                    continue
                yield index, message
                self.sums += 1, self.clock.updates - message.version, link.waiting
                steps = int((~message.rows["is_last"]).sum())
                self.restarts += message.restarts - lane.restarts
                self.new_steps, lane.env_steps = self.new_steps + steps, lane.env_steps + steps
                lane.restarts, lane.has_sent_rows = message.restarts, True
                link.free()

    def add(self, number: int, block: RowBlock) -> None:
        """Add the rows of a block to the replay of an actor."""
        columns = {name: torch.from_numpy(column) for name, column in block.rows.items()}
        has_takeovers = bool(block.rows[IS_INTERVENTION].any())
        for turn in range(columns["reward"].shape[1]):
            row = {name: column[:, turn] for name, column in columns.items()}
            obs = {key: row[f"obs/{key}"] for key in self.obs_spec}
            step = Step(obs=obs, reward=row["reward"], **{name: row[name] for name in FLAGS})
            if self.watch is not None:
                self.watch(step)
            extras = {name.removeprefix(EXTRAS): x for name, x in row.items() if name.startswith(EXTRAS)}
            self.source.replays[number].add(step, row["action"], extras, block.version)
            if has_takeovers:
                self.source.replays[number].correct(row["action"], row[IS_INTERVENTION])
        if len(block.episodes):
            self.finished.append(block.episodes)

    def pop_action_rates(self) -> dict[str, float]:
        """Return {}: actors do not report whose actions were replaced."""
        return {}

    def restart_actor(self, lane: ActorHandle, failure: Failure) -> None:
        """Restart an actor that has ended; RunError if it fails too often, or would fail again."""
        link, lane.link = lane.link, None
        assert link is not None
        how = link.end(time.monotonic() + ACTOR_END_SECONDS)
        lane.deaths.append(time.monotonic())
        often = len(lane.deaths) == MAX_DEATHS and lane.deaths[-1] - lane.deaths[0] < DEATH_WINDOW_SECONDS
        why = failure.text.rstrip() or how
        if often or failure.is_permanent or (failure.text and not lane.has_sent_rows):
            early = "" if lane.has_sent_rows else " before its first step"
            times = f" {MAX_DEATHS} times within {DEATH_WINDOW_SECONDS:.0f} seconds" if often else early
            advice = "" if failure.text or lane.has_sent_rows else f".{STARTUP_ADVICE.format('actors = 0')}"
            raise RunError(f"actor {lane.number} failed{times}: {why}{advice}")
        logger.warning(f"actor {lane.number} is restarted, with new episodes: {why.splitlines()[-1]}")
        self.start(lane)


def build_actor_collector(
    factory: MakeEnv | None,
    meter: MeterLike,
    config: ExperimentConfig,
    algo: Algorithm,
    env: Env,
    window: Window,
    seeds: Mapping[str, int],
    run: Path | None,
    clock: Clock,
) -> tuple[MultiReplay, ActorCollector, MultiReplayStores | None]:
    """Build the collector and the replays of actors, like ``experiment/build.py: build_collection`` without actors.

    ``env`` has the spaces of the environments of actors.
    """
    row_bytes = row_nbytes(row_columns(env.obs_spec, env.action_spec, algo.extra_spec))
    capacity = config.replay.capacity_rows(row_bytes) // config.actors
    buffer = parse_size(config.replay.write_buffer, "replay.write_buffer").amount // config.actors
    replay_config = config.replay.merge({"write_buffer": f"{max(1, buffer)}B"})  # per actor
    if not window.queued:
        replay_config = replay_config.merge({"capacity": max(1, capacity)})
    replays = []
    for number in range(config.actors):
        replay = build_replay(
            replay_config, obs_spec=env.obs_spec, action_spec=env.action_spec, extra_spec=algo.extra_spec,
            num_envs=config.env.num, window=window, seed=derived_seeds(seeds["replay"], number)["replay"],
            max_rows=max_rows(replay_config, config.steps, config.env.num), scratch=run, versions=True,
        )  # fmt: skip
        replay.annotator = algo.annotator
        replays.append(replay)
    lanes = (MultiQueue if window.queued else MultiReplay)(replays, seeds["replay"])
    source: Any = lanes
    check_memory(config.replay, source, config.steps)
    check_capacity(config.replay, source, config.learning_starts)
    stores = None
    if run is not None:
        parts = [PersistentReplay(replay, replay_config, run, stop=lambda: clock.stop) for replay in replays]
        stores = MultiReplayStores(parts, lanes)
    return lanes, ActorCollector(config, factory, algo, env, lanes, clock, meter, seeds["collector"]), stores

"""An actor: a process with E environments that acts with the newest weights it has, and sends blocks of rows."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reverie.algos.base import Algorithm
from reverie.core.columns import as_numpy
from reverie.core.errors import ReverieError
from reverie.core.logger import log_warnings_as
from reverie.core.protocols import Env, ScheduledPolicy
from reverie.core.seeding import derived_seeds, seed_everything
from reverie.core.signals import SIGNALS
from reverie.core.specs import IS_INTERVENTION
from reverie.core.types import FLAGS, Step, no_flags
from reverie.distributed.actor_connection import (
    MAX_BLOCK_AGE,
    MAX_SPINS,
    POLL_SECONDS,
    ActorConnection,
    ActorStop,
    Failure,
    Rows,
    WeightBoard,
    acting_weights,
    load_weights,
)
from reverie.envs.config import MakeEnv
from reverie.envs.slot_vector_env import make_vector_env
from reverie.envs.worker import SINGLE_THREAD_VARS, exit_after_parent
from reverie.experiment.config import ExperimentConfig
from reverie.run.collect import EnvCollector
from reverie.run.episodes import join_episodes


@dataclass(frozen=True)
class ActorTask:
    """The task of an actor."""

    config: ExperimentConfig
    factory: MakeEnv | None
    """Makes the environment instead of ``config.env.id``; None: use the id."""
    number: int
    seed: int


class BlockSink:
    """A ``RowSink`` that fills the blocks of a connection."""

    def __init__(self, port: ActorConnection) -> None:
        self.port = port
        self.turns: int = 0
        self.begun: float = 0.0
        self.rows: Rows = {}

    def add(self, step: Step, action: Tensor, extras: Mapping[str, Tensor]) -> None:
        """Write one row of each environment. Blocks at the beginning of a block while too many blocks are waiting."""
        if not self.turns:
            self.rows, self.begun = self.port.next_block(), time.monotonic()
        values = {"action": action, "reward": step.reward, **{name: getattr(step, name) for name in FLAGS}}
        values |= {f"obs/{key}": x for key, x in step.obs.items()} | {f"extras/{key}": x for key, x in extras.items()}
        values[IS_INTERVENTION] = no_flags(len(step))
        for name, column in self.rows.items():
            column[:, self.turns] = as_numpy(values[name])
        self.turns += 1

    def correct(self, action: Tensor, is_takeover: Tensor | None) -> None:
        """Replace the actions of the newest rows by those that were executed."""
        self.rows["action"][:, self.turns - 1] = as_numpy(action)
        if is_takeover is not None:
            self.rows[IS_INTERVENTION][:, self.turns - 1] = as_numpy(is_takeover)

    @property
    def full(self) -> bool:
        """Whether it is time to send the block."""
        return self.turns == MAX_SPINS or (self.turns > 0 and time.monotonic() - self.begun > MAX_BLOCK_AGE)


class ActorWorker:
    """Acts with the newest weights, at the pace of its environments."""

    def __init__(self, work: ActorTask, port: ActorConnection, board: WeightBoard) -> None:
        """Make the environments and the policy."""
        log_warnings_as(f"actor {work.number}")
        config, seeds = work.config.for_acting_on("cpu"), derived_seeds(work.seed)
        seed_everything(seeds["global"])
        self.port = port
        self.board = board
        self.blocks: BlockSink = BlockSink(port)
        self.version: int = -1
        self.env: Env = make_vector_env(config.env, seed=seeds["env"], factory=work.factory, new=False)
        self.algo: Algorithm = config.algo.build(self.env.obs_spec, self.env.action_spec, "cpu", seeds["algo"])
        self.weights: dict[str, Tensor] = acting_weights(self.algo, self.env.obs_spec)
        while self.version < 0:
            self.load_newest_weights()
            port.check()
        self.collector: EnvCollector = EnvCollector(
            self.env, self.algo.policy, self.blocks, seed=seeds["collector"], random_steps=config.random_steps,
            on_policy=config.algo.on_policy,
        )  # fmt: skip

    def load_newest_weights(self) -> None:
        """Load the newest weights, if there are any."""
        if (newest := self.board.read(self.version)) is not None:
            load_weights(self.weights, newest[1])
            self.version = newest[0]

    def play(self) -> None:
        """Act until :class:`ActorStop`. One version acts in all rows of a block."""
        collector, policy, blocks, steps = self.collector, self.algo.policy, self.blocks, 0
        while True:
            signs = self.port.check()
            if steps >= signs.limit:
                if blocks.full or (blocks.turns and signs.waits):
                    self.send()
                else:
                    time.sleep(POLL_SECONDS)
                continue
            if not blocks.turns:
                self.load_newest_weights()
                collector.env_steps = signs.env_steps  # of all actors: exploration follows the steps of the whole run
                if isinstance(policy, ScheduledPolicy):
                    collector.state = policy.advance_schedule(collector.state, signs.env_steps)
            steps += collector.collect()
            if blocks.full:
                self.send()

    def send(self) -> None:
        """Send the rows of the block, once their actions are final, and the finished episodes."""
        self.collector.settle()
        self.port.send(
            self.blocks.rows, self.blocks.turns, self.version, join_episodes(self.collector.pop_episodes()),
            self.collector.restarts,
        )  # fmt: skip
        self.blocks.turns = 0


def run_actor_process(work: Callable[[], ActorTask], port: tuple[Any, ...], board: WeightBoard) -> None:
    """Run an actor in its own process until the learner stops it or ends.

    ``port``: arguments of its ActorConnection.
    """
    for number in SIGNALS:  # sent to whole jobs: the learner decides when actors stop
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else lambda *_: None)
    exit_after_parent()
    os.environ.update(SINGLE_THREAD_VARS)
    run_actor(work, ActorConnection(*port), board)


def run_actor(work: Callable[[], ActorTask], port: ActorConnection, board: WeightBoard) -> None:
    """Run an actor in this thread, until the learner stops it, or until an error, which is sent to the learner."""
    torch.set_num_threads(1)
    actor = None
    try:
        actor = ActorWorker(work(), port, board)
        actor.play()
    except ActorStop:
        pass
    except BaseException as error:
        with contextlib.suppress(ActorStop):
            ours = isinstance(error, ReverieError)
            port.fail(Failure(str(error) if ours else "".join(traceback.format_exception(error)), ours))
    finally:
        if actor is not None:
            actor.env.close()

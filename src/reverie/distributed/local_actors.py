"""The learner's side of actor processes on this machine; see ``ray_actors.py`` for a Ray cluster."""

from __future__ import annotations

import json
import multiprocessing
import selectors
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from reverie.core.columns import ColumnSpec
from reverie.core.errors import format_error
from reverie.distributed.actor_connection import (
    HEADER,
    MAX_SPINS,
    NO_STEP_LIMIT,
    ActorSignals,
    Failure,
    MessageKind,
    RowBlock,
    WeightBoard,
    num_slots,
)
from reverie.distributed.actors import ActorTask, run_actor_process
from reverie.envs.worker import allocate_shared
from reverie.run.episodes import Episodes

ACTOR_END_SECONDS = 5.0
"""Seconds for actors to end."""
PUBLISH_TIME_SHARE = 0.05
"""Maximum fraction of a learner's time for publishing weights."""


class LocalActors:
    """Starts actor processes, and sends them weights."""

    def __init__(self, columns: Mapping[str, ColumnSpec], envs: int) -> None:
        """``envs``: environments of each actor, whose rows have these ``columns``."""
        self.columns = columns
        self.envs = envs
        self.selector: selectors.DefaultSelector = selectors.DefaultSelector()
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        self.context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            self.context.set_forkserver_preload(["reverie.distributed.actors"])  # PyTorch is imported once, not by each
        self.board: WeightBoard | None = None  # only after the initial weights are loaded

    def start(self, work: Callable[[], ActorTask], number: int) -> LocalActorConnection:
        """Start actor ``number``."""
        child = LocalActorConnection(self.context, self.columns, self.envs)
        child.start(work, self.board, self.selector)
        return child

    def ready(self, seconds: float) -> Iterable[LocalActorConnection]:
        """Return the actors with a message, as soon as there is one, or after this many ``seconds``."""
        return [key.data for key, _ in self.selector.select(seconds)]

    def publish(self, data: bytes, version: int) -> None:
        """Send these weights to all actors."""
        self.board = self.board or WeightBoard(self.context, len(data))
        self.board.publish(data, version)


class LocalActorConnection:
    """The learner's end of the connection to one actor process."""

    def __init__(self, context: ForkServerContext | SpawnContext, columns: Mapping[str, ColumnSpec], envs: int) -> None:
        """Allocate memory for rows with these ``columns`` of this many environments."""
        self.context = context
        self.slots: int = num_slots(columns, envs)
        blocks = {
            name: allocate_shared(context, (self.slots, envs, MAX_SPINS, *column.shape), column.dtype)
            for name, column in columns.items()
        }
        signs = allocate_shared(context, (len(ActorSignals._fields),), "int64")
        self.free_slots: Any = context.Semaphore(self.slots)
        self.pipe: Connection
        self.far: Connection
        self.pipe, self.far = context.Pipe()
        # arguments of the process's ActorConnection
        self.port: tuple[Any, ...] = (self.far, blocks, signs, self.free_slots)
        self.blocks: dict[str, np.ndarray] = {name: column.array() for name, column in blocks.items()}
        self.signs: np.ndarray = signs.array()
        self.received: int = 0

    def start(self, work: Callable[[], ActorTask], board: WeightBoard | None, selector: selectors.BaseSelector) -> None:
        """Start the process, which reads its weights from ``board``; ``selector`` is notified of its messages."""
        task: Any = work  # Gymnasium's wrapper is designed for environments
        self.process: Any = self.context.Process(
            target=run_actor_process, args=(CloudpickleWrapper(task), self.port, board)
        )
        self.process.start()
        self.far.close()
        self.kill: Finalize[None] = Finalize(self, kill, (self.process, self.pipe), exitpriority=0)
        self.selector = selector
        self.selector.register(self.pipe, selectors.EVENT_READ, self)

    def sign(self, name: str, value: int) -> None:
        """Set a signal for the actor: see ``actor_connection.py: ActorSignals``."""
        self.signs[ActorSignals._fields.index(name)] = min(value, NO_STEP_LIMIT)

    @property
    def waiting(self) -> int:
        """Number of waiting blocks."""
        return int(self.signs[ActorSignals._fields.index("sent")]) - self.received

    def receive(self) -> RowBlock | Failure:
        """Return the next message. EOFError or OSError: the actor has ended."""
        message = self.pipe.recv_bytes()
        try:
            return self.decode(message)
        except (struct.error, ValueError, TypeError, RecursionError) as error:  # JSON's errors are ValueErrors
            return Failure(
                f"its message of {len(message)} bytes is damaged ({format_error(error)})", is_permanent=False
            )

    def decode(self, message: bytes) -> RowBlock | Failure:
        """Decode a message."""
        kind, slot, turns, version, restarts = HEADER.unpack_from(message)
        content = json.loads(message[HEADER.size :])
        if kind == MessageKind.FAILED:
            text, final = content
            return Failure(str(text), bool(final))
        if kind != MessageKind.ROWS or slot >= self.slots or not 0 < turns <= MAX_SPINS:
            raise ValueError(f"kind {kind}, slot {slot} of {self.slots}, {turns} of {MAX_SPINS} turns")
        *columns, info = content
        values = {name: np.array(column, np.float64) for name, column in dict(info).items()}
        score, length, count, longest = np.array(columns, np.float64)
        episodes = Episodes(score, length, count, longest, values)
        self.received += 1
        rows = {name: column[slot, :, :turns] for name, column in self.blocks.items()}
        return RowBlock(rows, version, episodes, restarts)

    def free(self) -> None:
        """Release the memory of the last block for reuse by the actor."""
        self.free_slots.release()

    def end(self, deadline: float) -> str:
        """End the actor, by force at the ``deadline`` of ``time.monotonic``; return how it ended. Call only once."""
        self.selector.unregister(self.pipe)
        self.process.join(max(0.0, deadline - time.monotonic()))
        self.kill()
        return f"its process died (exit code {self.process.exitcode}); its output is above, if any"


def kill(process: BaseProcess, pipe: Connection) -> None:
    """End a process at once."""
    pipe.close()
    process.kill()
    process.join()

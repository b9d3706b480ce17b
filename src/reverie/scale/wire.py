"""What an actor and the learner exchange: blocks of rows, and how far the actor may go.

On one machine rows lie in shared memory; a pipe carries a few bytes for each block. Nothing that arrives at the learner
is unpickled. ``ray_actors.py`` does the same by Ray.
"""

from __future__ import annotations

import json
import select
import struct
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from reverie.core.columns import Column
from reverie.envs.worker import shared
from reverie.run.collect import EpisodeStats

TURNS = 16
"""Most turns of a block: one row of each environment in each turn."""
BLOCKS, QUEUE_BYTES = 32, 2**26
"""Most blocks that may wait for the learner, and most bytes of them, though at least two blocks."""
SOON = 0.1
"""Seconds after which a block is sent that is not full."""
NAP = 0.001
"""Seconds between two looks of an actor that has to wait."""
ROWS, FAILED = 1, 2
HEAD = struct.Struct("<BIIqq")
"""Beginning of a message: its kind, slot, turns, version of the policy, restarts of environments. JSON follows."""
FAR = 2**62
Rows = dict[str, np.ndarray]


class Over(Exception):
    """The learner has asked the actor to end, or is gone."""


class Block(NamedTuple):
    """Rows of E environments that one version of the policy has acted in."""

    rows: Rows
    """Columns ``[E, n, *shape]``, in memory that is written again after ``Wire.free``."""
    version: int
    episodes: list[EpisodeStats]
    restarts: int
    """How often environments of the actor were restarted."""


class Failure(NamedTuple):
    """The error that has ended an actor."""

    text: str
    final: bool
    """Whether another process would fail as well: a setting, or an environment that has failed too often."""


class Signs(NamedTuple):
    """Numbers in shared memory, each written by one side alone."""

    stop: int
    """1: the actor is to end."""
    limit: int
    """Env steps that the actor may take."""
    waits: int
    """1: the learner waits for rows, and takes any number of them."""
    env_steps: int
    """Env steps of the whole run."""
    sent: int
    """Blocks that the actor has sent."""


def slots_of(columns: Mapping[str, Column], envs: int) -> int:
    """Return how many blocks of so many environments may wait."""
    return min(BLOCKS, max(2, QUEUE_BYTES // (envs * TURNS * sum(column.nbytes for column in columns.values()))))


class Port:
    """The actor's end. ``blocks`` hold the columns ``[slots, E, TURNS, *shape]``."""

    def __init__(self, pipe: Connection, blocks: Mapping[str, Any], signs: Any, free: Any) -> None:
        self._given = pipe, dict(blocks), signs, free

    def open(self) -> Port:
        """Map the memory, in the process of the actor."""
        self.pipe: Connection[Any, Any]
        self.free: Any
        self.pipe, blocks, signs, self.free = self._given
        self.blocks: Rows = {name: column.array() for name, column in blocks.items()}
        self.signs: np.ndarray = signs.array()
        self.slots: int = len(self.blocks["reward"])
        self.used: int = 0
        self.poll: select.poll = select.poll()
        self.poll.register(self.pipe.fileno(), select.POLLIN)  # nothing comes but its end
        return self

    def check(self) -> Signs:
        """Return the learner's signs; raise Over if the actor is to end."""
        signs = Signs(*self.signs.tolist())
        if signs.stop or self.poll.poll(0):
            raise Over
        return signs

    def room(self) -> Rows:
        """Return the memory of the next block, ``[E, TURNS, *shape]``. Waits while too many blocks wait."""
        while not self.free.acquire(timeout=0.2):
            self.check()
        return {name: column[self.used % self.slots] for name, column in self.blocks.items()}

    def send(self, rows: Rows, turns: int, version: int, episodes: Sequence[EpisodeStats], restarts: int) -> None:
        """Send the ``rows`` that ``room`` gave, of which ``turns`` are filled."""
        said = json.dumps([[score, length, dict(info)] for score, length, info in episodes])
        self.signs[Signs._fields.index("sent")] += 1
        self._say(HEAD.pack(ROWS, self.used % self.slots, turns, version, restarts) + said.encode())
        self.used += 1

    def fail(self, failure: Failure) -> None:
        """Report the error that ends the actor."""
        self._say(HEAD.pack(FAILED, 0, 0, 0, 0) + json.dumps([failure.text[-20_000:], failure.final]).encode())

    def _say(self, message: bytes) -> None:
        try:
            self.pipe.send_bytes(message)
        except OSError:
            raise Over from None


class Wire:
    """The learner's end of the connection with one process of an actor."""

    def __init__(self, context: Any, columns: Mapping[str, Column], envs: int) -> None:
        """Allocate for rows with these ``columns`` of so many environments."""
        self.slots: int = slots_of(columns, envs)
        blocks = {
            name: shared(context, (self.slots, envs, TURNS, *column.shape), column.dtype)
            for name, column in columns.items()
        }
        signs = shared(context, (len(Signs._fields),), "int64")
        self.free_slots: Any = context.Semaphore(self.slots)
        self.pipe: Connection
        self.far: Connection
        self.pipe, self.far = context.Pipe()
        self.port: Port = Port(self.far, blocks, signs, self.free_slots)
        self.blocks: dict[str, np.ndarray] = {name: column.array() for name, column in blocks.items()}
        self.signs: np.ndarray = signs.array()
        self.received: int = 0

    def sign(self, name: str, value: int) -> None:
        """Tell the actor a number of ``Signs``."""
        self.signs[Signs._fields.index(name)] = min(value, FAR)

    @property
    def waiting(self) -> int:
        """Number of blocks that wait."""
        return int(self.signs[Signs._fields.index("sent")]) - self.received

    def receive(self) -> Block | Failure:
        """Return the next message; waits for it.

        Raises:
            EOFError, OSError: the actor is gone.
        """
        message = self.pipe.recv_bytes()
        kind, slot, turns, version, restarts = HEAD.unpack_from(message)
        said = json.loads(message[HEAD.size :])
        if kind == FAILED:
            return Failure(*said)
        episodes = [EpisodeStats(*episode) for episode in said]
        self.received += 1
        rows = {name: column[slot, :, :turns] for name, column in self.blocks.items()}
        return Block(rows, version, episodes, restarts)

    def free(self) -> None:
        """Let the actor use the memory of the block received last again."""
        self.free_slots.release()

"""The exchange between an actor and the learner: blocks of rows, step limits, and weights of the policy.

On one machine, rows and weights (safetensors) are in shared memory, and a pipe carries a few bytes per block. The
learner unpickles nothing that it receives. ``ray_actors.py`` does the same with Ray. Versions count gradient updates.
"""

from __future__ import annotations

import json
import select
import struct
import zlib
from collections.abc import Callable, Mapping
from enum import IntEnum
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.synchronize import Semaphore
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from reverie.algos.base import Algorithm
from reverie.core.columns import ColumnSpec, zero_step
from reverie.core.kernel_dispatch import use_only_kernels
from reverie.core.seeding import preserve_rng_state
from reverie.core.specs import ObsSpec
from reverie.envs.worker import SharedColumn, allocate_shared
from reverie.run.episodes import Episodes

MAX_SPINS = 16
"""Maximum turns of a block, with one row of each environment per turn."""
BLOCKS, QUEUE_BYTES = 32, 2**26
"""Maximum number of blocks waiting for the learner, and maximum bytes of them, but at least two blocks."""
MAX_BLOCK_AGE = 0.1
"""Seconds after which an incomplete block is sent."""
POLL_SECONDS = 0.001
"""Seconds between two polls of a waiting actor."""
HEADER = struct.Struct("<BIIqq")
"""Header of a message: kind, slot, turns, version of the policy, restarts of environments. JSON follows."""
WEIGHTS = struct.Struct("<qqI")
"""Header of the weights in shared memory: version, bytes, CRC-32."""
NO_STEP_LIMIT = 2**62
Rows = dict[str, np.ndarray]


class MessageKind(IntEnum):
    """What an actor sends."""

    ROWS = 1
    FAILED = 2


class ActorStop(Exception):
    """The learner has asked the actor to stop, or has ended."""


class RowBlock(NamedTuple):
    """Rows of E environments in which one version of the policy has acted."""

    rows: Rows
    """Columns ``[E, n, *shape]``, in memory that is reused after ``LocalActorConnection.free``."""
    version: int
    episodes: Episodes
    restarts: int
    """Number of restarts of the actor's environments."""


class Failure(NamedTuple):
    """The error that ended an actor."""

    text: str
    is_permanent: bool
    """Whether another process would also fail: a wrong setting, or an environment that has failed too often."""


class ActorSignals(NamedTuple):
    """Numbers in shared memory, each written by only one side."""

    stop: int
    """1: the actor has to stop."""
    limit: int
    """Env steps that the actor may take."""
    waits: int
    """1: the learner waits for rows, and accepts any number."""
    env_steps: int
    """Env steps of the whole run."""
    sent: int
    """Number of blocks that the actor has sent."""


def num_slots(columns: Mapping[str, ColumnSpec], envs: int) -> int:
    """Return the maximum number of waiting blocks with this many environments."""
    return min(BLOCKS, max(2, QUEUE_BYTES // (envs * MAX_SPINS * sum(column.nbytes for column in columns.values()))))


class ActorConnection:
    """The actor's end of the connection, in its process. ``blocks``: columns ``[slots, E, MAX_SPINS, *shape]``."""

    def __init__(
        self, pipe: Connection, blocks: Mapping[str, SharedColumn], signs: SharedColumn, free: Semaphore
    ) -> None:
        self.pipe = pipe
        self.free = free
        self.blocks: Rows = {name: column.array() for name, column in blocks.items()}
        self.signs: np.ndarray = signs.array()
        self.slots: int = len(self.blocks["reward"])
        self.used: int = 0
        self.poll: select.poll = select.poll()
        self.poll.register(self.pipe.fileno(), select.POLLIN)  # only its closing is signaled

    def check(self) -> ActorSignals:
        """Return the learner's signals; raise ActorStop if the actor has to stop."""
        signs = ActorSignals(*self.signs.tolist())
        if signs.stop or self.poll.poll(0):
            raise ActorStop
        return signs

    def next_block(self) -> Rows:
        """Return the memory of the next block, ``[E, MAX_SPINS, *shape]``. Waits while too many blocks wait."""
        while not self.free.acquire(timeout=0.2):
            self.check()
        return {name: column[self.used % self.slots] for name, column in self.blocks.items()}

    def send(self, rows: Rows, turns: int, version: int, episodes: Episodes, restarts: int) -> None:
        """Send the ``rows`` of :meth:`next_block`; the first ``turns`` are filled."""
        payload = json.dumps([*vars(episodes).values()], default=np.ndarray.tolist)
        self.signs[ActorSignals._fields.index("sent")] += 1
        self._say(HEADER.pack(MessageKind.ROWS, self.used % self.slots, turns, version, restarts) + payload.encode())
        self.used += 1

    def fail(self, failure: Failure) -> None:
        """Report the error that ends the actor."""
        self._say(
            HEADER.pack(MessageKind.FAILED, 0, 0, 0, 0)
            + json.dumps([failure.text[-20_000:], failure.is_permanent]).encode()
        )

    def _say(self, message: bytes) -> None:
        try:
            self.pipe.send_bytes(message)
        except OSError:
            raise ActorStop from None


# ---------------------------------------------------------------- weights


class _Reads(TorchFunctionMode):
    """Records the memory of the tensors that operations read. A ``TorchDispatchMode`` would import TorchDynamo."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[int] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.read |= {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        return func(*args, **(kwargs or {}))


def acting_weights(algo: Algorithm, spec: ObsSpec) -> dict[str, Tensor]:
    """Return the parameters and buffers, by name, that the policy of ``algo`` reads in mode ``explore``.

    To find them, it acts twice without kernels: in a first row and in a later row.
    """
    with preserve_rng_state(), use_only_kernels(), _Reads() as reads, torch.no_grad():
        state = algo.policy.initial(1)
        for first in (True, False):
            action, state = algo.policy.act(zero_step(spec, 1, first), state, "explore")
            algo.policy.extras(algo.policy.override(state, action))
    named_tensors = {**dict(algo.named_parameters()), **dict(algo.named_buffers())}
    return {name: x for name, x in named_tensors.items() if x.untyped_storage().data_ptr() in reads.read and x.numel()}


def serialize_weights(weights: Mapping[str, Tensor]) -> bytes:
    """Return copies of the ``weights`` as safetensors. Waits for their device."""
    data: bytes = save({name: x.detach().to("cpu", copy=True).contiguous() for name, x in weights.items()})
    return data


@torch.no_grad()
def load_weights(weights: Mapping[str, Tensor], data: bytes) -> None:
    """Copy safetensors into the ``weights`` of the same names and shapes."""
    tensors = load(data)
    for name, x in weights.items():
        x.copy_(tensors[name])


class WeightBoard:
    """The newest weights, in shared memory that one process writes and any number of processes read without locks.

    Two slots alternate: a reader of a slot that is being rewritten finds a wrong checksum, and reads again. So a
    process can be killed at any moment without blocking others.
    """

    def __init__(self, context: BaseContext, size: int) -> None:
        """Allocate ``size`` bytes, for processes of the multiprocessing ``context``."""
        self.memory: SharedColumn = allocate_shared(context, (2, WEIGHTS.size + size), "uint8")
        self.newest: SharedColumn = allocate_shared(context, (1,), "int64")

    def publish(self, data: bytes, version: int) -> None:
        """Replace the weights."""
        newest = self.newest.array()
        slot = 1 - int(newest[0]) % 2
        head = WEIGHTS.pack(version, len(data), zlib.crc32(data))
        view = memoryview(self.memory.array()[slot])
        view[: WEIGHTS.size], view[WEIGHTS.size : WEIGHTS.size + len(data)] = head, data
        newest[0] = 2 * (int(newest[0]) // 2 + 1) + slot  # its parity selects the slot, and it always increases

    def read(self, known_version: int | None) -> tuple[int, bytes] | None:
        """Return version and weights; None if the version is ``known_version`` or they are being replaced."""
        slot = self.memory.array()[int(self.newest.array()[0]) % 2]
        version, size, check = WEIGHTS.unpack(slot[: WEIGHTS.size].tobytes())
        if version == known_version or not 0 < size <= slot.size - WEIGHTS.size:
            return None
        data = slot[WEIGHTS.size : WEIGHTS.size + size].tobytes()
        return (version, data) if zlib.crc32(data) == check else None

"""The protocol between a vector and its worker processes: a step in a few bytes, everything else pickled.

Actions and observations are in shared memory. So a step sends one number there and a few numbers back, and most of its
time goes into waking up a process. This file must not import torch; see ``envs/worker.py``.
"""

from __future__ import annotations

import pickle
import select
import struct
from ctypes import c_uint8
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

STEP = struct.Struct("<cq")
"""A request for a step: ``MARK``, the turn."""
STEPPED = struct.Struct("<cqd??")
"""The answer to it: ``MARK``, the turn, the reward, terminated, truncated."""
MARK = b"\0"
"""A byte with which no pickle begins."""

Stepped = tuple[float, bool, bool]


class Column(NamedTuple):
    """One observation key of N environments, or their actions, in shared memory."""

    memory: Any
    shape: tuple[int, ...]
    dtype: str

    def array(self) -> np.ndarray:
        """Return a view of that memory, ``[N, ...]``; ``shape`` includes N."""
        return np.frombuffer(self.memory, np.uint8).view(self.dtype).reshape(self.shape)


def shared(context: Any, shape: tuple[int, ...], dtype: str) -> Column:
    """Allocate shared memory of this ``shape`` for processes of the multiprocessing ``context``."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return Column(context.RawArray(c_uint8, size), shape, dtype)


class Line:
    """One end of a pipe. Every message begins with the number of a turn, which an answer repeats."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._poll = None if not hasattr(select, "poll") else select.poll()
        if self._poll is not None:  # Connection.poll makes a new selector each time, which takes ten times as long
            self._poll.register(pipe.fileno(), select.POLLIN)

    def step(self, turn: int) -> None:
        """Request a step with the action in shared memory.

        Raises:
            OSError: the other end is closed.
        """
        self._pipe.send_bytes(STEP.pack(MARK, turn))

    def stepped(self, turn: int, row: Stepped) -> None:
        """Answer ``step`` once the observation is in shared memory. Raises OSError as ``step`` does."""
        self._pipe.send_bytes(STEPPED.pack(MARK, turn, *row))

    def say(self, *said: Any) -> None:
        """Send any other message, the number of the turn first. Raises OSError as ``step`` does."""
        self._pipe.send_bytes(pickle.dumps(said, pickle.HIGHEST_PROTOCOL))

    def asked(self) -> tuple[int, str, tuple[Any, ...]]:
        """Wait for a request; return the turn, the name of the method and its arguments (none for ``step``).

        Raises:
            EOFError, OSError: the other end is closed.
        """
        said = self._pipe.recv_bytes()
        return (STEP.unpack(said)[1], "step", ()) if said[:1] == MARK else pickle.loads(said)

    def answered(self) -> tuple[int, bool, Any]:
        """Wait for an answer; return the turn, whether the method succeeded, and its result or its error.

        Raises:
            EOFError, OSError: the other end is closed.
        """
        said = self._pipe.recv_bytes()
        if said[:1] != MARK:
            answer: tuple[int, bool, Any] = pickle.loads(said)
            return answer
        _, turn, *row = STEPPED.unpack(said)
        return turn, True, tuple(row)

    def ready(self, seconds: float) -> bool:
        """Return whether a message, or the end of the pipe, arrives within ``seconds``."""
        if self._poll is None:
            return self._pipe.poll(seconds)
        return bool(self._poll.poll(1000 * seconds))

    def close(self) -> None:
        """Close this end of the pipe."""
        self._pipe.close()

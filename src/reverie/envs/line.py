"""What a vector and its worker processes say to each other: a step in a few bytes, everything else pickled.

Actions and observations lie in memory that both see. So a step takes a number there and a few numbers back, and most of
its time is that of waking a process up. Must not import torch, as ``envs/worker.py``.
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
"""A mark, and the turn."""
STEPPED = struct.Struct("<cqd??")
"""A mark, the turn, the reward, whether the episode ended by itself, and whether by the clock."""
MARK = b"\0"
"""What no pickle begins with."""

Stepped = tuple[float, bool, bool]


class Column(NamedTuple):
    """One observation of N environments, or their actions, in memory that all workers see."""

    memory: Any
    shape: tuple[int, ...]
    dtype: str

    def array(self) -> np.ndarray:
        """That memory, ``[N, *shape]``."""
        return np.frombuffer(self.memory, np.uint8).view(self.dtype).reshape(self.shape)


def shared(context: Any, shape: tuple[int, ...], dtype: str) -> Column:
    """Such memory, for processes of one multiprocessing ``context``."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return Column(context.RawArray(c_uint8, size), shape, dtype)


class Line:
    """One end of a pipe. Both ends send and receive tuples that begin with the number of a turn."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._poll = None if not hasattr(select, "poll") else select.poll()
        if self._poll is not None:  # the pipe's own way makes a new one each time, which takes ten times as long
            self._poll.register(pipe.fileno(), select.POLLIN)

    def step(self, turn: int) -> None:
        """Ask for a step with the action that lies in memory.

        Raises:
            OSError: nobody is there any more.
        """
        self._pipe.send_bytes(STEP.pack(MARK, turn))

    def stepped(self, turn: int, row: Stepped) -> None:
        """Answer to ``step``, when the observation lies in memory. Raises as ``step`` does."""
        self._pipe.send_bytes(STEPPED.pack(MARK, turn, *row))

    def say(self, *said: Any) -> None:
        """Say anything else, the number of the turn first. Raises as ``step`` does."""
        self._pipe.send_bytes(pickle.dumps(said, pickle.HIGHEST_PROTOCOL))

    def asked(self) -> tuple[int, str, tuple[Any, ...]]:
        """Wait for a question, ``step`` or another: the turn, what for, and with what.

        Raises:
            EOFError, OSError: nobody is there any more.
        """
        said = self._pipe.recv_bytes()
        return (STEP.unpack(said)[1], "step", ()) if said[:1] == MARK else pickle.loads(said)

    def answered(self) -> tuple[int, bool, Any]:
        """Wait for an answer, to ``step`` or another: the turn, whether it went well, and what came of it.

        Raises:
            EOFError, OSError: nobody is there any more.
        """
        said = self._pipe.recv_bytes()
        if said[:1] != MARK:
            answer: tuple[int, bool, Any] = pickle.loads(said)
            return answer
        _, turn, *row = STEPPED.unpack(said)
        return turn, True, tuple(row)

    def ready(self, seconds: float) -> bool:
        """Whether something comes within that time, be it the end."""
        if self._poll is None:
            return self._pipe.poll(seconds)
        return bool(self._poll.poll(1000 * seconds))

    def close(self) -> None:
        """Say and hear nothing any more."""
        self._pipe.close()

"""Arrays through a pipe: how a worker is asked for actions. Nothing but NumPy is needed at either end."""

from __future__ import annotations

import json
from typing import IO

import numpy as np


def send(pipe: IO[bytes], array: np.ndarray) -> None:
    """Say an array to another process."""
    head = json.dumps({"dtype": array.dtype.str, "shape": array.shape})
    pipe.write(head.encode() + b"\n" + np.ascontiguousarray(array).tobytes())
    pipe.flush()


def receive(pipe: IO[bytes]) -> np.ndarray | None:
    """The array that another process says; None if it has nothing more to say."""
    line = pipe.readline()
    if not line:
        return None
    head = json.loads(line)
    kind = np.dtype(head["dtype"])
    raw = pipe.read(kind.itemsize * int(np.prod(head["shape"])))
    return np.frombuffer(raw, kind).reshape(head["shape"])

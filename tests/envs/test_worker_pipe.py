"""What goes between a vector and a worker comes out as it went in."""

from __future__ import annotations

import multiprocessing
import os
import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from reverie.core.errors import EnvError
from reverie.envs import worker as worker_module
from reverie.envs.worker import Line

Ends = tuple[Line, Line]


@pytest.fixture(params=["with poll", "without"])
def ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    if request.param == "without":  # Windows
        monkeypatch.delattr(worker_module.select, "poll", raising=False)
    near, far = multiprocessing.Pipe()
    yield Line(near), Line(far)
    near.close()
    far.close()


@pytest.mark.parametrize("outcome", [(0.1, False, False), (-1e300, True, False), (5e-324, False, True)])
def test_steps_are_told_exactly(ends: Ends, outcome: tuple[float, bool, bool]) -> None:
    vector, worker = ends
    vector.step(2**40)
    assert worker.heard()[:2] == (2**40, "step")
    worker.step(7, *outcome)
    turn, what, row = vector.heard()
    assert (turn, what, row) == (7, "step", outcome)
    assert [type(value) for value in row] == [float, bool, bool]


def test_everything_else_is_told_too(ends: Ends) -> None:
    vector, worker = ends
    vector.say(3, "restore", (b"\0" * 9,))
    assert worker.heard() == (3, "restore", (b"\0" * 9,))
    worker.say(3, "failed", (EnvError("it broke"), "a traceback"))
    turn, what, (error, trace) = vector.heard()
    assert (turn, what, str(error), trace) == (3, "failed", "it broke", "a traceback")


def test_what_was_said_before_the_end_is_heard_first_and_the_end_stays(ends: Ends) -> None:
    vector, worker = ends
    assert not vector.ready(0.01)
    worker.say(1, "done", "the last word")
    worker.pipe.close()
    assert vector.ready(0.0)
    assert vector.heard() == (1, "done", "the last word")
    for _ in range(2):
        assert vector.ready(0.0)
        with pytest.raises((EOFError, OSError)):
            vector.heard()
    with pytest.raises(OSError):  # noqa: PT011 - of several kinds
        vector.step(1)


@pytest.mark.parametrize("size", [0, 2**16, 2**24 + 1])
def test_pickles_of_any_size(ends: Ends, size: int) -> None:
    """More than a pipe holds: whoever says it waits until the other end listens, and ``ready`` tells that it comes."""
    vector, worker = ends
    snapshot = np.random.default_rng(0).bytes(size)
    speaker = threading.Thread(target=worker.say, args=(5, "done", snapshot), daemon=True)
    speaker.start()
    assert vector.ready(30.0)
    assert vector.heard() == (5, "done", snapshot)
    speaker.join(30.0)


def test_half_a_pickle_is_an_end(ends: Ends) -> None:
    """A worker that is killed while it speaks."""
    vector, worker = ends
    os.write(worker.pipe.fileno(), struct.pack("!i", 1000) + b"only so much")
    worker.pipe.close()
    assert vector.ready(0.0)
    with pytest.raises((EOFError, OSError)):
        vector.heard()

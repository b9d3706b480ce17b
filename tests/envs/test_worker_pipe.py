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
from reverie.envs.worker import Line, shared

Ends = tuple[Line, Line]


@pytest.fixture(params=["with poll", "without"])
def ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    if request.param == "without":  # Windows
        monkeypatch.delattr(worker_module.select, "poll", raising=False)
    near, far = multiprocessing.Pipe()
    both = Line(near), Line(far)
    yield both
    for end in both:
        end.close()


@pytest.mark.parametrize("reward", [0.1, -1e300, 5e-324, -0.0])
def test_steps_are_told_exactly(ends: Ends, reward: float) -> None:
    vector, worker = ends
    vector.step(2**40)
    assert worker.asked() == (2**40, "step", ())
    for ended, cut in ((False, False), (True, False), (False, True)):
        worker.stepped(7, (reward, ended, cut))
        turn, well, row = vector.answered()
        assert (turn, well) == (7, True)
        assert row == (reward, ended, cut)
        assert np.signbit(row[0]) == np.signbit(reward)
        assert [type(value) for value in row] == [float, bool, bool]


def test_everything_else_is_told_too(ends: Ends) -> None:
    vector, worker = ends
    vector.say(3, "restore", (b"\0" * 9,))
    assert worker.asked() == (3, "restore", (b"\0" * 9,))
    worker.say(3, False, (EnvError("it broke"), "a traceback"))
    turn, well, (error, trace) = vector.answered()
    assert (turn, well, str(error), trace) == (3, False, "it broke", "a traceback")


def test_one_can_wait_for_an_answer_and_for_the_end(ends: Ends) -> None:
    vector, worker = ends
    assert not vector.ready(0.0)
    worker.stepped(1, (0.0, False, False))
    assert vector.ready(0.0)
    vector.answered()
    assert not vector.ready(0.01)
    worker.close()
    assert vector.ready(5.0)
    with pytest.raises((EOFError, OSError)):
        vector.answered()


def test_what_was_said_before_the_end_is_heard_first(ends: Ends) -> None:
    vector, worker = ends
    worker.say(1, True, "the last word")
    worker.close()
    for _ in range(2):  # asking does not take it away
        assert vector.ready(0.0)
    assert vector.answered() == (1, True, "the last word")
    for _ in range(2):  # and the end stays the end
        assert vector.ready(0.0)
        with pytest.raises((EOFError, OSError)):
            vector.answered()


def test_nobody_hears_what_is_said_after_the_end(ends: Ends) -> None:
    vector, worker = ends
    worker.close()
    with pytest.raises(OSError):  # noqa: PT011 - of several kinds
        vector.step(1)
    with pytest.raises(OSError):  # noqa: PT011
        vector.stepped(1, (0.0, False, False))
    with pytest.raises(OSError):  # noqa: PT011
        vector.say(1, "made")
    with pytest.raises((EOFError, OSError)):
        vector.asked()


@pytest.mark.parametrize("size", [0, 2**16 - 1, 2**16, 2**24 + 1])
def test_pickles_of_any_size(ends: Ends, size: int) -> None:
    """More than a pipe holds: whoever says it waits until the other end listens, and ``ready`` tells that it comes."""
    vector, worker = ends
    snapshot = np.random.default_rng(0).bytes(size)
    speaker = threading.Thread(target=worker.say, args=(5, True, snapshot), daemon=True)
    speaker.start()
    assert vector.ready(30.0)
    assert vector.answered() == (5, True, snapshot)
    speaker.join(30.0)
    worker.stepped(6, (1.0, False, True))  # and what follows is told from it
    assert vector.answered() == (6, True, (1.0, False, True))


def test_half_a_pickle_is_an_end(ends: Ends) -> None:
    """A worker that is killed while it speaks."""
    vector, worker = ends
    os.write(worker._pipe.fileno(), struct.pack("!i", 1000) + b"only so much")
    worker.close()
    assert vector.ready(0.0)
    with pytest.raises((EOFError, OSError)):
        vector.answered()


def test_shared_memory_has_one_array_for_all_who_see_it() -> None:
    column = shared(multiprocessing.get_context("spawn"), (3, 2), "float32")
    column.array()[1] = 5
    assert column.array().tolist() == [[0, 0], [5, 5], [0, 0]]

"""What goes between a vector and a worker comes out as it went in."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import numpy as np
import pytest

from reverie.core.errors import EnvError
from reverie.envs import line
from reverie.envs.line import Line, shared

Ends = tuple[Line, Line]


@pytest.fixture(params=["with poll", "without"])
def ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    if request.param == "without":  # Windows
        monkeypatch.delattr(line.select, "poll", raising=False)
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


def test_shared_memory_has_one_array_for_all_who_see_it() -> None:
    column = shared(multiprocessing.get_context("spawn"), (3, 2), "float32")
    column.array()[1] = 5
    assert column.array().tolist() == [[0, 0], [5, 5], [0, 0]]

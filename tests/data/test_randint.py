"""Whole numbers drawn in a compiled call are those that NumPy draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.compiler import kernels
from reverie.replay import randint
from reverie.replay.handles import HandleQueue
from reverie.replay.randint import Integers

BOUNDS = st.one_of(
    st.integers(1, 300), st.integers(1, 2**34), st.sampled_from([2**31 + 1, 2**32 - 1, 2**32, 2**32 + 1, 3 * 2**30])
)


def test_there_is_a_compiler() -> None:
    assert kernels() is not None


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), draws=st.lists(st.tuples(BOUNDS, st.integers(0, 60)), min_size=1, max_size=5))
def test_numbers_are_those_of_numpy_and_the_generator_stands_where_it_would(
    seed: int, draws: list[tuple[int, int]]
) -> None:
    mine, other = np.random.default_rng(seed), np.random.default_rng(seed)
    integers = Integers(mine)
    for bound, count in draws:
        found = integers(bound, count)
        assert found.dtype is torch.int64
        assert found.tolist() == other.integers(bound, size=count).tolist()
        assert mine.bit_generator.state == other.bit_generator.state
    assert mine.random() == other.random()


def test_a_state_that_was_taken_over_is_drawn_on_from() -> None:
    mine, other = np.random.default_rng(1), np.random.default_rng(2)
    integers = Integers(mine)
    integers(10, 3)
    mine.bit_generator.state = other.bit_generator.state
    assert integers(1000, 9).tolist() == other.integers(1000, size=9).tolist()


def queue_of(handles: np.ndarray) -> HandleQueue:
    queue = HandleQueue()
    queue.add(handles)
    return queue


@pytest.mark.parametrize("library", ["compiled", "numpy"])
def test_handles_are_drawn_from_those_held(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if library == "numpy":
        monkeypatch.setattr(randint, "kernels", lambda: None)
    queue = queue_of(3 * np.arange(50))
    queue.drop(30)
    queue.add(np.arange(150, 400))  # moves the others
    other = np.random.default_rng(4)
    integers = Integers(np.random.default_rng(4))
    for _ in range(3):
        found = integers(len(queue), 500, queue)
        assert found.tolist() == queue.held[other.integers(len(queue), size=500)].tolist()
    queue.reserve(2000)
    assert integers(len(queue), 9, queue).tolist() == queue.held[other.integers(len(queue), size=9)].tolist()
    assert set(found.tolist()) <= set(queue.held.tolist())


@pytest.mark.parametrize("library", ["compiled", "numpy"])
def test_of_no_numbers_none_can_be_drawn(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if library == "numpy":
        monkeypatch.setattr(randint, "kernels", lambda: None)
    with pytest.raises(ValueError, match="high"):
        Integers(np.random.default_rng(0))(0, 1)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 250)), min_size=1, max_size=12))
def test_a_queue_lets_go_of_few_and_of_many(turns: list[tuple[int, int]]) -> None:
    queue, expected, last = HandleQueue(), [], 0
    for more, gone in turns:
        fresh = list(range(last, last + 2 * more, 2))
        queue.add(fresh if more < 3 else np.array(fresh))
        expected += fresh
        last += 2 * more
        below = expected[0] + gone if expected else 0
        queue.drop(below)
        expected = [handle for handle in expected if handle >= below]
        assert queue.held.tolist() == expected
        assert len(queue) == len(expected)
        assert not expected or queue.address == queue.held.ctypes.data

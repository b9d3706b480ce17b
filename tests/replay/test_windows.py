"""The windows that there are, the queue that holds them, and the random integers that choose among them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.columns import ColumnSpec
from reverie.core.kernel_dispatch import use_only_kernels
from reverie.replay.storage import HostStorage
from reverie.replay.windows import HandleQueue, RandomIntegers, Windows, random_integers

BOUNDS = st.one_of(
    st.integers(1, 300), st.integers(1, 2**34), st.sampled_from([2**31 + 1, 2**32 - 1, 2**32, 2**32 + 1, 3 * 2**30])
)


def rows_of(streams, capacity):
    return HostStorage({"is_first": ColumnSpec((), "bool"), "is_last": ColumnSpec((), "bool")}, streams, capacity)


@settings(max_examples=40, deadline=None)
@given(
    streams=st.integers(1, 3), capacity=st.integers(5, 12), length=st.integers(1, 5), free=st.integers(0, 4),
    crosses=st.booleans(), first=st.sampled_from([0, 7]), blocks=st.lists(st.integers(0, 8), max_size=6),
    data=st.data(),
)  # fmt: skip
def test_windows_are_those_of_their_definition(streams, capacity, length, free, crosses, first, blocks, data):
    """However many rows come at a time; each is returned once, when it becomes complete."""
    free = min(free, length - 1)
    rows = rows_of(streams, capacity)
    rows.begin_at(first)
    some, flags, seen = Windows(rows, length, free, crosses), np.zeros((streams, 0), bool), set()
    for block in blocks:
        more = np.array(data.draw(st.lists(st.booleans(), min_size=streams * block, max_size=streams * block)), bool)
        more = more.reshape(streams, block)[:, :capacity]
        rows.extend({"is_first": more, "is_last": more})
        new = some.add_one(more[:, 0].tolist()) if block == 1 else some.add(more).tolist()
        flags = np.concatenate([flags, more], 1)
        low = max(first if first else -free, rows.count - capacity)
        expected = [t * streams + i for t in range(low, rows.count - length + 1) for i in range(streams)
                    if crosses or not flags[i, max(0, t - first + free + 1) : t - first + length].any()]  # fmt: skip
        assert some.handles_at(np.arange(len(some))).tolist() == expected
        assert some.positions(np.array(expected, int)).tolist() == list(range(len(expected)))
        assert list(new) == sorted(set(expected) - seen)
        seen |= set(expected)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), draws=st.lists(st.tuples(BOUNDS, st.integers(0, 60)), min_size=1, max_size=5))
def test_numbers_are_those_of_numpy_and_the_generator_stands_where_it_would(seed, draws):
    mine, other = np.random.default_rng(seed), np.random.default_rng(seed)
    integers = RandomIntegers(mine)
    for bound, count in draws:
        found = random_integers(integers, bound, count)
        assert found.dtype is torch.int64
        assert found.tolist() == other.integers(bound, size=count).tolist()
        assert mine.bit_generator.state == other.bit_generator.state
    mine.bit_generator.state = np.random.default_rng(2).bit_generator.state  # one that was loaded is drawn on from
    assert random_integers(integers, 1000, 9).tolist() == np.random.default_rng(2).integers(1000, size=9).tolist()


def test_handles_are_drawn_from_those_held():
    def drawn():
        queue, integers = HandleQueue(), RandomIntegers(np.random.default_rng(4))
        queue.add(3 * np.arange(50))
        queue.drop(30)
        queue.add(np.arange(150, 400))  # moves the others
        found = [random_integers(integers, len(queue), 500, queue).tolist()]
        queue.reserve(2000)
        found.append(random_integers(integers, len(queue), 9, queue).tolist())
        other = np.random.default_rng(4)
        assert found == [queue.handles[other.integers(len(queue), size=n)].tolist() for n in (500, 9)]
        with pytest.raises(ValueError, match="high"):
            random_integers(integers, 0, 1)
        return found

    compiled = drawn()
    with use_only_kernels():
        assert drawn() == compiled

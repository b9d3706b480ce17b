"""Copying rows in one compiled call gives the bytes that NumPy gives, column by column."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.columns import ColumnSpec, RingBuffer, as_numpy, put_rows
from reverie.core.errors import DataError
from reverie.core.kernel_dispatch import use_only_kernels
from reverie.kernels import rows as rows_kernel
from reverie.kernels.compiler import load_kernels
from reverie.replay.prioritized import SumTree, tree_draw, tree_set
from reverie.replay.storage import DeviceStorage, HostStorage, MappedStorage
from store_rows import assert_rows

COLUMNS = {
    "obs/image": ColumnSpec((16, 24, 16), "uint8"),  # 6 KB: past the caches
    "obs/wide": ColumnSpec((300,), "float32"),  # has a ring of its own
    "obs/vector": ColumnSpec((5,), "float32"),
    "obs/choice": ColumnSpec((2,), "int64"),
    "action": ColumnSpec((3,), "float32"),
    "reward": ColumnSpec((), "float32"),
    "is_first": ColumnSpec((), "bool"),
    "is_last": ColumnSpec((), "bool"),
    "extras/half": ColumnSpec((3,), "float16"),
    "extras/byte": ColumnSpec((), "uint8"),
}


class Eager:
    """An object whose methods run without compiled functions."""

    def __init__(self, of):
        self.of = of

    def __getattr__(self, name):
        found = getattr(self.of, name)
        return use_only_kernels()(found) if callable(found) else found


WAYS = pytest.mark.parametrize("way", [lambda storage: storage, Eager], ids=["compiled", "eager"])


@pytest.fixture(params=["ram", "mmap"])
def make(request, tmp_path):
    if request.param == "ram":
        return lambda streams, capacity: HostStorage(COLUMNS, streams, capacity)
    return lambda streams, capacity: MappedStorage(COLUMNS, streams, capacity, tmp_path)


def drawn(rng, streams):
    """A row of each stream."""
    rows = {}
    for name, column in COLUMNS.items():
        values = rng.integers(0, 2 if column.dtype == "bool" else 200, (streams, *column.shape))
        rows[name] = torch.from_numpy(values).to(getattr(torch, column.dtype))
    return rows


@pytest.mark.parametrize("streams", [1, 3])
def test_compiled_and_eager_hold_and_deal_out_the_same_bytes(make, streams):
    assert load_kernels() is not None
    rng = np.random.default_rng(0)
    capacity, length = 11, 4
    both = [make(streams, capacity), Eager(HostStorage(COLUMNS, streams, capacity))]
    device = DeviceStorage(COLUMNS, streams, capacity, torch.device("cpu"))
    for t in range(30):
        rows = drawn(rng, streams)
        for storage in (*both, device):
            storage.add(rows)
        oldest = -2 if t < capacity else t - capacity + 1  # windows may begin before the first row of all
        starts = np.arange(oldest * streams, (t - length + 2) * streams)
        if len(starts):
            handles = rng.choice(starts, 9)
            mine, other, third = (storage.gather(torch.from_numpy(handles), length) for storage in (*both, device))
            for name, column in COLUMNS.items():
                assert mine[name].dtype is getattr(torch, column.dtype)
                assert mine[name].shape == (9, length, *column.shape)
                assert mine[name].is_contiguous()
                assert torch.equal(mine[name], other[name])
                assert torch.equal(mine[name], third[name])
            again = device.gather(torch.from_numpy(handles[::-1].copy()), length, third)
            assert again is third
            assert all(torch.equal(again[name], mine[name].flip(0)) for name in COLUMNS)
    assert_rows(*(storage.read(19, 30) for storage in both))


@pytest.mark.parametrize("streams", [1, 3])
def test_many_rows_at_once_are_those_that_came_one_by_one(make, streams):
    """Around the end of the rings, of other types and spacings, without extras; compiled and not."""
    rng = np.random.default_rng(1)
    one, many, plain = make(streams, 90), make(streams, 90), Eager(make(streams, 90))
    for count in (3, 85, 1, 0, 70):
        rows = [drawn(rng, streams) for _ in range(count)]
        for row in rows:
            one.add({n: torch.zeros_like(x) if n.startswith("extras/") else x for n, x in row.items()})
        block = {
            n: np.stack([row[n].numpy() for row in rows], 1) if rows else np.empty((streams, 0, *c.shape), c.dtype)
            for n, c in COLUMNS.items()
            if not n.startswith("extras/")
        }
        block["action"] = np.asfortranarray(block["action"].astype(np.float64))
        for storage in (many, plain):
            storage.extend(block)
    for storage in (many, plain):
        assert storage.count == one.count
        assert_rows(storage.columns, one.columns)


def test_a_seam_is_the_end_of_an_episode_in_the_batch_and_not_in_memory(make):
    for storage in (make(1, 8), Eager(make(1, 8))):
        for first in (1, 0, 0, 1, 0, 1):
            rows = drawn(np.random.default_rng(0), 1)
            storage.add(rows | {"is_first": torch.tensor([bool(first)]), "is_last": torch.tensor([False])})
        batch = storage.gather(torch.tensor([0, 2]), 4)
        assert batch["is_last"].int().tolist() == [[0, 0, 1, 0], [1, 0, 1, 0]]
        assert not storage.read(0, 6, ["is_last"])["is_last"].any()


@WAYS
def test_rows_that_do_not_lie_as_they_are_stored(way):
    """As policies give them: strided, of another dtype, with gradients, as arrays."""
    storage, rows = way(HostStorage(COLUMNS, 3, 4)), drawn(np.random.default_rng(1), 3)
    rows["reward"] = rows["reward"][:1].expand(3)
    odd = rows | {
        "obs/image": rows["obs/image"].transpose(1, 2).contiguous().transpose(1, 2),
        "obs/vector": rows["obs/vector"].bfloat16().requires_grad_(),
        "obs/choice": rows["obs/choice"].int(),
        "action": rows["action"].double().numpy(),
        "extras/half": rows["extras/half"].float(),
    }
    storage.add(odd)
    assert_rows({name: held[:, 0] for name, held in storage.read(0, 1).items()}, rows)
    assert np.shares_memory(as_numpy(odd["action"]), odd["action"])


@WAYS
def test_a_row_of_another_shape_is_refused_and_nothing_is_written(way):
    storage, rows = way(HostStorage(COLUMNS, 3, 4)), drawn(np.random.default_rng(1), 3)
    storage.add(rows)
    storage.columns["reward"][:] = 7
    for shape in [(2, 5), (3, 4), (3, 5, 1), (5,)]:
        with pytest.raises(DataError, match=r"obs/vector has shape \(.*\): expected \(3, 5\)"):
            storage.add({**rows, "obs/vector": torch.zeros(shape)})
    assert storage.count == 1
    assert (storage.columns["reward"] == 7).all()


def test_batches_are_copied_by_several_threads(monkeypatch):
    monkeypatch.setattr(rows_kernel, "PARALLEL", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    both = [HostStorage(COLUMNS, 2, 50), Eager(HostStorage(COLUMNS, 2, 50))]
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows = drawn(rng, 2)
        for storage in both:
            storage.add(rows)
    handles = rng.integers(90, size=40)
    mine, other = (storage.gather(torch.from_numpy(handles), 5) for storage in both)
    assert all(torch.equal(mine[name], other[name]) for name in COLUMNS)


# ---------------------------------------------------------------------- the tree of priorities


@settings(max_examples=20, deadline=None)
@given(size=st.integers(1, 5000), seed=st.integers(0, 2**31))
def test_trees_are_the_same_to_the_last_digit_and_find_what_a_running_sum_finds(size, seed):
    """Compiled and eager."""
    rng, weights, mine, other, again = np.random.default_rng(seed), np.zeros(size), *(SumTree(size) for _ in range(3))
    for _ in range(6):
        slots = rng.integers(size, size=int(rng.integers(0, 2 * size + 1)))
        values = rng.random(len(slots)) * 10.0 ** rng.integers(-12, 7, len(slots)) * (rng.random(len(slots)) > 0.2)
        tree_set(mine, slots, values)
        tree_set.definition(other, slots, values)
        for slot, value in zip(slots, values, strict=True):
            weights[slot] = value
        tree_set(again, np.arange(size), weights)
        for levels in zip(mine.levels, other.levels, again.levels, strict=True):
            assert all(np.array_equal(level, levels[0]) for level in levels)
        assert np.array_equal(mine.leaves[:size], weights)
        if mine.total > 0:
            numbers, sums = np.append(rng.random(50), [0.0, np.nextafter(1.0, 0.0)]), weights.cumsum()
            drawn, slack = tree_draw(mine, numbers), 1e-9 * sums[-1]
            assert np.array_equal(drawn, tree_draw.definition(other, numbers))
            assert (weights[drawn] > 0).all()
            assert (sums[drawn] >= numbers * sums[-1] - slack).all()
            assert (sums[drawn] - weights[drawn] <= numbers * sums[-1] + slack).all()


def test_rows_with_gaps_in_memory_are_stored_like_others():
    ring, row = RingBuffer({"x": np.zeros((2, 3, 2), np.float32)}), torch.arange(4.0).view(2, 2).T
    put_rows(ring, {"x": row}, 1)
    assert ring.columns["x"][:, 1].tolist() == row.tolist()

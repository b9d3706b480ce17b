"""Copying rows in one compiled call gives the bytes that NumPy gives, column by column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.accelerate import only
from reverie.core.columns import Column, as_numpy
from reverie.core.errors import DataError
from reverie.kernels import rows as rows_kernel
from reverie.kernels.compiler import kernels
from reverie.replay.device import DeviceStorage
from reverie.replay.mapped import MappedStorage
from reverie.replay.priority import SumTree, tree_draw, tree_set
from reverie.replay.storage import HostStorage, Storage

COLUMNS = {
    "obs/image": Column((16, 24, 16), "uint8"),  # 6 KB: past the caches
    "obs/wide": Column((300,), "float32"),  # has a ring of its own
    "obs/vector": Column((5,), "float32"),
    "obs/choice": Column((2,), "int64"),
    "action": Column((3,), "float32"),
    "reward": Column((), "float32"),
    "is_first": Column((), "bool"),
    "is_last": Column((), "bool"),
    "extras/half": Column((3,), "float16"),
    "extras/byte": Column((), "uint8"),
}
Make = Callable[[int, int], Storage]


class Eager:
    """An object whose methods run without compiled functions."""

    def __init__(self, of: Any) -> None:
        self.of = of

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.of, name)
        return only()(found) if callable(found) else found


eager = Eager


@pytest.fixture(params=["ram", "mmap"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "ram":
        return lambda streams, capacity: HostStorage(COLUMNS, streams, capacity)
    return lambda streams, capacity: MappedStorage(COLUMNS, streams, capacity, tmp_path)


def drawn(rng: np.random.Generator, streams: int) -> dict[str, torch.Tensor]:
    """A row of each stream."""
    rows = {}
    for name, column in COLUMNS.items():
        values = rng.integers(0, 2 if column.dtype == "bool" else 200, (streams, *column.shape))
        rows[name] = torch.from_numpy(values).to(getattr(torch, column.dtype))
    return rows


@pytest.mark.parametrize("streams", [1, 3])
def test_compiled_and_eager_hold_and_deal_out_the_same_bytes(make: Make, streams: int) -> None:
    assert kernels() is not None
    rng = np.random.default_rng(0)
    capacity, length = 11, 4
    both = [make(streams, capacity), eager(HostStorage(COLUMNS, streams, capacity))]
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
            for name in COLUMNS:
                assert mine[name].dtype is getattr(torch, COLUMNS[name].dtype)
                assert mine[name].shape == (9, length, *COLUMNS[name].shape)
                assert mine[name].is_contiguous()
                assert torch.equal(mine[name], other[name])
                assert torch.equal(mine[name], third[name])
    mine, other = (storage.read(19, 30) for storage in both)
    for name in COLUMNS:
        np.testing.assert_array_equal(mine[name], other[name])


@pytest.mark.parametrize("streams", [1, 3])
def test_many_rows_at_once_are_those_that_came_one_by_one(make: Make, streams: int) -> None:
    """Around the end of the rings, of other types and spacings, without extras; compiled and not."""
    rng = np.random.default_rng(1)
    one, many, plain = make(streams, 90), make(streams, 90), eager(make(streams, 90))
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
        for name, ring in one.columns.items():
            np.testing.assert_array_equal(storage.columns[name], ring)


def test_a_seam_is_the_end_of_an_episode_in_the_batch_and_not_in_memory(make: Make) -> None:
    for storage in (make(1, 8), eager(make(1, 8))):
        for first in (1, 0, 0, 1, 0, 1):
            rows = drawn(np.random.default_rng(0), 1)
            storage.add(rows | {"is_first": torch.tensor([bool(first)]), "is_last": torch.tensor([False])})
        batch = storage.gather(torch.tensor([0, 2]), 4)
        assert batch["is_last"].int().tolist() == [[0, 0, 1, 0], [1, 0, 1, 0]]
        assert not storage.read(0, 6, ["is_last"])["is_last"].any()


@pytest.mark.parametrize("compiled", [True, False])
def test_rows_that_do_not_lie_as_they_are_stored(compiled: bool) -> None:
    """As policies give them: strided, of another dtype, with gradients, as arrays."""
    storage = HostStorage(COLUMNS, 3, 4)
    storage = storage if compiled else eager(storage)
    rows = drawn(np.random.default_rng(1), 3)
    odd = {
        **rows,
        "obs/image": rows["obs/image"].transpose(1, 2).contiguous().transpose(1, 2),
        "obs/vector": rows["obs/vector"].bfloat16().requires_grad_(),
        "obs/choice": rows["obs/choice"].int(),
        "action": rows["action"].double().numpy(),
        "reward": rows["reward"][:1].expand(3),
        "extras/half": rows["extras/half"].float(),
    }
    storage.add(odd)
    held = storage.read(0, 1)
    for name in COLUMNS:
        expected = rows[name][:1].expand(3) if name == "reward" else rows[name]
        np.testing.assert_array_equal(held[name][:, 0], expected.numpy())
    assert np.shares_memory(as_numpy(odd["action"]), odd["action"])


@pytest.mark.parametrize("compiled", [True, False])
def test_a_row_of_another_shape_is_refused_and_nothing_is_written(compiled: bool) -> None:
    storage = HostStorage(COLUMNS, 3, 4)
    storage = storage if compiled else eager(storage)
    rows = drawn(np.random.default_rng(1), 3)
    storage.add(rows)
    storage.columns["reward"][:] = 7
    for shape in [(2, 5), (3, 4), (3, 5, 1), (5,)]:
        with pytest.raises(DataError, match=r"obs/vector has shape \(.*\): expected \(3, 5\)"):
            storage.add({**rows, "obs/vector": torch.zeros(shape)})
    assert storage.count == 1
    assert (storage.columns["reward"] == 7).all()


def test_batches_are_copied_by_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_kernel, "PARALLEL", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    both = [HostStorage(COLUMNS, 2, 50), eager(HostStorage(COLUMNS, 2, 50))]
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows = drawn(rng, 2)
        for storage in both:
            storage.add(rows)
    handles = rng.integers(90, size=40)
    mine, other = (storage.gather(torch.from_numpy(handles), 5) for storage in both)
    assert all(torch.equal(mine[name], other[name]) for name in COLUMNS)


# ---------------------------------------------------------------------- the tree of priorities


@settings(max_examples=12, deadline=None)
@given(size=st.integers(1, 3000), seed=st.integers(0, 2**20))
def test_compiled_and_eager_trees_are_the_same_to_the_last_digit(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mine, other = SumTree(size), SumTree(size)
    for _ in range(6):
        count = int(rng.integers(0, 2 * size + 1))
        slots = rng.integers(size, size=count)
        weights = rng.random(count) * 10.0 ** rng.integers(-9, 9, count) * (rng.random(count) > 0.2)
        tree_set(mine, slots, weights)
        tree_set.definition(other, slots, weights)
        for level, same in zip(mine.levels, other.levels, strict=True):
            np.testing.assert_array_equal(level, same)
        if mine.total > 0:
            numbers = np.concatenate([rng.random(50), [0.0, np.nextafter(1.0, 0.0)]])
            np.testing.assert_array_equal(tree_draw(mine, numbers), tree_draw.definition(other, numbers))
            assert (mine.leaves[tree_draw(mine, numbers)] > 0).all()

"""Rows for tests of stores: every row tells by its content which one it is."""

import functools

import numpy as np

from reverie.core.columns import Column
from reverie.store import zarr

COLUMNS = {
    "obs/image": Column((4, 4, 3), "uint8"),
    "obs/arm/angle": Column((2,), "float32"),
    "action": Column((3,), "float32"),
    "reward": Column((), "float32"),
    "is_first": Column((), "bool"),
    "is_last": Column((), "bool"),
    "is_terminal": Column((), "bool"),
}
STREAMS = 2


def row(number, streams=STREAMS, life=0):
    """One row of each stream, different for each number and life."""
    return {name: value.copy() for name, value in drawn(number, streams, life).items()}


@functools.cache
def drawn(number, streams, life):
    rng = np.random.default_rng([life, number])
    rows = {}
    for name, column in COLUMNS.items():
        if column.dtype == "bool":
            rows[name] = rng.random((streams, *column.shape)) < 0.3
        elif column.dtype == "uint8":
            rows[name] = rng.integers(0, 256, (streams, *column.shape), dtype=np.uint8)
        else:
            rows[name] = rng.normal(size=(streams, *column.shape)).astype(column.dtype)
    return rows


def stacked(numbers, streams=STREAMS, life=0):
    """Rows ``[N, n, ...]``."""
    each = [drawn(number, streams, life) for number in numbers]
    return {name: np.stack([r[name] for r in each], axis=1) for name in COLUMNS}


def small_chunks(monkeypatch, rows=8):
    """Chunks of so many rows."""
    monkeypatch.setattr(zarr, "CHUNK_BYTES", rows * 48)


def contents(store, segment, start=0, stop=None):
    """All rows of a segment as one ``[N, n, ...]``, and the damage."""
    chunks = list(store.read(segment, start, stop))
    damaged = [damage for chunk in chunks for damage in chunk.damaged]
    if not chunks:
        return stacked_nothing(), damaged
    return {name: np.concatenate([chunk.rows[name] for chunk in chunks], axis=1) for name in COLUMNS}, damaged


def stacked_nothing(streams=STREAMS):
    return {name: np.empty((streams, 0, *column.shape), column.dtype) for name, column in COLUMNS.items()}


def assert_rows(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)

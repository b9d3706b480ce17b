"""Rows for tests of stores: every row tells by its content which one it is."""

import functools

import numpy as np

from reverie.core.columns import ColumnSpec
from reverie.store import zarr

COLUMNS = {
    "obs/image": ColumnSpec((4, 4, 3), "uint8"),
    "obs/arm/angle": ColumnSpec((2,), "float32"),
    "action": ColumnSpec((3,), "float32"),
    "reward": ColumnSpec((), "float32"),
    "is_first": ColumnSpec((), "bool"),
    "is_last": ColumnSpec((), "bool"),
    "is_terminal": ColumnSpec((), "bool"),
}
STREAMS = 2


def row(number, streams=STREAMS, life=0):
    """One row of each stream, different for each number and life."""
    return {name: value.copy() for name, value in drawn(number, streams, life).items()}


@functools.cache
def drawn(number, streams, life):
    rng = np.random.default_rng([life, number])
    draw = {
        "bool": lambda shape: rng.random(shape) < 0.3,
        "uint8": lambda shape: rng.integers(0, 256, shape, dtype=np.uint8),
        "float32": lambda shape: rng.normal(size=shape).astype(np.float32),
    }
    return {name: draw[column.dtype]((streams, *column.shape)) for name, column in COLUMNS.items()}


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
    nothing = {name: np.empty((STREAMS, 0, *column.shape), column.dtype) for name, column in COLUMNS.items()}
    return {n: np.concatenate([nothing[n], *(chunk.rows[n] for chunk in chunks)], axis=1) for n in COLUMNS}, damaged


def assert_rows(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)

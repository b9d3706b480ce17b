"""Rows from elsewhere, laid out as streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.columns import Column
from reverie.replay.durable import Piece, Pieces, lay_out
from reverie.replay.storage import HostStorage

COLUMNS = {"is_first": Column((), "bool"), "number": Column((), "int64"), "image": Column((2,), "uint8"),
           "extras/latent": Column((3,), "float32")}  # fmt: skip


def rows_of(begin: int, firsts: list[bool]) -> dict[str, np.ndarray]:
    rows = np.arange(begin, begin + len(firsts))
    return {"is_first": np.array(firsts, bool), "number": rows, "image": np.stack([rows, rows], 1).astype(np.uint8)}


def source_of(pieces: Sequence[Piece]) -> Pieces:
    def source(columns: Sequence[str] | None) -> Iterator[Piece]:
        for broken, rows in pieces:
            yield broken, {name: rows[name] for name in columns or rows}

    return source


def filled(storage: HostStorage, source: Pieces) -> dict[str, np.ndarray]:
    for values in storage.columns.values():
        values[...] = 1  # whatever was there
    count = lay_out(storage, source)
    assert (storage.count, storage.oldest) == (count, 0)
    return storage.read(0, count)


RUN = st.lists(st.integers(0, 3).map(lambda x: x == 0), max_size=12)


@settings(max_examples=40, deadline=None)
@given(
    pieces=st.lists(st.tuples(st.booleans(), RUN), max_size=6),
    streams=st.integers(1, 4),
    capacity=st.integers(1, 12),
)
def test_it_agrees_with_lists(pieces: list[tuple[bool, list[bool]]], streams: int, capacity: int) -> None:
    made, expected, begun = [], [], False
    for number, (broken, firsts) in enumerate(pieces):
        made.append((broken, rows_of(100 * number, firsts)))
        begun = begun and not broken
        for row, first in enumerate(firsts, 100 * number):
            begun = begun or first
            expected += [(first, row)] if begun else []
    expected = expected[max(0, len(expected) - streams * capacity) :]
    expected = expected[len(expected) % streams :]
    out = filled(HostStorage(COLUMNS, streams, capacity), source_of(made))
    assert out["number"].shape == (streams, len(expected) // streams)
    assert out["number"].ravel().tolist() == [row for _, row in expected]
    assert out["image"].reshape(-1, 2).tolist() == [[row % 256] * 2 for _, row in expected]
    assert out["is_first"].ravel().tolist() == [first for first, _ in expected]
    assert not out["extras/latent"].any()

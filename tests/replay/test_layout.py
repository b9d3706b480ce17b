"""Rows from elsewhere, laid out as streams."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.columns import ColumnSpec
from reverie.replay.persistent import fill_storage
from reverie.replay.storage import HostStorage

COLUMNS = {"is_first": ColumnSpec((), "bool"), "is_last": ColumnSpec((), "bool"), "action": ColumnSpec((1,), "float32"),
           "number": ColumnSpec((), "int64"), "image": ColumnSpec((2,), "uint8"),
           "extras/latent": ColumnSpec((3,), "float32")}  # fmt: skip
RUN = st.lists(st.integers(0, 3).map(lambda x: x == 0), max_size=12)


@settings(max_examples=40, deadline=None)
@given(
    pieces=st.lists(st.tuples(st.booleans(), RUN), max_size=6), streams=st.integers(1, 4), capacity=st.integers(1, 12)
)
def test_it_agrees_with_lists(pieces, streams, capacity):
    made, expected, begun = [], [], False
    for number, (broken, firsts) in enumerate(pieces):
        rows = np.arange(100 * number, 100 * number + len(firsts))
        image = np.stack([rows, rows], 1).astype(np.uint8)
        last, action = np.zeros(len(rows), bool), np.ones((len(rows), 1), np.float32)
        piece = {"is_first": np.array(firsts, bool), "is_last": last, "action": action, "number": rows, "image": image}
        made.append((broken, piece))
        begun = begun and not broken
        for row, first in enumerate(firsts, 100 * number):
            begun = begun or first
            expected += [(first, row)] if begun else []
    expected = expected[max(0, len(expected) - streams * capacity) :]
    expected = expected[len(expected) % streams :]

    def source(columns):
        return ((broken, {name: rows[name] for name in columns or rows}) for broken, rows in made)

    storage = HostStorage(COLUMNS, streams, capacity)
    for values in storage.columns.values():
        values[...] = 1  # whatever was there
    count = fill_storage(storage, source)
    assert (count, storage.count, storage.oldest) == (len(expected) // streams, count, 0)
    out = storage.read(0, count)
    assert out["number"].ravel().tolist() == [row for _, row in expected]
    assert out["image"].reshape(-1, 2).tolist() == [[row % 256] * 2 for _, row in expected]
    assert out["is_first"].ravel().tolist() == [first for first, _ in expected]
    assert not out["extras/latent"].any()
    first, last = out["is_first"], out["is_last"]
    assert (last[:, :-1] == first[:, 1:]).all()
    assert not last[:, -1:].any()
    assert (out["action"][..., 0] == ~last).all()

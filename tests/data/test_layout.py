"""Rows from elsewhere, laid out as streams."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.errors import DataError
from reverie.data.layout import lay_out


def part(begin: int, firsts: list[bool]) -> dict[str, np.ndarray]:
    rows = np.arange(begin, begin + len(firsts))
    return {"is_first": np.array(firsts, bool), "number": rows, "image": np.stack([rows, rows], 1).astype(np.uint8)}


@settings(max_examples=200, deadline=None)
@given(
    parts=st.lists(st.lists(st.integers(0, 3).map(lambda x: x == 0), max_size=12), max_size=6),
    streams=st.integers(1, 4),
    most=st.none() | st.integers(0, 40),
)
def test_it_agrees_with_lists(parts: list[list[bool]], streams: int, most: int | None) -> None:
    made, expected = [], []
    for number, firsts in enumerate(parts):
        made.append(part(100 * number, firsts))
        rows = list(zip(firsts, range(100 * number, 100 * number + len(firsts)), strict=True))
        expected += rows[firsts.index(True) :] if True in firsts else []
    expected = expected if most is None else expected[max(0, len(expected) - most) :]
    expected = expected[len(expected) % streams :]
    out = lay_out(iter(made), streams, most)
    if not parts:
        assert out == {}
        return
    assert out["number"].shape == (streams, len(expected) // streams)
    assert out["image"].dtype == np.uint8
    assert out["image"].shape == (*out["number"].shape, 2)
    assert out["number"].ravel().tolist() == [number for _, number in expected]
    assert out["is_first"].ravel().tolist() == [first for first, _ in expected]


def test_parts_that_do_not_fit_together_are_refused() -> None:
    good = part(0, [True, False])
    with pytest.raises(DataError, match=r"differ in their columns: \['image', 'is_first', 'number'\] and \['is_first'"):
        lay_out([good, {"is_first": good["is_first"], "number": good["number"]}], 1)
    with pytest.raises(DataError, match=r"differ in their length: .*'number': 1"):
        lay_out([good | {"number": good["number"][:1]}], 1)

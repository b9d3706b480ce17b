"""Reads a store episode by episode, each row once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from reverie.core.rows import Rows, joined
from reverie.store.read import Damage
from reverie.store.segment import Part
from reverie.store.store import Store

LOST = "an episode whose first row is not stored is left out"
STEPLESS = "an episode of a single row is left out, as it has no step"


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode or a part of one: consecutive rows of one stream, columns ``[n, *shape]``.

    Only the first row may be ``is_first``, only the last ``is_last``. The beginning or the end is missing if an
    environment failed, rows are damaged, or the run was still going on.
    """

    stream: int
    start: int
    """Number of the first row."""
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows["is_first"])

    @property
    def begun(self) -> bool:
        """Whether its first row is here."""
        return bool(self.rows["is_first"][0])

    @property
    def ended(self) -> bool:
        """Whether its last row is here."""
        return bool(self.rows["is_last"][-1])

    @property
    def unusable(self) -> str:
        """Why it cannot be part of a dataset; "" if it can: its first row and at least one step are here."""
        return LOST if not self.begun else STEPLESS if len(self) < 2 else ""

    @property
    def score(self) -> float:
        """Sum of the rewards, not discounted."""
        return float(self.rows["reward"].sum(dtype=np.float64))


def episodes(
    store: Store, *, columns: Sequence[str] | None = None, on_damage: Callable[[Damage], None] = lambda damage: None
) -> Iterator[Episode]:
    """Yield every episode of ``store``, run by run and stream by stream; damaged and superseded rows are left out.

    Needs the memory of one chunk and one episode. ``columns``, if given, must hold at least is_first, is_last and
    reward.
    """
    for history in store.histories():
        for stream in range(history[0].segment.streams):
            yield from _of_stream(store, history, stream, columns, on_damage)


def _of_stream(
    store: Store,
    parts: Sequence[Part],
    stream: int,
    columns: Sequence[str] | None,
    on_damage: Callable[[Damage], None],
) -> Iterator[Episode]:
    held: list[Rows] = []
    begin = following = -1
    for start, rows in store.intact(parts, stream, columns, on_damage):
        first, last = rows["is_first"], rows["is_last"]
        cuts = 1 + np.flatnonzero(first[1:] | last[:-1])
        for low, high in itertools.pairwise([0, *cuts.tolist(), len(first)]):
            if held and (start + low != following or first[low] or held[-1]["is_last"][-1]):
                yield Episode(stream, begin, joined(held))
                held = []
            begin, following = begin if held else start + low, start + high
            held.append({name: column[low:high].copy() for name, column in rows.items()})
    if held:
        yield Episode(stream, begin, joined(held))

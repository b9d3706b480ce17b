"""Reads a store episode by episode, each row once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from reverie.store.read import Chunk, Damage
from reverie.store.segment import Part
from reverie.store.store import Store

Rows = dict[str, np.ndarray]
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
    def complete(self) -> bool:
        """Whether both are here."""
        return self.begun and self.ended

    @property
    def unusable(self) -> str:
        """Why it cannot be part of a dataset; "" if it can: its first row and at least one step are here."""
        if not self.begun:
            return LOST
        return "" if self.steps else STEPLESS

    @property
    def score(self) -> float:
        """Sum of the rewards, not discounted."""
        return float(self.rows["reward"].sum(dtype=np.float64))

    @property
    def steps(self) -> int:
        """Number of actions whose outcome is known: one fewer than rows."""
        return len(self) - 1


def ignore(damage: Damage) -> None:
    """Do nothing."""


def episodes(
    store: Store, *, columns: Sequence[str] | None = None, on_damage: Callable[[Damage], None] = ignore
) -> Iterator[Episode]:
    """Yield every episode of ``store``, run by run and stream by stream; damaged and superseded rows are left out.

    Needs the memory of one chunk and one episode. ``columns``, if given, must hold at least is_first, is_last and
    reward.
    """
    for history in store.histories():
        for stream in range(history[0].segment.streams):
            yield from stream_episodes(stream, read_parts(store, history, stream, columns), on_damage)


def read_parts(store: Store, parts: Sequence[Part], stream: int, columns: Sequence[str] | None) -> Iterator[Chunk]:
    """Yield the rows of one stream of consecutive parts, chunk by chunk."""
    for segment, start, stop in parts:
        yield from store.read(segment, start, stop, [stream], columns)


def stream_episodes(stream: int, chunks: Iterator[Chunk], on_damage: Callable[[Damage], None]) -> Iterator[Episode]:
    """Yield the episodes of one stream."""
    parts: list[Rows] = []
    begin = following = -1
    for chunk in chunks:
        for damage in chunk.damaged:
            on_damage(damage)
        for start, stop in chunk.intact(stream):
            if start != following and parts:
                yield joined(stream, begin, parts)
            for low, high in pieces(chunk.rows, start - chunk.start, stop - chunk.start):
                if parts and (chunk.rows["is_first"][0, low] or parts[-1]["is_last"][-1]):
                    yield joined(stream, begin, parts)
                if not parts:
                    begin = chunk.start + low
                parts.append({name: column[0, low:high].copy() for name, column in chunk.rows.items()})
            following = stop
    if parts:
        yield joined(stream, begin, parts)


def pieces(rows: Rows, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges ``(low, high)`` into which rows ``start`` to ``stop - 1`` split so that each has one episode."""
    first, last = rows["is_first"][0, start:stop], rows["is_last"][0, start:stop]
    cuts = start + 1 + np.flatnonzero(first[1:] | last[:-1])
    edges = [start, *cuts.tolist(), stop]
    yield from itertools.pairwise(edges)


def joined(stream: int, start: int, parts: list[Rows]) -> Episode:
    """Concatenate ``parts`` to an episode; empties the list."""
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    parts.clear()
    return Episode(stream, start, rows)

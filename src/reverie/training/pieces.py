"""The rows of a checkpoint or of whole stores, wherever they lie, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reverie.core.errors import RunError
from reverie.data.layout import Piece
from reverie.data.store.manifest import Segment
from reverie.data.store.sittings import Part, Sittings
from reverie.data.store.store import Store

Say = Callable[[str], None]
Rows = dict[str, np.ndarray]
Names = Sequence[str] | None


@dataclass(frozen=True, kw_only=True)
class Found:
    """Where the rows of a checkpoint are."""

    store: Store
    like: Segment
    """Has the streams and columns of all of them."""
    parts: list[Part]
    """Those that are stored, in order."""
    stored: int
    """Rows before this number should be stored."""
    tail: Rows
    """Those that come after them."""
    sittings: Sittings
    """Of those that are stored."""
    home: Segment | None
    """The segment that has all of them, in which the run can go on."""
    lost: int = 0
    """So many of the newest of each stream that should be stored are not there."""

    @property
    def oldest(self) -> int:
        """The number of the first row there is."""
        return self.parts[0].start if self.parts else self.stored

    @property
    def in_place(self) -> bool:
        """Whether none of them were set aside."""
        return all(part.group in self.store.segments for part in self.parts)


def length_of(rows: Mapping[str, np.ndarray]) -> int:
    """How many rows of each stream there are in ``[N, n, ...]``; 0 if there are no columns."""
    return int(next(iter(rows.values())).shape[1]) if rows else 0


def once(say: Say) -> Say:
    """``say``, but each sentence only once: what is read twice is damaged twice."""
    said: set[str] = set()

    def say_new(text: str) -> None:
        if text not in said:
            said.add(text)
            say(text)

    return say_new


def found_pieces(found: Found, say: Say, columns: Names) -> Iterator[Piece]:
    """The rows of a checkpoint, the oldest stream first; with some columns or all of them."""
    for stream in range(found.like.streams):
        for part in found.parts:
            start, stop = part.start - part.group.offset, part.stop - part.group.offset
            yield from stream_pieces(found.store, part.group, stream, start, stop, say, columns)
        if length_of(found.tail):
            yield True, {name: found.tail[name][stream] for name in columns or found.tail}


def all_pieces(store: Store, say: Say, columns: Names, most: int | None = None) -> Iterator[Piece]:
    """Every row of a store once, as ``found_pieces``; of more than ``most`` the newest of each stream.

    Raises:
        RunError: it has none.
    """
    if not any(segment.rows > segment.first for segment in store.segments):
        raise RunError(
            f"there are no rows in {store.objects.where}: replay.init takes the run folder or store of an earlier run."
        )
    for segment in store.segments:
        oldest = segment.start + segment.imported
        if most is not None and own_rows(store) > most:  # of each stream its share, or the last ones would take all
            oldest = max(oldest, segment.rows - (segment.rows - oldest) * most // own_rows(store))
        for stream in range(segment.streams):
            yield from stream_pieces(store, segment, stream, oldest, None, say, columns)


def own_rows(store: Store) -> int:
    """Rows of all streams, each counted once."""
    return sum((s.rows - max(s.first, s.start + s.imported)) * s.streams for s in store.segments)


def stream_pieces(
    store: Store, segment: Segment, stream: int, start: int, stop: int | None, say: Say, columns: Names
) -> Iterator[Piece]:
    """Rows of one stream without damage, some at a time; says what is damaged."""
    end = None
    for chunk in store.read(segment, start, stop, [stream], columns):
        for damage in chunk.damaged:
            say(f"damaged and left out: {damage}")
        for (first, last), (_, rows) in zip(chunk.intact(stream), chunk.whole(), strict=True):
            yield first != end, rows
            end = last

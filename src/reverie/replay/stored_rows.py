"""Read the rows of a checkpoint or of whole stores, piece by piece, from wherever they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reverie.core.errors import RunError
from reverie.core.words import Say
from reverie.replay.layout import Piece
from reverie.store.manifest import Segment
from reverie.store.sittings import Part, Sittings
from reverie.store.store import Store

Rows = dict[str, np.ndarray]
Names = Sequence[str] | None


@dataclass(frozen=True, kw_only=True)
class Found:
    """Locations of the rows of a checkpoint. Row numbers are those of the replay."""

    store: Store
    like: Segment
    """A segment with the streams and columns that all these rows have."""
    parts: list[Part]
    """The parts found in the store, in order of their rows."""
    stored: int
    """Number of rows of each stream that the store should hold; the rows after them are in ``tail``."""
    tail: Rows
    """Rows that the store had not confirmed when the checkpoint was written; they lie in the checkpoint."""
    sittings: Sittings
    """Sittings (store/sittings.py) in which the stored rows were written."""
    home: Segment | None
    """The segment that holds all of them, in which the run can go on; None if there is none."""
    lost: int = 0
    """How many of the newest rows of each stream should be stored and are not."""

    @property
    def oldest(self) -> int:
        """Number of the oldest row found."""
        return self.parts[0].start if self.parts else self.stored

    @property
    def in_place(self) -> bool:
        """Whether none of the rows were set aside."""
        return all(part.group in self.store.segments for part in self.parts)


def length_of(rows: Mapping[str, np.ndarray]) -> int:
    """Return n, the rows of each stream in columns ``[N, n, ...]``; 0 if there are no columns."""
    return int(next(iter(rows.values())).shape[1]) if rows else 0


def once(say: Say) -> Say:
    """Return ``say`` that repeats no sentence: damage in rows that are read twice is reported once."""
    said: set[str] = set()

    def say_new(text: str) -> None:
        if text not in said:
            said.add(text)
            say(text)

    return say_new


def found_pieces(found: Found, say: Say, columns: Names) -> Iterator[Piece]:
    """Yield the rows of a checkpoint, stream by stream, each from its oldest row on; ``columns`` None: all columns."""
    for stream in range(found.like.streams):
        for part in found.parts:
            start, stop = part.start - part.group.offset, part.stop - part.group.offset
            yield from stream_pieces(found.store, part.group, stream, start, stop, say, columns)
        if length_of(found.tail):
            yield True, {name: found.tail[name][stream] for name in columns or found.tail}


def all_pieces(store: Store, say: Say, columns: Names, most: int | None = None) -> Iterator[Piece]:
    """Yield every row of a store once, as ``found_pieces``; at most the ``most`` newest, shared out over all streams.

    Raises:
        RunError: the store has no rows.
    """
    if not any(segment.rows > segment.first for segment in store.segments):
        raise RunError(
            f"no rows in {store.objects.where}. Set replay.init to the run folder or store of an earlier run."
        )
    for segment in store.segments:
        oldest = segment.start + segment.imported
        if most is not None and own_rows(store) > most:  # in proportion, or the last would fill all room
            oldest = max(oldest, segment.rows - (segment.rows - oldest) * most // own_rows(store))
        for stream in range(segment.streams):
            yield from stream_pieces(store, segment, stream, oldest, None, say, columns)


def own_rows(store: Store) -> int:
    """Return the number of rows of all streams, each counted once."""
    return sum((s.rows - max(s.first, s.start + s.imported)) * s.streams for s in store.segments)


def stream_pieces(
    store: Store, segment: Segment, stream: int, start: int, stop: int | None, say: Say, columns: Names
) -> Iterator[Piece]:
    """Yield the undamaged rows of one stream, a chunk at a time; report the damaged ones with ``say``."""
    end = None
    for chunk in store.read(segment, start, stop, [stream], columns):
        for damage in chunk.damaged:
            say(f"damaged and left out: {damage}")
        for (first, last), (_, rows) in zip(chunk.intact(stream), chunk.whole(), strict=True):
            yield first != end, rows
            end = last

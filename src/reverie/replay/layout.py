"""Laying out rows of another run as streams of equal length, directly in the storage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from reverie.core.errors import DataError
from reverie.core.specs import EXTRAS
from reverie.replay.storage import Storage

Piece = tuple[bool, Mapping[str, np.ndarray]]
"""``(broken, rows)``: rows ``[n, ...]`` of one stream; ``broken`` if they do not continue the piece before."""
Pieces = Callable[[Sequence[str] | None], Iterable[Piece]]
"""A function that yields all pieces, the oldest first, with the named columns or all (None). Called more than once."""


def lay_out(storage: Storage, source: Pieces) -> int:
    """Fill an empty ``storage`` with the rows of ``source``. Return the number of rows of each stream.

    Rows before the first ``is_first`` of an unbroken run are left out, because the beginning of their episode is lost.
    All others are concatenated; if they do not fit, the newest are kept. They are cut into streams of equal length, so
    a stream may begin and end in the middle of an episode, as after an eviction.

    The place of a row depends on the total number, so rows are counted first, from their flags alone. If fewer come
    after all, because other columns are damaged, it starts again. Only one piece is held in memory at a time.
    """
    streams = storage.streams
    total = sum(len(rows["is_first"]) for rows in whole(source(("is_first",))))
    while True:
        each = min(total // streams, storage.capacity)
        storage.begin_at(0)
        storage.make_room(each)
        found = place(storage, whole(source(None)), total - each * streams)
        if found == total:
            return each
        total = found


def place(storage: Storage, parts: Iterable[Mapping[str, np.ndarray]], skip: int) -> int:
    """Fill one stream after the other with rows, without the first ``skip``. Return the number of rows that came."""
    expected = {name for name in storage.specs if not name.startswith(EXTRAS)}
    came = 0
    for rows in parts:
        if rows.keys() != expected:
            raise DataError(f"the rows have the columns {sorted(rows)}: expected {sorted(expected)}.")
        n = len(rows["is_first"])
        done = min(n, max(0, skip - came))
        while done < n and came + done - skip < storage.count * storage.streams:  # ignore more rows than were counted
            stream, row = divmod(came + done - skip, storage.count)
            more = min(n - done, storage.count - row)
            for name, values in rows.items():
                storage.replace(name, row, stream, values[done : done + more])
            done += more
        came += n
    return came


def whole(pieces: Iterable[Piece]) -> Iterator[Mapping[str, np.ndarray]]:
    """Yield the pieces from the first ``is_first`` of each unbroken run on."""
    begun = False
    for broken, rows in pieces:
        begun = begun and not broken
        found = np.flatnonzero(rows["is_first"])
        start = 0 if begun else int(found[0]) if len(found) else len(rows["is_first"])
        begun = begun or bool(len(found))
        if start < len(rows["is_first"]):
            yield {name: values[start:] for name, values in rows.items()}

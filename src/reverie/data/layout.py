"""Rows from elsewhere, laid out as streams of one length, right where they will stay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from reverie.core.errors import DataError
from reverie.data.storage import EXTRAS, Storage

Piece = tuple[bool, Mapping[str, np.ndarray]]
"""Rows ``[n, ...]`` of one stream, and whether they do not follow the piece before."""
Source = Callable[[Sequence[str] | None], Iterable[Piece]]
"""Gives all pieces, the oldest first, with some columns or with all; may be asked again."""


def lay_out(storage: Storage, source: Source) -> int:
    """Fill an empty ``storage`` with the rows of ``source``; how many of each stream there are.

    Rows before the first ``is_first`` of an unbroken run belong to an episode whose beginning is lost, and are left
    out. All others follow each other, the newest that fit if there are more, and are cut into streams of equal length,
    which costs up to ``streams - 1`` of the oldest. A stream may therefore begin in the middle of an episode and end
    in one, as streams do whose oldest rows have been evicted. No flag is changed: wherever an ``is_first`` row
    follows, the row before it is taken for the last of its episode when windows are sampled.

    Where a row goes depends on how many there are, so these are counted first, by their flags alone. If there are
    fewer after all, as when other columns are damaged, it is done again. No more is held in memory than one piece.

    Raises:
        DataError: a piece has other columns than the storage, or columns of different length.
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
    """Put rows behind each other into one stream after the other, but for the first ``skip``; how many came."""
    expected = {name for name in storage.specs if not name.startswith(EXTRAS)}
    came = 0
    for rows in parts:
        if rows.keys() != expected:
            raise DataError(f"rows to be laid out have the columns {sorted(rows)}; expected {sorted(expected)}.")
        n = len(rows["is_first"])
        done = min(n, max(0, skip - came))
        while done < n and came + done - skip < storage.count * storage.streams:  # else more come than were counted
            stream, row = divmod(came + done - skip, storage.count)
            more = min(n - done, storage.count - row)
            for name, values in rows.items():
                storage.replace(name, row, stream, values[done : done + more])
            done += more
        came += n
    return came


def whole(pieces: Iterable[Piece]) -> Iterator[Mapping[str, np.ndarray]]:
    """The pieces from the first ``is_first`` of each unbroken run on."""
    begun = False
    for broken, rows in pieces:
        lengths = {name: len(values) for name, values in rows.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"the columns of rows to be laid out differ in their length: {lengths}.")
        begun = begun and not broken
        found = np.flatnonzero(rows["is_first"])
        start = 0 if begun else int(found[0]) if len(found) else len(rows["is_first"])
        begun = begun or bool(len(found))
        if start < len(rows["is_first"]):
            yield {name: values[start:] for name, values in rows.items()}

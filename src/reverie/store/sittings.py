"""Sittings: which process wrote which rows of a segment.

A *sitting* begins each time that a process begins or resumes a segment. It is a random *mark* and the number of the
first row that the process wrote; it ends where the next one starts. A run that wrote rows 0 to 99, was killed, and was
resumed at row 80 has the sittings ``(mark a, 0), (mark b, 80)``, and the rows 80 to 99 of mark a are set aside.
Rows set aside keep only the sittings in which they were written: with all earlier ones, the manifest of a run that is
resumed often would grow with the square of the number of resumes.

The manifest lists the sittings of each segment, a checkpoint those of the rows that it knows. Up to the first row at
which the two lists differ, the rows of the two are the same. From there on another process has written: a copy of the
run (``cp -r``), which shares the store with it. Comparing sittings replaces comparing the rows themselves.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reverie.store.manifest import Segment


@dataclass(frozen=True, slots=True)
class Sitting:
    """One process that wrote rows."""

    mark: str
    """Random identifier, unique among all sittings."""
    start: int
    """Number of its first row in the segment."""


Sittings = tuple[Sitting, ...]
"""Sittings in the order of their rows. Rows written by versions that had no sittings are not covered."""


def until(sittings: Iterable[Sitting], stop: int) -> Sittings:
    """Return the sittings that begin before row ``stop``."""
    return tuple(sitting for sitting in sittings if sitting.start < stop)


def since(sittings: Iterable[Sitting], start: int) -> Sittings:
    """Return the sitting in which row ``start`` was written, if one covers it, and all later ones.

    The first of these has a random mark, so that whoever has the same mark has the same sittings before it: for rows
    from ``start`` on, these say as much as all of them.
    """
    sittings = tuple(sittings)
    covering = tuple(sitting for sitting in sittings if sitting.start <= start)
    return (*covering[-1:], *sittings[len(covering) :])


def begun(sittings: Iterable[Sitting], start: int) -> Sittings:
    """Return the sittings that begin before row ``start``, followed by a new one that begins there."""
    return (*until(sittings, start), Sitting(uuid.uuid4().hex, start))


def same_until(mine: Iterable[Sitting], others: Iterable[Sitting], stop: int) -> int:
    """Return the number of the first row, at most ``stop``, from which on two lists of sittings differ."""
    for a, b in itertools.zip_longest(until(mine, stop), until(others, stop)):
        if a != b:
            return min(sitting.start for sitting in (a, b) if sitting is not None)
    return stop


def same_from(start: int, mine: Iterable[Sitting], others: Iterable[Sitting], stop: int) -> int:
    """Return what ``same_until`` does for lists that may lack the sittings before that of row ``start``.

    If the two differ in row ``start`` itself, the result is at most ``start``.
    """
    return same_until(since(mine, start), since(others, start), stop)


def held_until(segments: Iterable[Segment], sittings: Sittings, stop: int) -> int:
    """Return the row number, at most ``stop``, before which one of ``segments`` has all rows of ``sittings``, or 0."""
    related = [segment for segment in segments if sittings and segment.sittings[:1] == sittings[:1]]
    return max((min(s.rows, same_until(sittings, s.sittings, stop)) for s in related), default=0)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows ``start`` to ``stop - 1`` of a segment, and the group that holds them: the segment or a group set aside."""

    group: Segment
    start: int
    stop: int


def parts_of(groups: Sequence[Segment], sittings: Sittings, start: int, stop: int) -> list[Part]:
    """Find rows ``start`` to ``stop - 1``, as written in ``sittings``; the parts end before the first row that is lost.

    Args:
        groups: a segment and groups set aside from it; of two that hold equally many rows the earlier one is taken.
        sittings: those that wrote the wanted rows.
        start: number of the first row. Rows older than the oldest of all groups were deleted, and are skipped.
        stop: number of the last row plus 1.
    """
    parts: list[Part] = []
    start = max(start, min((group.offset + group.first for group in groups), default=start))
    while start < stop:
        ends = {
            index: min(group.offset + group.rows, same_from(group.offset + group.first, sittings, group.sittings, stop))
            for index, group in enumerate(groups)
            if group.offset + group.first <= start
        }
        best = max(ends, key=lambda index: ends[index], default=None)
        if best is None or ends[best] <= start:
            break
        parts.append(Part(groups[best], start, ends[best]))
        start = ends[best]
    return parts


def plain(sittings: Iterable[Sitting]) -> list[Any]:
    """Return sittings as lists that JSON can hold."""
    return [[sitting.mark, sitting.start] for sitting in sittings]


def of_plain(values: Iterable[Any]) -> Sittings:
    """Return the sittings that ``plain`` describes; the inverse of the function ``plain``."""
    return tuple(Sitting(str(mark), int(start)) for mark, start in values)

"""Whose rows are where: each time that a process begins to write to a segment is a *sitting* with a mark of its own.

A segment lists its sittings, and a checkpoint those of the rows that it knows. Where the two agree, the rows are the
same ones; from where they differ, somebody else has written there since: a copy of the run, which shares its store.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reverie.data.store.manifest import Segment


@dataclass(frozen=True, slots=True)
class Sitting:
    """One process that wrote rows."""

    mark: str
    """What no other sitting is called."""
    start: int
    """The number of its first row."""


Sittings = tuple[Sitting, ...]
"""In the order of their rows. Those of earlier versions are not listed."""


def until(sittings: Iterable[Sitting], stop: int) -> Sittings:
    """Those that have rows before ``stop``."""
    return tuple(sitting for sitting in sittings if sitting.start < stop)


def begun(sittings: Iterable[Sitting], start: int) -> Sittings:
    """Those before row ``start``, and a new one from there on."""
    return (*until(sittings, start), Sitting(uuid.uuid4().hex, start))


def same_until(mine: Iterable[Sitting], others: Iterable[Sitting], stop: int) -> int:
    """Rows before this number, which is ``stop`` at most, are the same ones in two places with rows of one segment."""
    for a, b in itertools.zip_longest(until(mine, stop), until(others, stop)):
        if a != b:
            return min(sitting.start for sitting in (a, b) if sitting is not None)
    return stop


def held_until(segments: Iterable[Segment], sittings: Sittings, stop: int) -> int:
    """Rows of ``sittings`` before this number, which is ``stop`` at most, are in one of ``segments`` already."""
    related = [segment for segment in segments if sittings and segment.sittings[:1] == sittings[:1]]
    return max((min(s.rows, same_until(sittings, s.sittings, stop)) for s in related), default=0)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows ``start`` to ``stop - 1`` of a segment, and the group that has them: itself, or one of rows set aside."""

    group: Segment
    start: int
    stop: int


def parts_of(groups: Sequence[Segment], sittings: Sittings, start: int, stop: int) -> list[Part]:
    """Where rows ``start`` to ``stop - 1`` are that were written in ``sittings``, up to the first that are lost.

    Of ``groups``, which all have rows of one segment, the first ones are preferred. Rows from before all of them were
    deleted.
    """
    parts: list[Part] = []
    start = max(start, min((group.offset + group.first for group in groups), default=start))
    while start < stop:
        ends = {
            index: min(group.offset + group.rows, same_until(sittings, group.sittings, stop))
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
    """Values fit for JSON."""
    return [[sitting.mark, sitting.start] for sitting in sittings]


def of_plain(values: Iterable[Any]) -> Sittings:
    """The inverse of ``plain``."""
    return tuple(Sitting(str(mark), int(start)) for mark, start in values)

"""Rows out of a store, a chunk at a time; what is damaged is left out and named."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reverie.core.errors import RunError
from reverie.data.store.manifest import Damage, Segment
from reverie.data.store.objects import LocalObjects, Objects
from reverie.data.store.threads import for_each
from reverie.data.store.zarr import chunk_name, decode

Room = Callable[[int], Mapping[str, np.ndarray] | None]
"""Where so many rows are to be put."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows ``start`` to ``stop - 1`` of some streams."""

    start: int
    stop: int
    streams: tuple[int, ...]
    """The numbers of the streams, S of them."""
    rows: dict[str, np.ndarray]
    """Every column ``[S, stop - start, *shape]``; zeros where it is damaged."""
    damaged: list[Damage]
    placed: bool = False
    """Whether the rows are where the reader wanted them."""

    def whole(self) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """What is not damaged: the number of a stream and a run of its rows ``[n, *shape]``, with every column."""
        for index, stream in enumerate(self.streams):
            for start, stop in self.intact(stream):
                part = slice(start - self.start, stop - self.start)
                yield stream, {name: column[index, part] for name, column in self.rows.items()}

    def intact(self, stream: int) -> list[tuple[int, int]]:
        """From which row to before which one ``stream`` has no damage in any column, in order."""
        good = np.ones(self.stop - self.start + 2, bool)
        good[0] = good[-1] = False
        for damage in self.damaged:
            if damage.stream == stream:
                good[damage.start - self.start + 1 : damage.stop - self.start + 1] = False
        edges = np.flatnonzero(good[1:] != good[:-1]) + self.start
        return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def read(
    objects: Objects,
    segment: Segment,
    start: int = 0,
    stop: int | None = None,
    streams: Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
    room: Room | None = None,
) -> Iterator[Chunk]:
    """Committed rows from ``start`` to before ``stop``, oldest first, so many at once as a chunk has.

    ``room`` says for each chunk where its rows are to be put, or None: in memory of their own. Damage in columns that
    are not among ``columns`` goes unnoticed.

    Raises:
        OSError: the place cannot be read at all.
    """
    chosen = tuple(range(segment.streams) if streams is None else streams)
    names = tuple(segment.columns if columns is None else columns)
    start, stop = max(start, segment.first), min(segment.rows if stop is None else stop, segment.rows)
    while start < stop:
        end = min(stop, (start // segment.chunk + 1) * segment.chunk)
        yield read_chunk(objects, segment, start, end, chosen, names, room and room(end - start))
        start = end


def read_chunk(
    objects: Objects,
    segment: Segment,
    start: int,
    stop: int,
    streams: tuple[int, ...],
    columns: Sequence[str],
    room: Mapping[str, np.ndarray] | None = None,
) -> Chunk:
    """Rows that lie in one chunk of each stream and column, put into ``room`` ``[S, stop - start, *shape]``."""
    number, low = divmod(start, segment.chunk)
    high, full = low + stop - start, stop - start == segment.chunk
    shape = (len(streams), stop - start)
    specs = {name: segment.columns[name] for name in columns}
    rows = {
        name: np.empty((*shape, *spec.shape), spec.dtype) if room is None else room[name]
        for name, spec in specs.items()
    }
    known = [d for d in segment.damaged if d.stream in streams and d.start < stop and d.stop > start]
    damaged = [Damage(d.file, d.stream, max(d.start, start), min(d.stop, stop), d.reason) for d in known]

    def fetch(job: tuple[str, int]) -> None:
        name, index = job
        out = rows[name][index]
        file = chunk_name(segment, name, streams[index], number)
        direct = full and out.flags.c_contiguous
        whole = out if direct else np.empty((segment.chunk, *out.shape[1:]), out.dtype)
        try:
            decode(objects.get(file), whole)
            if not direct:
                out[...] = whole[low:high]
        except (FileNotFoundError, ValueError) as error:
            why = "is missing" if isinstance(error, FileNotFoundError) else str(error)
        except OSError as error:
            if not isinstance(objects, LocalObjects):  # a server may have it again in a minute
                raise RunError(f"{objects.where}/{file} cannot be read: {error}. Try again later.") from error
            why = f"cannot be read: {error.strerror or error}"
        else:
            return
        damaged.append(Damage(file, streams[index], start, stop, why))
        out[...] = 0

    jobs = [(name, index) for name in rows for index in range(len(streams))]
    for_each(fetch, jobs, max(objects.threads, min(4, os.cpu_count() or 1)))
    damaged.sort(key=lambda d: (d.stream, d.start, d.file))
    return Chunk(start, stop, streams, rows, damaged, placed=room is not None)

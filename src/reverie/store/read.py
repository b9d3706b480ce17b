"""Reads rows of a store, one chunk at a time; damaged rows are reported and replaced by zeros."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reverie.core.specs import LATE_COLUMNS
from reverie.store.objects import ObjectStore
from reverie.store.retry import for_each
from reverie.store.segment import Segment
from reverie.store.zarr import chunk_name, decode_chunk, largest_chunk

BufferFn = Callable[[int], Mapping[str, np.ndarray] | None]
"""Returns the arrays into which a number of rows is read, or None for new arrays."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Rows ``start`` to ``stop - 1`` of one stream that cannot be used, and why."""

    file: str
    stream: int
    start: int
    stop: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file} {self.reason} (rows {self.start} to {self.stop - 1} of stream {self.stream})"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows ``start`` to ``stop - 1`` of some streams."""

    start: int
    stop: int
    streams: tuple[int, ...]  # numbers of the S streams
    rows: dict[str, np.ndarray]  # columns ``[S, stop - start, *shape]`` by name; zeros where damaged
    damaged: list[Damage]
    in_buffer: bool = False  # whether the rows are in the arrays that the caller's ``room`` returned

    def intact(self, stream: int) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yield each range of rows of ``stream`` without damage in a column: its first row, columns ``[n, *shape]``."""
        good = np.ones(self.stop - self.start + 2, bool)
        good[0] = good[-1] = False
        for damage in self.damaged:
            if damage.stream == stream:
                good[damage.start - self.start + 1 : damage.stop - self.start + 1] = False
        index = self.streams.index(stream)
        for low, high in np.flatnonzero(good[1:] != good[:-1]).reshape(-1, 2).tolist():
            yield self.start + low, {name: column[index, low:high] for name, column in self.rows.items()}


def read_chunk(
    objects: ObjectStore, segment: Segment, start: int, stop: int, streams: tuple[int, ...], columns: Sequence[str],
    room: Mapping[str, np.ndarray] | None,
) -> Chunk:  # fmt: skip
    """Read rows that lie in one chunk, into ``room`` (columns ``[S, stop - start, *shape]``) or else new arrays."""
    number, low = divmod(start - segment.first, segment.chunk)
    n = stop - start
    rows = {}
    for name in columns:
        spec = segment.columns[name] if name in segment.columns else LATE_COLUMNS[name]
        rows[name] = np.empty((len(streams), n, *spec.shape), spec.dtype) if room is None else room[name]
        if name not in segment.columns:
            rows[name][...] = 0
    damaged: list[Damage] = []

    def fetch(job: tuple[str, int]) -> None:
        name, index = job
        out, file = rows[name][index], chunk_name(segment, name, streams[index], number)
        direct = n == segment.chunk and out.flags.c_contiguous
        buffer = out if direct else np.empty((segment.chunk, *out.shape[1:]), out.dtype)
        try:
            decode_chunk(objects.get(file, largest_chunk(buffer.nbytes)), buffer)
            if not direct:
                out[...] = buffer[low : low + n]
            return
        except FileNotFoundError:  # other errors are not damage: the location may recover soon
            reason = "is missing"
        except ValueError as error:
            reason = str(error)
        damaged.append(Damage(file, streams[index], start, stop, reason))
        out[...] = 0

    jobs = [(name, index) for name in rows if name in segment.columns for index in range(len(streams))]
    for_each(fetch, jobs, max(objects.threads, min(4, os.cpu_count() or 1)))
    damaged.sort(key=lambda d: (d.stream, d.start, d.file))
    return Chunk(start, stop, streams, rows, damaged, in_buffer=room is not None)

"""Storage of rows, in host memory, in files or on a GPU: one ring buffer per stream, one column per field of a row."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.core.columns import (
    BlockLayout,
    ColumnSpec,
    DeviceRing,
    RingBuffer,
    as_numpy,
    check_column_shapes,
    extend_rows,
    gather_device_rows,
    gather_rows,
    load_numbers,
    put_rows,
)
from reverie.core.errors import ConfigError, DataError
from reverie.core.hardware import available_memory, num_gpus
from reverie.core.specs import EXTRAS

MAX_SMALL_BYTES = 1024
"""Bytes of one row up to which a column is interleaved with others."""
PER_WINDOW = {"weight": torch.float32, "index": torch.int64}
"""What a batch has for each window, in addition to rows."""
CACHED_SHARE = 0.5
"""Files of at most this share of the available memory are expected to stay cached in it."""


def _record_dtype(columns: Mapping[str, ColumnSpec]) -> np.dtype[np.void]:
    """Return the structured dtype of one row of all small ``columns``, interleaved in memory to spare cache misses."""
    small = [(name, column) for name, column in columns.items() if column.nbytes <= MAX_SMALL_BYTES]
    small.sort(key=lambda entry: -np.dtype(entry[1].dtype).itemsize)  # so that none needs padding before it
    return np.dtype([(name, column.dtype, column.shape) for name, column in small], align=True)


def row_nbytes(columns: Mapping[str, ColumnSpec]) -> int:
    """Return the bytes of one row of all ``columns``, padding included."""
    return _record_dtype(columns).itemsize + sum(
        column.nbytes for column in columns.values() if column.nbytes > MAX_SMALL_BYTES
    )


class Storage(ABC):
    """Rows of ``streams`` streams of equal length. Row ``t`` of a stream is in slot ``t % capacity``.

    Row numbers start at 0 and are never reused. A row's *handle* is ``row * streams + stream``; an older row has a
    smaller handle.
    """

    def __init__(self, columns: Mapping[str, ColumnSpec], streams: int, capacity: int) -> None:
        """Make an empty storage with ``capacity`` rows per stream."""
        self.specs: dict[str, ColumnSpec] = dict(columns)
        self.streams = streams
        self.capacity = capacity
        self.count: int = 0
        self.first: int = 0
        self.nbytes: int = streams * capacity * row_nbytes(columns)

    @property
    def oldest(self) -> int:
        """Number of the oldest stored row."""
        return max(self.first, self.count - self.capacity)

    def begin_at(self, first: int) -> None:
        """Drop all rows. The next row gets the number ``first``, as if all earlier rows had been evicted."""
        self.first = self.count = first

    def add(self, rows: Mapping[str, Tensor]) -> None:
        """Add one row to each stream; if the rings are full, it overwrites the oldest one."""
        if self.count == self.first:
            check_column_shapes({name: tuple(value.shape) for name, value in rows.items()}, self.specs, (self.streams,))
        self._write_row(rows, self.count % self.capacity)
        self.count += 1

    def extend(self, rows: Mapping[str, np.ndarray]) -> None:
        """Add ``n`` rows to each stream, ``[N, n, ...]``, at most the capacity. Missing extras are blank."""
        n = next((values.shape[1] for values in rows.values()), 0)
        absent = {name for name in self.specs if name.startswith(EXTRAS) and name not in rows}
        shapes = {name: (self.streams, n, *self.specs[name].shape) for name in absent}
        shapes |= {name: values.shape for name, values in rows.items()}
        check_column_shapes(shapes, self.specs, (self.streams, n))
        rows = {**rows, **{name: blank for name in absent if (blank := self._blank(name, n)) is not None}}
        for slots, part in self._runs(self.count, self.count + n):
            self._assign_all(rows, part, slots)
        self.count += n

    def make_room(self, rows: int) -> None:
        """Add ``rows`` rows to each stream, at most the capacity, without writing values. Extras are blank."""
        for slots, part in self._runs(self.count, self.count + rows):
            for name in self.specs:
                if name.startswith(EXTRAS):
                    self._assign(name, slots, self._blank(name, part.stop - part.start))
        self.count += rows

    def _blank(self, name: str, rows: int) -> np.ndarray | None:
        """Return the blank values of a column for ``rows`` rows of each stream; None if they are zeros."""
        spec = self.specs[name]
        return np.full((self.streams, rows, *spec.shape), spec.fill_value, spec.dtype) if spec.fill_value else None

    def reserve_views(self, rows: int) -> dict[str, np.ndarray] | None:
        """Return views ``[N, rows, ...]`` of the memory for the next rows; None if it is not contiguous host memory."""
        return None

    def read(
        self, start: int, stop: int, names: list[str] | None = None, stream: int | None = None, *, copy: bool = True
    ) -> dict[str, np.ndarray]:
        """Return copies of rows ``start`` to ``stop`` of all columns or of ``names``: ``[N, n, ...]``.

        With ``stream``, only this one: ``[1, n, ...]``. Without ``copy``, the rows themselves if they are contiguous.
        """
        if not self.oldest <= start <= stop <= self.count:
            raise DataError(f"cannot read rows {start} to {stop}: there are rows {self.oldest} to {self.count}.")
        streams = slice(None) if stream is None else slice(stream, stream + 1)
        rows = {}
        for name in self.specs if names is None else names:
            pieces = [self._fetch(name, streams, slots) for slots, _ in self._runs(start, stop)]
            if len(pieces) == 1 and not copy:
                rows[name] = pieces[0]
                continue
            spec, n = self.specs[name], len(range(self.streams)[streams])
            rows[name] = np.concatenate(pieces or [np.empty((n, 0, *spec.shape), spec.dtype)], axis=1)
        return rows

    def replace(self, name: str, start: int, stream: int, values: np.ndarray) -> None:
        """Overwrite one column of stored rows, from ``start`` on, with ``values`` ``[n, ...]``."""
        for slots, part in self._runs(start, start + len(values)):
            self._assign(name, slots, values[None, part], stream)

    def end_episode(self, row: int, stream: int) -> None:
        """Make a stored row the last of its episode: ``is_last``, and no action is taken there."""
        slots = slice(row % self.capacity, row % self.capacity + 1)
        self._assign("is_last", slots, np.ones((1, 1), bool), stream)
        self._assign("action", slots, None, stream)

    @abstractmethod
    def correct(self, rows: Mapping[str, Tensor]) -> None:
        """Replace some columns of the newest row of each stream by ``rows`` ``[N, ...]``."""

    @abstractmethod
    def add_column(self, name: str, spec: ColumnSpec) -> None:
        """Add a column, with zeros in all rows."""

    def _assign_all(self, rows: Mapping[str, np.ndarray], part: slice, slots: slice) -> None:
        """Write rows ``part`` of ``[N, n, ...]`` to ``slots``, all columns; missing ones are set to 0."""
        for name in self.specs:
            self._assign(name, slots, rows[name][:, part] if name in rows else None)

    def _runs(self, start: int, stop: int) -> Iterator[tuple[slice, slice]]:
        """Yield contiguous ranges of rows ``start`` to ``stop``, at most the capacity: ``(slots, offsets)``."""
        done = start
        while done < stop:
            slot = done % self.capacity
            run = min(stop - done, self.capacity - slot)
            yield slice(slot, slot + run), slice(done - start, done - start + run)
            done += run

    @abstractmethod
    def _write_row(self, rows: Mapping[str, Tensor], slot: int) -> None:
        """Write one row of each stream to ``slot``."""

    @abstractmethod
    def _assign(self, name: str, slots: slice, values: np.ndarray | None, stream: int | None = None) -> None:
        """Overwrite ``slots`` of all streams, or of one, with ``values`` ``[N, n, ...]``, or with zeros if None."""

    @abstractmethod
    def _fetch(self, name: str, streams: slice, slots: slice) -> np.ndarray:
        """Return a column's values in ``slots`` of ``streams``, possibly as a view."""

    @abstractmethod
    def gather(self, handles: Tensor, length: int, out: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Return windows of ``length`` rows from ``handles`` ``[B]`` on, ``[B, length, ...]``, as ``gather_rows``.

        ``out``: earlier windows, which are overwritten.
        """

    @abstractmethod
    def gather_column(self, name: str, handles: np.ndarray) -> Tensor:
        """Return a copy of one column of the stored rows ``handles`` ``[B]``, ``[B, ...]``."""

    @abstractmethod
    def write(self, name: str, handles: np.ndarray, offset: int, values: Tensor) -> None:
        """Overwrite one column with ``values`` ``[B, T', ...]``, from ``offset`` rows after ``handles`` ``[B]`` on.

        Rows that were evicted since are skipped. Where windows overlap, the later one in the batch counts.
        """


class HostStorage(Storage):
    """Rows in host memory.

    If the attribute ``pin`` is set, windows are gathered into one block of pinned memory, with room for ``PER_WINDOW``.
    """

    def __init__(self, columns: Mapping[str, ColumnSpec], streams: int, capacity: int) -> None:
        """Reserve the memory; its pages are touched only when rows are added."""
        super().__init__(columns, streams, capacity)
        self.pin = False
        self._windows_of = (0, 0)  # number of windows and of rows of each
        self._windows: dict[str, Tensor] = {}  # their shapes and dtypes, as expanded scalars that need no memory
        self._reserve()

    def _reserve(self) -> None:
        try:
            _ = self.columns
        except (MemoryError, ValueError):
            raise ConfigError(
                f"{self.streams * self.capacity} rows need {self.nbytes / 1e9:.1f} GB of memory, more than is "
                "available. Lower replay.capacity, use memory-mapped files (replay.storage = 'mmap', or data.storage = "
                "'mmap' for recorded data), or store smaller observations."
            ) from None

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """Ring buffers by column, ``[N, capacity, ...]``."""
        record = self._memory(_record_dtype(self.specs), ())
        return {
            name: self._memory(np.dtype(spec.dtype), spec.shape) if spec.nbytes > MAX_SMALL_BYTES else record[name]
            for name, spec in self.specs.items()
        }

    def _memory(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        """Return an uninitialized array ``[N, capacity, *shape]``."""
        return np.empty((self.streams, self.capacity, *shape), dtype)

    @cached_property
    def ring(self) -> RingBuffer:
        """The ring buffers."""
        return RingBuffer(self.columns)

    def reserve_views(self, rows: int) -> dict[str, np.ndarray] | None:
        slot = self.count % self.capacity
        if slot + rows > self.capacity:
            return None
        return {name: ring[:, slot : slot + rows] for name, ring in self.columns.items()}

    def _write_row(self, rows: Mapping[str, Tensor], slot: int) -> None:
        put_rows(self.ring, rows, slot)

    def correct(self, rows: Mapping[str, Tensor]) -> None:
        for name, value in rows.items():
            self.columns[name][:, (self.count - 1) % self.capacity] = as_numpy(value)

    def add_column(self, name: str, spec: ColumnSpec) -> None:
        self.specs[name] = spec
        self.columns[name] = self._memory(np.dtype(spec.dtype), spec.shape)
        self.columns[name][...] = 0
        vars(self).pop("ring", None)  # made again with the new column
        self._windows_of = (0, 0)

    def _assign_all(self, rows: Mapping[str, np.ndarray], part: slice, slots: slice) -> None:
        extend_rows(self.ring, rows, part, slots.start)

    def _assign(self, name: str, slots: slice, values: np.ndarray | None, stream: int | None = None) -> None:
        streams = slice(None) if stream is None else slice(stream, stream + 1)
        self.columns[name][streams, slots] = 0 if values is None else values

    def _fetch(self, name: str, streams: slice, slots: slice) -> np.ndarray:
        return self.columns[name][streams, slots]

    def gather(self, handles: Tensor, length: int, out: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        if out is not None:
            gather_rows(self.ring, handles, length, out)
            return out
        if self._windows_of != (handles.shape[0], length):
            self._windows_of = (handles.shape[0], length)
            self._windows = {
                name: torch.empty((), dtype=dtype, device="cpu").expand(len(handles), length, *shape[1:])
                for name, shape, dtype in self.ring.rows
            }
            per_window = {
                name: torch.empty((), dtype=x, device="cpu").expand(len(handles)) for name, x in PER_WINDOW.items()
            }
            self._layout = BlockLayout(self._windows | per_window)
        out = self._layout.allocate() if self.pin else {name: torch.empty_like(x) for name, x in self._windows.items()}
        gather_rows(self.ring, handles, length, {name: out[name] for name in self._windows} if self.pin else out)
        return out

    def gather_column(self, name: str, handles: np.ndarray) -> Tensor:
        row, stream = np.divmod(handles, self.streams)
        return torch.from_numpy(self.columns[name][stream, row % self.capacity])

    def write(self, name: str, handles: np.ndarray, offset: int, values: Tensor) -> None:
        """See ``Storage``. Windows are written one by one, with at most two copies each and no index arrays."""
        rows, streams = np.divmod(handles, self.streams)
        for row, stream, new in zip((rows + offset).tolist(), streams.tolist(), as_numpy(values), strict=True):
            start = max(row, self.oldest)
            self.replace(name, start, stream, new[start - row : max(0, self.count - row)])


class MappedStorage(HostStorage):
    """Rows in one file for all small columns and one for each large column, made when the first row is added.

    Files are unlinked before they are mapped, and their space is allocated at once: a full disk is an error, not a
    crash.
    """

    def __init__(self, columns: Mapping[str, ColumnSpec], streams: int, capacity: int, folder: Path) -> None:
        """Check the disk's free space; write nothing yet."""
        self.folder = folder
        super().__init__(columns, streams, capacity)

    def _reserve(self) -> None:
        folder, rows = self.folder.absolute(), self.streams * self.capacity
        free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
        if self.nbytes > free:
            raise ConfigError(
                f"{rows} rows need {self.nbytes / 1e9:.1f} GB on the disk of {self.folder}, but only "
                f"{free / 1e9:.1f} GB are free. Free some space, or reduce the rows (for a replay, "
                f"replay.capacity) to at most {int(0.9 * free / (self.nbytes / rows))}."
            )

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        self.folder.mkdir(parents=True, exist_ok=True)
        return super().columns

    def _memory(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        """Return an array in a new memory-mapped file."""
        shape = (self.streams, self.capacity, *shape)
        size = max(1, math.prod(shape) * dtype.itemsize)
        descriptor, name = tempfile.mkstemp(prefix="replay-", suffix=".rows", dir=self.folder)
        os.unlink(name)  # before allocating: a process killed now leaves at most an empty file
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, size)
            else:  # macOS
                os.ftruncate(descriptor, size)
            memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        if self.nbytes <= CACHED_SHARE * (available_memory() or 0):
            # Fewer page faults: with pages of 4 KiB they took up to half of the time of adding rows. In files larger
            # than the memory, each window would read 2 MiB of every column from the disk.
            with contextlib.suppress(AttributeError, OSError):  # a system without madvise or without huge pages
                memory.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(memory, dtype, count=math.prod(shape)).reshape(shape)


class DeviceStorage(Storage):
    """Rows on ``device``, ordered by handle. All work is queued on its current CUDA stream, so the host never waits."""

    def __init__(self, columns: Mapping[str, ColumnSpec], streams: int, capacity: int, device: torch.device) -> None:
        """Allocate all memory."""
        super().__init__(columns, streams, capacity)
        self.nbytes: int = streams * capacity * sum(c.nbytes for c in columns.values())  # none are interleaved
        try:
            flat = {
                name: torch.empty((capacity * streams, *spec.shape), dtype=getattr(torch, spec.dtype), device=device)
                for name, spec in self.specs.items()
            }
        except RuntimeError:  # torch.OutOfMemoryError is one
            raise ConfigError(
                f"{streams * capacity} rows need {self.nbytes / 1e9:.1f} GB of memory on {device}, more than is free. "
                "Lower replay.capacity, or keep the rows in host memory (replay.device = 'cpu')."
            ) from None
        self.ring: DeviceRing = DeviceRing(flat, streams)
        self.columns: dict[str, Tensor] = {
            name: x.view(capacity, streams, *x.shape[1:]).transpose(0, 1) for name, x in flat.items()
        }  # [N, capacity, ...]
        self.device: torch.device = self.ring.device  # with its number

    def _write_row(self, rows: Mapping[str, Tensor], slot: int) -> None:
        for name, value in rows.items():
            self.columns[name][:, slot].copy_(value.detach(), non_blocking=True)

    def correct(self, rows: Mapping[str, Tensor]) -> None:
        for name, value in rows.items():
            self.columns[name][:, (self.count - 1) % self.capacity].copy_(value, non_blocking=True)

    def add_column(self, name: str, spec: ColumnSpec) -> None:
        self.specs[name] = spec
        shape = (self.capacity * self.streams, *spec.shape)
        flat = torch.zeros(shape, dtype=getattr(torch, spec.dtype), device=self.device)
        self.ring = DeviceRing({**self.ring.columns, name: flat}, self.streams)
        self.columns[name] = flat.view(self.capacity, self.streams, *spec.shape).transpose(0, 1)

    def _assign(self, name: str, slots: slice, values: np.ndarray | None, stream: int | None = None) -> None:
        streams = slice(None) if stream is None else slice(stream, stream + 1)
        target = self.columns[name][streams, slots]
        if values is None:
            target.zero_()
        else:
            target.copy_(torch.from_numpy(np.array(values)))

    def _fetch(self, name: str, streams: slice, slots: slice) -> np.ndarray:
        return as_numpy(self.columns[name][streams, slots].contiguous())

    def gather(self, handles: Tensor, length: int, out: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        if out is None:
            size = len(handles), length
            out = {name: x.new_empty(*size, *x.shape[1:]) for name, x in self.ring.columns.items()}
        gather_device_rows(self.ring, handles, length, out)
        return out

    def gather_column(self, name: str, handles: np.ndarray) -> Tensor:
        return self.ring.columns[name].index_select(0, load_numbers(handles % self.ring.rows, self.device))

    def write(self, name: str, handles: np.ndarray, offset: int, values: Tensor) -> None:
        """See ``Storage``. A GPU writes in any order, so only the last value of a row that occurs twice is written."""
        offsets = np.arange(offset, offset + values.shape[1])
        rows = handles[:, None] // self.streams + offsets  # [B, T']
        current = np.flatnonzero((rows >= self.oldest) & (rows < self.count))
        index = self.ring.index(handles, offsets).ravel()[current]
        index, from_the_end = np.unique(index[::-1], return_index=True)
        chosen = load_numbers(current[len(current) - 1 - from_the_end], self.device)
        column = self.ring.columns[name]
        new = values.detach().to(self.device, column.dtype).flatten(0, 1)
        column.index_copy_(0, load_numbers(index, self.device), new.index_select(0, chosen))


def storage_on(device: str, columns: Mapping[str, ColumnSpec], streams: int, capacity: int) -> Storage:
    """Return an empty storage on ``device``: cpu, cuda or cuda:<number>."""
    if device == "cpu":
        return HostStorage(columns, streams, capacity)
    devices = ["cpu", *(f"cuda:{number}" for number in range(num_gpus()))]
    if device not in devices and (device != "cuda" or len(devices) == 1):
        raise ConfigError(f"replay.device = '{device}': expected one of the devices {', '.join(devices)}.")
    return DeviceStorage(columns, streams, capacity, torch.device(device))

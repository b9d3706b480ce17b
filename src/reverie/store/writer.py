"""The thread that writes rows to a store: full chunks at once, the rest of the last chunk when ``flush`` is called."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from reverie.core.columns import RingBuffer, StepRows, check_column_shapes, put_rows
from reverie.core.errors import RunError
from reverie.core.logger import logger
from reverie.store.objects import ObjectStore
from reverie.store.retry import Retrier, StoreClosed, for_each
from reverie.store.segment import Segment, SegmentRange
from reverie.store.zarr import chunk_files, chunk_name, compressor, encode_chunks

Block = dict[str, np.ndarray]
"""One chunk of every stream and column, ``[streams, R, *shape]``."""


class Writer:
    """Copies rows of one segment into memory, and writes them to the store in its own thread; see ``Store``.

    ``add`` copies into the newest *block*. The thread writes full blocks, and the newest one as far as a flush asks;
    before ``close``, it skips the newest row, which ``end_episode`` and ``correct`` can still change. A block is freed
    once all its rows are committed. Neither side locks a block: the thread reads only rows before the requested row
    number, and the caller writes only later rows.
    """

    def __init__(
        self, objects: ObjectStore, segment: Segment, commit: Callable[[Segment], None], *, buffer_bytes: int,
        ancestors: Sequence[SegmentRange], waits: bool, stopping: Callable[[], bool],
    ) -> None:  # fmt: skip
        """Start the thread. ``drop`` also deletes rows of the ``ancestors``. Two blocks can always wait."""
        self.objects = objects
        self.segment: Segment = segment
        self.commit = commit
        self.ancestors: list[SegmentRange] = list(ancestors)
        self.count: int = segment.rows
        self.committed: int = segment.rows
        self.flush_goal: int = segment.rows
        self.checked: bool = False
        self.stopping = stopping
        self.max_blocks: int = max(2, buffer_bytes // (segment.nbytes_of_row * segment.streams * segment.chunk))
        self.blocks: dict[int, Block] = {}
        self.spare: list[Block] = []
        self.ring: RingBuffer | None = None  # of the newest block
        self.oldest_needed: int = 0
        self.dropped: int = 0
        self.failure: BaseException | None = None
        self.changed: threading.Condition = threading.Condition()
        self.retrier: Retrier = Retrier(objects.location, objects.exceptions if waits else (), self._waiting)
        self.thread: threading.Thread = threading.Thread(target=self._run, name="store", daemon=True)
        self.thread.start()

    def _block_and_slot(self, row: int) -> tuple[int, int]:
        """Return the block number of a row, and the row's slot in that block."""
        return divmod(row - self.segment.first, self.segment.chunk)

    def add(self, rows: StepRows) -> None:
        if not self.checked:
            self._check(rows, 1)
        block, slot = self._block()
        if self.ring is None or self.ring.columns is not block:
            self.ring = RingBuffer(block)
        put_rows(self.ring, rows, slot)
        self._advance(1, slot)

    def extend(self, rows: Mapping[str, np.ndarray]) -> None:
        self._check(rows, 2)
        done, total = 0, next(iter(rows.values())).shape[1]
        while done < total:
            block, slot = self._block()
            n = min(total - done, self.segment.chunk - slot)
            for name, column in block.items():
                column[:, slot : slot + n] = rows[name][:, done : done + n]
            done += n
            self._advance(n, slot)

    def correct(self, rows: Mapping[str, np.ndarray]) -> None:
        if self.count > self.segment.first:
            number, slot = self._block_and_slot(self.count - 1)
            for name, value in rows.items():
                self.blocks[number][name][:, slot] = value

    def end_episode(self, stream: int) -> None:
        if self.count > self.segment.first:
            number, slot = self._block_and_slot(self.count - 1)
            self.blocks[number]["is_last"][stream, slot] = True
            self.blocks[number]["action"][stream, slot] = 0

    def flush(self, timeout: float | None, *, newest: bool = False) -> bool:
        end = np.inf if timeout is None else time.monotonic() + timeout
        with self.changed:
            self.flush_goal = goal = self.count if newest else max(self.count - 1, self.committed)
            self.changed.notify_all()
        while self.committed < goal and time.monotonic() < end:
            self._wait(min(0.5, max(0.0, end - time.monotonic())))
        return self.committed >= goal

    def drop(self, before: int) -> None:
        with self.changed:
            self.oldest_needed = max(self.oldest_needed, before)
            self.changed.notify_all()

    def pending(self) -> dict[str, np.ndarray]:
        with self.changed:
            start, first, chunk = self.committed, self.segment.first, self.segment.chunk
            blocks = [(first + number * chunk, self.blocks[number]) for number in sorted(self.blocks)]
        out: dict[str, np.ndarray] = {}
        for name, column in self.segment.columns.items():
            empty = np.empty((self.segment.streams, 0, *column.shape), column.dtype)
            parts = [block[name][:, max(0, start - base) : self.count - base] for base, block in blocks]
            out[name] = np.concatenate([empty, *parts], axis=1)
        return out

    def close(self, timeout: float | None) -> None:
        try:
            self.flush(timeout, newest=True)
        finally:
            self.retrier.stop.set()
            with self.changed:
                self.changed.notify_all()
            self.thread.join(1.0)

    # ------------------------------------------------------------ the caller's side

    def _block(self) -> tuple[Block, int]:
        """Return the block of the next row, and the row's slot in it."""
        number, slot = self._block_and_slot(self.count)
        if slot:
            return self.blocks[number], slot
        self.retrier.report_hang()
        self._raise_failure()  # before a row is added: a retry after the error must not add it twice
        self._wait_for_room()
        segment = self.segment
        with self.changed:
            block = self.blocks[number] = self.spare.pop() if self.spare else {
                name: np.empty((segment.streams, segment.chunk, *column.shape), column.dtype)
                for name, column in segment.columns.items()
            }  # fmt: skip
        return block, slot

    def _wait_for_room(self) -> None:
        """Wait until a block is free, or until the run is stopping: its last rows can exceed the limit."""
        waiting, warned = time.monotonic(), False
        while len(self.blocks) >= self.max_blocks and not self.stopping():
            self._wait(0.2)
            if not warned and time.monotonic() - waiting > 1.0:
                warned = True
                logger.warning(
                    f"the buffer of the store {self.objects.location} is full (replay.write_buffer): "
                    f"{self._waiting()} are waiting. The run pauses until some are written"
                )
        if warned:
            logger.warning("the store accepts rows again: the run continues")

    def _advance(self, n: int, slot: int) -> None:
        self.count += n
        if slot == 0:  # of a new block
            with self.changed:
                self.changed.notify_all()

    def _wait(self, timeout: float) -> None:
        """Wait until the thread makes progress, at most ``timeout`` seconds; Ctrl-C interrupts the wait."""
        self._raise_failure()
        with self.changed:
            self.changed.wait(timeout)
        self.retrier.report_hang()

    def _raise_failure(self) -> None:
        if isinstance(self.failure, self.objects.exceptions):
            raise self.objects.error(self.failure) from self.failure
        if self.failure is not None:
            raise RunError(f"writing to the store {self.objects.location} failed: {self.failure!r}.") from self.failure

    def _waiting(self) -> str:
        rows = (self.count - self.committed) * self.segment.streams
        return f"{rows} rows ({rows * self.segment.nbytes_of_row / 1e6:.0f} MB)"

    def _check(self, rows: StepRows, axes: int) -> None:
        shapes = {name: tuple(value.shape) for name, value in rows.items()}
        leading = next(iter(shapes.values()), ())[1:axes]
        check_column_shapes(shapes, self.segment.columns, (self.segment.streams, *leading))
        self.checked = True

    # ------------------------------------------------------------ the thread's side

    def _run(self) -> None:
        try:
            compressor()  # loaded here, during the setup of the run
            while not self.retrier.stop.is_set():
                stop, drop = self._next()
                if stop > self.committed:
                    self._write(stop)
                if drop > self.dropped:
                    self._drop(drop)
        except StoreClosed:
            pass
        except BaseException as error:
            self.failure = error
            with self.changed:
                self.changed.notify_all()

    def _next(self) -> tuple[int, int]:
        """Wait for work. Return the row numbers to write up to and to delete up to (both exclusive)."""
        with self.changed:
            while True:
                first, chunk = self.segment.first, self.segment.chunk
                goal = max(self.flush_goal, first + self._block_and_slot(self.count - 1)[0] * chunk)
                stop = min(goal, first + (self._block_and_slot(self.committed)[0] + 1) * chunk)
                drop = min(self.oldest_needed, self.committed)
                if stop > self.committed or drop > self.dropped or self.retrier.stop.is_set():
                    return stop, drop
                self.changed.wait()

    def _write(self, stop: int) -> None:
        """Write the rows before number ``stop``, which all lie in one block: first the chunks, then ``zarr.json``."""
        number = self._block_and_slot(self.committed)[0]
        block, segment = self.blocks[number], replace(self.segment, rows=stop)
        rows = stop - segment.first - number * segment.chunk
        self.retrier.begin()
        self.retrier.run(lambda: self._write_chunks(number, block, rows))
        self.retrier.run(lambda: self.commit(segment))
        self.segment = segment
        with self.changed:
            self.committed = stop
            if rows == segment.chunk:
                del self.blocks[number]
                if len(self.spare) < 2:
                    self.spare.append(block)
            self.changed.notify_all()
        self.retrier.end()

    def _write_chunks(self, number: int, block: Block, rows: int) -> None:
        def stage(job: tuple[str, tuple[bytes | memoryview, ...]]) -> None:
            file, parts = job
            self.retrier.run(lambda: self.objects.stage(file, *parts))

        for stream in range(self.segment.streams):  # one at a time, to save memory
            encoded = encode_chunks([_zero_padded(column[stream], rows) for column in block.values()])
            names = [chunk_name(self.segment, name, stream, number) for name in block]
            for_each(stage, zip(names, encoded, strict=True), self.objects.threads)
        self.objects.publish()

    def _drop(self, before: int) -> None:
        """Delete files of rows before ``before``, after ``zarr.json`` has ceased to count them."""
        self.retrier.begin()
        for index, part in enumerate(self.ancestors):
            self.ancestors[index] = part._replace(segment=self._drop_from(part.segment, before, part.stop))
        self.segment = self._drop_from(self.segment, before, None)
        self.retrier.end()
        self.dropped = before

    def _drop_from(self, segment: Segment, before: int, stop: int | None) -> Segment:
        """Drop rows of one segment; all rows if rows from ``stop`` on are superseded and no earlier row is needed."""
        chunk = segment.chunk
        first, last = ((row - segment.first) // chunk for row in (segment.first_kept, min(before, segment.rows)))
        first_kept = segment.first + last * chunk
        if stop is not None and before >= stop:
            first_kept, last = segment.rows, -(-(segment.rows - segment.first) // chunk)
        if first_kept <= segment.first_kept:
            return segment
        segment = replace(segment, first_kept=first_kept)
        self.retrier.run(lambda: self.commit(segment))
        self.retrier.run(lambda: self.objects.delete(chunk_files(segment, range(first, last))))
        return segment


def _zero_padded(rows: np.ndarray, count: int) -> np.ndarray:
    """Return ``rows`` ``[R, *shape]`` with zeros after the first ``count``; a copy unless ``count`` is R."""
    if count == len(rows):
        return rows
    out = np.zeros_like(rows)
    out[:count] = rows[:count]
    return out

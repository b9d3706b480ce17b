"""The durable store: every row that a run has collected, in Zarr 3, in a local folder or behind a URL.

::

    zarr.json                                so that zarr.open(folder) shows everything
    0-1f0c5a2e/  1-93d7b644/  ...            segments: one for each process that wrote (segment.py)
        zarr.json                            which rows are stored; replaced atomically, with a checksum
        obs/image/zarr.json  c.0.0.0.0.0     one array per column [streams, rows, *shape]; a file is one stream's chunk

- *stream*: the rows of one environment, in order.
- *segment*: streams of equal length with fixed columns, written by one process. Row numbers continue its parent's.
- *chunk*: a fixed number of consecutive rows of one stream and column; one file.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from reverie.core.errors import ConfigError, ReverieError, RunError, count_noun
from reverie.core.logger import logger
from reverie.core.rows import Rows, concat_rows
from reverie.core.specs import ColumnSpec
from reverie.store import segment as segments
from reverie.store.local_objects import LocalObjects, open_objects
from reverie.store.objects import ObjectStore
from reverie.store.read import BufferFn, Chunk, Damage, read_chunk
from reverie.store.retry import for_each
from reverie.store.segment import META, Segment, SegmentRange
from reverie.store.zarr import ROOT, chunk_rows, meta_bytes, segment_metas

if TYPE_CHECKING:  # it imports torch, which reading needs not
    from reverie.core.columns import StepRows
    from reverie.store.writer import Writer


class ReplayStore:
    """Appends rows in a background thread, and reads them back.

    All N streams grow together; row numbers and streams equal the replay's. Files are never changed in place, only
    replaced atomically by files that hold the same rows and more, and only by the process that started their segment.
    So a process can be killed at any moment, and several can write to one store.
    """

    def __init__(
        self, url: str | Path, *, buffer_bytes: int = 10**9, keep: Literal["all", "replay"] = "all", run: str = "",
        waits: bool = True,
    ) -> None:  # fmt: skip
        """Open a store for reading: a folder or fsspec URL. Nothing is written until ``check_writable`` or ``begin``.

        Args:
            url: its location.
            buffer_bytes: bytes of rows that may wait in memory to be written.
            keep: "all" to keep all rows forever; "replay" to delete the rows that ``drop`` names.
            run: the folder of the run that writes; "" if all segments are of one run.
            waits: True to keep rows in memory and retry while they cannot be written; False to raise at once.

        Raises:
            ConfigError: the kind of URL is unknown, or a package is missing.
            RunError: the location cannot be reached, or a segment is of a newer version.
        """
        self.objects: ObjectStore = open_objects(url)
        self.buffer_bytes = buffer_bytes
        self.reported: set[str] = set()
        self.keep = keep
        self.run = run
        self.waits = waits
        self.stopping: Callable[[], bool] = lambda: False
        """Called while ``add`` waits for room in a full buffer; True allows it to exceed the limit, since the run will
        end."""
        self.writer: Writer | None = None
        self.segment_name: str = ""
        """The segment that this process has begun last."""
        loaded: list[Segment | None] = []
        with self._report_unreachable():
            names = [name for name in self.objects.children() if name.partition("-")[0].isdigit()]
            for_each(lambda name: loaded.append(segments.load_segment(self.objects, name)), names, self.objects.threads)
        stored = sorted((s for s in loaded if s is not None), key=lambda s: (s.number, s.name))
        self._segments = {segment.name: segment for segment in stored}

    # ------------------------------------------------------------ segments

    @property
    def segments(self) -> list[Segment]:
        """The segments with their stored rows, in the order in which they were started."""
        return list(self._segments.values())

    def ancestor_parts(self, name: str, stop: int | None = None) -> list[SegmentRange]:
        """Return the rows before ``stop`` (None: all) of a segment and its ancestors that are left, oldest first."""
        parts: list[SegmentRange] = []
        while (segment := self._segments.get(name)) is not None:
            end = segment.rows if stop is None else min(stop, segment.rows)
            parts.append(SegmentRange(segment, min(segment.first_kept, end), end))
            name, stop = segment.parent or ("", 0)
        return parts[::-1]

    def histories(self) -> list[list[SegmentRange]]:
        """Return the rows of every run, each row once, without superseded and imported ones.

        A history is the chain of a run's newest segment, as parts in order. Rows from which two runs continue belong to
        the first of these runs.
        """
        leaves = {
            (self.ancestor_parts(segment.name)[0].segment.name, segment.run): segment for segment in self.segments
        }
        next_row: dict[str, int] = {}
        histories = []
        for leaf in leaves.values():
            history = []
            for segment, start, stop in self.ancestor_parts(leaf.name):
                start = max(start, segment.first + segment.imported, next_row.get(segment.name, 0))
                if start < stop:
                    history.append(SegmentRange(segment, start, stop))
                    next_row[segment.name] = stop
            histories += [history] if history else []
        return histories

    def num_rows(self) -> int:
        """Return the number of rows in all histories, over all streams."""
        return sum((stop - start) * s.streams for history in self.histories() for s, start, stop in history)

    # ------------------------------------------------------------ writing

    def check_writable(self) -> None:
        """Check that the location is a store or empty and, behind a URL, that it can be written; RunError if not.

        A local folder is only inspected: it can be in the folder of a run that has not started yet.
        """
        self._claim(write=not isinstance(self.objects, LocalObjects))

    def _claim(self, write: bool) -> None:
        with self._report_unreachable():
            with contextlib.suppress(FileNotFoundError):
                if segments.is_store_root(self.objects.get(META)):
                    return
            names = [name for name in self.objects.children() if name[0] != "." and name != META]
            if names and not self._segments:
                url = self.objects.location
                raise RunError(
                    f"{url} is not empty and is not a replay store (it contains {names[0]}): choose another folder."
                )
            if write:
                self.objects.put(META, meta_bytes(ROOT))
                self._check_kept(META)

    def _check_kept(self, name: str) -> None:
        """Check that what was just written is there for other processes; ConfigError if it is only in memory."""
        if not self.objects.keeps(name):
            raise ConfigError(
                f"{self.objects.location} does not keep what is written to it: the rows would be lost when the process "
                "ends. Choose a folder, or a URL such as s3://bucket/name."
            )

    def begin(
        self, columns: Mapping[str, ColumnSpec], streams: int, *, first: int = 0, parent: tuple[str, int] | None = None,
        imported: int = 0,
    ) -> str:  # fmt: skip
        """Start a segment and return its name; RunError if the location cannot be written, or is not a store.

        ``first`` is the number of its first row. With a ``parent`` (a segment with these columns, and a row number),
        it continues that segment before that row. The first ``imported`` rows of each stream will be copies of rows
        that are already in this store.
        """
        from reverie.store.writer import Writer

        self.close()
        self._claim(write=True)
        with self._report_unreachable():
            numbers = [name.partition("-")[0] for name in self.objects.children()]
            number = max((int(text) for text in numbers if text.isdigit()), default=-1) + 1
            segment = Segment(
                name=f"{number}-{uuid.uuid4().hex[:8]}", run=self.run, streams=streams, columns=dict(columns),
                chunk=chunk_rows(columns.values(), streams), parent=parent, first=first, rows=first, first_kept=first,
                imported=imported,
            )  # fmt: skip
            self._commit(segment)
            self._check_kept(f"{segment.name}/{META}")
        ancestors = [part for part in self.ancestor_parts(*parent) if part.segment.run == self.run] if parent else []
        self.writer = Writer(self.objects, segment, self._commit, buffer_bytes=self.buffer_bytes,
                             ancestors=ancestors, waits=self.waits, stopping=lambda: self.stopping())  # fmt: skip
        self.segment_name = segment.name
        return segment.name

    def change_columns(self, columns: Mapping[str, ColumnSpec], before: int | None = None) -> None:
        """Continue in a new segment with other ``columns``, behind row ``before - 1``; None: behind all rows.

        Waits until all rows are stored.
        """
        segment, count = self._writing().segment, self._writing().count
        first = count if before is None else before
        self.begin(columns, segment.streams, first=first, parent=(segment.name, first))

    def add(self, rows: StepRows) -> None:
        """Copy one row of each stream, columns ``[N, *shape]``; the thread stores them soon.

        RunError if the thread has failed. Waits, with a log message, while ``buffer_bytes`` of rows are in memory. Only
        the first call checks columns.
        """
        self._writing().add(rows)

    def extend(self, rows: Mapping[str, np.ndarray]) -> None:
        """Copy n rows of each stream, columns ``[N, n, *shape]``; otherwise like ``add``."""
        self._writing().extend(rows)

    def end_episode(self, stream: int) -> None:
        """Make the newest row of a stream the last of its episode: set ``is_last`` and clear its action."""
        self._writing().end_episode(stream)

    def correct(self, rows: Mapping[str, np.ndarray]) -> None:
        """Replace some columns of the newest rows by ``rows`` ``[N, ...]``."""
        self._writing().correct(rows)

    def flush(self, timeout: float | None = None) -> bool:
        """Store all rows but the newest of each stream; True if that took at most ``timeout`` seconds (None: forever).

        The newest row can still become the last of its episode (``end_episode``). It is stored when the next row has
        been added, or by ``close``.
        """
        return self._writing().flush(timeout)

    def pending(self) -> dict[str, np.ndarray]:
        """Return copies of the rows that are not stored yet, columns ``[N, n, *shape]``."""
        return self._writing().pending()

    def drop(self, before: int) -> None:
        """Delete files that hold only rows before ``before``, of this run's segments; nothing if keep = "all"."""
        if self.keep != "all":
            self._writing().drop(before)

    def close(self, timeout: float | None = None) -> bool:
        """Store all rows, waiting at most ``timeout`` seconds, and end the thread; True if all rows are stored."""
        writer, self.writer = self.writer, None
        if writer is None:
            return True
        writer.close(timeout)
        if num_lost := writer.count - writer.committed:
            rows = count_noun(num_lost, "row")
            logger.warning(
                f"the store {self.objects.location} was closed before {rows} of each stream could be written"
            )
        return not num_lost

    def _writing(self) -> Writer:
        assert self.writer is not None, "call begin() first"
        return self.writer

    def _commit(self, segment: Segment) -> None:
        """Write every ``zarr.json`` of a segment, the group's last: its rows are stored once that counts them."""
        group, *columns = segment_metas(segment).items()
        for name, data in columns:
            self.objects.stage(name, data)
        self.objects.publish()
        self.objects.put(*group)
        self._segments[segment.name] = segment

    # ------------------------------------------------------------ reading

    def read(
        self, segment: str | Segment, start: int = 0, stop: int | None = None, streams: Sequence[int] | None = None,
        columns: Sequence[str] | None = None, room: BufferFn | None = None,
    ) -> Iterator[Chunk]:  # fmt: skip
        """Yield the stored rows ``start`` to ``stop - 1`` (None: to the newest), oldest first, one chunk at a time.

        ``streams`` and ``columns`` default to all; columns that rows may lack are zeros in a segment without them.
        ``room`` returns the arrays into which a chunk is read, or None for new ones. Damaged rows are in
        ``Chunk.damaged``; damage in other columns goes unnoticed.
        """
        source = segment if isinstance(segment, Segment) else self._segments[segment]
        chosen = tuple(range(source.streams) if streams is None else streams)
        names = tuple(source.columns if columns is None else columns)
        start, stop = max(start, source.first_kept), min(source.rows if stop is None else stop, source.rows)
        while start < stop:
            end = min(stop, start + source.chunk - (start - source.first) % source.chunk)
            yield read_chunk(self.objects, source, start, end, chosen, names, room and room(end - start))
            start = end

    def intact(
        self, parts: Sequence[SegmentRange], stream: int, columns: Sequence[str] | None, on_damage: Callable[[Damage],
        None],
        oldest: int = 0,
    ) -> Iterator[tuple[int, dict[str, np.ndarray]]]:  # fmt: skip
        """Yield undamaged rows of a stream from ``oldest`` on: the number of the first, and columns ``[n, *shape]``."""
        for segment, start, stop in parts:
            for chunk in self.read(segment, max(start, oldest), stop, [stream], columns):
                for damage in chunk.damaged:
                    on_damage(damage)
                yield from chunk.intact(stream)

    def log_damage(self, damage: Damage) -> None:
        """Log once that damaged rows are skipped."""
        if str(damage) not in self.reported:
            self.reported.add(str(damage))
            logger.warning(f"damaged and skipped: {damage}")

    def find_damage(self) -> list[str]:
        """Read every file of every segment; return one sentence per missing file or wrong checksum."""
        problems = []
        for segment in self.segments:
            for name, expected in segment_metas(segment).items():
                try:
                    data = self.objects.get(name)
                    if data != expected:  # it can be newer, if a process was killed
                        segments.parse_segment(segment.name, data)
                except FileNotFoundError:
                    problems.append(f"{name} is missing")
                except ValueError as error:
                    problems.append(f"{name} is damaged ({error})")
            problems += [str(damage) for chunk in self.read(segment) for damage in chunk.damaged]
        return problems

    @contextlib.contextmanager
    def _report_unreachable(self) -> Iterator[None]:
        """Turn errors of the location into a RunError with advice."""
        try:
            yield
        except ReverieError:
            raise
        except self.objects.exceptions as error:
            raise self.objects.error(error) from error


# ---------------------------------------------------------------- episodes


MAX_DAMAGED_CHUNKS = 10_000
"""Missing or damaged chunks after which episodes are no longer read: a missing one takes time, and no space."""
FIRST_ROW_MISSING = "an episode whose first row is not stored is skipped"
STEPLESS = "an episode of a single row is skipped, since it has no step"


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode or a part of one: consecutive rows of one stream, columns ``[n, *shape]``.

    Its beginning or end is missing if an environment failed, rows are damaged, or the run was still in progress.
    """

    stream: int
    start: int
    """Number of the first row."""
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows["is_first"])

    @property
    def has_first_row(self) -> bool:
        """Whether the episode's first row is stored."""
        return bool(self.rows["is_first"][0])

    @property
    def has_last_row(self) -> bool:
        """Whether the episode's last row is stored."""
        return bool(self.rows["is_last"][-1])

    @property
    def unusable_reason(self) -> str:
        """Why it cannot be part of a dataset; "" if its first row and at least one step are stored."""
        return FIRST_ROW_MISSING if not self.has_first_row else STEPLESS if len(self) < 2 else ""

    @property
    def score(self) -> float:
        """Sum of the rewards, not discounted."""
        return float(self.rows["reward"].sum(dtype=np.float64))


def iter_store_episodes(
    store: ReplayStore,
    *,
    columns: Sequence[str] | None = None,
    on_damage: Callable[[Damage], None] = lambda damage: None,
) -> Iterator[Episode]:
    """Yield every episode of ``store``, run by run and stream by stream; damaged and superseded rows are skipped.

    Needs the memory of one chunk and one episode. ``columns``: all if None, else with is_first, is_last and reward.
    RunError after ``MAX_DAMAGED_CHUNKS``.
    """
    numbers = itertools.count(1)

    def count_damage(damage: Damage) -> None:
        if next(numbers) > MAX_DAMAGED_CHUNKS:
            raise RunError(f"{store.objects.location}: {MAX_DAMAGED_CHUNKS:,} chunks are missing. Copy it again.")
        on_damage(damage)

    for history in store.histories():
        for stream in range(history[0].segment.streams):
            yield from _of_stream(store, history, stream, columns, count_damage)


def _of_stream(
    store: ReplayStore,
    parts: Sequence[SegmentRange],
    stream: int,
    columns: Sequence[str] | None,
    on_damage: Callable[[Damage], None],
) -> Iterator[Episode]:
    pending: list[Rows] = []
    begin = following = -1
    for start, rows in store.intact(parts, stream, columns, on_damage):
        first, last = rows["is_first"], rows["is_last"]
        cuts = 1 + np.flatnonzero(first[1:] | last[:-1])
        for low, high in itertools.pairwise([0, *cuts.tolist(), len(first)]):
            if pending and (start + low != following or first[low] or pending[-1]["is_last"][-1]):
                yield Episode(stream, begin, concat_rows(pending))
                pending = []
            begin, following = begin if pending else start + low, start + high
            pending.append({name: column[low:high].copy() for name, column in rows.items()})
    if pending:
        yield Episode(stream, begin, concat_rows(pending))

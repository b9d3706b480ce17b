"""The durable store: every row that a run has collected, in Zarr 3, in a local folder or behind a URL.

::

    manifest.json, manifest-backup.json      which rows are stored; replaced atomically, with a checksum
    lease.json                               who writes, behind a URL (lease.py)
    zarr.json                                so that zarr.open(folder) shows everything
    0/  1/  ...                              segments
        obs/image/zarr.json  c.0.0.0.0.0     one array per column [streams, rows, *shape]; a file is one stream's chunk
    aside/0/  ...                            rows that a resumed run has set aside (rollback.py)
    damaged/0/...                            damaged files that had to be replaced

- *stream*: the rows of one environment, in order.
- *segment*: streams with fixed columns, all of one length; another begins when columns or environments change. New
  rows go to the last segment only. Row numbers count from its first row.
- *chunk*: a fixed number of consecutive rows of one stream and column; one file.
- *manifest*: the list of segments and of their rows. A row is *stored*, or *committed*, once the manifest counts it;
  files that hold other rows as well are normal (the table in ``rollback.py`` says what a crash may leave).
- *sitting*: one process that writes to a segment, and the rows that it wrote (sittings.py).
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from reverie.core.columns import Column, StepRows
from reverie.core.errors import ReverieError, RunError
from reverie.core.words import Say, plural
from reverie.store import manifest as manifests
from reverie.store.lease import RENEWS, Lease
from reverie.store.manifest import Manifest, Segment, check_same
from reverie.store.places import open_objects
from reverie.store.read import Chunk, Room, read
from reverie.store.rollback import check_place, loaded, mend, set_aside, tidied
from reverie.store.sittings import Sittings, begun
from reverie.store.writer import Writer
from reverie.store.zarr import META, array_meta, chunk_rows, packed

T = TypeVar("T")


class Store:
    """Appends rows in a background thread, and reads them back.

    All N streams grow together; row numbers and streams are those of the replay. A row is stored once
    ``manifest.json`` counts it. Files are never changed in place, only replaced atomically by files that hold the same
    rows and more. So the process may be killed at any moment.
    """

    def __init__(
        self,
        url: str | Path,
        *,
        say: Say,
        buffer_bytes: int = 10**9,
        keep: Literal["all", "replay"] = "all",
        run: str = "",
        waits: bool = True,
    ) -> None:
        """Open a store for reading. Nothing is written before ``claim``, ``begin`` or ``resume``.

        Args:
            url: a folder, or a URL that fsspec knows.
            say: gets messages, from any thread.
            buffer_bytes: bytes of rows that may wait in memory to be written.
            keep: "all" to keep all rows for ever; "replay" to delete those that ``drop`` names.
            run: the folder of the run that writes, for the messages of other runs; "" if all segments are of one run.
            waits: True to keep rows in memory and retry while they cannot be written; False to raise at once.

        Raises:
            ConfigError: the kind of URL is unknown, or a package is missing.
            RunError: the place cannot be reached, or its manifest is of a newer version or damaged beyond use.
        """
        self.objects = open_objects(url)
        self.say, self.buffer_bytes, self.keep, self.run = say, buffer_bytes, keep, run
        self.waits = waits
        self.stopping: Callable[[], bool] = lambda: False
        """Asked while ``add`` waits for room in a full buffer; True lets it exceed the bound, as the run will end."""
        self.manifest = self._reached(lambda: manifests.load(self.objects, say)) or Manifest()
        self.writer: Writer | None = None
        self.lease = Lease(self.objects, run, say) if self.objects.leased else None

    @property
    def segments(self) -> list[Segment]:
        """The segments with their committed rows, oldest first. New rows go to the last."""
        return list(self.manifest.segments)

    @property
    def aside(self) -> list[Segment]:
        """The groups of rows set aside; ``read`` takes them like segments."""
        return list(self.manifest.aside)

    @property
    def count(self) -> int:
        """Number of the next row of the current segment."""
        return self._writing().count

    @property
    def committed(self) -> int:
        """Rows of the current segment with smaller numbers than this are stored."""
        return self._writing().committed

    @property
    def sittings(self) -> Sittings:
        """The sittings of the current segment, this process's own included."""
        return self._writing().segment.sittings

    def owns(self, segment: Segment) -> bool:
        """Return True if this run wrote the segment, or if nothing is known about who did."""
        return not self.run or segment.run in ("", self.run)

    def claim(self, segment: str = "") -> None:
        """Take the lease, if the place needs one, and read the manifest again. ``begin`` and ``resume`` call this.

        ``segment`` is the id of the segment to be resumed: its lease is taken from whoever has it.

        Raises:
            RunError: another run writes, the place cannot be written, or it holds something that is no store.
        """
        self._reached(lambda: check_place(self.objects, self.manifest))
        lease = self.lease
        if lease is None:
            return
        self._reached(lambda: lease.take(segment))
        self.manifest = self._reached(lambda: manifests.load(self.objects, self.say)) or Manifest()

    def begin(
        self,
        columns: Mapping[str, Column],
        streams: int,
        *,
        imported: int = 0,
        first: int = 0,
        sittings: Sittings | None = None,
    ) -> str:
        """Begin a segment and return its name.

        Args:
            columns: shapes and dtypes of the columns by name.
            streams: number of environments.
            imported: how many of the first rows of each stream will be copies of rows that this store has already.
            first: number of the first row.
            sittings: of a segment that is continued here with the same row numbers, ours at the end; None for a
                new sitting.

        Raises:
            RunError: the place cannot be written, holds something that is no store, or is written by another run.
        """
        self._stop(None)
        self.claim()
        chunk = chunk_rows(columns.values(), streams)
        name = self.manifest.next_name()
        segment = Segment(
            name=name,
            id=uuid.uuid4().hex,
            run=self.run,
            streams=streams,
            columns=dict(columns),
            chunk=chunk,
            start=first,
            first=first,
            rows=first,
            imported=imported,
            sittings=begun((), first) if sittings is None else sittings,
        )
        self._mend()
        self._reached(lambda: self._save(replace(self.manifest, segments=(*self.manifest.segments, segment))))
        self._start(segment, None)
        return name

    def resume(
        self, segment: str, rows: int, columns: Mapping[str, Column], streams: int, *, keep_newer: bool = False
    ) -> int:
        """Continue ``segment`` after its row ``rows - 1``; return the number of the next row.

        The result is less than ``rows`` if fewer rows are stored. Newer rows, and segments that this run began later,
        are set aside; with ``keep_newer`` they stay, and writing continues after the newest row of ``segment``.

        Raises:
            RunError: there is no such segment, the place cannot be written, or another run writes to it.
            ConfigError: the segment has other columns or another number of streams.
        """
        self._stop(None)
        known_as = self.manifest.segment(segment)
        self.claim(known_as.id if known_as is not None else "")
        found = self.manifest.segment(segment)
        if found is None:
            known = ", ".join(s.name for s in self.manifest.segments) or "none"
            raise RunError(f"the store {self.objects.where} has no segment '{segment}'; there are: {known}.")
        check_same(found, columns, streams, self.objects.where)
        self._mend()
        self._reached(lambda: self._cut(found, rows, keep_newer))
        current = self.manifest.segments[-1]
        self._reached(lambda: tidied(self.objects, current))
        current, block = self._reached(lambda: loaded(self.objects, current, self.say))
        if current != self.manifest.segments[-1]:
            self._reached(lambda: self._save(self.manifest.replaced(current)))
        sittings = begun(current.sittings, current.rows)
        self._start(replace(current, run=self.run or current.run, sittings=sittings), block)
        return current.rows

    def add(self, rows: StepRows) -> None:
        """Copy one row of each stream, columns ``[N, *shape]``; the thread stores them soon.

        Waits only if ``buffer_bytes`` of rows are in memory already: then it says so, and waits until there is room.

        Raises:
            DataError: a column is missing, unknown or of another shape. Only the first call checks.
            RunError: another run has taken the lease, or the thread has failed.
        """
        self._writing().add(rows)

    def extend(self, rows: Mapping[str, np.ndarray]) -> None:
        """Copy n rows of each stream, columns ``[N, n, *shape]``; else as ``add``."""
        self._writing().extend(rows)

    def flush(self, timeout: float | None = None) -> bool:
        """Store all rows added so far; True if that took at most ``timeout`` seconds (None: wait for ever)."""
        return self._writing().flush(timeout)

    def pending(self) -> dict[str, np.ndarray]:
        """Return the rows that are not stored yet, columns ``[N, count - committed, *shape]``."""
        return self._writing().pending()

    def read(
        self,
        segment: str | Segment,
        start: int = 0,
        stop: int | None = None,
        streams: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
        room: Room | None = None,
    ) -> Iterator[Chunk]:
        """Yield the stored rows ``start`` to ``stop - 1`` (None: to the newest), oldest first, one chunk at a time.

        ``streams`` and ``columns`` default to all. ``room`` returns the arrays that a chunk is read into, or None for
        new ones. Damaged rows are listed in ``Chunk.damaged`` and left out by ``Chunk.whole``.

        Raises:
            RunError: there is no such segment, or the place is behind a URL and cannot be read.
        """
        found = segment if isinstance(segment, Segment) else self.manifest.segment(segment)
        if found is None:
            raise RunError(f"the store {self.objects.where} has no segment '{segment}'.")
        return read(self.objects, found, start, stop, streams, columns, room)

    def drop(self, before: int) -> None:
        """Delete the files of the current segment that hold only rows before ``before``; nothing if keep = "all"."""
        if self.keep != "all":
            self._writing().drop(before)

    def close(self, timeout: float | None = None) -> bool:
        """Store all rows, waiting at most ``timeout`` seconds, and end the thread; True if all rows are stored."""
        done = self._stop(timeout)
        if self.lease is not None and done:  # else the place does not answer, and the lease will expire
            with contextlib.suppress(*self.objects.failures):
                self.lease.release()
        return done

    # ------------------------------------------------------------ inside

    def _stop(self, timeout: float | None) -> bool:
        writer, self.writer = self.writer, None
        if writer is None:
            return True
        writer.close(timeout)
        left = writer.count - writer.committed  # asked again: the thread may have written more after the timeout
        if left:
            rows = plural(left, "row")
            self.say(f"the store {self.objects.where} was closed before {rows} of each stream could be written")
        return not left

    def _writing(self) -> Writer:
        if self.writer is None:
            raise RunError(f"the store {self.objects.where} is not open for writing: call begin() or resume() first.")
        return self.writer

    def _start(self, segment: Segment, block: dict[str, np.ndarray] | None) -> None:
        lease = self.lease
        guard = None
        if lease is not None:
            self._reached(lambda: lease.hold(segment.id))
            guard = lease.hold
        self.writer = Writer(self.objects, segment, self._commit, say=self.say, buffer_bytes=self.buffer_bytes,
                             newest=block, guard=guard, every=RENEWS, waits=self.waits)  # fmt: skip
        self.writer.stopping = lambda: self.stopping()

    def _commit(self, segment: Segment) -> None:
        """Write a manifest that counts the rows of ``segment``; called in the writer's thread."""
        manifest = self.manifest.replaced(segment)
        manifests.save(self.objects, manifest)
        self.manifest = manifest
        for name in segment.columns:
            self.objects.stage(f"{segment.name}/{name}/{META}", packed(array_meta(segment, name)))
        self.objects.publish()

    def _save(self, manifest: Manifest) -> None:
        mend(self.objects, manifest)
        manifests.save(self.objects, manifest)
        self.manifest = manifest

    def _cut(self, segment: Segment, rows: int, keep_newer: bool) -> None:
        """Make ``segment`` the last one and end it before row ``rows``; with ``keep_newer`` only make it the last."""
        position = self.manifest.segments.index(segment)
        later = self.manifest.segments[position + 1 :]
        stay = tuple(s for s in later if keep_newer or not self.owns(s))
        own = tuple(s for s in later if s not in stay)
        manifest = replace(self.manifest, segments=(*self.manifest.segments[:position], *stay, segment, *own))
        if own or (segment.rows > rows and not keep_newer):
            manifest = set_aside(self.objects, manifest, segment, rows)
        fresh = manifest.aside[len(self.manifest.aside) :]
        if manifest != self.manifest:
            self._save(manifest)
        if fresh:
            count = sum((s.rows - s.first) * s.streams for s in fresh)
            names = " and ".join(s.name for s in fresh)
            self.say(
                f"{plural(count, 'row')} stored after this checkpoint were set aside in {self.objects.where}: {names}"
            )

    def _mend(self) -> None:
        """Repair both manifest files and every ``zarr.json``."""
        if not self.manifest.segments:
            return
        self._reached(lambda: manifests.mend(self.objects, self.manifest))
        for name, why in self._reached(lambda: mend(self.objects, self.manifest)).items():
            self.say(f"{self.objects.where}/{name} {why}: rewritten from the manifest")

    def _reached(self, action: Callable[[], T]) -> T:
        """Return the result of ``action``; errors of the place are raised as a RunError with advice."""
        try:
            return action()
        except ReverieError:
            raise
        except self.objects.failures as error:
            raise self.objects.error(error) from error

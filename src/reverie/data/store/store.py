"""The durable store: every row that was lived, in Zarr 3, in a local folder or behind a URL.

::

    manifest.json, manifest-backup.json      what counts as stored; replaced in one go, sealed
    lease.json                               who writes, behind a URL (lease.py)
    zarr.json                                so that zarr.open(folder) shows everything
    0/  1/  ...                              segments: fixed columns, a fixed number of streams
        obs/image/zarr.json  c.0.0.0.0.0     one array a column [streams, rows, *shape]; a file is one stream's chunk
    aside/0/  ...                            rows that a resumed run has set aside
    damaged/0/...                            damaged files that had to be replaced
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from reverie.core.errors import ReverieError, RunError
from reverie.data.rings import Rows
from reverie.data.storage import Column
from reverie.data.store import manifest as manifests
from reverie.data.store.aside import check_place, loaded, mend, set_aside, tidied
from reverie.data.store.lease import RENEWS, Lease
from reverie.data.store.manifest import Manifest, Segment, check_same
from reverie.data.store.places import open_objects
from reverie.data.store.read import Chunk, Room, read
from reverie.data.store.sittings import Sittings, begun
from reverie.data.store.writer import Writer
from reverie.data.store.zarr import META, array_meta, chunk_rows, packed

T = TypeVar("T")


class Store:
    """Rows appended by a background thread, and read back.

    Rows of N streams grow together; row numbers and streams are those of the replay. A row counts as stored once
    ``manifest.json`` says so. Files are never changed, only replaced in one go, by files that hold the same rows and
    more. A process may be killed at any moment.
    """

    def __init__(
        self,
        url: str | Path,
        *,
        say: Callable[[str], None],
        buffer_bytes: int = 10**9,
        keep: Literal["all", "replay"] = "all",
        run: str = "",
        waits: bool = True,
    ) -> None:
        """Nothing is written before ``claim``, ``begin`` or ``resume``. ``say`` gets sentences, from any thread.

        ``keep``: "all" rows for ever, or what the "replay" holds, that is, what ``drop`` leaves. ``run`` is the folder
        of the run that writes, as others are told that want to; "" where all segments are of the same run. With
        ``waits`` rows that cannot be written wait until they can; that is an error at once otherwise.

        Raises:
            ConfigError: the URL cannot be used: an unknown kind, or a package is missing.
            RunError: it cannot be reached, or what is there is of a newer version or damaged beyond use.
        """
        self.objects = open_objects(url)
        self.say, self.buffer_bytes, self.keep, self.run = say, buffer_bytes, keep, run
        self.waits = waits
        self.stopping: Callable[[], bool] = lambda: False
        """Asked while ``add`` waits for a full buffer: True lets it go over the bound, as the run is about to end."""
        self.manifest = self._reached(lambda: manifests.load(self.objects, say)) or Manifest()
        self.writer: Writer | None = None
        self.lease = Lease(self.objects, run, say) if self.objects.leased else None

    @property
    def segments(self) -> list[Segment]:
        """The segments as committed, the oldest first; rows go to the last."""
        return list(self.manifest.segments)

    @property
    def aside(self) -> list[Segment]:
        """What was set aside; can be read as segments can."""
        return list(self.manifest.aside)

    @property
    def count(self) -> int:
        """The number that the next row of the current segment gets."""
        return self._writing().count

    @property
    def committed(self) -> int:
        """Rows of the current segment below this number are stored."""
        return self._writing().committed

    @property
    def sittings(self) -> Sittings:
        """Those of the current segment, this one included."""
        return self._writing().segment.sittings

    def owns(self, segment: Segment) -> bool:
        """Whether a segment is of this run, or nobody knows of whom."""
        return not self.run or segment.run in ("", self.run)

    def claim(self, segment: str = "") -> None:
        """Make sure that no other run writes here, and see what is there now. ``begin`` and ``resume`` do it anyway.

        ``segment`` is the id of the one that is to be resumed: its lease is taken from whoever has it.

        Raises:
            RunError: another run writes, or the place cannot be written, or holds something that is no store.
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
        """Begin a segment whose next row has the number ``first``, and return its name.

        The first ``imported`` rows of each stream that will be added are copies of rows that this store already has.
        ``sittings``: where the first rows were written before, under the same numbers, with this one at the end.

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
        """Go on writing ``segment`` after its row ``rows - 1``; returns the number that the next row gets.

        That is less than ``rows`` if fewer are stored. Stored rows beyond, and segments that this run began later, are
        set aside, unless ``keep_newer`` says to go on after them.

        Raises:
            RunError: there is no such segment, the place cannot be written, or another run writes to it.
            ConfigError: the segment holds other columns or another number of streams.
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

    def add(self, rows: Rows) -> None:
        """One row of each stream ``[N, *shape]``; they are copied, and stored soon.

        Never waits, except when ``buffer_bytes`` wait for the store: then it says so, and waits until there is room.

        Raises:
            DataError: on the first call only: a column is missing, unknown or of another shape.
            RunError: the thread has failed, which it should not.
        """
        self._writing().add(rows)

    def extend(self, rows: Mapping[str, np.ndarray]) -> None:
        """Many rows of each stream ``[N, n, *shape]``; as ``add``."""
        self._writing().extend(rows)

    def flush(self, timeout: float | None = None) -> bool:
        """Store everything added so far; whether that was done within ``timeout`` seconds (None: wait for ever)."""
        return self._writing().flush(timeout)

    def pending(self) -> dict[str, np.ndarray]:
        """Rows that are not stored yet, ``[N, count - committed, *shape]``."""
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
        """Stored rows from ``start`` to before ``stop``, oldest first, a chunk at a time; all streams and columns.

        ``room`` says where so many rows are to be put, None: in memory of their own. Damaged rows are named in
        ``Chunk.damaged`` and left out by ``Chunk.whole``.

        Raises:
            RunError: there is no such segment.
        """
        found = segment if isinstance(segment, Segment) else self.manifest.segment(segment)
        if found is None:
            raise RunError(f"the store {self.objects.where} has no segment '{segment}'.")
        return read(self.objects, found, start, stop, streams, columns, room)

    def drop(self, before: int) -> None:
        """Files of the current segment that lie wholly before row ``before`` may be deleted; kept with keep = all."""
        if self.keep != "all":
            self._writing().drop(before)

    def close(self, timeout: float | None = None) -> bool:
        """Store everything, within ``timeout`` seconds, and end the thread; whether all of it is stored."""
        done = self._stop(timeout)
        if self.lease is not None and done:  # else the place does not answer, and the lease ends by itself
            with contextlib.suppress(*self.objects.failures):
                self.lease.release()
        return done

    # ------------------------------------------------------------ inside

    def _stop(self, timeout: float | None) -> bool:
        writer, self.writer = self.writer, None
        if writer is None:
            return True
        writer.close(timeout)
        left = writer.count - writer.committed  # its thread may have had them written after the time was over
        if left:
            self.say(f"the store {self.objects.where} was closed before {left} rows of each stream could be written")
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
        """Make the rows of ``segment`` count; in the writer's thread."""
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
        """Make ``segment`` the last and end it at ``rows``."""
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
            self.say(f"{count} rows stored after this checkpoint were set aside, in {self.objects.where}: {names}")

    def _mend(self) -> None:
        """Both manifests, and the ``zarr.json`` of what was stored before."""
        if not self.manifest.segments:
            return
        self._reached(lambda: manifests.mend(self.objects, self.manifest))
        for name, why in self._reached(lambda: mend(self.objects, self.manifest)).items():
            self.say(f"{self.objects.where}/{name} {why}: written again from the manifest")

    def _reached(self, action: Callable[[], T]) -> T:
        """The result of ``action``; what keeps it from the place is told as an error of ours."""
        try:
            return action()
        except ReverieError:
            raise
        except self.objects.failures as error:
            raise self.objects.error(error) from error

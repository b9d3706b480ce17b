"""Segments: the rows that one process has written to a store.

Each writing process makes its own *segment*, a Zarr group that no other process ever writes to. Its ``parent`` is the
segment and row from which the process resumed; row numbers continue through this *chain*. So a process can be killed at
any moment, and a copy of a run is merely a second child: nothing is locked, repaired or moved. Rows of the parent after
that row are *superseded*: they stay readable, but are not part of the chain.

A row is *stored* once ``zarr.json`` of its segment's group counts it; files can contain additional rows. This
``zarr.json`` describes the whole segment and ends with its SHA-256 (*seal*). Each column's ``zarr.json`` repeats the
description: if the group's is damaged, the newest copy among the columns is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from reverie.core.errors import RunError
from reverie.core.logger import logger
from reverie.core.specs import ColumnSpec
from reverie.store.objects import ObjectStore

FORMAT = 3
META = "zarr.json"
LARGEST_CHUNK = 1_000_000_000
"""Maximum bytes of a chunk; those that are written here have 4 MiB, or a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Rows with fixed columns and streams; a Zarr group of arrays ``[streams, rows - first, *shape]``."""

    name: str  # folder of the Zarr group: a number, in the order in which segments began, and a random mark
    run: str = ""  # folder of the run that wrote it; "" if not known, as for a store in the run's own folder
    streams: int
    columns: Mapping[str, ColumnSpec]
    chunk: int  # number of rows per file; a file holds rows of one stream and one column
    parent: tuple[str, int] | None = None
    """Name of the segment and number of the row before which this segment continues it."""
    first: int = 0  # number of the first row
    rows: int = 0  # number of the newest row plus 1. The same for all streams, as they grow together
    first_kept: int = 0  # number of the oldest row that has not been deleted
    imported: int = 0  # how many rows, from ``first`` on, are copies of rows of other segments of the same store

    @property
    def number(self) -> int:
        """The number in its name."""
        return int(self.name.partition("-")[0])

    @property
    def nbytes_of_row(self) -> int:
        """Uncompressed bytes of one row of one stream."""
        return sum(column.nbytes for column in self.columns.values())

    def sealed(self) -> dict[str, Any]:
        """Return everything except the name as plain values, with the seal."""
        columns = {name: {"shape": list(c.shape), "dtype": c.dtype} for name, c in self.columns.items()}
        content = {name: getattr(self, name) for name in self.__slots__ if name != "name"}
        content |= {"columns": columns, "parent": list(self.parent) if self.parent else None, "format": FORMAT}
        return {**content, "seal": _segment_digest(content)}


class SegmentRange(NamedTuple):
    """Rows ``start`` to ``stop - 1`` of a segment."""

    segment: Segment
    start: int
    stop: int


def _segment_digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of ``content`` as JSON with sorted keys, in hexadecimal."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def parse_segment(name: str, data: bytes) -> Segment:
    """Return the segment ``name`` that the bytes of one of its ``zarr.json`` describe."""
    try:
        content = dict(json.loads(data)["attributes"])
        sealed = content.pop("seal")
        if (version := int(content["format"])) > FORMAT:
            raise RunError(f"{name}/{META} has format {version}; this version reads up to {FORMAT}: upgrade reverie.")
        if sealed != _segment_digest(content):
            raise ValueError("its checksum does not match")
        del content["format"]
        columns = {key: ColumnSpec(tuple(c["shape"]), str(c["dtype"])) for key, c in content.pop("columns").items()}
        parent = tuple(content.pop("parent") or ()) or None
        segment = Segment(name=name, columns=columns, parent=parent, **content)
        if segment.chunk < 1 or segment.streams < 1 or not 0 <= segment.first <= segment.first_kept <= segment.rows:
            raise ValueError("its numbers of rows contradict each other")
        if max((column.nbytes for column in columns.values()), default=0) * segment.chunk > LARGEST_CHUNK:
            raise ValueError(f"a chunk has more than {LARGEST_CHUNK:,} bytes")
        return segment
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(str(error) or repr(error)) from error


def is_store_root(data: bytes) -> bool:
    """Return True if ``data``, the bytes of a ``zarr.json``, mark the root of a store."""
    try:
        return "reverie_store" in json.loads(data)["attributes"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def load_segment(objects: ObjectStore, name: str) -> Segment | None:
    """Read the segment in the folder ``name``; None if it has no readable ``zarr.json``."""
    group = f"{name}/{META}"
    try:
        return parse_segment(name, objects.get(group))
    except FileNotFoundError:
        problem = ""
    except ValueError as error:
        problem = f"is damaged ({error})"
    readable = []
    for file in objects.sizes(name):
        if file.endswith(f"/{META}") and file != group:
            with contextlib.suppress(ValueError, FileNotFoundError):
                readable.append(parse_segment(name, objects.get(file)))
    newest = max(readable, key=lambda segment: segment.rows, default=None)
    if newest is None and problem:
        logger.warning(
            f"{objects.location}/{group} {problem}, and so is the zarr.json of every column: its rows are skipped"
        )
    if newest is not None and newest.rows > newest.first:
        logger.warning(f"{objects.location}/{group} {problem or 'is missing'}: using the zarr.json of a column")
    return newest

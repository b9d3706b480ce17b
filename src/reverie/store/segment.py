"""Segments: what one process has written to a store.

A process that writes makes a *segment* of its own, a Zarr group that nobody else ever writes to. Its ``parent`` is the
segment, and the row of it, after which the process went on; row numbers go on through this *chain*. So a process may be
killed at any moment, and a copy of a run is merely a second child: nothing is locked, repaired or moved. Rows of the
parent after that row are *superseded*: they stay readable, but are not part of the chain.

A row is *stored* once ``zarr.json`` of its segment's group counts it; files that hold other rows as well are normal.
That file holds everything about the segment, with a SHA-256 of it (*seal*). Each column's ``zarr.json`` repeats it: if
the first is damaged, the newest of these is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from reverie.core.columns import Column
from reverie.core.errors import RunError
from reverie.core.logger import logger
from reverie.store.places import Objects

FORMAT = 3
META = "zarr.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Rows with fixed columns and streams; a Zarr group of arrays ``[streams, rows - first, *shape]``."""

    name: str  # folder of the Zarr group: a number, in the order in which segments began, and a random mark
    run: str = ""  # folder of the run that wrote it; "" if not known, as for a store in the run's own folder
    streams: int
    columns: Mapping[str, Column]
    chunk: int  # number of rows per file; a file holds rows of one stream and one column
    parent: tuple[str, int] | None = None
    """Name of the segment, and number of its row, before which the process went on."""
    first: int = 0  # number of the first row
    rows: int = 0  # number of the newest row plus 1. The same for all streams, as they grow together
    kept: int = 0  # number of the oldest row that has not been deleted
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
        """Return everything but the name as plain values, with the seal."""
        columns = {name: {"shape": list(c.shape), "dtype": c.dtype} for name, c in self.columns.items()}
        content = {name: getattr(self, name) for name in self.__slots__ if name != "name"}
        content |= {"columns": columns, "parent": list(self.parent) if self.parent else None, "format": FORMAT}
        return {**content, "seal": seal(content)}


class Part(NamedTuple):
    """Rows ``start`` to ``stop - 1`` of a segment."""

    segment: Segment
    start: int
    stop: int


def seal(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of ``content`` as JSON with sorted keys, in hexadecimal."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def parse(name: str, data: bytes) -> Segment:
    """Return the segment ``name`` that the bytes of one of its ``zarr.json`` describe."""
    try:
        content = dict(json.loads(data)["attributes"])
        sealed = content.pop("seal")
        if (version := int(content["format"])) > FORMAT:
            raise RunError(f"{name}/{META} has format {version}; this version reads up to {FORMAT}: upgrade reverie.")
        if sealed != seal(content):
            raise ValueError("its checksum does not match")
        del content["format"]
        columns = {key: Column(tuple(c["shape"]), str(c["dtype"])) for key, c in content.pop("columns").items()}
        parent = tuple(content.pop("parent") or ()) or None
        return Segment(name=name, columns=columns, parent=parent, **content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(str(error) or repr(error)) from error


def is_store(data: bytes) -> bool:
    """Return True if the bytes of a ``zarr.json`` are those at the root of a store."""
    try:
        return "reverie_store" in json.loads(data)["attributes"]
    except (ValueError, TypeError, KeyError):
        return False


def load(objects: Objects, name: str) -> Segment | None:
    """Read the segment in the folder ``name``; None if there is none, or it was never begun."""
    group = f"{name}/{META}"
    try:
        return parse(name, objects.get(group))
    except FileNotFoundError:
        wrong = ""
    except ValueError as error:
        wrong = f"is damaged ({error})"
    found = []
    for file in objects.sizes(name):
        if file.endswith(f"/{META}") and file != group:
            with contextlib.suppress(ValueError, FileNotFoundError):
                found.append(parse(name, objects.get(file)))
    newest = max(found, key=lambda segment: segment.rows, default=None)
    if newest is None and wrong:
        logger.warning(f"{objects.where}/{group} {wrong}, and so are those of its columns: its rows are left out")
    if newest is not None and newest.rows > newest.first:
        logger.warning(f"{objects.where}/{group} {wrong or 'is missing'}: using those of its columns")
    return newest

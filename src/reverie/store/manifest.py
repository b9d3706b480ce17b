"""The manifest of a store: a JSON file that lists its segments and how many rows of each are stored.

It holds a SHA-256 of its own contents (the *seal*), and is written twice, as ``manifest.json`` and its backup.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from reverie.core.columns import Column
from reverie.core.errors import ConfigError, RunError
from reverie.core.words import Say
from reverie.store import sittings as marks
from reverie.store.objects import Objects
from reverie.store.sittings import Sittings

FORMAT = 2
"""Version of the manifest's format. Version 1 had neither the run nor the sittings of a segment."""
MANIFEST, BACKUP = "manifest.json", "manifest-backup.json"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Rows with fixed columns and a fixed number of streams; a Zarr group with one array per column.

    Each array is ``[streams, rows, *shape]``; a row's number is its index in the second dimension.
    """

    name: str
    """Folder of the Zarr group in the store."""
    id: str = ""
    """Random identifier, unique among all stores."""
    run: str = ""
    """Folder of the run that writes it; "" if not known, as for a store in the run's own folder."""
    streams: int
    columns: Mapping[str, Column]
    chunk: int
    """Number of rows per file; a file holds rows of one stream and one column."""
    start: int = 0
    """Number of the first row that was ever written."""
    first: int = 0
    """Number of the oldest row that has not been deleted."""
    rows: int = 0
    """Number of the newest row plus 1. The same for all streams, as they grow together."""
    imported: int = 0
    """How many rows, from ``start`` on, are copies of rows in older segments of the same store."""
    damaged: tuple[Damage, ...] = ()
    """Rows found damaged when writing was resumed; their file has been replaced since."""
    origin: str = ""
    """For rows set aside: name of the segment that they were part of; else ""."""
    offset: int = 0
    """For rows set aside: the number that row 0 of this group had in ``origin``."""
    sittings: Sittings = ()
    """Which process wrote which rows. For rows set aside, the numbers are those of ``origin``, and the sittings before
    that of their first row may be missing."""

    @property
    def own_rows(self) -> int:
        """Number of rows, over all streams, that are neither deleted nor copies of rows in older segments."""
        return (self.rows - max(self.first, self.start + self.imported)) * self.streams

    @property
    def nbytes_of_row(self) -> int:
        """Uncompressed bytes of one row of one stream."""
        return sum(column.nbytes for column in self.columns.values())

    def plain(self) -> dict[str, Any]:
        """Return the segment as a dictionary that JSON can hold."""
        columns = {name: {"shape": list(c.shape), "dtype": c.dtype} for name, c in self.columns.items()}
        fields = {name: getattr(self, name) for name in self.__slots__}
        damaged = [asdict(damage) for damage in self.damaged]
        return {**fields, "columns": columns, "damaged": damaged, "sittings": marks.plain(self.sittings)}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Segment:
        """Return the segment that ``plain`` describes; the inverse of the method ``plain``."""
        columns = {name: Column(tuple(c["shape"]), str(c["dtype"])) for name, c in plain["columns"].items()}
        damaged = tuple(Damage(**damage) for damage in plain["damaged"])
        sittings = marks.of_plain(plain.get("sittings", ()))
        return cls(**{**plain, "columns": columns, "damaged": damaged, "sittings": sittings})


@dataclass(frozen=True, slots=True)
class Manifest:
    """The segments, oldest first, and the groups of rows that were set aside."""

    segments: tuple[Segment, ...] = ()
    aside: tuple[Segment, ...] = ()

    def segment(self, name: str) -> Segment | None:
        """Return the segment called ``name``, or None."""
        return next((segment for segment in self.segments if segment.name == name), None)

    def replaced(self, segment: Segment) -> Manifest:
        """Return a manifest in which ``segment`` replaces the one with the same name."""
        return replace(self, segments=tuple(segment if s.name == segment.name else s for s in self.segments))

    def next_name(self) -> str:
        """Return a name for a new segment: the next number that no segment has had."""
        taken = [int(s.name) for s in (*self.segments, *self.aside) if s.name.isdigit()]
        return str(max(taken, default=-1) + 1)

    def next_aside(self) -> str:
        """Return a name for a new group of rows set aside, such as ``aside/2``."""
        taken = [int(s.name.removeprefix(ASIDE)) for s in self.aside if s.name.startswith(ASIDE)]
        return f"{ASIDE}{max(taken, default=-1) + 1}"

    def encoded(self) -> bytes:
        """Return the bytes of the file, with the seal."""
        content = {"format": FORMAT, "segments": [s.plain() for s in self.segments],
                   "aside": [s.plain() for s in self.aside]}  # fmt: skip
        return json.dumps({**content, "seal": seal(content)}, indent=1).encode()


ASIDE = "aside/"


def seal(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of ``content`` as JSON with sorted keys, in hexadecimal."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def decoded(data: bytes) -> Manifest:
    """Parse the bytes of a manifest and check its seal.

    Raises:
        ValueError: the manifest is damaged.
        RunError: its format is newer than this version can read.
    """
    try:
        content = json.loads(data)
        sealed, version = content.pop("seal"), int(content["format"])
        if version > FORMAT:
            raise RunError(f"it has format {version}; this version reads up to {FORMAT}: upgrade reverie.")
        if sealed != seal(content):
            raise ValueError("its checksum does not match")
        return Manifest(*(tuple(Segment.of(s) for s in content[part]) for part in ("segments", "aside")))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(str(error) or repr(error)) from error


def load(objects: Objects, say: Say) -> Manifest | None:
    """Read the manifest of a store; None if there is none.

    If one of the two files is damaged or missing, ``say`` gets a sentence about it and the other one is used.

    Raises:
        RunError: no file is usable and at least one is damaged, or one is from a newer version.
    """
    wrong: dict[str, str] = {}
    found: list[Manifest] = []
    for name in (MANIFEST, BACKUP):
        try:
            found.append(decoded(objects.get(name)))
        except FileNotFoundError:
            wrong[name] = "is missing"
        except ValueError as error:
            wrong[name] = f"is damaged ({error})"
        except RunError as error:
            raise RunError(f"{objects.where}/{name} cannot be read: {error}") from None
    if found:
        for name, why in wrong.items():
            say(f"{objects.where}/{name} {why}: using {BACKUP if name == MANIFEST else MANIFEST}")
        return found[0]
    if all(why == "is missing" for why in wrong.values()):
        return None
    listed = " and ".join(f"{name} {why}" for name, why in wrong.items())
    raise RunError(
        f"the store {objects.where} has no usable manifest: {listed}. Its rows are still there: each segment is a "
        "Zarr group that zarr.open can read. Restore one of the two files from a backup, or choose another store."
    )


def save(objects: Objects, manifest: Manifest) -> None:
    """Replace the manifest, then its backup. Rows count as stored as soon as the first of the two is replaced."""
    data = manifest.encoded()
    objects.put(MANIFEST, data)
    objects.put(BACKUP, data)


def mend(objects: Objects, manifest: Manifest) -> None:
    """Write each of the two files again unless it holds exactly ``manifest``."""
    data = manifest.encoded()
    for name in (MANIFEST, BACKUP):
        try:
            if objects.get(name) == data:
                continue
        except FileNotFoundError:
            pass
        objects.put(name, data)


def check_same(segment: Segment, columns: Mapping[str, Column], streams: int, where: str) -> None:
    """Check that rows with these columns and this number of streams can be appended to ``segment``.

    Raises:
        ConfigError: they cannot; the message names each difference.
    """
    wrong = [f"the store has no {name}" for name in columns if name not in segment.columns]
    wrong += [f"only the store has {name}" for name in segment.columns if name not in columns]
    wrong += [
        f"{name} is {held.dtype} {list(held.shape)} there, not {columns[name].dtype} {list(columns[name].shape)}"
        for name, held in segment.columns.items()
        if name in columns and held != columns[name]
    ]
    if segment.streams != streams:
        wrong.append(f"the store has {segment.streams} streams, not {streams}")
    if wrong:
        raise ConfigError(
            f"the new rows do not match segment {segment.name} of the store {where}: {'; '.join(wrong)}. Use the "
            "environment that filled the store, or choose another store."
        )

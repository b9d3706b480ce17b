"""What a store counts as stored: its manifest, a JSON file with a seal, written twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from reverie.core.errors import ConfigError, RunError
from reverie.data.storage import Column
from reverie.data.store import sittings as marks
from reverie.data.store.objects import Objects
from reverie.data.store.sittings import Sittings

FORMAT = 2
"""1 knew neither of whom segments are nor of their sittings."""
MANIFEST, BACKUP = "manifest.json", "manifest-backup.json"


@dataclass(frozen=True, slots=True)
class Damage:
    """Rows of one stream that cannot be used, and why."""

    file: str
    stream: int
    start: int
    stop: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason} (rows {self.start} to {self.stop - 1} of stream {self.stream})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Rows of a fixed number of streams and fixed columns; a Zarr group with one array a column.

    Row numbers are positions in the arrays: ``[streams, rows, *shape]``.
    """

    name: str
    """The group's folder in the store."""
    id: str = ""
    """What no other segment of any store is called."""
    run: str = ""
    """The folder of the run that writes it; "" if that is not known, as in a run's own folder."""
    streams: int
    columns: Mapping[str, Column]
    chunk: int
    """Rows of one stream that lie together in a file."""
    start: int = 0
    """The number of the first row that it ever had."""
    first: int = 0
    """The oldest row still there."""
    rows: int = 0
    """One more than the number of the newest row; of each stream, as they grow together."""
    imported: int = 0
    """So many rows from ``start`` on are copies of this store's own older rows."""
    damaged: tuple[Damage, ...] = ()
    """Rows found damaged when the segment was taken up again; their file has been replaced since."""
    origin: str = ""
    """Rows set aside: the segment that they were part of."""
    offset: int = 0
    """Rows set aside: the number that this group's row 0 had there."""
    sittings: Sittings = ()
    """Who wrote which rows; by the numbers that rows set aside had in ``origin``."""

    @property
    def own_rows(self) -> int:
        """Rows of all streams that are still there and no copies of this store's older ones."""
        return (self.rows - max(self.first, self.start + self.imported)) * self.streams

    @property
    def nbytes_of_row(self) -> int:
        """Bytes of one row of one stream, not compressed."""
        return sum(column.nbytes for column in self.columns.values())

    def plain(self) -> dict[str, Any]:
        """Values fit for JSON."""
        columns = {name: {"shape": list(c.shape), "dtype": c.dtype} for name, c in self.columns.items()}
        fields = {name: getattr(self, name) for name in self.__slots__}
        damaged = [asdict(damage) for damage in self.damaged]
        return {**fields, "columns": columns, "damaged": damaged, "sittings": marks.plain(self.sittings)}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Segment:
        """The inverse of ``plain``."""
        columns = {name: Column(tuple(c["shape"]), str(c["dtype"])) for name, c in plain["columns"].items()}
        damaged = tuple(Damage(**damage) for damage in plain["damaged"])
        sittings = marks.of_plain(plain.get("sittings", ()))
        return cls(**{**plain, "columns": columns, "damaged": damaged, "sittings": sittings})


@dataclass(frozen=True, slots=True)
class Manifest:
    """Segments, the oldest first, and what was set aside."""

    segments: tuple[Segment, ...] = ()
    aside: tuple[Segment, ...] = ()

    def segment(self, name: str) -> Segment | None:
        """The segment of that name."""
        return next((segment for segment in self.segments if segment.name == name), None)

    def replaced(self, segment: Segment) -> Manifest:
        """With ``segment`` in the place of the one of its name."""
        return replace(self, segments=tuple(segment if s.name == segment.name else s for s in self.segments))

    def next_name(self) -> str:
        """A name that no segment has had."""
        taken = [int(s.name) for s in (*self.segments, *self.aside) if s.name.isdigit()]
        return str(max(taken, default=-1) + 1)

    def next_aside(self) -> str:
        """A name for rows set aside."""
        taken = [int(s.name.removeprefix(ASIDE)) for s in self.aside if s.name.startswith(ASIDE)]
        return f"{ASIDE}{max(taken, default=-1) + 1}"

    def encoded(self) -> bytes:
        """The file."""
        content = {"format": FORMAT, "segments": [s.plain() for s in self.segments],
                   "aside": [s.plain() for s in self.aside]}  # fmt: skip
        return json.dumps({**content, "seal": seal(content)}, indent=1).encode()


ASIDE = "aside/"


def seal(content: Mapping[str, Any]) -> str:
    """SHA-256 of what the manifest itself says."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def decoded(data: bytes) -> Manifest:
    """The manifest in a file.

    Raises:
        ValueError: it is damaged.
        RunError: its format is newer than this version can read.
    """
    try:
        content = json.loads(data)
        sealed, version = content.pop("seal"), int(content["format"])
        if version > FORMAT:
            raise RunError(f"it has format {version}; this version reads up to {FORMAT}: upgrade reverie.")
        if sealed != seal(content):
            raise ValueError("its contents do not match their seal")
        return Manifest(*(tuple(Segment.of(s) for s in content[part]) for part in ("segments", "aside")))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(str(error) or repr(error)) from error


def load(objects: Objects, say: Callable[[str], None]) -> Manifest | None:
    """The manifest of the store, None where there is none; a damaged or lost one is said, and its copy used.

    Raises:
        RunError: both are damaged, or from a newer version.
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
        f"the store {objects.where} has no usable manifest: {listed}. Its rows are still there, each segment a Zarr "
        "group that zarr.open can read: bring one of the two files back from a backup, or choose another folder."
    )


def save(objects: Objects, manifest: Manifest) -> None:
    """Replace the manifest; from then on its rows count. Then the copy, so that no single file holds the truth."""
    data = manifest.encoded()
    objects.put(MANIFEST, data)
    objects.put(BACKUP, data)


def mend(objects: Objects, manifest: Manifest) -> None:
    """Write the two files again unless both say this."""
    data = manifest.encoded()
    for name in (MANIFEST, BACKUP):
        try:
            if objects.get(name) == data:
                continue
        except FileNotFoundError:
            pass
        objects.put(name, data)


def check_same(segment: Segment, columns: Mapping[str, Column], streams: int, where: str) -> None:
    """Rows of ``columns`` and ``streams`` can go on in ``segment``.

    Raises:
        ConfigError: they cannot; names each difference.
    """
    wrong = [f"{name} is not in it" for name in columns if name not in segment.columns]
    wrong += [f"it has {name}, too" for name in segment.columns if name not in columns]
    wrong += [
        f"{name} is {held.dtype} {list(held.shape)} in it, not {columns[name].dtype} {list(columns[name].shape)}"
        for name, held in segment.columns.items()
        if name in columns and held != columns[name]
    ]
    if segment.streams != streams:
        wrong.append(f"it has {segment.streams} streams, not {streams}")
    if wrong:
        raise ConfigError(
            f"the store {where} holds other rows in segment {segment.name}: {'; '.join(wrong)}. Use the environment "
            "that filled it, or choose another folder."
        )

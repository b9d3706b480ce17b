"""Where a store lies: named pieces of bytes, in a local folder (here) or behind a URL (``remote.py``)."""

from __future__ import annotations

import contextlib
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path

from reverie.core.errors import RunError
from reverie.data import files

LEASE = "lease.json"
"""Who may write, in places that need it said; see ``lease.py``."""


class Objects(ABC):
    """Pieces of bytes by name, such as ``0/reward/c.0.3``. A piece is replaced in one go: readers see old or new.

    Up to ``threads`` threads may stage at the same time.
    """

    where: str
    """What people call the place: a path or a URL."""
    threads: int
    """How many pieces are best sent or fetched at the same time."""
    leased = False
    """Whether a lease keeps others from writing, as nothing else does."""
    failures: tuple[type[Exception], ...]
    """What a place that cannot be reached or has no room left raises; ``FileNotFoundError`` is not meant."""

    @abstractmethod
    def get(self, name: str) -> bytes:
        """The piece.

        Raises:
            FileNotFoundError: there is none.
        """

    @abstractmethod
    def stage(self, name: str, *parts: bytes | memoryview) -> None:
        """Write a piece, its parts one after the other, which counts once ``publish`` has returned."""

    @abstractmethod
    def publish(self) -> None:
        """All that was staged outlives a power failure from here on. If this fails, all of it must be staged again."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Remove those pieces that are there."""

    @abstractmethod
    def sizes(self, prefix: str = "") -> Mapping[str, int | None]:
        """Bytes of every piece below the folder ``prefix``, by name in alphabetical order.

        None where the place does not say, as lists of web servers.
        """

    @abstractmethod
    def error(self, error: Exception) -> RunError:
        """One of ``failures`` as a sentence that helps, for when nothing has begun yet."""

    def put(self, name: str, data: bytes) -> None:
        """Write one piece, safe when this returns."""
        self.stage(name, data)
        self.publish()

    def tag(self, name: str) -> str:
        """What tells this version of a piece from all others; "" if there is no such piece."""
        try:
            return hashlib.sha256(self.get(name)).hexdigest()
        except FileNotFoundError:
            return ""

    def swap(self, name: str, data: bytes, tag: str) -> bool:
        """Write a piece if its version is still that of ``tag``; whether it was, and ``data`` is there now.

        As well as a place can do it: here another may write in between and is only found out afterwards, if at all.
        """
        if self.tag(name) != tag:
            return False
        self.put(name, data)
        return self.get(name) == data


PART = ".part"
"""End of the name of a file that is being written."""
AT_ONCE = 32 * 2**20
"""Bytes that are written in one go."""


class LocalObjects(Objects):
    """Files in a folder. Written beside their place, synchronised, renamed; then the folders are synchronised.

    That is put off until there is a good deal of it, and then done in few calls (``files``).
    """

    def __init__(self, folder: Path) -> None:
        """Nothing is created before something is published."""
        self.where, self.threads, self.failures = str(folder), 1, (OSError,)
        self.folder = folder
        self.staged: dict[Path, Path] = {}  # the place, and the file beside it
        self.unwritten: dict[Path, files.Parts] = {}  # of those beside
        self.unwritten_bytes = 0

    def get(self, name: str) -> bytes:
        """See ``Objects``."""
        return (self.folder / name).read_bytes()

    def stage(self, name: str, *parts: bytes | memoryview) -> None:
        """See ``Objects``."""
        path = self.folder / name
        beside = path.with_name(f".{path.name}{PART}")
        self.staged[path] = beside
        self.unwritten[beside] = parts
        self.unwritten_bytes += sum(map(len, parts))
        if self.unwritten_bytes >= AT_ONCE:
            self._write()

    def publish(self) -> None:
        """See ``Objects``."""
        try:
            self._write()
            files.place(self.staged)
        finally:
            self.staged, self.unwritten, self.unwritten_bytes = {}, {}, 0

    def _write(self) -> None:
        files.write(self.unwritten)
        self.unwritten, self.unwritten_bytes = {}, 0

    def delete(self, names: Iterable[str]) -> None:
        """See ``Objects``."""
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """See ``Objects``."""
        found: dict[str, int] = {}
        for folder, _, names in os.walk(self.folder / prefix):
            for file in names:
                path = Path(folder, file)
                with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                    found[path.relative_to(self.folder).as_posix()] = path.stat().st_size
        return dict(sorted(found.items()))

    def error(self, error: Exception) -> RunError:
        """See ``Objects``."""
        name, why = getattr(error, "filename", None) or self.where, getattr(error, "strerror", None) or error
        return RunError(
            f"the store {self.where} cannot be used: {why} ({name}). Free space there, or choose a folder that can "
            "be written."
        )

"""The interface between a store and its location: bytes under names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from reverie.core.errors import RunError
from reverie.core.files import LARGEST_FILE


class ObjectStore(ABC):
    """Bytes under names such as ``0/reward/c.0.3``, replaced atomically. Up to ``threads`` threads may ``stage``."""

    location: str  # the path or URL, for messages
    threads: int  # optimal number of objects to send or fetch at the same time
    exceptions: tuple[type[Exception], ...]
    """Exceptions if the location is unreachable or full; callers treat ``FileNotFoundError`` separately."""

    @abstractmethod
    def get(self, name: str, limit: int = LARGEST_FILE) -> bytes:
        """Return the bytes of an object; RunError if it has more than ``limit``."""

    @abstractmethod
    def stage(self, name: str, *parts: bytes | memoryview) -> None:
        """Write an object, the concatenation of ``parts``. It is durable only once ``publish`` has returned."""

    @abstractmethod
    def publish(self) -> None:
        """Make all staged objects durable against power failure. If this fails, all of them must be staged again."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Delete the named objects, where they exist."""

    @abstractmethod
    def sizes(self, prefix: str = "") -> Mapping[str, int | None]:
        """Return the size in bytes (None: unknown) of every object below the folder ``prefix``, by name, sorted."""

    @abstractmethod
    def children(self) -> list[str]:
        """Return the names of the folders and objects at the top."""

    @abstractmethod
    def error(self, error: Exception) -> RunError:
        """Return a RunError for one of ``failures``, with advice on what to do."""

    def keeps(self, name: str) -> bool:
        """Return whether another process can read an object that was written; some file systems are in memory."""
        return True

    def put(self, name: str, data: bytes) -> None:
        """Write one object; it is durable when this returns."""
        self.stage(name, data)
        self.publish()

"""The location of a store: bytes under names (*objects*), in a local folder, or at a URL (``remote_objects.py``)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from reverie.core.errors import RunError
from reverie.core.files import LARGEST_FILE, below, disk_error_advice, fsync_path, read_file
from reverie.store.objects import ObjectStore

PART_SUFFIX = ".part"
"""Suffix of a file that is being written."""
STAGE_BYTES = 32 * 2**20
"""Number of staged bytes written to files in one call."""


def write_files(files: Mapping[Path, Sequence[bytes | memoryview]]) -> None:
    """Write files, each the concatenation of its parts, and make missing folders."""
    for path, parts in files.items():
        try:
            file = open_empty(path)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open_empty(path)
        with file:
            for part in parts:
                file.write(part)


def rename_files(staged: Mapping[Path, Path]) -> None:
    """Rename files (the values) to the keys, after synchronizing them.

    Once this returns, the change survives a crash.
    """
    for part_path in staged.values():
        fsync_path(part_path)
    for path, part_path in staged.items():
        os.replace(part_path, path)
    for folder in dict.fromkeys(path.parent for path in staged):
        fsync_path(folder)


def open_empty(path: Path) -> BinaryIO:
    """Open a file for writing, emptied."""
    return path.open("wb")


class LocalObjects(ObjectStore):
    """Files in a folder, written as ``.name.part`` in pieces of ``STAGE_BYTES``, synchronized and renamed."""

    def __init__(self, folder: Path) -> None:
        """Open a folder; nothing is created until something is written."""
        self.location: str = str(folder)
        self.threads: int = 1
        self.exceptions: tuple[type[Exception], ...] = (OSError,)
        self.folder = folder
        self.staged: dict[Path, Path] = {}  # final path to the path of its .part file
        self.unwritten: dict[Path, Sequence[bytes | memoryview]] = {}  # .part files, contents
        self.unwritten_bytes: int = 0

    def get(self, name: str, limit: int = LARGEST_FILE) -> bytes:
        return read_file(below(self.folder, name), limit)

    def stage(self, name: str, *parts: bytes | memoryview) -> None:
        path = below(self.folder, name)
        part_path = path.with_name(f".{path.name}{PART_SUFFIX}")
        self.staged[path] = part_path
        self.unwritten[part_path] = parts
        self.unwritten_bytes += sum(map(len, parts))
        if self.unwritten_bytes >= STAGE_BYTES:
            self._write()

    def publish(self) -> None:
        try:
            self._write()
            rename_files(self.staged)
        finally:
            self.staged, self.unwritten, self.unwritten_bytes = {}, {}, 0

    def _write(self) -> None:
        write_files(self.unwritten)
        self.unwritten, self.unwritten_bytes = {}, 0

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            below(self.folder, name).unlink(missing_ok=True)

    def sizes(self, prefix: str = "") -> dict[str, int]:
        sizes: dict[str, int] = {}
        for folder, _, names in os.walk(self.folder / prefix):
            for file in names:
                path = Path(folder, file)
                with contextlib.suppress(FileNotFoundError):  # renamed concurrently
                    sizes[path.relative_to(self.folder).as_posix()] = path.stat().st_size
        return dict(sorted(sizes.items()))

    def children(self) -> list[str]:
        return sorted(os.listdir(self.folder)) if self.folder.is_dir() else []

    def error(self, error: Exception) -> RunError:
        name, why = getattr(error, "filename", None) or self.location, getattr(error, "strerror", None) or error
        return RunError(f"the store {self.location} cannot be used: {why} ({name}). {disk_error_advice(error)}")


def open_objects(url: str | Path) -> ObjectStore:
    """Return the objects at ``url``: a local folder, or any URL that fsspec supports."""
    text = str(url).removeprefix("file://")
    if "://" not in text:
        return LocalObjects(Path(text))
    from reverie.store.remote_objects import RemoteObjects

    return RemoteObjects(text)

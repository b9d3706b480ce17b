"""One writer at a time: a file lock that the system releases when the process ends, however it ends."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import socket
from pathlib import Path
from typing import Any, Self

from reverie.core.errors import RunError
from reverie.core.files import delete_staged, remedy, writing

fcntl: Any = importlib.import_module("fcntl") if importlib.util.find_spec("fcntl") else None
"""None on Windows, where nothing is locked."""

held: set[int] = set()
"""File descriptors of the locks of this process."""


def forget() -> None:
    """Close the parent's lock files in a forked process, which may outlive the parent."""
    for descriptor in held:
        with contextlib.suppress(OSError):
            os.close(descriptor)  # the lock itself stays the parent's
    held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget)


class FileLock:
    """While entered, no other process can enter the lock of the same path, a file that names its process."""

    def __init__(self, path: Path, guarded: Path, instead: str) -> None:
        """``guarded``: what only one process may write, ``instead``: what else to choose, both for messages."""
        self.path = path
        self.guarded = guarded
        self.instead = instead
        self.descriptor: int | None = None

    def __enter__(self) -> Self:
        """Take the lock."""
        if fcntl is None:
            return self
        while True:
            try:
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            except OSError as error:
                raise RunError(f"cannot write to {self.path.parent}: {error.strerror}. {remedy(error)}") from error
            if self._take(descriptor):
                return self
            os.close(descriptor)

    def __exit__(self, *error: object) -> None:
        if self.descriptor is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()  # while locked: a process that has opened this file notices in ``_take``
            os.close(self.descriptor)
            held.discard(self.descriptor)
            self.descriptor = None

    def _take(self, descriptor: int) -> bool:
        """Lock the open file; return False if its last owner deleted it meanwhile."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            used = f"{self.guarded} is in use by {self._owner()}"
            raise RunError(f"{used}. Wait until it has finished, or choose {self.instead}.") from None
        except OSError:  # a file system without locks
            pass
        try:
            if os.stat(self.path).st_ino != os.fstat(descriptor).st_ino:
                return False
        except FileNotFoundError:
            return False
        with contextlib.suppress(OSError):  # a full disk: who holds the lock is only needed for messages
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        self.descriptor = descriptor
        held.add(descriptor)
        return True

    def _owner(self) -> str:
        try:
            said = json.loads(self.path.read_text())
            return f"process {said['pid']} on host {said['host']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"


LOCK = ".lock"
"""Name of the lock file in a folder."""


class FolderLock(FileLock):
    """The lock of a folder that one process writes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / LOCK, folder, "another run folder")

    def __enter__(self) -> Self:
        """Take the lock, and delete the unfinished files that a killed process left in the folder."""
        super().__enter__()
        delete_staged(self.guarded)
        return self


def lock_of(target: Path) -> FileLock:
    """Return the lock of a file or folder that does not exist yet: ``.name.lock`` beside it; makes its folder."""
    with writing(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(target.with_name(f".{target.name}.lock"), target, "another name")

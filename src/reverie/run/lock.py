"""One writer a run: a lock file that the system releases when its process ends, however it ends."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Any

from reverie.core.errors import RunError

fcntl: Any = importlib.import_module("fcntl") if importlib.util.find_spec("fcntl") else None
"""Not there on Windows: runs are not locked there."""

LOCK = ".lock"

held: set[int] = set()
"""File descriptors of the locks of this process."""


def forget() -> None:
    """Let go of the parent's locks in a process that was forked: it may outlive the parent."""
    for descriptor in held:
        with contextlib.suppress(OSError):
            os.close(descriptor)  # the lock itself stays the parent's
    held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget)


class RunLock:
    """While entered, no other process enters the lock of the same folder. Readers need none.

    The file says who holds it and is gone afterwards. A process that was killed leaves the file but not the lock.
    """

    def __init__(self, folder: Path, instead: str = "another run folder") -> None:
        """``instead`` is what those may choose who cannot have it."""
        self.folder, self.path, self.instead = folder, folder / LOCK, instead
        self.descriptor: int | None = None

    def __enter__(self) -> RunLock:
        """Take the lock of a folder that exists.

        Raises:
            RunError: another process has it, or the folder is not writable.
        """
        if fcntl is None:
            return self
        while True:
            try:
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            except OSError as error:
                raise RunError(
                    f"cannot write into {self.folder}: {error.strerror}. Choose a folder that can be written."
                ) from error
            if self._take(descriptor):
                return self
            os.close(descriptor)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.descriptor is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()  # while it is locked: whoever waits for this very file notices that it is gone
            os.close(self.descriptor)
            held.discard(self.descriptor)
            self.descriptor = None

    def _take(self, descriptor: int) -> bool:
        """Lock the file; False if it was deleted by its last owner before we could.

        Raises:
            RunError: another process has it.
        """
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise RunError(
                f"{self.folder} is being written by {self._owner()}: wait for its end, or choose {self.instead}."
            ) from None
        except OSError:  # a file system without locks
            pass
        try:
            if os.stat(self.path).st_ino != os.fstat(descriptor).st_ino:
                return False
        except FileNotFoundError:
            return False
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

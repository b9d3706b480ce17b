"""One writer per run."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from reverie.core.files import delete_staged
from reverie.core.lock import FileLock

LOCK = ".lock"


class RunLock(FileLock):
    """The lock of a run folder, or of another folder that a run writes to."""

    def __init__(self, folder: Path, instead: str = "another run folder") -> None:
        """``instead`` is the alternative that the error message offers."""
        super().__init__(folder / LOCK, folder, instead)

    def __enter__(self) -> Self:
        """Take the lock, and delete the unfinished files that a killed process left in the folder.

        Raises:
            RunError: another process holds it, or the folder is not writable.
        """
        super().__enter__()
        delete_staged(self.guarded)
        return self

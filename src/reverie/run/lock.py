"""One writer per run."""

from __future__ import annotations

from pathlib import Path

from reverie.core.lock import FileLock

LOCK = ".lock"


class RunLock(FileLock):
    """The lock of a run folder, or of another folder that a run writes to."""

    def __init__(self, folder: Path, instead: str = "another run folder") -> None:
        """``instead`` is the alternative that the error message offers."""
        super().__init__(folder / LOCK, folder, instead)

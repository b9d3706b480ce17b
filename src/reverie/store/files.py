"""Writing many files durably: under temporary names, then synchronised, renamed, and their folders synchronised.

``kernels/files.py`` makes all system calls in one compiled call.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from reverie.core.accelerate import accelerated
from reverie.core.files import sync

Parts = Sequence[bytes | memoryview]
"""The content of a file, as consecutive parts."""


def write(files: Mapping[Path, Parts]) -> None:
    """Write the files and make missing folders. A file whose writing fails is deleted."""
    items = list(files.items())
    while items:
        done, error = write_files(items)
        if error is None:
            return
        path = items[done][0]
        if not isinstance(error, FileNotFoundError) or path.parent.exists():
            with contextlib.suppress(OSError):  # an incomplete file would only take space on a full disk
                path.unlink(missing_ok=True)
            raise error
        path.parent.mkdir(parents=True, exist_ok=True)
        items = items[done:]


@accelerated
def write_files(items: Sequence[tuple[Path, Parts]]) -> tuple[int, OSError | None]:
    """Write files until one fails. Return the index of the last one that was tried, and its error or None."""
    for index, (path, parts) in enumerate(items):
        try:
            with opened(path) as file:
                for part in parts:
                    file.write(part)
        except OSError as error:
            return index, error
    return len(items) - 1, None


@accelerated
def place(staged: Mapping[Path, Path]) -> None:
    """Rename written files (the values) to the keys. Once this returns, the change survives a crash.

    All files are synchronised before the first is renamed, because file systems write many faster than one by one.
    """
    for beside in staged.values():
        sync(beside)
    for path, beside in staged.items():
        os.replace(beside, path)
    for folder in dict.fromkeys(path.parent for path in staged):
        sync(folder)


def opened(path: Path) -> BinaryIO:
    """Open a file for writing, emptied."""
    return path.open("wb")

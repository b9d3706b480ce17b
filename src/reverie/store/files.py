"""Writing many files durably: under temporary names, then synchronised, renamed, and their folders synchronised."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from reverie.core.files import sync

Parts = Sequence[bytes | memoryview]
"""The content of a file, as consecutive parts."""


def write(files: Mapping[Path, Parts]) -> None:
    """Write the files and make missing folders."""
    for path, parts in files.items():
        try:
            file = opened(path)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = opened(path)
        with file:
            for part in parts:
                file.write(part)


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

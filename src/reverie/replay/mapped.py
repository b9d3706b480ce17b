"""Rows in memory-mapped files: more rows than fit into memory, at the speed of the disk."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.columns import Column
from reverie.core.errors import ConfigError
from reverie.core.machine import available_memory
from reverie.replay.storage import HostStorage

FITS = 0.5
"""Files of at most this share of the available memory are expected to stay cached in it."""


class MappedStorage(HostStorage):
    """Rows in one file for all small columns and one for each large column, made when the first row is added.

    Files are unlinked before they are mapped, and vanish with the process. Their space is allocated at once, so that a
    full disk is an error then and not a crash later.
    """

    def __init__(self, columns: Mapping[str, Column], streams: int, capacity: int, folder: Path) -> None:
        """Check the disk's free space; write nothing yet."""
        self.folder = folder
        super().__init__(columns, streams, capacity)

    def _reserve(self) -> None:
        folder, rows = self.folder.absolute(), self.streams * self.capacity
        free = shutil.disk_usage(next(one for one in (folder, *folder.parents) if one.exists())).free
        if self.nbytes > free:
            raise ConfigError(
                f"{rows} rows need {self.nbytes / 1e9:.1f} GB on the disk of {self.folder}, but only {free / 1e9:.1f} "
                "GB are free. Free some space, or reduce the rows (for a replay, replay.capacity) to at most "
                f"{int(0.9 * free / (self.nbytes / rows))}."
            )

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        self.folder.mkdir(parents=True, exist_ok=True)
        return super().columns

    def _memory(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        """Return an array in a new memory-mapped file."""
        shape = (self.streams, self.capacity, *shape)
        size = max(1, math.prod(shape) * dtype.itemsize)
        descriptor, name = tempfile.mkstemp(prefix="replay-", suffix=".rows", dir=self.folder)
        os.unlink(name)  # before allocating: a process killed now leaves at most an empty file
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, size)
            else:  # macOS
                os.ftruncate(descriptor, size)
            memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        if self.nbytes <= FITS * (available_memory() or 0):
            # After a page has been written to the disk, the next write to it causes a page fault; with pages of 4 KiB
            # these took up to half of the time of adding rows. In files larger than the memory, each window would read
            # 2 MiB of every column from the disk.
            with contextlib.suppress(AttributeError, OSError):  # a system without madvise or without huge pages
                memory.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(memory, dtype, count=math.prod(shape)).reshape(shape)

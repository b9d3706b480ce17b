"""Rows in files that are mapped into memory: more of them than there is memory, as long as the disk keeps up."""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.errors import ConfigError
from reverie.core.machine import available_memory
from reverie.data.storage import Column, HostStorage

FITS = 0.5
"""Files that need at most this share of the memory that is available stay in it."""


class MappedStorage(HostStorage):
    """Rows in one file for all small columns and one for each of the others, made when the first row comes.

    Files lose their names as soon as they are mapped, where the system allows it: they go with the process, however it
    ends. Their space is taken at once, so that a full disk is an error then and no crash later.
    """

    def __init__(self, columns: Mapping[str, Column], streams: int, capacity: int, folder: Path) -> None:
        """Nothing is written yet.

        Raises:
            ConfigError: the disk has not the space.
        """
        self.folder = folder
        super().__init__(columns, streams, capacity)

    def _reserve(self) -> None:
        free = shutil.disk_usage(existing(self.folder)).free
        if self.nbytes > free:
            raise self._too_large(free)

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """See ``HostStorage``.

        Raises:
            ConfigError: the files cannot be made.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return super().columns
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise self._too_large(shutil.disk_usage(self.folder).free) from None
            raise ConfigError(
                f"replay.storage = 'mmap': no files can be mapped in {self.folder} ({error.strerror or error}). "
                "Choose another folder for the run, or replay.storage = 'ram'."
            ) from None

    def _memory(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        """A file."""
        shape = (self.streams, self.capacity, *shape)
        size = max(1, math.prod(shape) * dtype.itemsize)
        descriptor, name = tempfile.mkstemp(prefix="replay-", suffix=".rows", dir=self.folder)
        unlink_now_or_later(self, name)  # before its space is taken: a process killed now leaves an empty file at most
        try:
            allocate(descriptor, size)
            memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        if self.nbytes <= FITS * (available_memory() or 0):
            in_large_pages(memory)
        return np.frombuffer(memory, dtype, count=math.prod(shape)).reshape(shape)

    def _too_large(self, free: int) -> ConfigError:
        rows = self.streams * self.capacity
        return ConfigError(
            f"{rows} rows need {self.nbytes / 1e9:.1f} GB on the disk of {self.folder}, and {free / 1e9:.1f} GB are "
            f"free. Lower replay.capacity to at most {int(0.9 * free / (self.nbytes / rows))}, or free some space."
        )


def existing(folder: Path) -> Path:
    """``folder``, or the nearest above it that there is."""
    folder = folder.absolute()
    return folder if folder.exists() or folder == folder.parent else existing(folder.parent)


def allocate(descriptor: int, size: int) -> None:
    """Make a file ``size`` bytes long and take their space, or as much of that as the file system can do.

    Raises:
        OSError: the space is not there.
    """
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    os.ftruncate(descriptor, size)


def in_large_pages(memory: mmap.mmap) -> None:
    """Let the system keep a file in pages as large as it has, where it can.

    Whenever a page has been written to the disk, the next write to it has to be let through by the system, which took
    up to half of the time of adding rows in pages of 4 KiB. Not for more than there is memory for: each window would
    then bring 2 MiB of every column from the disk.
    """
    with contextlib.suppress(AttributeError, OSError):  # another system, or one without such pages
        memory.madvise(mmap.MADV_HUGEPAGE)


def unlink_now_or_later(owner: object, name: str) -> None:
    """Delete a file; where the system refuses because it is in use, once ``owner`` is gone."""
    try:
        os.unlink(name)
    except PermissionError:

        def again() -> None:
            with contextlib.suppress(OSError):
                os.unlink(name)

        weakref.finalize(owner, again)

"""One writer at a time: a file lock that the system releases when the process ends for any reason."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from reverie.core.documents import read_json
from reverie.core.errors import RunError
from reverie.core.files import delete_temporary_files, disk_error_advice, disk_errors_as_run_error

LOCK_FILE_NAME = ".lock"
"""Name of the lock file in a folder."""

open_lock_fds: set[int] = set()
"""File descriptors of the locks of this process."""


def _close_inherited_locks() -> None:
    """Close the parent's lock files in a forked process, which can outlive the parent."""
    for descriptor in open_lock_fds:
        with contextlib.suppress(OSError):
            os.close(descriptor)  # the lock itself remains with the parent
    open_lock_fds.clear()


os.register_at_fork(after_in_child=_close_inherited_locks)


@contextlib.contextmanager
def _file_lock(path: Path, guarded: Path, instead: str) -> Iterator[None]:
    """Hold the exclusive lock of ``path``, a file that names its process, inside the context.

    ``guarded``: what the lock protects; ``instead``: an alternative to choose; both for messages.
    """
    descriptor = None
    while descriptor is None:
        descriptor = _try_lock(path, guarded, instead)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # while locked: a process that has opened this file detects it in ``_try_lock``
        os.close(descriptor)
        open_lock_fds.discard(descriptor)


def _try_lock(path: Path, guarded: Path, instead: str) -> int | None:
    """Open and lock the file; return its descriptor, or None if its last owner has deleted it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)  # it is emptied
    except OSError as error:
        raise RunError(f"cannot write to {path.parent}: {error.strerror}. {disk_error_advice(error)}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        owner = _read_owner(path)
        used = f"{guarded} is in use by " + ("process {} on host {}".format(*owner) if owner else "another process")
        raise RunError(f"{used}. Wait until it has finished, or choose {instead}.") from None
    except OSError:  # a file system without locks
        pass
    try:
        mine = os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        mine = False
    if not mine:
        os.close(descriptor)
        return None
    with contextlib.suppress(OSError):  # a full disk: the owner is only needed for messages
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
    open_lock_fds.add(descriptor)
    return descriptor


def _read_owner(path: Path) -> tuple[int, str] | None:
    """Return process and host of the owner of a lock; None if the file does not name them."""
    try:
        owner = read_json(path)
        pid, host = int(owner["pid"]), str(owner["host"])
    except (ValueError, KeyError, TypeError, OverflowError, RunError):
        return None
    return (pid, host) if pid > 0 else None  # the system takes others for groups of processes


def is_in_use(folder: Path, *, on_this_host: bool = False) -> bool:
    """Return whether a process has the lock of a folder. One of another host, or without an owner, may be stale.

    ``on_this_host``: a process that is known to run here.
    """
    path = folder / LOCK_FILE_NAME
    owner = _read_owner(path)
    if owner is None or owner[1] != socket.gethostname():
        return path.exists() and not on_this_host
    try:
        os.kill(owner[0], 0)  # sends no signal; to try the lock could stop a process that takes it at this moment
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        pass
    return True


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder that only one process writes; delete unfinished files of killed processes."""
    with _file_lock(folder / LOCK_FILE_NAME, folder, "another run folder"):
        delete_temporary_files(folder)
        yield


def lock_beside(target: Path) -> AbstractContextManager[None]:
    """Return the lock of a file or folder that does not exist yet: ``.name.lock`` next to it. Creates its folder."""
    with disk_errors_as_run_error(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    return _file_lock(target.with_name(f".{target.name}.lock"), target, "another name")

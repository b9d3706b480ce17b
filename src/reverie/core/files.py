"""Files that are complete or do not exist, and paths that are on this machine."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from reverie.core.errors import ConfigError, RunError


def check_local(path: Path | str, name: str) -> None:
    """Check that ``path`` is on this machine; ``pathlib`` makes s3:/bucket of s3://bucket."""
    if url := re.match(r"([A-Za-z][\w+.-]+:)//?(.*)", os.fspath(path)):
        raise ConfigError(
            f"{name} = {url[1]}//{url[2]}: expected a path on this machine. Only a replay store can be at a URL: "
            "to write one pass it as replay.store, to begin a run with its rows as replay.init."
        )


def user_folder(variable: str, usual: str) -> Path | None:
    """Return this library's folder in the one that ``variable`` of the environment names, or else in ``usual``.

    None if that is relative, as ``~`` is for a user without a home: what the current folder has may be a stranger's.
    """
    folder = Path(os.path.expanduser(os.environ.get(variable) or usual))
    return folder / "reverie" if folder.is_absolute() else None


def write_atomic(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """Write ``content`` to a file beside ``path``, synchronise it with the disk and rename it to ``path``.

    Parts that are given one by one may be read from ``path`` itself, which stays as it is meanwhile. The folder is made
    if it is missing. A crash leaves the old content or the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{os.getpid()}.part")
    content = content.encode() if isinstance(content, str) else content
    try:
        with staged.open("wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staged, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            staged.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error  # the name that people know


def remedy(error: Exception) -> str:
    """Return what to do about an error of writing: there is no room, or the place cannot be written."""
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    return "Free space there, or choose another folder." if full else "Choose a writable folder."


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert errors of the disk raised inside to RunError."""
    try:
        yield
    except BrokenPipeError:  # not the disk: the reader of our output has gone
        raise
    except OSError as error:
        raise RunError(f"cannot write {error.filename or path}: {error.strerror or error}. {remedy(error)}") from error


def check_writable(path: Path) -> None:
    """Check that ``path`` can be written, or made where it does not exist."""
    nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        why = f"{nearest} is no writable folder"
        raise RunError(f"cannot write to {path}: {why}. Use another; to continue a run, copy it there.")


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write ``values`` as JSON, atomically."""
    write_atomic(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def delete_staged(folder: Path) -> None:
    """Delete what killed processes left of :func:`write_atomic` in ``folder``. Only for the one that writes there."""
    for path in folder.glob(".*.[0-9]*.part"):
        with contextlib.suppress(OSError):
            path.unlink()


def sync(path: Path) -> None:
    """Wait until the content of a file, or the entries of a folder, are on the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move_synced(staged: Path, path: Path) -> None:
    """Rename a complete file or folder to ``path``. Once this returns, the name and all content survive a crash."""
    for below in (*staged.rglob("*"), staged):
        sync(below)
    os.replace(staged, path)
    sync(path.parent)


def file_stem(name: str) -> str:
    """Return an observation's key as a file's name: ``a/b`` is ``a.b``; all but letters, digits, _ and - become %2E."""
    return re.sub(r"[^\w/-]", lambda found: f"%{ord(found[0]):02X}", name).replace("/", ".")

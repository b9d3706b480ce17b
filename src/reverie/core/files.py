"""Files that are complete or do not exist, and checks of local paths."""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import grp
import json
import math
import os
import pwd
import re
import stat
import sys
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from reverie.core.errors import ConfigError, EnvError, RunError, format_error


def check_local(path: Path | str, name: str) -> None:
    """Check that ``path`` is on this machine, and that files can name it; ``pathlib`` makes s3:/bucket of s3://bucket.

    Raises:
        ConfigError: it is a URL, or its absolute path is not valid UTF-8.
    """
    if url := re.match(r"([A-Za-z][\w+.-]+:)//?(.*)", os.fspath(path)):
        raise ConfigError(
            f"{name} = {url[1]}//{url[2]}: expected a path on this machine. Only a replay store can be at a URL: to "
            "write one pass it as replay.store_path, to start a run with its rows as replay.init_from."
        )
    try:
        os.path.abspath(path).encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{name} = {os.path.abspath(path)!a}: expected a path in UTF-8, as files could not name this one. Rename "
            "the folder, or choose another one."
        ) from None


LARGEST_FILE = 64_000_000
"""Maximum bytes of a file of settings or results."""
LARGEST_LOG = 4_000_000_000
"""Maximum bytes of ``metrics.jsonl``: an entry every second for three months."""
LARGEST_LINE = 16_000_000
"""Maximum bytes of a line in it."""
LARGEST_STATE = 1_000_000_000
"""Maximum bytes of the state of a run with the pickled states of its environments."""
LARGEST_WEIGHTS = 16_000_000_000
"""Maximum bytes of the tensors of a shared agent: four billion numbers."""
DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk, and of a user's full share of it."""
MAX_EXPANDED, MAX_RATIO = 1_000_000_000, 250
"""A compressed file may expand to this many bytes, or to this many times its size; images of games reach 190 times."""
EXPANDED_VARIABLE = "REVERIE_MAX_EXPANDED_GB"
"""Environment variable with another limit, in gigabytes."""
THIRD_PARTY_FOLDERS = ("wandb",)
"""Folders of a run, next to its config.yaml, that other programs write, with links to their own files."""
HUB_SNAPSHOTS, HUB_BLOBS = "snapshots", "blobs"
"""Folders of the Hub's cache: files in the former are links to files in the latter."""


def open_file(path: Path, limit: int = LARGEST_FILE) -> IO[bytes]:
    """Open a potentially untrusted file for reading: a regular file of at most ``limit`` bytes, else RunError.

    A named pipe, a device and a sparse file of a terabyte would never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    state = os.fstat(descriptor)
    if stat.S_ISREG(state.st_mode) and state.st_size <= limit:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    size = f"has {state.st_size:,} bytes: expected at most {limit:,}"
    raise RunError(
        f"{path} {size if stat.S_ISREG(state.st_mode) else 'is not a regular file'}. Replace it, or delete it."
    )


def read_file(path: Path, limit: int = LARGEST_FILE) -> bytes:
    """Return the content of a file, opened with :func:`open_file`."""
    with open_file(path, limit) as file:
        return file.read(min(limit, os.fstat(file.fileno()).st_size))  # Python allocates what it is asked to read


def iter_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file; of one with more than :data:`LARGEST_LINE` bytes, its pieces."""
    return iter(functools.partial(file.readline, LARGEST_LINE), b"")


def read_member(path: Path | str, archive: zipfile.ZipFile, name: str, limit: int = LARGEST_FILE) -> bytes:
    """Return the content of a file in the zip file at ``path``; RunError if it has more than ``limit`` bytes."""
    if (size := archive.getinfo(name).file_size) > limit:
        raise RunError(f"{path}: {name} has {size:,} bytes: expected at most {limit:,}.")
    return archive.read(name)


def check_size(path: Path, limit: int = LARGEST_FILE) -> None:
    """Check an existing file like :func:`open_file`, before it is opened for writing."""
    open_file(path, limit).close()


def check_expanded(path: Path | str, stored: int, expanded: int) -> None:
    """Raise RunError if a file of ``stored`` bytes expands to too many bytes, and could fill the memory."""
    text = os.environ.get(EXPANDED_VARIABLE, "")
    try:
        limit = float(text) * 1e9 if text else max(MAX_EXPANDED, MAX_RATIO * stored)
    except ValueError:
        raise ConfigError(f"{EXPANDED_VARIABLE} = {text!r}: expected a number of gigabytes.") from None
    if expanded > limit:
        raise RunError(
            f"{path} has {stored:,} bytes and expands to {expanded:,}: expected at most {limit:,.0f}. If you trust it, "
            f"set the environment variable {EXPANDED_VARIABLE}={math.ceil(expanded / 1e9)}."
        )


@contextlib.contextmanager
def open_zip(path: Path | str, content: IO[bytes] | None = None) -> Iterator[IO[bytes]]:
    """Open the zip file at ``path``, or its ``content`` inside another one; RunError if it expands too much."""
    with open_file(Path(path), sys.maxsize) if content is None else content as file:
        with zipfile.ZipFile(file) as archive:
            expanded = sum(part.file_size for part in archive.infolist())
        check_expanded(path, file.seek(0, os.SEEK_END), expanded)
        file.seek(0)
        yield file


def check_links(folder: Path, foreign: Collection[str] = THIRD_PARTY_FOLDERS) -> None:
    """Check that a folder of runs contains only files, folders, and links within the folder; RunError otherwise.

    The folder (of a run, of several seeds, of a search or of a dataset) can be a link itself. Otherwise links in an
    untrusted folder could redirect reads and writes to other files. ``foreign``: folders of runs that are left out.
    """
    root = os.path.realpath(folder)
    if os.path.exists(root) and not os.path.isdir(root):
        raise RunError(f"{folder} is a file: expected a run folder. Pass the folder that contains its config.yaml.")
    blobs = next((str(x.with_name(HUB_BLOBS)) for x in Path(root).parents if x.name == HUB_SNAPSHOTS), root)
    for entry in _entries(root, foreign):
        if entry.is_symlink():
            target = os.path.realpath(entry.path)
            if os.path.commonpath([root, target]) != root and os.path.commonpath([blobs, target]) != blobs:
                raise RunError(
                    f"{entry.path} is a link to {target}, outside of {folder}. Replace it by its target; to keep the "
                    "folder on another disk, move the whole folder there and link it."
                )
        elif not (entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False)):
            raise RunError(f"{entry.path} is neither a file nor a folder. Delete it.")


def below(folder: Path, name: str) -> Path:
    """Return the path in ``folder`` of a ``name`` read from a file; RunError if it leads out of the folder."""
    if "\\" in name or "\0" in name or {"", ".", ".."} & {*name.split("/")}:
        raise RunError(f"{folder} lists '{name}', which is not the name of a file in it: the list was manipulated.")
    return folder / name


def _entries(folder: str, foreign: Collection[str]) -> Iterator[os.DirEntry[str]]:
    """Yield all that is below ``folder``, without what is in the ``foreign`` folders of its runs."""
    is_run = os.path.exists(os.path.join(folder, "config.yaml"))
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:  # an active run deletes some
        for entry in entries:
            yield entry
            if not (is_run and entry.name in foreign) and entry.is_dir(follow_symlinks=False):
                yield from _entries(entry.path, foreign)


def user_folder(variable: str, usual: str) -> Path | None:
    """Return reverie's folder inside the folder that the environment variable ``variable`` names, or else in ``usual``.

    None if it is relative, like ``~`` for a user without a home, since the current folder can be untrusted.
    """
    folder = Path(os.path.expanduser(os.environ.get(variable) or usual))
    return folder / "reverie" if folder.is_absolute() else None


def write_atomic(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """Write ``content`` to a file next to ``path``, synchronize it with the disk and rename it to ``path``.

    Parts from an iterator can be read from ``path`` itself, which is unchanged until the end. A missing folder is
    created. A crash leaves the old content or the new content.
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
        raise OSError(error.errno, error.strerror, str(path)) from error  # the name that users know


def disk_error_advice(error: Exception) -> str:
    """Return advice for a write error: the disk is full, or the location is not writable."""
    full = any(
        getattr(error, "errno", None) == number or os.strerror(number) in str(error)  # Rust libraries have no errno
        for number in DISK_FULL_ERRORS
    )
    return "Free space there, or choose another folder." if full else "Choose a writable folder."


@contextlib.contextmanager
def disk_errors_as_run_error(path: Path) -> Iterator[None]:
    """Convert disk errors raised inside the context to RunError."""
    try:
        yield
    except BrokenPipeError:  # not the disk: the reader of the output has ended
        raise
    except OSError as error:
        raise RunError(
            f"cannot write {error.filename or path}: {error.strerror or error}. {disk_error_advice(error)}"
        ) from error


@contextlib.contextmanager
def not_of_disk(label: str) -> Iterator[None]:
    """Convert OSErrors of the user's code, ``label``, inside the context to EnvErrors: they are no disk errors."""
    try:
        yield
    except OSError as error:
        raise EnvError(f"{label} failed with {format_error(error)}.") from error


def is_private(path: Path) -> bool:
    """Return whether ``path`` is a file of this user, which only this user, and root, can write, move or replace."""
    try:
        states = [os.lstat(path), *(os.stat(folder) for folder in path.resolve().parents)]
        is_mine = stat.S_ISREG(states[0].st_mode) and states[0].st_uid == os.getuid()
        return is_mine and not any(map(_is_shared, states))
    except (OSError, KeyError):
        return False


def _is_shared(status: os.stat_result) -> bool:
    """Return whether others can write a file or what is in a folder; a group of the user's name is the user alone."""
    user = pwd.getpwuid(os.getuid())
    if status.st_uid not in (0, user.pw_uid):
        return True
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:  # files there are their owners'
        return False
    group = grp.getgrgid(status.st_gid)
    is_alone = (group.gr_name, group.gr_gid) == (user.pw_name, user.pw_gid) and {*group.gr_mem} <= {user.pw_name}
    return bool(status.st_mode & (stat.S_IWOTH | (0 if is_alone else stat.S_IWGRP)))


def check_writable(path: Path) -> None:
    """Check that ``path`` can be written, or created if it does not exist."""
    nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        why = f"{nearest} is not a writable folder"
        raise RunError(f"cannot write to {path}: {why}. Use another folder; to continue a run, copy it there.")


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write ``values`` as JSON, atomically."""
    write_atomic(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def delete_temporary_files(folder: Path, name: str | None = None) -> None:
    """Delete the temporary files that killed processes left in ``folder``, of all files or of the one called ``name``.

    Only for the process that writes there.
    """
    for path in folder.glob(f".{'*' if name is None else glob.escape(name)}.[0-9]*.part"):
        with contextlib.suppress(OSError):
            path.unlink()


def fsync_path(path: Path) -> None:
    """Wait until the content of a file, or the entries of a folder, are on the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename_durably(staged: Path, path: Path) -> None:
    """Rename a complete file or folder to ``path``. Once this returns, the name and all content survive a crash."""
    for below in (*staged.rglob("*"), staged):
        fsync_path(below)
    os.replace(staged, path)
    fsync_path(path.parent)


def key_to_filename(name: str) -> str:
    """Return an observation's key as a file name: ``a/b`` is ``a.b``; all but letters, digits, _ and - become %2E."""
    return re.sub(r"[^\w/-]", lambda match: f"%{ord(match[0]):02X}", name).replace("/", ".")

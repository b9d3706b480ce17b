"""Files of datasets: what tells their format, and opening them. Only regular files are read, without links in them."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import zipfile
from collections.abc import Collection, Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from reverie.core.errors import ConfigError, DataError, ReverieError
from reverie.core.files import open_file, open_zip

if TYPE_CHECKING:
    import h5py

CACHE_BYTES = 1 << 20
COPY_ADVICE = "Download or copy the dataset again."
MAX_DEPTH = 100
"""Maximum number of HDF5 groups inside each other; the time of the walk grows with its cube."""
MAX_MISSING_CHUNKS = 10_000
"""Maximum number of chunks of an array that are not stored: a chunk takes time, even if it takes no space."""
GZIP = b"\x1f\x8b"
"""First bytes of files that are compressed with gzip."""
TEXT_SUFFIXES = {".csv": ",", ".tsv": "\t"}
"""Suffixes of tables that are text, and what separates their columns."""


class Source:
    """A file or folder, and what tells its format; each is read once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return self.path.is_dir()

    @cached_property
    def head(self) -> bytes:
        """The first four bytes of a file; empty for a folder."""
        if self.is_folder:
            return b""
        with open_data(self.path) as file:
            return file.read(4)

    @property
    def is_hdf5(self) -> bool:
        """Whether it is an HDF5 file."""
        return self.head == b"\x89HDF"

    @cached_property
    def names(self) -> set[str]:
        """Names in an npz or HDF5 file, also of what is in the group ``data``: ``data/demo_0``; empty for others."""
        if self.is_hdf5:
            with open_hdf5(self.path) as file:
                group = file.get("data")
                return {*file, *(f"data/{name}" for name in (group if hasattr(group, "keys") else ()))}
        if self.head == b"PK\x03\x04":
            with open_zip(self.path) as file, zipfile.ZipFile(file) as archive:
                return {name.removesuffix(".npy") for name in archive.namelist()}
        return set()

    @cached_property
    def children(self) -> list[Path]:
        """What is in a folder, sorted by number, without hidden files, which may be incomplete."""
        return sorted((path for path in self.path.iterdir() if path.name[0] != "."), key=natural_sort_key)

    def files(self, *suffixes: str) -> list[Path]:
        """Return the files in a folder that have one of ``suffixes``, in lower case, such as ".npz"."""
        return [path for path in self.children if path.suffix.lower() in suffixes and not path.is_dir()]


def without_text(paths: Collection[Path]) -> Collection[Path]:
    """Return ``paths`` without CSV and TSV files, which are logs or notes if there are other files."""
    return [path for path in paths if path.suffix.lower() not in TEXT_SUFFIXES] or paths


def missing_files(paths: Collection[Path]) -> str:
    """Return a remark on files whose names count more of them, such as ``train-00000-of-00002``; "" if none is missing.

    DataError if two writes left files with other counts.
    """
    counted: dict[str, dict[int, set[int]]] = {}
    for path in paths:
        if match := re.search(r"-(\d+)-of-(\d+)", path.name):
            name = (path.parent / path.name[: match.start()]).as_posix()
            counted.setdefault(name, {}).setdefault(int(match[2]), set()).add(int(match[1]))
    for name, numbers in counted.items():
        if len(numbers) > 1:
            counts = " and of ".join(f"{count:,}" for count in sorted(numbers))
            raise DataError(
                f"{name}-*: some of these are files of {counts}: two writes left them. Delete the older ones."
            )
        ((count, present),) = numbers.items()
        if len(present) < count:
            return f"only {len(present):,} of the {count:,} files {name}-*-of-{count:05} are there: copy the others"
    return ""


def open_data(path: Path) -> IO[bytes]:
    """Open a file of a dataset: a regular file of any size, else RunError, since pipes and devices may never end."""
    return open_file(path, sys.maxsize)


@contextlib.contextmanager
def reading(source: Path | str) -> Iterator[None]:
    """Inside the context, convert any foreign error to a DataError: ``source``, a file or a part, seems damaged.

    Libraries raise errors of all types for damaged files, even AttributeError and SyntaxError.
    """
    try:
        yield
    except (ReverieError, ModuleNotFoundError):
        raise
    except Exception as error:
        details = " ".join(f"{type(error).__name__}: {error}".split())
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(f"{source} cannot be read: {error}.") from error
        seems = "it seems damaged, incomplete or of another format"
        raise DataError(f"{source} cannot be read: {seems} ({details}).") from error


def natural_sort_key(path: Path) -> list[int | str]:
    """Return a sort key that puts ``part-10`` after ``part-9``."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.as_posix())]


def import_optional(name: str, extra: str) -> Any:
    """Import a module of an optional package; raise ConfigError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package_name = name.partition(".")[0]
        raise ConfigError(f"{package_name} is needed ({error}): pip install 'reverie-rl[{extra}]'.") from None


def import_pyarrow() -> Any:
    """Return the package pyarrow; raise ConfigError if it is not installed."""
    for name in ("pyarrow.ipc", "pyarrow.parquet"):
        import_optional(name, "arrow")
    return import_optional("pyarrow", "arrow")


def open_hdf5(path: Path) -> h5py.File:
    """Open an HDF5 file for reading, with a small metadata cache, since thousands of groups would fill a large one.

    Raises DataError if it is damaged or contains links to other files.
    """
    open_data(path).close()
    try:
        file: h5py.File = import_optional("h5py", "hdf5").File(path, "r")
    except OSError as error:
        raise DataError(f"{path} cannot be read as HDF5: {error}. If it is truncated, copy it again.") from None
    with reading(path):
        check_links(path, path.stat().st_mtime_ns)
    config = file.id.get_mdc_config()
    config.set_initial_size = True
    config.initial_size = config.min_size = config.max_size = CACHE_BYTES
    config.incr_mode = config.flash_incr_mode = config.decr_mode = 0  # no automatic resizing
    file.id.set_mdc_config(config)
    return file


def arrays_below(group: h5py.Group) -> dict[str, h5py.Dataset]:
    """Return the arrays in a group of an HDF5 file, and in the groups below it, by name."""
    arrays: dict[str, h5py.Dataset] = {}
    group.visititems(lambda name, item: arrays.update({name: item} if hasattr(item, "dtype") else {}))
    return arrays


@lru_cache(16)
def check_links(path: Path, changed: int) -> None:
    """Raise DataError if a link in an HDF5 file leads to another file or nowhere: HDF5 readers would omit or copy it.

    ``changed``: when the file was last changed, as it is read again then.
    """
    from h5py import h5l

    links: list[tuple[bytes, int]] = []

    def visit(name: bytes, link: Any) -> bytes | None:
        links.append((name, link.type))
        return name if name.count(b"/") > MAX_DEPTH else None  # a name ends the walk

    with import_optional("h5py", "hdf5").File(path, "r") as file:
        if file.id.links.visit(visit, info=True) is not None:
            raise DataError(f"{path} has groups inside each other: expected at most {MAX_DEPTH}.")
        for name, kind in links:
            if kind != h5l.TYPE_HARD and not (kind == h5l.TYPE_SOFT and _leads_somewhere(file, name)):
                target = file.id.links.get_val(name)
                names = [
                    text.decode(errors="replace") for text in (name, *(target if kind != h5l.TYPE_SOFT else [target]))
                ]
                raise DataError(
                    f"{path}: '{names[0]}' is a link to {', '.join(names[1:])}: expected values. Copy them into "
                    "the file."
                )


def _leads_somewhere(file: h5py.File, name: bytes) -> bool:
    """Return whether a link in an HDF5 file leads to a group or dataset; ``in`` does not follow it."""
    try:
        return file[name] is not None
    except (KeyError, OSError, RuntimeError):
        return False

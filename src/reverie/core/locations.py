"""Locations of stores and datasets that files name: which of them are contacted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from reverie.core.errors import UntrustedError
from reverie.core.imports import is_trusting, remember, trusted_entries, typed_texts
from reverie.core.logger import logger

_BUCKET = re.compile(r"(s3|gs|az)://(?!.*::)", re.DOTALL)


def is_plain(location: str, folder: Path | None = None) -> bool:
    """Return whether any file may name ``location``: a path, inside ``folder`` if any, or a URL s3://, gs:// or az://.

    ``a::b`` chains two of fsspec's file systems.
    """
    path = location.removeprefix("file://")
    if "://" in path or "::" in path:
        return _BUCKET.match(location) is not None
    root, target = (_absolute(str(name)) for name in (folder or path, path))
    return os.path.commonpath([root, target]) == root


def is_typed(location: str) -> bool:
    """Return whether the command line names ``location``, a path also relative to the current folder."""
    return _absolute(location) in map(_absolute, typed_texts())


def _absolute(location: str) -> str:
    """Return the absolute path without links, as :func:`is_plain` compares it; a URL as it is."""
    return location if "://" in location or "::" in location else os.path.realpath(os.path.expanduser(location))


def check_location(location: str, source: object, folder: Path | None = None) -> None:
    """Check the location of a store or dataset that ``source``, a file, names, before it is contacted.

    UntrustedError unless it :func:`is_plain`, the user has named it, now or before, or trusts the file.
    """
    if is_plain(location, folder):
        return
    if not (is_trusting() or is_typed(location) or _entry(location) in trusted_entries()):
        raise UntrustedError(
            f"{source} names '{location}'. Files may name datasets on this machine, stores inside the run, a run or "
            "store inside the current folder, and what is at s3://, gs:// or az://. If you trust it, add --trust-code, "
            "or name the location yourself, which trusts it from now on."
        )
    logger.info(f"{source} names {location}, which is used now")


def trust_locations(locations: Iterable[str]) -> None:
    """Trust these locations, in any file, from now on; ignored if this cannot be saved.

    Inside a command that trusts a file (``--trust-code``), only those that the command line names.
    """
    remember({_entry(location) for location in locations if not is_trusting() or is_typed(location)})


def _entry(location: str) -> str:
    return f"location {location!r}"

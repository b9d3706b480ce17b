"""Locations of stores and datasets that files name: which of them are contacted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from reverie.core.errors import UntrustedError
from reverie.core.imports import is_trusting, is_typed, remember, trusted_entries
from reverie.core.logger import logger

_BUCKET = re.compile(r"(s3|gs|az)://(?!.*::)", re.DOTALL)


def is_plain(location: str, folder: Path | None = None) -> bool:
    """Return whether any file may name ``location``: a path, inside ``folder`` if any, or a URL s3://, gs:// or az://.

    ``a::b`` chains two of fsspec's file systems.
    """
    path = location.removeprefix("file://")
    if "://" in path or "::" in path:
        return _BUCKET.match(location) is not None
    root, target = (os.path.realpath(os.path.expanduser(name)) for name in (folder or path, path))
    return os.path.commonpath([root, target]) == root


def check_location(location: str, source: object, folder: Path | None = None) -> None:
    """Check the location of a store or dataset that ``source``, a file, names, before it is contacted.

    UntrustedError unless it :func:`is_plain`, the user has named it, now or before, or trusts the file.
    """
    if is_plain(location, folder):
        return
    if not (is_trusting() or is_typed(location) or _entry(location) in trusted_entries()):
        raise UntrustedError(
            f"{source} names '{location}'. Files may name stores and datasets inside the run, or at s3://, gs:// or "
            "az://. If you trust it, add --trust-code, or pass the location yourself. It is then trusted from now on."
        )
    logger.info(f"{source} names {location}, which is used now")


def trust_locations(locations: Iterable[str]) -> None:
    """Trust these locations, in any file, from now on; ignored if this cannot be saved."""
    remember({_entry(location) for location in locations})


def _entry(location: str) -> str:
    return f"location {location!r}"

"""Opens the place of a store: a local folder or a URL."""

from __future__ import annotations

from pathlib import Path

from reverie.store.objects import LocalObjects, Objects
from reverie.store.remote import RemoteObjects


def open_objects(url: str | Path) -> Objects:
    """Return the place at ``url``: a local folder, or any URL that fsspec knows.

    Raises:
        ConfigError: the kind of URL is unknown, or a package is missing.
    """
    text = str(url)
    if "://" not in text:
        return LocalObjects(Path(text))
    if text.startswith("file://"):
        return LocalObjects(Path(text.removeprefix("file://")))
    return RemoteObjects(text)

"""Where a store can lie: a folder here, or a URL."""

from __future__ import annotations

from pathlib import Path

from reverie.data.store.objects import LocalObjects, Objects
from reverie.data.store.remote import RemoteObjects


def open_objects(url: str | Path) -> Objects:
    """The place that ``url`` means: a folder, or anything that fsspec knows.

    Raises:
        ConfigError: an unknown kind of URL, or a package is missing.
    """
    text = str(url)
    if "://" not in text:
        return LocalObjects(Path(text))
    if text.startswith("file://"):
        return LocalObjects(Path(text.removeprefix("file://")))
    return RemoteObjects(text)

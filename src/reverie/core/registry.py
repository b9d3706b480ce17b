"""Classes with a name on the command line: those in a table of this library, and those that installed packages add.

A package adds a class by an entry point with the value that a row of the table has: ``module:Class``. Classes without a
name are called ``module:Class``. Listing names imports no class.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from reverie.core.errors import ConfigError, did_you_mean
from reverie.core.imports import entry_points_in, import_object


class Entry(NamedTuple):
    """A class that has a name on the command line."""

    name: str
    target: str
    """``module:Class``, imported on first use."""
    group: str = "from installed packages"
    """Heading in ``reverie list``."""


def with_installed(table: Sequence[Entry], group: str) -> dict[str, Entry]:
    """Return the rows of ``table`` by name, and after them those of the entry points in ``group`` with other names."""
    builtin = {entry.name: entry for entry in table}
    return builtin | {p.name: Entry(p.name, p.value) for p in entry_points_in(group) if p.name not in builtin}


def find(entries: Mapping[str, Entry], name: str, base: type, kind: str) -> type[Any]:
    """Return the class called ``name`` in ``entries``, or the class ``module:Class``, which derives from ``base``.

    ConfigError about an unknown ``kind``, such as "algorithm", with similar names, if there is none.
    """
    if ":" in name:
        imported: type[Any] = import_object(name, error_prefix=f"{kind} '{name}'", base=base)
        return imported
    if name not in entries:
        raise ConfigError(
            f"unknown {kind} '{name}'.{did_you_mean(name, entries)} Available: {', '.join(sorted(entries))}, or "
            "'module:Class' for your own."
        )
    module, _, attribute = entries[name].target.partition(":")
    loaded: type[Any] = getattr(importlib.import_module(module), attribute)
    return loaded

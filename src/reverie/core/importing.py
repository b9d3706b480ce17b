"""Importing a user's own classes by name: ``module:Class``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import PurePath
from types import ModuleType
from typing import Any

from reverie.core.errors import ConfigError, did_you_mean, told


def importable() -> None:
    """Add the current folder to ``sys.path``. Users keep modules there, but a console script does not search it."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def findable(module: str) -> bool:
    """Return whether another process with the same ``sys.path`` can import ``module``; never so for ``__main__``.

    That it is imported in this process proves nothing: so are a notebook's module and one loaded from a file path.
    """
    importable()
    place: Sequence[str] | None = None
    if parent := module.rpartition(".")[0]:
        if not findable(parent):
            return False
        place = getattr(importlib.import_module(parent), "__path__", [])
    return module != "__main__" and any(finder.find_spec(module, place) is not None for finder in sys.meta_path)


def absent(module: str, error: Exception) -> bool:
    """Return whether ``error`` says that ``module`` is not there, rather than that its own code fails."""
    return isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")


def dotted(path: str) -> str:
    """Return the name of the module in a file: ``mine`` of ``./mine.py``; only the last part if the file is elsewhere.

    A path without a suffix, such as ``algos/mine``, is one to a file too.
    """
    parts = PurePath(path.removesuffix(".py")).parts
    names = [part for part in parts if part.isidentifier()]
    return ".".join(parts) if len(names) == len(parts) > 0 else (names or ["module"])[-1]


def is_file(module: str) -> bool:
    """Return whether ``module`` looks like the path of a file. Importing one may even work, under an odd name."""
    return module.endswith(".py") or any(sep in module for sep in {"/", os.sep})


def imported(name: str, *, what: str, base: type) -> Any:
    """Return the class named ``module:Class``, which must be derived from ``base``; error texts begin with ``what``.

    Raises:
        ConfigError: the module cannot be imported, or has no such class.
    """
    module, _, path = name.partition(":")
    importable()
    if is_file(module):
        raise ConfigError(
            f"{what}: '{module}' is the path of a file: expected the name of a module, as in "
            f"'{dotted(module)}:{path or 'Class'}', in the current folder or in one of PYTHONPATH."
        )
    try:
        home = importlib.import_module(module)
    except Exception as error:  # a user's module may raise anything
        if not absent(module, error):
            raise ConfigError(f"{what}: importing module '{module}' failed: {told(error)}") from error
        raise ConfigError(
            f"{what}: module '{module}' cannot be imported ({error}). Use the form 'module:Class', and run in the "
            "folder of module.py or add that folder to PYTHONPATH."
        ) from error
    found: Any = home
    for part in path.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, base)):
        script = " It was defined in a script: move it to a module." if module == "__main__" else ""
        there = _subclasses(home, base)
        near = did_you_mean(path, there)
        others = f" It has: {', '.join(there)}." if there else ""
        raise ConfigError(
            f"{what}: module '{module}' has no subclass of {base.__name__} with that name.{script}{near}{others}"
        )
    return found


def _subclasses(module: ModuleType, base: type) -> list[str]:
    """Return the names of a module's subclasses of ``base``; of reverie's own only those that it does not import."""
    ours = base.__module__.partition(".")[0]
    return [
        name
        for name, kind in vars(module).items()
        if isinstance(kind, type)
        and issubclass(kind, base)
        and (kind.__module__ == module.__name__ or kind.__module__.partition(".")[0] != ours)
    ]

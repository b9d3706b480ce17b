"""Importing a user's own classes by name: ``module:Class``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from reverie.core.errors import ConfigError, told


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


def imported(name: str, *, what: str, base: type) -> Any:
    """Return the class named ``module:Class``, which must be derived from ``base``; error texts begin with ``what``.

    Raises:
        ConfigError: the module cannot be imported, or has no such class.
    """
    module, _, path = name.partition(":")
    importable()
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # a user's module may raise anything
        if not absent(module, error):
            raise ConfigError(f"{what}: importing module '{module}' failed: {told(error)}") from error
        raise ConfigError(
            f"{what}: module '{module}' cannot be imported ({error}). Use the form 'module:Class', and run in the "
            "folder of module.py or add that folder to PYTHONPATH."
        ) from error
    for part in path.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, base)):
        script = " It was defined in a script: move it to a module." if module == "__main__" else ""
        raise ConfigError(f"{what}: module '{module}' has no subclass of {base.__name__} with that name.{script}")
    return found

"""Classes that only their user knows, by name: ``module:Class``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from reverie.core.errors import ConfigError


def importable() -> None:
    """Let modules in this folder be found, where people keep their own: a console script does not look there."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def findable(module: str) -> bool:
    """Whether another process that looks where this one does finds ``module``: not a script, nor what was made here.

    That it is imported here says nothing: a notebook's own module is, and one that was read from a file by its path.
    """
    importable()
    place: Sequence[str] | None = None
    if parent := module.rpartition(".")[0]:
        if not findable(parent):
            return False
        place = getattr(importlib.import_module(parent), "__path__", [])
    return module != "__main__" and any(finder.find_spec(module, place) is not None for finder in sys.meta_path)


def imported(name: str, *, what: str, base: type) -> Any:
    """The class derived from ``base`` that ``name``, ``module:Class``, says; errors begin with ``what``.

    Raises:
        ConfigError: the module cannot be imported, or has no such class.
    """
    module, _, path = name.partition(":")
    importable()
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{what}: module '{module}' cannot be imported ({error}). Expected 'module:Class', run from the folder of "
            "module.py or with it on PYTHONPATH."
        ) from error
    except Exception as error:  # whatever a module of its user's does
        raise ConfigError(f"{what}: importing module '{module}' failed: {type(error).__name__}: {error}") from error
    for part in path.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, base)):
        script = " It was defined in a script: put it into a module." if module == "__main__" else ""
        raise ConfigError(f"{what}: '{module}' has no {base.__name__} of that name.{script}")
    return found

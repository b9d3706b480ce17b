"""Classes that only their user knows, by name: ``module:Class``."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from reverie.core.errors import ConfigError


def importable() -> None:
    """Let modules in this folder be found, where people keep their own: a console script does not look there."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


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

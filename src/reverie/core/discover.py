"""Find algorithms by name: the file name in ``algos/`` is the name on the command line.

Listing names runs nothing. Third parties add an algorithm with an entry point of the group ``reverie.algos`` that
refers to the configuration class. Other importable classes are named ``module:Class``.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import cast

from reverie.core.config import Config
from reverie.core.errors import ConfigError, EnvError, did_you_mean
from reverie.core.imports import check_module, entry_points_in, import_object, is_importable

GROUP = "reverie.algos"
NON_ALGORITHM_FILES = frozenset({
    "__init__", "base", "dense_dreamer", "dreamer", "fqe", "imagination", "model_free", "modes", "on_policy",
    "returns_to_go", "settings", "sizes", "td", "tdmpc2_look", "tdmpc2_planner", "world_model",
})  # fmt: skip
"""Files in ``algos/`` that do not train a policy: shared code, and FQE, which estimates the return of a policy."""

ROOT = Path(__file__).parents[1]


def algorithms() -> dict[str, str]:
    """Return each algorithm's name and location: ``reverie.algos.<name>``, or ``module:Class`` of a third party."""
    builtin = {path.stem: f"reverie.algos.{path.stem}" for path in sorted((ROOT / "algos").glob("*.py"))}
    third_party = {point.name: point.value for point in entry_points_in(GROUP)}
    return third_party | {name: module for name, module in builtin.items() if name not in NON_ALGORITHM_FILES}


def algorithm_config(name: str) -> type[Config]:
    """Return the configuration class of the algorithm called ``name``, or raise ConfigError; dashes are underscores."""
    if ":" in name:
        return cast(type[Config], import_object(name, what=f"algorithm '{name}'", base=_base_class()))
    key = name.replace("-", "_")
    choices = algorithms()
    if key not in choices:
        hint = did_you_mean(key, choices)
        listed = ", ".join(sorted(choices))
        raise ConfigError(f"unknown algorithm '{name}'.{hint} Available: {listed}, or 'module:Class' for your own.")
    if not choices[key].startswith(f"{GROUP}."):
        return cast(type[Config], next(point for point in entry_points_in(GROUP) if point.name == key).load())
    module = importlib.import_module(choices[key])
    classes = [c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__]
    return next(c for c in classes if issubclass(c, _base_class()))


def algorithm_name(config: type[Config]) -> str:
    """Return the name of ``config``'s algorithm; ``module:Class`` if it is not registered."""
    home, _, stem = config.__module__.rpartition(".")
    if home == GROUP:
        return stem
    qualified_name = f"{config.__module__}:{config.__qualname__}"
    return next((point.name for point in entry_points_in(GROUP) if point.value == qualified_name), qualified_name)


def same_algorithm(a: str, b: str) -> bool:
    """Return whether two names refer to the same class, such as an entry point's name and its ``module:Class``."""
    if a.replace("-", "_") == b.replace("-", "_"):
        return True
    try:
        check_module(a, "a file")
        check_module(b, "a file")
        return algorithm_config(a) is algorithm_config(b)
    except (ConfigError, EnvError, ImportError, AttributeError):  # one of them no longer exists, or is not trusted
        return False


def is_importable_algorithm(config: type[Config]) -> bool:
    """Return whether another process can import ``config``, whose class is not defined in a script or a function."""
    name = algorithm_name(config)
    if ":" in name and not is_importable(config.__module__):
        return False
    try:
        return algorithm_config(name) is config
    except ConfigError:
        return False


def module_outline(module: str) -> tuple[str, list[str]]:
    """Return the first line of the docstring of a module such as ``algos.dreamer_v3``, and the keys of ``SIZES``.

    The module can also import this table from another module of the package.
    """
    tree = tables = _parse(module)
    for x in tree.body:
        if isinstance(x, ast.ImportFrom) and x.module and any(alias.name == "SIZES" for alias in x.names):
            tables = _parse(x.module.removeprefix("reverie."))
    values = [x.value for x in tables.body if isinstance(x, ast.AnnAssign) and ast.unparse(x.target) == "SIZES"]
    sizes = [ast.literal_eval(key) for table in values if isinstance(table, ast.Dict) for key in table.keys if key]
    return (ast.get_docstring(tree) or "").partition("\n")[0], sizes


def _parse(module: str) -> ast.Module:
    return ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))


def version() -> str:
    """Return the installed version of reverie."""
    try:
        return distribution("reverie-rl").version
    except PackageNotFoundError:
        return "0+unknown"


def _base_class() -> type[Config]:
    """Return ``AlgorithmConfig``, imported by name because ``core`` may not import ``algos``."""
    return cast(type[Config], importlib.import_module("reverie.algos.settings").AlgorithmConfig)

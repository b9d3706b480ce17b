"""Which algorithms exist: the file name in ``algos/`` is the name on the command line.

Listing names reads folders and installed packages' metadata and runs nothing. Third parties add algorithms by an entry
point of the group ``reverie.algos`` whose object is the configuration class. Anybody's class is ``module:Class``, if
Python can import the module.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import Any, NamedTuple

from reverie.core.config import Config
from reverie.core.errors import ConfigError, did_you_mean
from reverie.core.importing import findable, imported

GROUP = "reverie.algos"
SHARED = frozenset({"__init__", "base", "capture", "world_model", "imagination", "fqe"})
"""Files in ``algos/`` that train no policy: what several share, and FQE, which estimates what one would earn."""

ROOT = Path(__file__).parents[1]


def algorithms() -> dict[str, str]:
    """Name and home of every algorithm: ``reverie.algos.<name>``, or ``module:Class`` of a third party."""
    own = {path.stem: f"reverie.algos.{path.stem}" for path in sorted((ROOT / "algos").glob("*.py"))}
    others = {point.name: point.value for point in _points()}
    return others | {name: home for name, home in own.items() if name not in SHARED}


def algorithm_config(name: str) -> type[Config]:
    """The configuration class of the algorithm called ``name``; dashes and underscores are the same.

    Raises:
        ConfigError: there is no such algorithm, or its file does not define exactly one.
    """
    if ":" in name:
        config: type[Config] = imported(name, what=f"algorithm '{name}'", base=_base_class())
        return config
    wanted = name.replace("-", "_")
    known = algorithms()
    if wanted not in known:
        hint = did_you_mean(wanted, known)
        raise ConfigError(
            f"unknown algorithm '{name}'.{hint} There are: {', '.join(sorted(known))}; your own is 'module:Class'."
        )
    base = _base_class()
    if not known[wanted].startswith(f"{GROUP}."):
        found: list[object] = [point.load() for point in _points() if point.name == wanted]
    else:
        module = importlib.import_module(known[wanted])
        found = [c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__]
    configs = [c for c in found if isinstance(c, type) and issubclass(c, base)]
    if len(configs) != 1:
        names = ", ".join(c.__name__ for c in configs) or "none"
        raise ConfigError(f"{known[wanted]} defines {names}: expected exactly one subclass of {base.__name__}.")
    return configs[0]


def algorithm_name(config: type[Config]) -> str:
    """The name under which ``config`` is found; ``module:Class`` for a class that only its user knows."""
    home, _, stem = config.__module__.rpartition(".")
    if home == GROUP:
        return stem
    here = f"{config.__module__}:{config.__qualname__}"
    return next((point.name for point in _points() if point.value == here), here)


def same_algorithm(one: str, other: str) -> bool:
    """Whether two names are of one class: an entry point's short one and ``module:Class`` may be."""
    if one.replace("-", "_") == other.replace("-", "_"):
        return True
    try:
        return algorithm_config(one) is algorithm_config(other)
    except (ConfigError, ImportError, AttributeError):  # one of them is not there any more
        return False


def found_elsewhere(config: type[Config]) -> bool:
    """Whether another process finds ``config`` by its name: not if a script or a function defined it."""
    name = algorithm_name(config)
    if ":" in name and not findable(config.__module__):
        return False
    try:
        return algorithm_config(name) is config
    except ConfigError:
        return False


class Outline(NamedTuple):
    """What a module says of itself, read without running it."""

    summary: str
    """First line of its docstring."""
    functions: dict[str, str]
    """Public functions and the first lines of their docstrings, in the order of the file."""
    tables: dict[str, dict[str, Any]]
    """Dictionaries that are assigned at the top; a value that is not a literal is None."""


def outline(module: str) -> Outline:
    """The outline of ``reverie``'s own ``module``, such as ``published.dreamer`` or ``algos.dreamer_v3``."""
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
    tables: dict[str, dict[str, Any]] = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Dict):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            tables[ast.unparse(target)] = _table(node.value)
    return Outline(_first_line(tree), {f.name: _first_line(f) for f in functions}, tables)


def _table(node: ast.Dict) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if isinstance(key, ast.Constant):
            try:
                out[str(key.value)] = ast.literal_eval(value)
            except ValueError:
                out[str(key.value)] = None
    return out


def _first_line(node: ast.Module | ast.FunctionDef) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0]


def version() -> str:
    """The version of this package as it is installed."""
    try:
        return distribution("reverie-rl").version
    except PackageNotFoundError:
        return "0+unknown"


def _points() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda point: point.name)


def _base_class() -> type[Config]:
    """``AlgorithmConfig``, fetched by name: the ground floor may not import what stands on it."""
    base: type[Config] = importlib.import_module("reverie.algos.base").AlgorithmConfig
    return base

"""JSON and YAML in files of runs and datasets, which can be damaged or malicious."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from reverie.core.errors import ConfigError, ReverieError, RunError, did_you_mean
from reverie.core.files import read_file

LARGEST_YAML = 4_000_000
"""Maximum size of a YAML file in bytes; reading a megabyte takes a second."""
MOST_NODES = 500_000
"""Maximum number of values in a YAML file, counting values behind an alias each time."""


class Unique(yaml.SafeLoader):
    """Rejects duplicate keys in a mapping; YAML's own loader uses the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a node; YAMLError for duplicate keys."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and lines.setdefault(key.value, line) != line:
                raise yaml.YAMLError(f"line {line}: '{key.value}' was set in line {lines[key.value]} already.")
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the mapping in a YAML file; ConfigError if there is none."""
    try:
        content = _parse_yaml(read_file(path, LARGEST_YAML).decode())
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}.{near(path)}") from None
    except RecursionError:
        raise ConfigError(f"{path} cannot be read as YAML: its values are nested too deeply.") from None
    except ReverieError as error:
        raise ConfigError(str(error)) from error
    except (OSError, ValueError, yaml.YAMLError) as error:  # a date of month 13 is a ValueError
        raise ConfigError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(content, dict | None):
        raise ConfigError(f"{path} contains a {type(content).__name__}: expected a mapping from options to values.")
    return content or {}


def _parse_yaml(text: str) -> Any:
    """Parse ``text``; YAMLError if its aliases expand to too many values."""
    loader = Unique(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _size_of(node, {}) > MOST_NODES:
            raise yaml.YAMLError(f"it has more than {MOST_NODES:,} values, counted at each alias.")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _size_of(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Return the number of values below a node; ``sizes``: cached sizes of other nodes.

    YAMLError if it contains itself.
    """
    if id(node) in sizes:
        if sizes[id(node)] == 0:
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: a value contains itself.")
        return sizes[id(node)]
    sizes[id(node)] = 0
    inside = [] if isinstance(node, yaml.ScalarNode) else node.value
    pairs = (part for item in inside for part in (item if isinstance(item, tuple) else (item,)))
    sizes[id(node)] = size = 1 + sum(_size_of(part, sizes) for part in pairs)
    return size


def read_json(path: Path, advice: str = "Restore it from a backup.") -> dict[str, Any]:
    """Return the object in a JSON file; RunError with ``advice`` if it is damaged."""
    try:
        content = json.loads(read_file(path))
    except RecursionError:
        raise RunError(f"{path} is damaged: its values are nested too deeply. {advice}") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}. {advice}") from error
    if not isinstance(content, dict):
        raise RunError(f"{path} is damaged: it contains a {type(content).__name__}, not an object. {advice}")
    return content


def near(path: Path) -> str:
    """Return a hint at files next to ``path`` with a similar name."""
    siblings = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
    return did_you_mean(path.name, [p.name for p in siblings])

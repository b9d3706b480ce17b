"""JSON and YAML in files of runs and datasets, which can be damaged or malicious."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import yaml

from reverie.core.errors import ConfigError, ReverieError, RunError, did_you_mean
from reverie.core.files import read_file

LARGEST_YAML = 4_000_000
"""Maximum size of a YAML file in bytes; reading a megabyte takes a second."""
MOST_NODES = 500_000
"""Maximum number of values in a YAML file, counting values behind an alias each time."""
MAX_DEPTH = 1000
"""Maximum depth of values that libyaml reads: it recurses without a limit, and would crash the process."""
MAX_FILES = 2000
"""Maximum number of YAML files whose content is kept: the page of runs reads the settings of all at each request."""
MAX_SECTIONED = 30_000
"""Maximum length of a YAML file whose sections are kept; the settings of a run have some ten thousand characters."""
LIBYAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _UniqueKeys(yaml.constructor.SafeConstructor):
    """Rejects duplicate keys in a mapping; YAML's own loader uses the last one. Rejects NUL, which no path may have."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """Return the text of a node; YAMLError for NUL."""
        if "\0" in node.value:  # never in a mapping
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: the character NUL.")
        return super().construct_scalar(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a node; YAMLError for duplicate keys."""
        lines: dict[str, int] = {}
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and lines.setdefault(key.value, line) != line:
                raise yaml.YAMLError(f"line {line}: '{key.value}' was set in line {lines[key.value]} already.")
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


class _Loader(_UniqueKeys, yaml.SafeLoader):
    """Raises RecursionError for deep nesting."""


class _FastLoader(_UniqueKeys, LIBYAML_LOADER):  # type: ignore[misc]
    """Parses with libyaml, if it is there: eight times as fast."""

    def resolve(self, kind: object, value: object, implicit: object) -> Any:
        """Return the tag of a node; keys and values repeat from file to file."""
        return _resolve(kind, value, implicit)


@functools.lru_cache(10_000)
def _resolve(kind: object, value: object, implicit: object) -> Any:
    resolver: Any = yaml.resolver.Resolver()
    return resolver.resolve(kind, value, implicit)


def read_yaml(path: Path, name_levels: int = 0) -> dict[str, Any]:
    """Read the mapping in a YAML file; ConfigError if there is none.

    ``name_levels``: of mappings, from the outermost one, whose keys are names. These stay as written, also ``on`` and
    ``0.10``, which YAML reads as a truth value and as a number.
    """
    try:
        stat = os.stat(path)
        stamp = stat.st_mtime_ns, stat.st_size, stat.st_ino
        content = pickle.loads(_read_yaml(path, stamp, name_levels))  # a copy for the caller
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


@functools.lru_cache(MAX_FILES)
def _read_yaml(path: Path, _stamp: tuple[int, ...], name_levels: int) -> bytes:
    """Return the pickled content of a YAML file; it is read again when the file has changed."""
    text = read_file(path, LARGEST_YAML).decode()
    is_plain = len(text) <= MAX_SECTIONED and "&" not in text and "\n..." not in text  # no aliases, one document
    sections = _parse_sections(text) if is_plain and not name_levels else None
    return pickle.dumps(_parse_yaml(text, name_levels) if sections is None else sections)


@functools.lru_cache(5_000)
def _parse_sections(text: str) -> dict[Any, Any] | None:
    """Return the mapping in ``text``; sections that repeat from file to file are parsed once.

    None if some section is no mapping alone, as where a text in quotes has lines that look like keys.
    """
    if not re.match(r"\w", text):
        return None
    sections = re.split(r"(?<=\n)(?=\w)", text)  # with their last newlines, which belong to blocks of text
    mapping: dict[Any, Any] = {}
    for section in sections:
        head, _, body = section.partition(":\n  ")
        lines = body.rstrip("\n").count("\n")
        if body and re.fullmatch(r"\w+", head) and lines == body.count("\n  "):
            inner = _parse_sections(body.replace("\n  ", "\n"))
            content = None if inner is None else dict.fromkeys(_parse_section(f"{head}:") or {}, inner)
        else:
            content = _parse_section(section)
        if not content or not mapping.keys().isdisjoint(content):
            return None
        mapping |= content
    return mapping


@functools.lru_cache(5_000)
def _parse_section(text: str) -> dict[Any, Any] | None:
    """Return the mapping in ``text``; None for other values and errors, which the whole file explains."""
    try:
        content = _parse_yaml(text)
    except (ValueError, RecursionError, yaml.YAMLError):
        return None
    return content if isinstance(content, dict) else None


def _parse_yaml(text: str, name_levels: int = 0) -> Any:
    """Parse ``text``; YAMLError if its aliases expand to too many values."""
    if _max_depth(text) <= MAX_DEPTH:
        with contextlib.suppress(yaml.YAMLError):  # the errors of the other loader show the line
            return _load_yaml(_FastLoader, text, name_levels)
    return _load_yaml(_Loader, text, name_levels)


def _load_yaml(loader_class: Any, text: str, name_levels: int) -> Any:
    loader = loader_class(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if "&" in text and _size_of(node, {}) > MOST_NODES:
            raise yaml.YAMLError(f"it has more than {MOST_NODES:,} values, counted at each alias.")
        _keep_names(node, name_levels)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _keep_names(node: yaml.Node, levels: int) -> None:
    """Make the keys of the outer ``levels`` of mappings texts."""
    for key, value in node.value if levels and isinstance(node, yaml.MappingNode) else ():
        if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
            key.tag = "tag:yaml.org,2002:str"
        _keep_names(value, levels - 1)


def _max_depth(text: str) -> int:
    """Return an upper bound of the depth of the values in ``text``: a bracket, an indent or an indicator is a level.

    A sequence may have the indent of the mapping around it.
    """
    return text.count("[") + text.count("{") + 2 * max(map(len, text.split("\n")))


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

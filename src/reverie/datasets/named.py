"""Readers that users name: ``module:Class``, ``module:Class(setting=value)``, or the entry point of a package.

Third parties add a name by an entry point of the group ``reverie.readers`` whose object is the class.
"""

from __future__ import annotations

import ast
import glob
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reverie.core.discover import loaded, points_of
from reverie.core.errors import ConfigError, DataError, did_you_mean
from reverie.core.importing import findable, imported
from reverie.datasets.concat import SeveralReader, by_number
from reverie.datasets.own import OwnReader
from reverie.datasets.reader import Reader, ReadOptions

GROUP = "reverie.readers"
MADE = "..."
"""Stands for arguments that no file can hold in the name of a reader that was made in Python."""
_NAME = re.compile(r"\s*([\w.]+(?::[\w.<>]+)?)\s*(\(.*\))?\s*", re.DOTALL)


def named_reader(path: str, options: ReadOptions) -> Reader:
    """Return the reader of one's own that ``options`` names or holds, for the file, folder or glob at ``path``.

    Raises:
        ConfigError: there is no such class, it lacks methods, or it does not accept the settings.
        DataError: there is nothing at ``path``.
    """
    if isinstance(options.reader, Reader):
        return OwnReader(options.reader, stays_open=True)
    what = f"data.reader = '{options.reader}'"
    name, settings = parsed(options.reader, what)
    kind = class_of(name, what)
    place = Path(path).expanduser()
    is_glob = glob.has_magic(path) and not place.exists()  # a name may contain brackets
    found = sorted(map(Path, glob.glob(str(place), recursive=True)), key=by_number) if is_glob else []
    if not found and not place.exists():
        beside = sorted(p.name for p in place.parent.iterdir()) if place.parent.is_dir() else []
        raise DataError(
            f"there is nothing at {path}, which {name} is to read.{did_you_mean(place.name, beside)} Expected a file, "
            "a folder or a glob."
        )
    readers = [OwnReader(made(kind, each, options, settings, what)) for each in found or [place]]
    return readers[0] if len(readers) == 1 else SeveralReader(place, readers, options)


def parsed(text: str, what: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a class and its settings: ``mine:Table`` and ``{"step": 2}`` of ``mine:Table(step=2)``.

    Raises:
        ConfigError: the text is of another form; the message begins with ``what``.
    """
    form = "expected module:Class, or module:Class(setting=value) with plain values"
    match = _NAME.fullmatch(text)
    if match is None:
        raise ConfigError(f"{what}: {form}.")
    if match[2] == f"({MADE})":
        raise ConfigError(
            f"{what}: this reader was made in Python with arguments that a file cannot hold. Make it again and pass "
            f"it: reverie.train(..., data={re.split('[:.]', match[1])[-1]}(...))."
        )
    try:
        call = ast.parse(f"f{match[2] or '()'}", mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args or any(word.arg is None for word in call.keywords):
            raise ValueError
        return match[1], {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError):
        raise ConfigError(f"{what}: {form}.") from None


def class_of(name: str, what: str) -> type[Reader]:
    """Return the class of a reader: one that is defined already, in a module, or of an entry point.

    Raises:
        ConfigError: there is none, or it lacks methods; the message begins with ``what``.
    """
    points = {point.name: point for point in points_of(GROUP)}
    base: type = Reader
    there = {_place(kind): kind for kind in _descendants(base)}
    found: object = there.get(name)
    if found is None and name in points:
        found = loaded(points[name], what)
    elif found is None and ":" in name:
        found = imported(name, what=what, base=Reader)
    elif found is None:
        module, dot, last = name.rpartition(".")
        hint = did_you_mean(name, points) or (f" Did you mean '{module}:{last}'?" if dot else "")
        known = f" Installed packages have {', '.join(points)}." if points else ""
        raise ConfigError(f"{what}: expected module:Class, the class of a reader in a module of yours.{hint}{known}")
    if not (isinstance(found, type) and issubclass(found, Reader)):
        raise ConfigError(f"{what}: {found!r} is not a subclass of reverie.datasets.reader.Reader.")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        listed = " and ".join(f"{method}()" for method in missing)
        raise ConfigError(f"{what}: {found.__name__} lacks {listed} of reverie.datasets.reader.Reader: write it there.")
    return found


def made(kind: type[Reader], path: Path, options: ReadOptions, settings: dict[str, Any], what: str) -> Reader:
    """Return ``kind(path, options, **settings)``.

    Raises:
        ConfigError: it does not accept these; the message begins with ``what``.
    """
    try:
        inspect.signature(kind).bind(path, options, **settings)
    except TypeError as error:
        takes = inspect.signature(kind).replace(return_annotation=inspect.Signature.empty)
        raise ConfigError(
            f"{what}: {kind.__name__} cannot be made ({error}). It takes {takes}: expected (path, options, "
            "*, setting=default, ...)."
        ) from None
    return kind(path, options, **settings)


def name_of(reader: Reader) -> str:
    """Return the name from which ``named_reader`` makes ``reader`` again, with ``(...)`` if that is impossible."""
    given, named = reader.given
    try:
        path, *rest = given if given else (named.get("path"),)
        options = rest[0] if rest else named.get("options", ReadOptions())
        settings = {name: value for name, value in named.items() if name not in ("path", "options")}
        inspect.signature(type(reader)).bind(path, options, **settings)
        plain = len(rest) < 2 and isinstance(path, str | Path) and Path(path) == reader.path
        plain = (
            plain and (options is None or isinstance(options, ReadOptions)) and all(map(_is_plain, settings.values()))
        )
    except TypeError:
        plain = False
    words = ", ".join(f"{name}={value!r}" for name, value in settings.items()) if plain else MADE
    return _place(type(reader)) + (f"({words})" if words else "")


def settings_of(reader: Reader) -> dict[str, Any]:
    """Return the settings of data, by dotted path, that ``reader``, an object, stands for."""
    path = str(reader.path.expanduser().absolute()) if reader.path.expanduser().exists() else str(reader.path)
    found = {"data.path": path, "data.reader": reader}
    return found | {f"data.{name}": value for name, value in reader.options.given.items()}


def found_elsewhere(reader: str | Reader) -> bool:
    """Return whether another process can make the reader from its name."""
    name, _, arguments = str(reader).partition("(")
    module, colon, kind = name.partition(":")
    return arguments != f"{MADE})" and (not colon or (findable(module) and "<" not in kind))


def _place(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _descendants(kind: type) -> Iterator[type]:
    one: type
    for one in kind.__subclasses__():
        yield from (one, *_descendants(one))


def _is_plain(value: object) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError):
        return False

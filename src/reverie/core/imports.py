"""Import user classes by name: ``module:Class``."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.abc
import importlib.util
import os
import re
import site
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoint, entry_points
from itertools import accumulate, chain
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from reverie.core.errors import ConfigError, EnvError, ReverieError, UntrustedError, did_you_mean, format_error
from reverie.core.files import is_private, read_file, user_folder, write_atomic

GROUPS = ("reverie.algos", "reverie.readers", "gymnasium.envs")
"""Entry point groups with which an installed package offers its classes to reverie or Gymnasium."""
OFFERED = {"reverie", "gymnasium.envs"}
"""Additional packages whose classes files may name. ``envs/suites.py`` adds those of its suites."""
INSTALLED, NAMED = "installed", "named"
"""Placeholders in the list of trusted files for the hash: of an installed file, which only an installer changes, and of
a file that the user has named, and may edit."""

_trust_var: ContextVar[bool] = ContextVar("trusting", default=False)
_typed: ContextVar[tuple[str, ...] | None] = ContextVar("typed", default=None)
is_trusting: Callable[[], bool] = _trust_var.get
"""Returns whether files may name any module."""


@contextlib.contextmanager
def trust_modules(trust: bool, words: Sequence[str] | None = None) -> Iterator[None]:
    """If ``trust`` is true, files may name classes of any module inside the context.

    ``words``: the command line, or the arguments of a function that reads files. Other modules then count as named by a
    file, even if imported elsewhere.
    """
    token = _trust_var.set(trust or is_trusting())
    typed = _typed.set(_typed.get() if words is None else (*(_typed.get() or ()), *words))
    try:
        yield
    finally:
        _typed.reset(typed)
        _trust_var.reset(token)


def typed_texts() -> list[str]:
    """Return the words of the command line, what their flags carry (``--name=text``), and the texts in lists there."""
    texts = [text for argument in _typed.get() or () for text in {argument, argument.partition("=")[2]} if text]
    return texts + [item for text in texts if text[:1] in ("[", "{") for item in texts_in(_read_inline(text))]


def _read_inline(text: str) -> Any:
    """Return the value of inline YAML; None if it is none."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        return None


def check_module(name: str, source: object) -> None:
    """Check a name read from a file, ``module:Name``, before its module is imported.

    ``source`` describes the file. Datasets and runs can be untrusted, so every name in a file is checked by this
    function. EnvError for a module of Python. UntrustedError unless an installed package offers the module to reverie
    or Gymnasium, or the user trusts it, now or by having named it (``trust_file_of``).
    """
    module = name.partition(":")[0] if ":" in name else ""
    if not module:
        return
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise EnvError(f"{source} names '{name}'. '{module}' is a module of Python, which files must not name.")
    if is_remembered(module) or is_offered(module):
        return
    trusted = trusted_entries()
    past = {entry.partition(" ")[2] for entry in trusted}
    changed = [path for path, is_trusted in _find_trusted(module, trusted).items() if path in past and not is_trusted]
    if changed:
        raise UntrustedError(
            f"{source} names '{name}', and {changed[0]} has changed since you named it last. It is not a file that you "
            "have named and that only you can write. If the changes are yours, add --trust-code, or name the module "
            "yourself. Its file is then trusted as it is now."
        )
    raise UntrustedError(
        f"{source} names '{name}'. No installed package offers '{module}' to reverie or Gymnasium, and importing "
        "another module runs code that may have come with these files. If you trust it, add --trust-code; in Python, "
        "pass trust_code=True or the name itself. Its file is then trusted from now on."
    )


def is_module_name(name: str) -> bool:
    """Return whether ``name`` consists of Python's identifiers, joined by dots."""
    return all(part.isidentifier() for part in name.split("."))


def names_in(value: object) -> list[str]:
    """Return the strings in nested arguments that name an existing module: Gymnasium and others import such an id.

    They import a file of any name. ``http://`` is no name of Python's module ``http``.
    """
    parts = {text: text.partition(":") for text in texts_in(value)}
    return [
        text
        for text, (module, colon, name) in parts.items()
        if module and colon and _spec_of(module) is not None
        if name[:1].isidentifier() or module.partition(".")[0] not in sys.stdlib_module_names
    ]


def texts_in(value: object) -> list[str]:
    """Return the strings in nested values of settings."""
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [value] if isinstance(value, str) else [text for item in inside for text in texts_in(item)]


def is_offered(module: str) -> bool:
    """Return whether an installed package offers ``module`` to reverie or Gymnasium, without importing anything."""
    if "__main__" in module.split(".") or not is_installed_module(module):
        return False
    offering = (point.module.partition(".")[0] for group in GROUPS for point in entry_points_in(group))
    return any(f"{module}.".startswith(f"{package}.") for package in chain(OFFERED, offering))


def entry_points_in(group: str) -> list[EntryPoint]:
    """Return the entry points that installed packages have in ``group``, by name. Nothing is imported."""
    return _entry_points_on(tuple(sys.path), group)


@functools.cache  # reading the metadata of 200 packages takes 10 ms
def _entry_points_on(path: tuple[str, ...], group: str) -> list[EntryPoint]:
    return sorted(filter(_is_elsewhere, entry_points(group=group)), key=lambda point: point.name)


def _is_elsewhere(point: EntryPoint) -> bool:
    """Return whether the package of ``point`` is outside the current folder, which can contain untrusted files."""
    folder = "" if point.dist is None else os.path.realpath(str(point.dist.locate_file("")))
    return folder != os.path.realpath(os.getcwd()) or folder in _installed_folders()


def trust_file_of(module: str) -> None:
    """Trust the current files of a module for this user; ignored if this cannot be saved.

    The places of files that the user has named are trusted, too: see :func:`is_remembered`.
    """
    entries = [] if is_offered(module) else _entries(module)
    places = [f"{NAMED} {entry.partition(' ')[2]}" for entry in entries] if _is_named(module) else []
    remember({*entries, *places})


def _is_named(module: str) -> bool:
    """Return whether the user names ``module``: by the words, or in Python, where there are none."""
    if (typed := _typed.get()) is None:
        return not is_trusting()
    return re.search(rf"(?<![\w./]|[^\x00-\x7f]){re.escape(module)}:(?=\w|[^\x00-\x7f])", "\n".join(typed)) is not None


def remember(entries: set[str]) -> None:
    """Add ``entries`` to the trusted ones, without files that no longer exist; ignored if this cannot be saved."""
    trusted, trust_file = trusted_entries(), _trust_file()
    if trust_file is not None and entries - trusted:
        existing = {entry for entry in trusted if entry[:9] == "location " or os.path.isfile(entry.partition(" ")[2])}
        with contextlib.suppress(OSError):
            write_atomic(trust_file, b"".join(os.fsencode(f"{entry}\n") for entry in sorted(entries | existing)))


def is_remembered(module: str) -> bool:
    """Return whether the user trusts the current files of ``module``.

    A file that the user has named can have any content, as long as nobody else can write it.
    """
    return is_trusting() or (bool(states := _find_trusted(module, trusted_entries())) and all(states.values()))


def _find_trusted(module: str, trusted: Collection[str]) -> dict[str, bool]:
    """Return which files of ``module`` are among the ``trusted`` entries, by their paths."""
    pairs = [(entry, entry.partition(" ")[2]) for entry in _entries(module)]
    named = {path for _, path in pairs if f"{NAMED} {path}" in trusted}
    return {path: entry in trusted or (path in named and is_private(Path(path))) for entry, path in pairs}


def trusted_entries() -> set[str]:
    """Return the trusted entries: the SHA-256 of a file, or ``named``, a space, and its path; or those of locations."""
    try:
        return set() if (path := _trust_file()) is None else {*os.fsdecode(path.read_bytes()).split("\n")} - {""}
    except OSError:
        return set()


def _trust_file() -> Path | None:
    """Return the file with the trusted entries, one per line; None if the user has no home."""
    folder = user_folder("XDG_STATE_HOME", "~/.local/state")
    return folder and folder / "trusted"


def _entries(module: str) -> list[str]:
    """Return content and path of each file that importing ``module`` runs, its packages' first; [] if it has none.

    Their folder on ``sys.path`` is resolved, what is below is not: a link to a trusted file, from a folder with modules
    that this file would then import, is another file.
    """
    entries = []
    for depth, name in enumerate(accumulate(module.split("."), "{}.{}".format)):
        if (spec := _spec_of(name)) is None:
            return []
        if spec.has_location and spec.origin:  # not for a folder without __init__.py
            file = Path(spec.origin)
            folder = file.parents[depth + (spec.submodule_search_locations is not None)]
            path = os.path.join(os.path.realpath(folder), file.relative_to(folder))
            entries.append(f"{_digest(file, name)} {path}")
    return entries


def list_user_files(module: str) -> dict[str, Path]:
    """Return the files that importing ``module`` runs, its packages' first, by module; {} if it is installed."""
    if not is_module_name(module) or is_installed_module(module):
        return {}
    specs = {name: _spec_of(name) for name in accumulate(module.split("."), "{}.{}".format)}
    return {name: Path(spec.origin) for name, spec in specs.items() if spec and spec.has_location and spec.origin}


def _digest(file: Path, module: str) -> str:
    """Return the SHA-256 of a file; ``INSTALLED`` for that of an installed ``module``, and "" if it is unreadable."""
    if is_installed_module(module):
        return INSTALLED
    try:
        return hashlib.sha256(read_file(file)).hexdigest()
    except (OSError, ReverieError):
        return ""


def _spec_of(module: str) -> ModuleSpec | None:
    """Return the spec of the imported ``module``, or of the module that would be imported."""
    return getattr(sys.modules.get(module), "__spec__", None) or _find_spec(module, os.getcwd())


def _find_spec(module: str, *folders: str) -> ModuleSpec | None:
    """Find the spec of ``module`` in ``sys.path`` or ``folders``, without running anything."""
    spec, places = None, [*sys.path, *folders]
    for part in module.split("."):
        spec = PathFinder.find_spec(part, places)
        places = list((spec and spec.submodule_search_locations) or ())
    return spec


def is_installed_module(module: str) -> bool:
    """Return whether importing ``module`` runs code of Python or of an installed package, including editable ones."""
    top, places = module.partition(".")[0], _installed_folders()
    hooks = [hook for hook in sys.meta_path if str(getattr(hook, "__module__", "")).startswith("__editable__")]
    specs = [PathFinder.find_spec(top, places), *(hook.find_spec(top, None) for hook in hooks)]
    first_spec = next(filter(None, specs), None)
    other_paths = [path for path in ("", *sys.path) if os.path.realpath(path) not in places]
    other_spec = PathFinder.find_spec(top, other_paths)  # which can take precedence
    if first_spec is None or other_spec is None:
        return first_spec is not None
    return first_spec.loader is not None if other_spec.loader is None else first_spec.origin == other_spec.origin


@functools.cache
def _installed_folders() -> list[str]:
    """Return the folders of Python's and installed modules, and those that installed ``.pth`` files name."""
    paths = sysconfig.get_paths()
    named = [paths[name] for name in ("stdlib", "purelib", "platlib")]
    folders = [*named, *site.getsitepackages(), site.getusersitepackages(), str(Path(__file__).parents[2])]
    files = [file for folder in folders for file in Path(folder).glob("*.pth")]
    lines = [(file, line) for file in files for line in file.read_text(errors="replace").split("\n") if line.strip()]
    linked = [str(file.parent / line.strip()) for file, line in lines if not line.startswith(("#", "import"))]
    return [os.path.realpath(folder) for folder in (*folders, *linked)]


def ensure_importable(module: str) -> None:
    """Add the current folder, which a console script does not search, to ``sys.path`` for a module found nowhere else.

    The folder can contain other modules, which imported modules would find.
    """
    if os.getcwd() not in sys.path and not is_installed_module(module) and _find_spec(module) is None:
        sys.path.append(os.getcwd())


def is_importable(module: str) -> bool:
    """Return whether another process with the same ``sys.path`` can import ``module``; never so for ``__main__``."""
    ensure_importable(module)
    search_path: Sequence[str] | None = None
    if parent := module.rpartition(".")[0]:
        if not is_importable(parent):
            return False
        search_path = getattr(importlib.import_module(parent), "__path__", [])
    return module != "__main__" and any(finder.find_spec(module, search_path) is not None for finder in sys.meta_path)


def import_module_of(name: str, error_prefix: str, kind: type[ReverieError] = ConfigError) -> ModuleType:
    """Import the module of ``module:Name``, including modules in the current folder; else raise ``kind``.

    Error messages begin with ``error_prefix``.
    """
    module, _, path = name.partition(":")
    ensure_importable(module)
    # importing a path can even work, under a wrong name
    if module.endswith(".py") or not is_module_name(module):
        suggestion = f"{Path(module).stem.replace('-', '_')}:{path or 'Class'}"
        raise kind(
            f"{error_prefix}: '{module}' is not the name of a module: expected identifiers of Python, joined by dots, "
            f"as in '{suggestion}', of a file in the current folder or in one of PYTHONPATH."
        )
    if not _is_named(module):
        check_module(name, error_prefix)
    try:
        imported_module = importlib.import_module(module)
    except Exception as error:  # a user's module can raise anything
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == module
        near = did_you_mean(module, [path.stem for path in Path().glob("*.py")]) if is_missing else ""
        raise kind(
            f"{error_prefix}: module '{module}' cannot be imported ({format_error(error)}).{near} If it is not there: "
            f"install it, run in the folder of {module.partition('.')[0]}.py or add that folder to "
            "PYTHONPATH."
        ) from error
    trust_file_of(module)  # named by the user, or by trusted files
    return imported_module


def import_object(name: str, *, error_prefix: str, base: type) -> Any:
    """Return the class ``module:Class``, derived from ``base``; if ``base`` is object, functions are allowed too.

    ConfigError otherwise. It must be defined in the module, or be a class in another module of the same package: names
    imported from elsewhere, such as ``os.system``, are rejected.
    """
    home = import_module_of(name, error_prefix)
    module, _, path = name.partition(":")
    target: Any = getattr(home, path, None)
    if not ((isinstance(target, type) and issubclass(target, base)) or (base is object and callable(target))):
        candidates = _subclasses(home, base)
        near = did_you_mean(path, candidates)
        available = f" It has: {', '.join(candidates)}." if candidates else ""
        kind = "class or function" if base is object else f"subclass of {base.__name__}"
        raise ConfigError(f"{error_prefix}: module '{module}' has no {kind} with that name.{near}{available}")
    definer = str(getattr(target, "__module__", ""))
    if definer != module and (base is object or definer.partition(".")[0] != module.partition(".")[0]):
        raise ConfigError(
            f"{error_prefix}: '{path}' is defined in '{definer}', not in '{module}'. Name it as '{definer}:{path}'."
        )
    return target


def _subclasses(module: ModuleType, base: type) -> list[str]:
    """Return the names of a module's own subclasses of ``base``, not of imported ones."""
    kinds = {name: kind for name, kind in vars(module).items() if isinstance(kind, type) and issubclass(kind, base)}
    return [name for name, kind in kinds.items() if kind.__module__.startswith(module.__name__)]


def on_import(module: str, call: Callable[[], None]) -> None:
    """Call ``call`` once the package ``module`` is imported; immediately if it already is."""
    if module in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _OnImportFinder(module, call))


class _OnImportFinder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: it makes modules found by other finders call a function after their import."""

    def __init__(self, module: str, call: Callable[[], None]) -> None:
        self._module, self._call, self._looking = module, call, False

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._module or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = functools.partial(self._run, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec

    def _run(self, run: Callable[[ModuleType], None], module: ModuleType) -> None:
        sys.meta_path.remove(self)
        run(module)
        self._call()

"""Importing a user's own classes by name: ``module:Class``."""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from importlib.machinery import ModuleSpec, PathFinder
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

from reverie.core.errors import ConfigError, ReverieError, UntrustedError, did_you_mean, told
from reverie.core.files import user_folder, write_atomic

_trusting: ContextVar[bool] = ContextVar("trusting", default=False)
trusts: Callable[[], bool] = _trusting.get
"""Returns whether files may name any module."""


@contextlib.contextmanager
def trusting(trust: bool) -> Iterator[None]:
    """With ``trust``, let the names in files be those of any module meanwhile."""
    token = _trusting.set(trust or trusts())
    try:
        yield
    finally:
        _trusting.reset(token)


def check_module(name: str, where: object) -> None:
    """Check a name that a file holds, ``module:Name``, before its module is imported. ``where`` says what the file is.

    Data and runs come from strangers. UntrustedError unless the module is installed, imported by the user, or trusted
    by him now or before (``remember``); one in the current folder, which may be that of the data, is not.
    """
    module = name.rpartition(":")[0]
    if module and module not in sys.modules and not trusts() and not installed(module):
        if _file_of(module, lambda name: _findable(name, os.getcwd())) in _remembered():
            return
        raise UntrustedError(
            f"{where} names '{name}'. No installed package has the module '{module}', and importing another runs code "
            "that may have come with these files. If you trust it, add --trust; in Python, import it first. Its file "
            "is then trusted from now on."
        )


def remember(module: str) -> None:
    """Trust the file of an imported module from now on, for this user; nothing happens if that cannot be written."""
    file, known, place = _file_of(module, _imported), _remembered(), _list()
    if file is not None and file not in known and place is not None and not installed(module):
        kept = sorted({file, *filter(os.path.isfile, known)})
        with contextlib.suppress(OSError):
            write_atomic(place, b"".join(os.fsencode(f"{path}\n") for path in kept))


def _remembered() -> list[str]:
    """Return the files that are trusted."""
    try:
        return [] if (place := _list()) is None else os.fsdecode(place.read_bytes()).split("\n")
    except OSError:
        return []


def _list() -> Path | None:
    """Return the file that lists them, one in each line; None if the user has no home."""
    folder = user_folder("XDG_STATE_HOME", "~/.local/state")
    return folder and folder / "trusted"


def _file_of(module: str, spec_of: Callable[[str], ModuleSpec | None]) -> str | None:
    """Return the file of a module or, in a package, that of the package; None if there is none.

    Its folder on ``sys.path`` is resolved, what is below is not: a link to a trusted file, from a folder with modules
    that this file would then import, is another file.
    """
    for depth, name in enumerate(accumulate(module.split("."), "{}.{}".format)):
        spec = spec_of(name)
        if spec is not None and spec.has_location and spec.origin:  # not of a folder without __init__.py
            file = Path(spec.origin)
            folder = file.parents[depth + (spec.submodule_search_locations is not None)]
            return os.path.join(os.path.realpath(folder), file.relative_to(folder))
    return None


def _imported(module: str) -> ModuleSpec | None:
    return getattr(sys.modules.get(module), "__spec__", None)


def _findable(module: str, *more: str) -> ModuleSpec | None:
    """Return what importing ``module``, from ``sys.path`` or ``more`` folders, would run; nothing is run."""
    spec, places = None, [*sys.path, *more]
    for part in module.split("."):
        spec = PathFinder.find_spec(part, places)
        places = list((spec and spec.submodule_search_locations) or ())
    return spec


def installed(module: str) -> bool:
    """Return whether importing ``module`` runs code of Python or of an installed package, also of an editable one."""
    top, places = module.partition(".")[0], _places()
    hooks = [hook for hook in sys.meta_path if str(getattr(hook, "__module__", "")).startswith("__editable__")]
    found = [PathFinder.find_spec(top, places), *(hook.find_spec(top, None) for hook in hooks)]
    own = next(filter(None, found), None)
    elsewhere = [path for path in ("", *sys.path) if os.path.realpath(path) not in places]
    other = PathFinder.find_spec(top, elsewhere)  # which may come first
    if own is None or other is None:
        return own is not None
    return own.loader is not None if other.loader is None else own.origin == other.origin


@functools.cache
def _places() -> list[str]:
    """Return the folders of Python's and installed modules, and those that installed ``.pth`` files name."""
    own = sysconfig.get_paths()
    named = [own[name] for name in ("stdlib", "purelib", "platlib")]
    folders = [*named, *site.getsitepackages(), site.getusersitepackages(), str(Path(__file__).parents[2])]
    files = [file for folder in folders for file in Path(folder).glob("*.pth")]
    lines = [(file, line) for file in files for line in file.read_text(errors="replace").split("\n") if line.strip()]
    more = [str(file.parent / line.strip()) for file, line in lines if not line.startswith(("#", "import"))]
    return [os.path.realpath(folder) for folder in (*folders, *more)]


def importable(module: str) -> None:
    """Add the current folder, which a console script does not search, to ``sys.path`` for a module found nowhere else.

    There may be other modules in that folder, which those that are imported would find.
    """
    if os.getcwd() not in sys.path and not installed(module) and _findable(module) is None:
        sys.path.append(os.getcwd())


def findable(module: str) -> bool:
    """Return whether another process with the same ``sys.path`` can import ``module``; never so for ``__main__``."""
    importable(module)
    place: Sequence[str] | None = None
    if parent := module.rpartition(".")[0]:
        if not findable(parent):
            return False
        place = getattr(importlib.import_module(parent), "__path__", [])
    return module != "__main__" and any(finder.find_spec(module, place) is not None for finder in sys.meta_path)


def module_of(name: str, what: str, kind: type[ReverieError] = ConfigError) -> ModuleType:
    """Import the module of ``module:Name``, also one in the current folder; else raise ``kind``, beginning ``what``."""
    module, _, path = name.partition(":")
    importable(module)
    if module.endswith(".py") or "/" in module or os.sep in module:  # importing one may even work, under an odd name
        meant = f"{Path(module).stem}:{path or 'Class'}"
        raise kind(
            f"{what}: '{module}' is the path of a file: expected the name of a module, as in '{meant}', in the "
            "current folder or in one of PYTHONPATH."
        )
    try:
        found = importlib.import_module(module)
    except Exception as error:  # a user's module may raise anything
        raise kind(
            f"{what}: module '{module}' cannot be imported ({told(error)}). If it is not there: use the form "
            "'module:Class', and install it, run in the folder of module.py or add that folder to PYTHONPATH."
        ) from error
    remember(module)  # the user has named it, or files that he trusts
    return found


def imported(name: str, *, what: str, base: type) -> Any:
    """Return the class ``module:Class``, derived from ``base``; for object, a function will do. ConfigError if not."""
    home = module_of(name, what)
    module, _, path = name.partition(":")
    found: Any = home
    for part in path.split("."):
        found = getattr(found, part, None)
    if not ((isinstance(found, type) and issubclass(found, base)) or (base is object and callable(found))):
        there = _subclasses(home, base)
        near = did_you_mean(path, there)
        others = f" It has: {', '.join(there)}." if there else ""
        kind = "class or function" if base is object else f"subclass of {base.__name__}"
        raise ConfigError(f"{what}: module '{module}' has no {kind} with that name.{near}{others}")
    return found


def _subclasses(module: ModuleType, base: type) -> list[str]:
    """Return the names of a module's own subclasses of ``base``, not of those that it imports."""
    kinds = {name: kind for name, kind in vars(module).items() if isinstance(kind, type) and issubclass(kind, base)}
    return [name for name, kind in kinds.items() if kind.__module__.startswith(module.__name__)]


def when_imported(module: str, call: Callable[[], None]) -> None:
    """Call ``call`` once ``module``, a package, is imported: now, if it is already."""
    if module in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _After(module, call))


class _After(importlib.abc.MetaPathFinder):
    """Finds nothing itself: it lets what the others find call a function after it has run."""

    def __init__(self, module: str, call: Callable[[], None]) -> None:
        self._module, self._call, self._looking = module, call, False

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._module or self._looking:
            return None
        self._looking = True
        try:
            found = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if found is not None and found.loader is not None:
            found.loader.exec_module = functools.partial(self._run, found.loader.exec_module)  # type: ignore[method-assign]
        return found

    def _run(self, run: Callable[[ModuleType], None], module: ModuleType) -> None:
        sys.meta_path.remove(self)
        run(module)
        self._call()

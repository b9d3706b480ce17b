"""Definitions that a faster kernel can replace.

``reverie.kernels`` has the kernels; without it everything runs slower.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import numbers
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
KERNEL_ENV_VAR, KERNEL_PACKAGE = "REVERIE_KERNELS", "reverie.kernels"


class Kernel(NamedTuple):
    """A faster implementation of a definition."""

    fits: Callable[..., bool]
    """Whether ``run`` supports these arguments. Reads no tensor values."""
    run: Callable[..., Any]


_kernels: dict[Callable[..., Any], list[Kernel]] = {}
_loaded, _lock = False, threading.RLock()


def accelerated(definition: F) -> F:
    """Mark a function or method that a kernel can replace; ``.definition`` is the function itself.

    Kernels read arguments that are declared ``float`` as numbers, so with a tensor in such a place the definition runs.
    """
    if kernels_disabled():
        definition.definition = definition  # type: ignore[attr-defined]
        return definition
    declared_floats = list_declared_floats(definition)

    @functools.wraps(definition)
    def call(*args: object, **kwargs: object) -> Any:
        for index, name in declared_floats:
            x = args[index] if index < len(args) else kwargs.get(name, 0)
            if type(x) not in _PYTHON_NUMBERS and not isinstance(x, numbers.Real):
                return definition(*args, **kwargs)
        for fits, run in kernels:
            if fits(*args, **kwargs):
                return run(*args, **kwargs)
        return definition(*args, **kwargs)

    kernels = [] if _loaded else [Kernel(_load, call)]  # the first call loads the table, then calls again
    _kernels[call] = kernels
    call.definition = definition  # type: ignore[attr-defined]
    return cast(F, call)


_PYTHON_NUMBERS = frozenset((float, int, bool))  # first, as a test for numbers.Real, which has NumPy's, is slow


def list_declared_floats(definition: Callable[..., Any]) -> list[tuple[int, str]]:
    """Return the positions and names of the parameters that are declared to be floats."""
    parameters = enumerate(inspect.signature(definition).parameters.values())
    return [(i, p.name) for i, p in parameters if p.annotation in ("float", float)]


class ModuleChanges:
    """Counts the times at which something may have changed that a kernel has captured."""

    count: ClassVar[int] = 0

    @classmethod
    def note(cls) -> None:
        """Let updates and acting look at all modules and attributes again, which takes too long for each of them."""
        cls.count += 1


class NotesChanges:
    """A base class of objects whose public attributes, when they are set, count as a change."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if not name.startswith("_"):
            ModuleChanges.note()


def kernels_disabled() -> bool:
    """Return whether the user disabled the kernels by the environment variable: everything runs in PyTorch."""
    return os.environ.get(KERNEL_ENV_VAR, "").lower() in ("off", "0", "no", "false")


def _load(*_: object, **__: object) -> bool:
    global _loaded
    with _lock:  # a second thread waits until the table is loaded
        if not _loaded:
            is_enabled = not kernels_disabled() and find_spec(KERNEL_PACKAGE) is not None
            # the only line that depends on kernels
            rows = importlib.import_module(f"{KERNEL_PACKAGE}.registry").KERNELS if is_enabled else []
            _loaded = True
            for definition, kernels in _kernels.items():
                kernels[:] = [kernel for of, kernel in rows if of is definition]
    return True


def kernel_status(device: object) -> str:
    """Describe which kernels are used on a ``torch.device``, or why none are, for reports."""
    return str(importlib.import_module(f"{KERNEL_PACKAGE}.registry").kernels_status(device))


def kernel_problem() -> str:
    """Return why there are no compiled kernels, although they are enabled; else ""."""
    has_kernels = find_spec(KERNEL_PACKAGE) is not None
    return str(importlib.import_module(f"{KERNEL_PACKAGE}.compiler").compile_problem()) if has_kernels else ""


def needs_compilation() -> bool:
    """Return whether the first use of kernels on a CPU would compile them."""
    has_kernels = find_spec(KERNEL_PACKAGE) is not None
    return has_kernels and bool(importlib.import_module(f"{KERNEL_PACKAGE}.compiler").is_uncompiled())


@contextmanager
def use_only_kernels(*chosen: Kernel) -> Iterator[None]:
    """Use only these kernels, or none, inside the context, for tests and measurements."""
    _load()
    before = {call: kernels[:] for call, kernels in _kernels.items()}
    for call, kernels in before.items():
        _kernels[call][:] = [kernel for kernel in kernels if kernel in chosen]
    try:
        yield
    finally:
        for call, kernels in before.items():
            _kernels[call][:] = kernels

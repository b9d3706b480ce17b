"""Python values that change between updates: a captured update would go on with their values at capture time."""

from __future__ import annotations

import functools
import itertools
import numbers
import random
import sys
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sized
from types import CellType, FunctionType, GeneratorType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

DEEPEST, LARGEST, LONGEST = 8, 2**24, 1000
"""Limits of the search: the depth of nested objects, the bytes of an array that is compared, and the length of a list
of a class or module that is searched."""

SHORT = 100
"""Length of a list in an iterator up to which its items are compared; of longer ones, only the length."""


VALUES = (int, float, str, bytes, range, np.generic, numbers.Number, type(None))
"""Kinds of values that never change themselves, so that they can be compared later."""


class PythonState:
    """The numbers, strings and random generators that an object holds, at any depth, and the ids of its tensors.

    Included are what its functions and methods have in their closures and as default arguments, how far its iterators
    and generators have come, its optimisers and schedules of PyTorch, the variables of its classes and of their
    modules, except those of this library and of PyTorch, and the global generators of Python and NumPy.
    """

    def __init__(self, owner: object) -> None:
        seen: set[int] = set()
        found = list(_inside(owner, "", seen, 0))
        for kind in type(owner).__mro__:
            if _package(kind.__module__) not in _QUIET:
                for name, value in vars(kind).items():
                    if isinstance(value, FunctionType):
                        found += _inside(value, f"{kind.__name__}.{name}", seen, DEEPEST - 3)
                module = vars(sys.modules.get(kind.__module__, object))
                for name, value in (*_variables(kind.__name__, vars(kind)), *_variables(kind.__module__, module)):
                    found += _inside(value, name, seen, DEEPEST - 2)
        self.alive = [value for _, value in found]  # kept alive, so that no other object gets their ids
        self.values = {name: id(value) if isinstance(value, Tensor) else value for name, value in found}
        legacy = np.random.get_state(legacy=False)  # noqa: NPY002 - the global generator is what is compared
        self.values |= {"random": random.getstate(), "numpy.random": str(legacy)}

    def changed_in(self, later: PythonState) -> str:
        """Return a sentence on the first value that differs in ``later`` and cannot be captured, or an empty string."""
        now = {name: value for name, value in later.values.items() if value == value}  # NaN differs from itself
        names = [name for name, value in now.items() if self.values.get(name) != value]
        if not names:
            return ""
        if names[0] in ("random", "numpy.random"):
            return f"it draws random numbers from {names[0]}, which a replay cannot repeat: use PyTorch's generators"
        return (
            f"it changes the Python value {names[0]}, which a replay cannot repeat: store it in a buffer "
            "(register_buffer) and change the buffer in place"
        )


_QUIET = ("reverie", "torch", "builtins", "typing")
"""Packages whose classes and modules are not searched: what changes there belongs to no learner."""


def _package(module: str) -> str:
    return module.partition(".")[0]


def _variables(owner: str, names: Mapping[str, object]) -> list[tuple[str, object]]:
    """Return the variables of a class or module by name: what is data of moderate size, not functions or modules."""
    kinds = (*VALUES[:-1], list, dict, set, deque, np.ndarray, np.random.Generator, random.Random, itertools.count)
    found = {name: x for name, x in names.items() if isinstance(x, kinds) and not name.startswith("__")}
    long = [name for name, x in found.items() if isinstance(x, list | dict | set | deque) and len(x) > LONGEST]
    return [(f"{owner}.{name}", x) for name, x in found.items() if name not in long]


def _inside(thing: object, name: str, seen: set[int], depth: int) -> Iterator[tuple[str, object]]:
    if isinstance(thing, (*VALUES, Tensor)):
        yield name, thing
    elif isinstance(thing, np.random.Generator):
        yield name, str(thing.bit_generator.state)
    elif isinstance(thing, random.Random):
        yield name, thing.getstate()
    elif isinstance(thing, np.ndarray):
        yield name, (thing.shape, str(thing.dtype), thing.tobytes() if thing.nbytes <= LARGEST else None)
    elif isinstance(thing, set | frozenset | bytearray):
        yield name, (bytes if isinstance(thing, bytearray) else frozenset)(thing)
    elif isinstance(thing, itertools.count):
        yield name, repr(thing)
    elif _is_plain_iterator(thing):
        yield name, _position(thing)
    elif id(thing) not in seen and depth < DEEPEST:
        seen.add(id(thing))
        for key, value in sorted(_parts(thing).items(), key=lambda part: part[0][:1] == "_"):
            yield from _inside(value, f"{name}.{key}" if name else key, seen, depth + 1)


def _is_plain_iterator(thing: object) -> bool:
    """Return whether ``thing`` is a generator, or an iterator of Python or ``itertools``."""
    return isinstance(thing, Iterator) and type(thing).__module__ in ("builtins", "itertools")


def _position(thing: Any) -> object:
    """Return how far a plain iterator has come, as values that can be compared; None where Python does not tell.

    A generator tells it by its line and local variables, the others by what ``pickle`` would store. Python 3.14 stores
    none of ``itertools``.
    """
    if isinstance(thing, GeneratorType):
        frame = thing.gi_frame
        return None if frame is None else (frame.f_lasti, *map(_seen_from_outside, frame.f_locals.values()))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, for itertools
            return _seen_from_outside(thing.__reduce__())
    except TypeError:
        return None


def _seen_from_outside(thing: object) -> object:
    if isinstance(thing, VALUES):
        return thing
    if isinstance(thing, tuple | list) and len(thing) <= SHORT:
        return tuple(map(_seen_from_outside, thing))
    if _is_plain_iterator(thing):
        return _position(thing)
    return (type(thing).__name__, len(thing) if isinstance(thing, Sized) and not isinstance(thing, Tensor) else 0)


def _parts(thing: object) -> dict[str, Any]:
    """Return the parts of an object by name; empty for objects of ``torch`` and for built-in ones."""
    if isinstance(thing, dict):
        return {str(key): value for key, value in thing.items()}
    if isinstance(thing, list | tuple | deque):
        return {str(i): value for i, value in enumerate(thing)}
    if isinstance(thing, nn.Module):
        own = {key: value for key, value in vars(thing).items() if not isinstance(value, dict) or key[:1] != "_"}
        return {**own, **thing._parameters, **thing._buffers, **thing._modules}
    if isinstance(thing, MethodType):
        return {"self": thing.__self__}
    if isinstance(thing, functools.partial):
        return {"func": thing.func, "args": thing.args, "keywords": thing.keywords}
    if isinstance(thing, FunctionType):
        cells = zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True)
        given = thing.__defaults__ or ()
        names = thing.__code__.co_varnames[thing.__code__.co_argcount - len(given) : thing.__code__.co_argcount]
        defaults = {**dict(zip(names, given, strict=True)), **(thing.__kwdefaults__ or {})}
        return {name: cell.cell_contents for name, cell in cells if cell != CellType()} | defaults
    if isinstance(thing, torch.optim.Optimizer):  # its tensors are changed in place
        numbers = [{key: x for key, x in group.items() if key != "params"} for group in thing.param_groups]
        return {f"param_groups.{i}.{key}": x for i, group in enumerate(numbers) for key, x in group.items()}
    if isinstance(thing, torch.optim.lr_scheduler.LRScheduler):
        return {key: x for key, x in vars(thing).items() if isinstance(x, int | float | list | dict | tuple)}
    if _package(type(thing).__module__) in ("builtins", "torch"):
        return {}
    slots = [name for kind in type(thing).__mro__ for name in _names(vars(kind).get("__slots__", ()))]
    return {name: getattr(thing, name) for name in slots if hasattr(thing, name)} | getattr(thing, "__dict__", {})


def _names(slots: str | Iterable[str]) -> list[str]:
    """Return the names in a ``__slots__``, which may be a single one, without those that Python keeps itself."""
    return [name for name in ([slots] if isinstance(slots, str) else slots) if not name.startswith("__")]

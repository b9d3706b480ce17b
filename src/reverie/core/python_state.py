"""Python values that change between updates: a captured update would go on with their values at capture time."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor, nn

DEEPEST, LARGEST = 8, 2**24
"""Limits of the search: the depth of nested objects, and the bytes of an array that is compared."""


class PythonState:
    """The numbers, strings and random generators that an object holds, at any depth, and the ids of its tensors.

    The global generators of Python and NumPy are included.
    """

    def __init__(self, owner: object) -> None:
        found = list(_inside(owner, "", set(), 0))
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


def _inside(thing: object, name: str, seen: set[int], depth: int) -> Iterator[tuple[str, object]]:
    if isinstance(thing, int | float | str | None | Tensor):
        yield name, thing
    elif isinstance(thing, np.random.Generator):
        yield name, str(thing.bit_generator.state)
    elif isinstance(thing, random.Random):
        yield name, thing.getstate()
    elif isinstance(thing, np.ndarray):
        yield name, (thing.shape, str(thing.dtype), thing.tobytes() if thing.nbytes <= LARGEST else None)
    elif isinstance(thing, set | frozenset):
        yield name, frozenset(thing)
    elif id(thing) not in seen and depth < DEEPEST:
        seen.add(id(thing))
        for key, value in sorted(_parts(thing).items(), key=lambda part: part[0][:1] == "_"):
            yield from _inside(value, f"{name}.{key}" if name else key, seen, depth + 1)


def _parts(thing: object) -> dict[str, Any]:
    """Return the parts of an object by name; empty for objects of ``torch`` and for built-in ones."""
    if isinstance(thing, dict):
        return {str(key): value for key, value in thing.items()}
    if isinstance(thing, list | tuple | deque):
        return {str(i): value for i, value in enumerate(thing)}
    if isinstance(thing, nn.Module):
        own = {key: value for key, value in vars(thing).items() if not isinstance(value, dict) or key[:1] != "_"}
        return {**own, **thing._parameters, **thing._buffers, **thing._modules}
    ours = type(thing).__module__.partition(".")[0] not in ("builtins", "torch")
    return dict(getattr(thing, "__dict__", {})) if ours else {}

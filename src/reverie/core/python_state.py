"""What Python keeps from one update to the next: a captured update would go on with what it was then."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor, nn

DEEPEST, LARGEST = 8, 2**24
"""How many objects inside each other are looked into, and up to how many bytes of an array."""


class PythonState:
    """The numbers, words and generators that an object holds, which tensors, and all of what it is made of.

    Those of Python and NumPy that belong to nobody are among them.
    """

    def __init__(self, owner: object) -> None:
        found = list(_inside(owner, "", set(), 0))
        self.alive = [value for _, value in found]  # no other object can have their ids
        self.values = {name: id(value) if isinstance(value, Tensor) else value for name, value in found}
        legacy = np.random.get_state(legacy=False)  # noqa: NPY002 - it is what is looked for
        self.values |= {"random": random.getstate(), "numpy.random": str(legacy)}

    def changed_in(self, later: PythonState) -> str:
        """What has changed since and cannot be captured, in a sentence, or nothing."""
        now = {name: value for name, value in later.values.items() if value == value}  # NaN differs from itself
        names = [name for name, value in now.items() if self.values.get(name) != value]
        if not names:
            return ""
        if names[0] in ("random", "numpy.random"):
            return f"it draws from {names[0]}, which a replay does not: draw from PyTorch"
        return (
            f"it changes {names[0]}, which Python keeps and a replay would not: keep it in a buffer (register_buffer) "
            "and change that in place"
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
    """What it is made of by name."""
    if isinstance(thing, dict):
        return {str(key): value for key, value in thing.items()}
    if isinstance(thing, list | tuple | deque):
        return {str(i): value for i, value in enumerate(thing)}
    if isinstance(thing, nn.Module):
        own = {key: value for key, value in vars(thing).items() if not isinstance(value, dict) or key[:1] != "_"}
        return {**own, **thing._parameters, **thing._buffers, **thing._modules}
    ours = type(thing).__module__.partition(".")[0] not in ("builtins", "torch")
    return dict(getattr(thing, "__dict__", {})) if ours else {}

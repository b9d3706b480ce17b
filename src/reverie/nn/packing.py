"""Weights in the panel layout of the C files, cached until a parameter changes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.compiled import compiled, pointers
from reverie.core.compiler import kernels

PANEL = 32
"""Outputs in a panel, as in ``panels.h``."""

T = TypeVar("T")


def packed(weight: Tensor) -> Tensor:
    """Return ``weight`` ``[..., outputs, inputs]`` as panels ``[..., outputs / 32, inputs, 32]``, padded with zeros."""
    *lead, outputs, inputs = weight.shape
    panels = -(-outputs // PANEL)
    padded = F.pad(weight.detach(), (0, 0, 0, panels * PANEL - outputs))
    return padded.view(*lead, panels, PANEL, inputs).transpose(-1, -2).contiguous()


class Kept(Generic[T]):
    """A cached value that depends on a module's parameters; recomputed when one was changed or replaced.

    PyTorch counts changes, but not those by ``parameter.data``. A sample of the numbers shows these if they are changed
    as a whole; an edit of a few numbers may go unseen.
    """

    def __init__(self, module: nn.Module) -> None:
        # References to the modules' dictionaries, so that a check for changes need not walk through all modules.
        self.tables: list[dict[str, nn.Parameter]] = [m._parameters for m in module.modules() if m._parameters]  # type: ignore[misc]  # none of ours is None
        self.state: list[tuple[int, int]] = []
        self.sample = 0
        self.sampler: Callable[[], int] = _nothing
        self.value: T | None = None

    def get(self, make: Callable[[], T]) -> T:
        """Return ``make()``, called again only if the parameters have changed since the last call."""
        state = [(p.data_ptr(), p._version) for table in self.tables for p in table.values()]
        if self.value is None or state != self.state or self.sampler() != self.sample:
            with torch.no_grad():
                self.value = make()
            self.state, self.sampler = state, _sampler([p for table in self.tables for p in table.values()])
            self.sample = self.sampler()
        return self.value

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is cached: a copy has parameters at other addresses."""
        return {**vars(self), "state": [], "sampler": _nothing, "value": None}


def _nothing() -> int:
    return 0


def _sampler(found: list[nn.Parameter]) -> Callable[[], int]:
    """Return a function that hashes some numbers of each parameter, or a constant where they cannot be read."""
    functions = kernels()
    if functions is None or not compiled(*found) or not all(p.is_contiguous() for p in found):
        return _nothing
    hashed, sizes = ctypes.c_uint64(), (ctypes.c_int64 * len(found))(*[p.numel() for p in found])
    arguments = ctypes.cast(pointers(*found), ctypes.c_void_p), ctypes.cast(sizes, ctypes.c_void_p), len(found)
    into, hash_some = ctypes.byref(hashed), functions.sample_bits

    def sample() -> int:
        hash_some(*arguments, into)
        return hashed.value

    return sample

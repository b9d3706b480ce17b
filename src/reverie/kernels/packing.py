"""Weights in the panel layout of the C files, and values that are cached until a parameter changes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.kernels.compiler import load_kernels
from reverie.kernels.ctypes_call import data_pointers, is_cpu_float32

PANEL = 32
"""Outputs in a panel, as in ``panels.h``."""

T = TypeVar("T")


def pack_panels(weight: Tensor) -> Tensor:
    """Return ``weight`` ``[..., outputs, inputs]`` as panels ``[..., outputs / 32, inputs, 32]``, padded with zeros."""
    *lead, outputs, inputs = weight.shape
    panels = -(-outputs // PANEL)
    padded = F.pad(weight.detach(), (0, 0, 0, panels * PANEL - outputs))
    return padded.view(*lead, panels, PANEL, inputs).transpose(-1, -2).contiguous()


class ParameterCache(Generic[T]):
    """A cached value that depends on a module's parameters; recomputed when one was changed or replaced.

    PyTorch counts changes, except through ``parameter.data``. A sample of the values detects these if a whole
    parameter changes; an edit of a few values may go unnoticed. It refers to no module, so that caches may be keyed by
    modules.
    """

    def __init__(self, module: nn.Module) -> None:
        # References to the modules' dictionaries, so that a check for changes need not walk through all modules.
        self.tables: list[dict[str, nn.Parameter]] = [m._parameters for m in module.modules() if m._parameters]  # type: ignore[misc]  # none of ours is None
        self.state: list[tuple[int, int]] = []
        self.sample: int = 0
        self.sampler: Callable[[], int] = lambda: 0
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


def _sampler(parameters: list[nn.Parameter]) -> Callable[[], int]:
    """Return a function that hashes some numbers of each parameter, or a constant where they cannot be read."""
    functions = load_kernels()
    if functions is None or not is_cpu_float32(*parameters) or not all(p.is_contiguous() for p in parameters):
        return lambda: 0
    hashed, sizes = ctypes.c_uint64(), (ctypes.c_int64 * len(parameters))(*[p.numel() for p in parameters])
    arguments = *(ctypes.cast(x, ctypes.c_void_p) for x in (data_pointers(*parameters), sizes)), len(parameters)
    into, hash_some = ctypes.byref(hashed), functions.sample_bits

    def sample() -> int:
        hash_some(*arguments, into)
        return hashed.value

    return sample

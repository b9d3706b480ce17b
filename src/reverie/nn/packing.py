"""Weights in the panel layout of the C files, cached until a parameter changes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PANEL = 32
"""Outputs in a panel, as in ``panels.h``."""

T = TypeVar("T")


def packed(weight: Tensor) -> Tensor:
    """Return ``weight`` ``[..., outputs, inputs]`` as panels ``[..., outputs / 32, inputs, 32]``, padded with zeros."""
    *lead, outputs, inputs = weight.shape
    panels = -(-outputs // PANEL)
    padded = F.pad(weight.detach(), (0, 0, 0, panels * PANEL - outputs))
    return padded.view(*lead, panels, PANEL, inputs).transpose(-1, -2).contiguous()


def pointers(*tensors: Tensor) -> Any:
    """Return the tensors' addresses as a C array; the tensors must outlive it."""
    return (ctypes.c_void_p * len(tensors))(*[x.data_ptr() for x in tensors])


class Kept(Generic[T]):
    """A cached value that depends on a module's parameters; recomputed when one was changed or replaced."""

    def __init__(self, module: nn.Module) -> None:
        # References to the modules' dictionaries, so that a check for changes need not walk through all modules.
        self.tables: list[dict[str, nn.Parameter]] = [m._parameters for m in module.modules() if m._parameters]  # type: ignore[misc]  # none of ours is None
        self.state: list[tuple[int, int]] = []
        self.value: T | None = None

    def get(self, make: Callable[[], T]) -> T:
        """Return ``make()``, called again only if the parameters have changed since the last call."""
        state = [(p.data_ptr(), p._version) for table in self.tables for p in table.values()]
        if self.value is None or state != self.state:
            with torch.no_grad():
                self.value = make()
            self.state = state
        return self.value

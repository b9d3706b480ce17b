"""Conditions that rows of the table share. They read no values, so they never wait for a device."""

from __future__ import annotations

import torch
from torch import Tensor

from reverie.core.compiled import compiled as cpu32
from reverie.core.compiled import constant as untracked

__all__ = ["cpu32", "flags", "untracked"]


def flags(*tensors: Tensor) -> bool:
    """Return whether all ``tensors`` are bool on the CPU."""
    return all(x.dtype is torch.bool and x.device.type == "cpu" for x in tensors)

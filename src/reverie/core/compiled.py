"""How PyTorch code calls compiled functions, and when it can."""

from __future__ import annotations

import ctypes
from typing import Any, cast

import torch
from torch import Tensor

from reverie.core.compiler import kernels
from reverie.core.tape import current

PARALLEL = 2**15
"""Numbers from which on a second thread is worth waking."""


def compiled(*tensors: Tensor) -> bool:
    """Whether the compiled functions are there and fit: float32 on the CPU."""
    fit = all(x.dtype is torch.float32 and x.device.type == "cpu" for x in tensors)
    return fit and not torch.compiler.is_compiling() and kernels() is not None


def library() -> ctypes.CDLL:
    """The compiled functions; only where :func:`compiled` says that they are there. A tape listens, if one records."""
    functions, tape = cast(ctypes.CDLL, kernels()), current()
    return functions if tape is None else cast(ctypes.CDLL, tape.listening_to(functions))


def threads(x: Tensor) -> int:
    """How many threads are worth their while."""
    return torch.get_num_threads() if x.numel() >= PARALLEL else 1


def call(function: type[torch.autograd.Function], *inputs: Any) -> Any:
    """Apply ``function``; without its bookkeeping where nothing needs a gradient."""
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
        return function.apply(*inputs)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return function.forward(None, *inputs)

"""Calling compiled functions from PyTorch, and the conditions that kernels share.

Conditions read no values, so they never wait for a device.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from reverie.kernels.compiler import load_kernels

capture_state: threading.local = threading.local()
"""``capture_state.tape`` is the tape (``kernels/tape.py``) that records the calls of this thread, if there is one."""

PARALLEL = 2**15
"""Number of elements from which several threads are faster than one."""

SHARED = 2**20
"""Number of multiplications from which several threads are faster than one."""


def is_cpu_float32(*tensors: Tensor) -> bool:
    """Return whether compiled functions are available and all ``tensors`` are float32 on the CPU."""
    fit = all(x.dtype is torch.float32 and x.device.type == "cpu" for x in tensors)
    return fit and not torch.compiler.is_compiling() and load_kernels() is not None


def is_cpu_bool(*tensors: Tensor) -> bool:
    """Return whether all ``tensors`` are bool on the CPU."""
    return all(x.dtype is torch.bool and x.device.type == "cpu" for x in tensors)


def has_no_grad(*tensors: Tensor) -> bool:
    """Return whether autograd tracks none of ``tensors``, so that a function without their gradient loses none."""
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))


def compiled_library() -> ctypes.CDLL:
    """Return the compiled functions, recorded if a tape is recording. Requires :func:`is_cpu_float32`."""
    functions, tape = cast(ctypes.CDLL, load_kernels()), getattr(capture_state, "tape", None)
    return functions if tape is None else cast(ctypes.CDLL, tape.listening_to(functions))


def call_compiled(name: str, *inputs: object) -> None:
    """Call a compiled function with numbers, and with the addresses of tensors; None is passed as 0."""
    getattr(compiled_library(), name)(
        *[x.data_ptr() if isinstance(x, Tensor) else 0 if x is None else x for x in inputs]
    )


empty_float32: Callable[..., Tensor] = torch.empty(0, dtype=torch.float32, device="cpu").new_empty
"""``empty_float32(shape)`` returns uninitialized memory for a compiled function: float32 on the CPU, regardless of
PyTorch's defaults. It takes half the time of ``torch.empty`` with a dtype and a device; acting calls it 17 times."""


def data_pointers(*tensors: Tensor) -> Any:
    """Return the tensors' addresses as a C array; the tensors must outlive it."""
    return (ctypes.c_void_p * len(tensors))(*[x.data_ptr() for x in tensors])


def num_threads_for(x: Tensor) -> int:
    """Return the number of threads to use for ``x``: one if it is small."""
    return torch.get_num_threads() if x.numel() >= PARALLEL else 1


def call(function: type[torch.autograd.Function], *inputs: object) -> Any:
    """Apply ``function``. If no input needs a gradient, call its ``forward`` directly, without autograd's overhead."""
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
        return function.apply(*inputs)
    return function.forward(None, *inputs)


def once_differentiable_strict(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Make a backward pass raise an error for second derivatives; ``once_differentiable`` alone gives 0 for a sum's."""
    once = once_differentiable(backward)

    @functools.wraps(backward)
    def wrapper(ctx: Any, *grads: Tensor | None) -> Any:
        if torch.is_grad_enabled():  # that is, create_graph=True
            raise RuntimeError(
                "create_graph=True: compiled functions have no second derivative. If you need one, "
                "set the environment variable REVERIE_KERNELS to off."
            )
        return once(ctx, *grads)

    return wrapper

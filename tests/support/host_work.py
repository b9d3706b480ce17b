"""Captures without a GPU: what an update must not do to be captured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fake_cuda import leaves
from reverie.core.kernel_dispatch import use_only_kernels

aten = torch.ops.aten
WAITING = {aten.normal.Tensor_Tensor, aten.normal.float_Tensor}  # on CUDA they read the smallest deviation
INDEXING = {Tensor.__getitem__, Tensor.__setitem__}


class HostWork(AssertionError):
    """Something that no CUDA graph can hold."""


class _Operations(TorchDispatchMode):
    """Every operation, also of the backward pass, is on meta tensors alone, which have no numbers to wait for."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: no call goes through ``torch._dynamo`` (``kernels/tape.py: Tape``)."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in WAITING:
            raise HostWork(f"{func} waits for the device")
        if func is aten.index_put_.default and any(i is not None and i.dtype == torch.bool for i in args[1]):
            raise HostWork("an index of unknown length")
        out = func(*args, **(kwargs or {}))
        given = leaves((*args, *(kwargs or {}).values(), out))
        hosts = [x for x in given if isinstance(x, Tensor) and not x.is_meta]
        if hosts:
            raise HostWork(f"{func} has a tensor on the host")
        return out


class _Indices(TorchFunctionMode):
    """No index is a list of Python's numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in INDEXING and any(
            isinstance(i, list) for i in (args[1] if isinstance(args[1], tuple) else args[1:2])
        ):
            raise HostWork("an index from the host")
        return func(*args, **(kwargs or {}))


def _no_constants(make: Any) -> Any:
    """``torch.tensor`` and its like, refusing what is filled on the host and copied, which meta tensors do not show."""

    def guarded(data: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(data, Tensor):
            raise HostWork(f"{make.__name__} copies from the host")
        return make(data, *args, **kwargs)

    return guarded


@contextlib.contextmanager
def device_only() -> Iterator[None]:
    """Fail at the first thing that a CUDA graph cannot hold. All tensors must be on the meta device.

    Raises:
        HostWork: a copy from the host, or an operation known to wait.
        RuntimeError: a number was read; this is what torch says of meta tensors.
    """
    with use_only_kernels():
        pass  # kernels that are loaded in an update copy from the host
    with contextlib.ExitStack() as stack:
        for name in ("tensor", "as_tensor", "asarray", "from_numpy"):
            stack.enter_context(mock.patch.object(torch, name, _no_constants(getattr(torch, name))))
        stack.enter_context(_Indices())
        stack.enter_context(_Operations())
        yield

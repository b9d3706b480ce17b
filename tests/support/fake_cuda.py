"""A CUDA device without a GPU: its tensors' numbers lie in this computer's memory, and what CUDA refuses is refused.

PyTorch takes these tensors for meta tensors, whose gradients need no device, and Python for ones of ``cuda:0``. An
operation on tensors of both devices fails, as do NumPy's views. What travels to the host without waiting is not there
before somebody waits. What is captured in a graph changes nothing before it is replayed, and must not wait.
"""

from __future__ import annotations

import contextlib
import os
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

import reverie

PACKAGE = f"{Path(reverie.__file__).parent}{os.sep}"
"""Where the library lies; a clone's folder may have the same name."""
aten = torch.ops.aten
CUDA = torch.device("cuda", 0)
READS = {aten._local_scalar_dense.default, aten.equal.default, aten.nonzero.default, aten.masked_select.default}
"""Whose results, or whose shapes, Python has to know."""
BY_INDEX = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}


class OnCuda(Tensor):
    """A tensor of the device; ``inner`` holds its numbers."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnCuda:
        self = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=torch.device("meta"),
        )  # fmt: skip
        self.inner = inner
        return self

    device = property(lambda self: CUDA)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_meta = property(lambda self: False)  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return fake().run(func, args, kwargs or {})

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(
            index, value if isinstance(value, Tensor) else OnCuda(torch.tensor(value, dtype=self.dtype))
        )

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError("can't convert cuda:0 device type tensor to numpy.")
        return self.cpu().numpy()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied: Tensor = OnCuda(self.inner.clone())
        copied = torch.nn.Parameter(copied) if isinstance(self, torch.nn.Parameter) else copied
        memo[id(self)] = copied.requires_grad_(self.requires_grad)
        return copied


class FakeCuda(TorchDispatchMode):
    """While it is entered, ``cuda`` is there. ``waits`` counts by place in the code what waited for the device."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: no call goes through ``torch._dynamo`` (``kernels/tape.py: Tape``)."""
        return False

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.replays = 0
        self.coming: list[Callable[[], object]] = []  # copies to the host on their way
        self.capture: Graph | None = None
        self.pinned: set[int] = set()
        self.debug: Any = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def set_debug(self, mode: Any) -> None:
        """``torch.cuda.set_sync_debug_mode``, with its warning."""
        self.debug = mode
        if mode == "warn":
            warnings.warn("Synchronization debug mode does not yet detect all synchronizing operations", stacklevel=2)

    def waited(self) -> None:
        """The host waits."""
        if self.capture is not None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        if self.debug == "warn":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=2)
        ours = [f for f in traceback.extract_stack() if f.filename.startswith(PACKAGE) and f.name[0] != "<"]
        self.waits[f"{ours[-1].filename.removeprefix(PACKAGE)}:{ours[-1].name}" if ours else "test"] += 1
        for copy in self.coming:
            copy()
        self.coming.clear()

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        given = [x for x in leaves((*args, *kwargs.values())) if isinstance(x, Tensor)]
        there = any(isinstance(x, OnCuda) for x in given)
        named = kwargs.get("device")
        made = named is not None and torch.device(named).type != "cpu"  # PyTorch itself asks for meta
        kwargs = {**kwargs, "device": torch.device("cpu")} if made else dict(kwargs)
        kwargs.pop("pin_memory", None)
        if func is aten.is_pinned.default:
            return id(args[0]) in self.pinned
        if func is aten._pin_memory.default:
            copied = args[0].clone()
            self.pinned.add(id(copied))
            return copied
        if func is aten._to_copy.default and (made or named is not None) and made != there:
            return self._travels(args[0], made, kwargs)
        if func is aten.copy_.default and isinstance(args[0], OnCuda) != isinstance(args[1], OnCuda):
            return self._copies(*args)
        if there:
            return self._computes(func, args, kwargs, given)
        out = func(*args, **kwargs)
        return self._noted(func, args, kwargs, out, OnCuda(out)) if made else out

    def _travels(self, x: Tensor, made: bool, kwargs: dict[str, Any]) -> Tensor:
        """A copy on the other device."""
        if not (made and kwargs.get("non_blocking")):
            self.waited()
        kwargs.pop("non_blocking", None)
        copied = aten._to_copy.default(inner(x), **kwargs)
        copied = copied.clone() if copied is inner(x) else copied
        return OnCuda(copied) if made else copied

    def _copies(self, to: Tensor, x: Tensor, non_blocking: bool = False) -> Tensor:
        """From one device into a tensor of the other."""
        if self.capture is not None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        if non_blocking and not isinstance(to, OnCuda):
            source = inner(x).clone()
            to.fill_(77)  # what is read too early is not what is meant
            self.coming.append(lambda: to.copy_(source))
            return to
        if not non_blocking:
            self.waited()
        inner(to).copy_(inner(x))
        return to

    def _computes(self, func: Any, args: Any, kwargs: dict[str, Any], given: list[Tensor]) -> Any:
        hosts = [x for x in given if not isinstance(x, OnCuda) and x.ndim]
        if hosts and func not in BY_INDEX:
            raise RuntimeError(f"Expected all tensors to be on the same device: {func} got one of the CPU")
        if func in READS or (func in BY_INDEX and any(i is not None and i.dtype == torch.bool for i in args[1])):
            self.waited()
        numbers, names = mapped(inner, args), {name: mapped(inner, x) for name, x in kwargs.items()}
        if self.capture is not None:
            self.capture.spare(func, numbers)
        out = func(*numbers, **names)
        wrapped = mapped(lambda x: OnCuda(x) if isinstance(x, Tensor) else x, out)
        self._noted(func, numbers, names, out, wrapped)
        return return_and_correct_aliasing(func, args, kwargs, wrapped)

    def _noted(self, func: Any, args: Any, kwargs: Any, out: Any, wrapped: Any) -> Any:
        if self.capture is not None:
            self.capture.calls.append((func, args, kwargs, out))
        return wrapped


def leaves(x: Any) -> list[Any]:
    """What is in nested tuples and lists: all that operations have. PyTorch's takes a third of a run's time."""
    return [leaf for item in x for leaf in leaves(item)] if isinstance(x, tuple | list) else [x]


def mapped(function: Callable[[Any], Any], x: Any) -> Any:
    """The same nest of what ``function`` makes of its leaves."""
    return type(x)(mapped(function, item) for item in x) if type(x) in (tuple, list) else function(x)


def inner(x: Any) -> Any:
    """Its numbers, where they really are."""
    return x.inner if isinstance(x, OnCuda) else x


class Graph:
    """``torch.cuda.CUDAGraph``: while it captures, what is written to memory from before is put back at the end."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}

    def spare(self, func: Any, args: Any) -> None:
        """Remember what ``func`` is about to write to."""
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for x in leaves(value):
                    whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
                    self.before.setdefault(whole.data_ptr(), (whole, whole.clone()))

    def replay(self) -> None:
        fake().replays += 1
        with torch._C._DisableTorchDispatch():  # all tensors here are of the host: nothing is left to be refused
            for func, args, kwargs, out in self.calls:
                results = zip(leaves(func(*args, **kwargs)), leaves(out), strict=True)
                for new, old in results:
                    if isinstance(new, Tensor) and new.data_ptr() != old.data_ptr():
                        old.copy_(new)


class Stream:
    """All streams do everything at once and in order."""

    def __init__(self, device: Any = None) -> None:
        pass

    def wait_stream(self, other: Stream) -> None:
        pass


class Event:
    """When the host waits for one, what was on its way has come.

    It is recorded on a stream that is named: that of the current device need not be the one that works.
    """

    def record(self, stream: Stream) -> None:
        assert isinstance(stream, Stream)

    def synchronize(self) -> None:
        for copy in fake().coming:
            copy()
        fake().coming.clear()


_ENTERED: list[FakeCuda] = []


def fake() -> FakeCuda:
    """The device."""
    return _ENTERED[-1]


@contextlib.contextmanager
def capturing(graph: Graph, *where: Any, **how: Any) -> Iterator[None]:
    """``torch.cuda.graph``."""
    random = torch.get_rng_state()
    fake().capture = graph
    try:
        yield
    finally:
        fake().capture = None
    for now, before in graph.before.values():
        now.copy_(before)
    torch.set_rng_state(random)


@contextlib.contextmanager
def fake_cuda(monkeypatch: Any) -> Iterator[FakeCuda]:
    """A device ``cuda:0`` for as long as this lasts."""
    device, stream = FakeCuda(), Stream()
    stands_in = {
        "_lazy_init": lambda: None, "is_available": lambda: True, "device_count": lambda: 1, "Stream": Stream,
        "Event": Event, "CUDAGraph": Graph, "graph": capturing, "graph_pool_handle": lambda: None,
        "current_stream": lambda device: stream if device == CUDA else None,
        "stream": lambda stream: contextlib.nullcontext(),
        "set_stream": lambda stream: None, "device": lambda device: contextlib.nullcontext(),
        "synchronize": lambda device=None: fake().waited(), "mem_get_info": lambda device: (10**10, 10**11),
        "get_rng_state_all": lambda: [torch.get_rng_state()], "set_rng_state": lambda state, index: None,
        "get_sync_debug_mode": lambda: device.debug, "set_sync_debug_mode": device.set_debug,
        "get_device_name": lambda device: "a pretended GPU", "max_memory_allocated": lambda device: 0,
    }  # fmt: skip
    with monkeypatch.context() as patched:
        for name, value in stands_in.items():
            patched.setattr(torch.cuda, name, value)
        patched.setattr(Tensor, "record_stream", lambda self, stream: None)
        _ENTERED.append(device)
        try:
            with device:
                yield device
        finally:
            _ENTERED.pop()

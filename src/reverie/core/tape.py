"""Calls on CPUs, recorded once and made again: what a CUDA graph is on a GPU.

Of an update of small networks, PyTorch's and Python's ways between the numbers take as long as the numbers. A tape
holds the operations of PyTorch, those of the backward pass too, and the calls of compiled functions, with the very
tensors that they read and wrote. To replay it is to make these calls, one after the other, on the same memory.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from reverie.core.compiler import kernels
from reverie.core.plain import Plain, plain

ALIGNED = 64
"""Bytes at whose multiples memory begins."""

WHOLE, REAL = 16, 8
"""As in ``replay.c``: inputs that it hands over, whole numbers and floats."""

_current = threading.local()


def current() -> Tape | None:
    """The tape that records in this thread."""
    return getattr(_current, "tape", None)


class Call(NamedTuple):
    """Something to do again."""

    function: Callable[..., object]
    inputs: tuple[Any, ...]


class Compiled(NamedTuple):
    """A call of a compiled function, or of several one after the other."""

    function: Any
    inputs: tuple[Any, ...]
    kept: Sequence[Any] = ()
    """What must go on lying where the inputs point."""


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Records what is done under it; ``replay()`` does it again.

    Numbers of Python are what they were, inputs are read where they lay and outputs are written where they were. Random
    numbers come from the default generator, as many as when it was recorded. ``obstacle`` says what cannot be repeated,
    if there was such a thing; such a tape must not be replayed.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call | Compiled] = []
        self.obstacle = ""
        self._rooms = _Rooms()
        self._constants: list[Any] = []
        self._outer: Tape | None = None

    def __enter__(self) -> Any:
        self._outer, _current.tape = current(), self
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        _current.tape = self._outer
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.calls = list(_joined(self.calls))

    @torch.no_grad()
    def replay(self) -> None:
        """Do it again."""
        for call in self.calls:
            call.function(*call.inputs)

    def listening_to(self, functions: ctypes.CDLL) -> Any:
        """Compiled functions whose calls are recorded."""
        return _Listening(functions, self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not self.obstacle:
            self.obstacle = _obstacle(func, args, out)
        if func._schema.is_mutable:
            if not self._note_plain(plain(func, args, kwargs, out)):
                self._note(func, args, kwargs)
            return out
        if _shares(out, (args, kwargs)):
            self._constants += [x for x in tree_leaves(out) if not self._rooms.holds(x)]  # constants of Python's
            return out
        rooms = tree_map_only(Tensor, self._rooms.like, out)
        if not func.__name__.startswith(("empty", "new_empty")):
            _copy_all(rooms, out)
            calls = plain(func, args, kwargs, rooms)
            if not _agree(calls, out, rooms) or not self._note_plain(calls):
                self._note_into(func, args, kwargs, rooms)
        return rooms

    def _note_plain(self, calls: Sequence[Plain] | None) -> bool:
        """Note them; whether there are any, and functions that make them."""
        for inputs, tensors in calls or () if kernels() is not None else ():
            self.calls.append(Compiled(_library().plain, inputs, [self._rooms.uncounted(x) for x in tensors]))
        return calls is not None and kernels() is not None

    def _note(self, func: Any, args: Any, kwargs: Any) -> None:
        args, kwargs = tree_map_only(Tensor, self._rooms.uncounted, (args, kwargs))
        self.calls.append(Call(functools.partial(func._op, **kwargs) if kwargs else func._op, tuple(args)))

    def _note_into(self, func: Any, args: Any, kwargs: Any, rooms: Any) -> None:
        if func.overloadpacket in _DRAWN:
            return self.calls.append(Call(getattr(self._rooms.uncounted(rooms), _DRAWN[func.overloadpacket]), ()))
        made = (rooms,) if len(func._schema.returns) == 1 else rooms
        into = _writing(func) if all(isinstance(x, Tensor) for x in tree_leaves(made)) else None
        if into is not None:
            names = [a.name for a in into._schema.arguments if a.is_out]
            return self._note(into, args, {**kwargs, **dict(zip(names, made, strict=True))})
        args, kwargs, to = tree_map_only(Tensor, self._rooms.uncounted, (args, kwargs, rooms))
        self.calls.append(Call(lambda: _copy_all(to, func(*args, **kwargs)), ()))


class _Listening:
    """Stands in the place of a library while a tape records."""

    def __init__(self, functions: ctypes.CDLL, tape: Tape) -> None:
        self._functions, self._tape = functions, tape

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._functions, name)

        def call(*inputs: Any) -> Any:
            self._tape.calls.append(Compiled(function, inputs))
            return function(*inputs)

        return call


class _Call(ctypes.Structure):
    """A call of a compiled function: ``Recorded`` in ``replay.c``."""

    _fields_ = (("function", ctypes.c_void_p), ("whole", ctypes.c_int64 * WHOLE), ("real", ctypes.c_double * REAL))


def _joined(calls: Sequence[Call | Compiled]) -> Iterator[Call | Compiled]:
    """The same calls, with those of compiled functions that follow each other as one."""
    for packed, run in itertools.groupby(calls, _fits):
        several = list(run)
        if packed:
            made = (_Call * len(several))(*[_packed(call) for call in several])
            yield Compiled(_library().replay_calls, (made, len(several)), several)
        else:
            yield from several


def _library() -> ctypes.CDLL:
    functions = kernels()
    assert functions is not None
    return functions


def _fits(call: Call | Compiled) -> bool:
    """Whether it is of a compiled function, with no more inputs than ``replay.c`` can hand over on this system."""
    if not isinstance(call, Compiled) or not _library().replay_known():
        return False
    real = (call.function.argtypes or ()).count(ctypes.c_float)
    return bool(real <= REAL and len(call.inputs) - real <= WHOLE)


def _packed(call: Call | Compiled) -> _Call:
    """A call as ``replay.c`` reads it."""
    whole, real = [], []
    function: Any = call.function
    for kind, x in zip(function.argtypes or (), call.inputs, strict=True):
        if kind is ctypes.c_float:
            real.append(struct.unpack("<d", struct.pack("<fxxxx", x))[0])
        elif isinstance(x, int):
            whole.append(x)
        else:
            whole.append(ctypes.addressof(getattr(x, "_obj", x)))  # what byref() was given, or an array
    address = ctypes.cast(function, ctypes.c_void_p).value
    return _Call(address, tuple(whole), tuple(real))


class _Rooms:
    """Memory for what is computed on a tape: kept as long as the tape, and used again as soon as nobody looks at it.

    That is when the tensor that lay there, all its views and all that autograd saved are gone: then nothing that comes
    later on the tape reads it. The tape itself looks at it too, but past those who are counted.
    """

    def __init__(self) -> None:
        self._made: dict[int, list[Any]] = {}
        self._memory: dict[int, tuple[bytearray, int]] = {}

    def like(self, x: Tensor) -> Tensor:
        """A tensor of the same type, shape and strides."""
        size = -(-max(1, x.untyped_storage().nbytes()) // ALIGNED) * ALIGNED
        return torch.frombuffer(self._room(size), dtype=x.dtype).as_strided(x.shape, x.stride(), x.storage_offset())

    def holds(self, x: Tensor) -> bool:
        """Whether it lies in one of these rooms."""
        return x.untyped_storage().data_ptr() in self._memory

    def uncounted(self, x: Tensor) -> Tensor:
        """The same tensor, without gradient and without keeping its room from others."""
        memory, start = self._memory.get(x.untyped_storage().data_ptr(), (None, 0))
        if memory is None:
            return x.detach()
        flat = torch.frombuffer(memory, dtype=x.dtype, offset=start, count=(len(memory) - start) // x.element_size())
        return flat.as_strided(x.shape, x.stride(), x.storage_offset())

    def _room(self, size: int) -> Any:
        made = self._made.setdefault(size, [])
        for i in range(len(made)):
            if _references(made, i) == _UNUSED:
                return made[i]
        memory = bytearray(size + ALIGNED)
        start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % ALIGNED
        room = (ctypes.c_char * size).from_buffer(memory, start)
        self._made[size].append(room)
        self._memory[ctypes.addressof(room)] = memory, start
        return room


def _references(rooms: list[Any], i: int) -> int:
    """References to one of them, in the list and elsewhere; and those of the question, which depend on the Python."""
    return sys.getrefcount(rooms[i])


_UNUSED = _references([object()], 0)
"""References to a room that nobody uses."""


def _agree(calls: Sequence[Plain] | None, out: Any, rooms: Any) -> bool:
    """Whether compiled functions make of this what PyTorch made, to the last bit: its ways differ with processors."""
    if calls is None or kernels() is None:
        return False
    for inputs, _ in calls:
        _library().plain(*inputs)
    made = rooms.clone()
    rooms.copy_(out)
    same = torch.allclose(made, out, rtol=0, atol=0, equal_nan=True) if made.is_floating_point() else made.equal(out)
    return bool(same)


_aten = torch.ops.aten
_DRAWN = {_aten.randn: "normal_", _aten.randn_like: "normal_", _aten.rand: "uniform_", _aten.rand_like: "uniform_"}
"""What fills memory with the same numbers."""


def _writing(func: Any) -> Any:
    """The form of an operation that writes to given tensors; None if it has none."""
    mine = [(a.name, str(a.type)) for a in func._schema.arguments]
    for name in func.overloadpacket.overloads():
        other = getattr(func.overloadpacket, name)
        given = [(a.name, str(a.type)) for a in other._schema.arguments if not a.is_out]
        if given == mine and len(other._schema.arguments) - len(mine) == len(func._schema.returns):
            return other
    return None


def _shares(out: Any, given: Any) -> bool:
    """Whether a result lies where something given lies: a view, or a constant of Python's."""
    places = {x.untyped_storage().data_ptr() for x in tree_leaves(given) if isinstance(x, Tensor)} - {0}
    return any(x.untyped_storage().data_ptr() in places for x in tree_leaves(out) if isinstance(x, Tensor))


def _obstacle(func: Any, args: Any, out: Any) -> str:
    """Why this operation would not be the same again."""
    if any(isinstance(x, bool | int | float) for x in tree_leaves(out)):
        return f"{func} reads a number{_where()}"
    if torch.Tag.dynamic_output_shape in func.tags:
        masks = func is not _aten.index.Tensor or any(x is not None and x.dtype == torch.bool for x in args[1])
        return f"the shape of what {func} makes depends on numbers{_where()}" if masks else ""
    return ""


def _where() -> str:
    """The line of the caller's that called PyTorch."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_code.co_filename == __file__ or f"{torch.__name__}/" in frame.f_code.co_filename
    ):
        frame = frame.f_back
    return f" at {frame.f_code.co_filename}:{frame.f_lineno}"


def _copy_all(rooms: Any, out: Any) -> None:
    for room, x in zip(tree_leaves(rooms), tree_leaves(out), strict=True):
        if isinstance(x, Tensor):
            room.copy_(x)

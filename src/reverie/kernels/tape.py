"""Recording of calls on the CPU that can be repeated: the CPU's counterpart of a CUDA graph.

A tape records every PyTorch operation of this thread, the backward pass included, and every call of a compiled
function (``kernels/ctypes_call.py: compiled_library``). A replay makes the same calls in the same order on the same
memory, without the dispatch of Python and PyTorch: new inputs are copied into the recorded tensors, and results are
read from the recorded tensors.

``Tape.obstacle`` names the first thing that cannot be repeated: operations that return a Python number (``item()``),
shapes that depend on values, tensors handed to Python or NumPy (``tolist()``), tensors that get other memory, random
numbers of other generators. ``kernels/capture.py`` detects Python values, shapes and threads that change between runs.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import linecache
import math
import os
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from reverie.kernels.compiler import load_kernels
from reverie.kernels.ctypes_call import capture_state
from reverie.kernels.tape_ops import Plain, plain_calls

MAX_INT_ARGS, MAX_FLOAT_ARGS = 16, 8
"""Numbers of arguments that ``replay.c`` can pass: integers or pointers, and floats."""


def current() -> Tape | None:
    """Return the tape that records in this thread, or None."""
    return getattr(capture_state, "tape", None)


class Call(NamedTuple):
    """A recorded call of a Python function."""

    function: Callable[..., object]
    inputs: tuple[Any, ...]


class CompiledCall(NamedTuple):
    """A recorded call of a compiled function, or of several in a row (``replay_calls``)."""

    function: Any
    inputs: tuple[Any, ...]
    owners: Sequence[Any] = ()  # objects that own the memory to which the inputs point


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """A context that records the calls made within it; ``replay()`` makes them again.

    Python numbers keep their recorded values; random ones are drawn again, from the default generator. ``obstacle`` is
    empty, or names the first operation that cannot be repeated; such a tape must not be replayed.

    ``is_trial``: only look for an obstacle. Recording takes three times as long as the calls, and memory for them all.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: otherwise the first recorded call imports ``torch._dynamo``, which takes more than a second."""
        return False

    def __init__(self, *, is_trial: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.is_trial = is_trial
        self.calls: list[Call | CompiledCall] = []
        self.obstacle: str = ""
        self._pool = MemoryPool()
        self._constants: list[Any] = []
        self._outer: Tape | None = None
        self._watch: Any = None
        self._seed = 0  # of the default generator
        self._state = torch.empty(0)  # of the default generator, after the last call that drew from it
        self._moved = False  # whether something else has changed it

    def __enter__(self) -> Any:
        self._outer, capture_state.tape = current(), self
        self._seed, self._state = torch.initial_seed(), torch.get_rng_state()
        self._watch = _Watch(self)
        self._watch.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def __exit__(self, *error: object) -> None:
        capture_state.tape = self._outer
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._watch.__exit__(*error)
        self._watch = None  # a cycle would keep the memory of warm-ups until Python looks for cycles
        self._look_at_generator()
        if not self.obstacle and torch.initial_seed() != self._seed:
            self.obstacle = "it sets the seed of PyTorch's generator, which a replay cannot repeat"
        if not self.obstacle and self._moved:
            self.obstacle = "it draws random numbers and puts the generator back, which a replay cannot repeat"
        self.calls = list(_join_calls(self.calls))

    def replay(self) -> None:
        """Make all recorded calls again. Call without gradients."""
        for call in self.calls:
            call.function(*call.inputs)

    def listening_to(self, functions: ctypes.CDLL) -> Any:
        """Return a proxy of ``functions`` whose calls are made and recorded."""
        return functions if self.is_trial else _Listening(functions, self)

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        draws = torch.Tag.nondeterministic_seeded in func.tags
        if draws:
            self._look_at_generator()
        out = func(*args, **kwargs)
        if draws:
            self._state = torch.get_rng_state()
        if not self.obstacle:
            self.obstacle = _obstacle(func, args, kwargs, out)
        if self.is_trial:
            return out
        if func._schema.is_mutable:
            if not self._note_plain(plain_calls(func, args, kwargs, out)):
                self._note(func, args, kwargs)
            return out
        if _shares(out, (args, kwargs)):
            self._constants += [x for x in tree_leaves(out) if not self._pool.contains(x)]  # such as torch.tensor(2.0)
            return out
        results = tree_map_only(Tensor, self._pool.like, out)
        if not func.__name__.startswith(("empty", "new_empty")):
            _copy_all(tree_leaves(results), out)
            calls = plain_calls(func, args, kwargs, results)
            if not _agree(calls, out, results) or not self._note_plain(calls):
                self._note_into(func, args, kwargs, results)
        return results

    def _look_at_generator(self) -> None:
        """Note whether the default generator was changed since the last call that drew from it."""
        self._moved = self._moved or not torch.equal(torch.get_rng_state(), self._state)

    def _note_plain(self, calls: Sequence[Plain] | None) -> bool:
        """Record ``calls``. Return False if they are None or there is no compiled library."""
        for inputs, tensors in calls or () if load_kernels() is not None else ():
            self.calls.append(CompiledCall(_library().plain, inputs, [self._pool.weak_view(x) for x in tensors]))
        return calls is not None and load_kernels() is not None

    def _note(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        args, kwargs = tree_map_only(Tensor, self._pool.weak_view, (args, kwargs))
        self.calls.append(Call(functools.partial(func._op, **kwargs) if kwargs else func._op, tuple(args)))

    def _note_into(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], results: Any) -> None:
        if func.overloadpacket in _DRAWN:
            draw = getattr(self._pool.weak_view(results), _DRAWN[func.overloadpacket])
            return self.calls.append(Call(draw, tuple(args[:-1])))  # the last is the size, or a tensor of that size
        outputs = (results,) if len(func._schema.returns) == 1 else results
        write = _writing(func) if all(isinstance(x, Tensor) for x in tree_leaves(outputs)) else None
        names = [a.name for a in write._schema.arguments if a.is_out] if write is not None else []
        if write is not None and _is_exact(functools.partial(write, *args, **kwargs), names, outputs, (args, kwargs)):
            return self._note(write, args, {**kwargs, **dict(zip(names, outputs, strict=True))})
        args, kwargs, to = tree_map_only(Tensor, self._pool.weak_view, (args, kwargs, results))
        leaves = tree_leaves(to)
        self.calls.append(Call(lambda: _copy_all(leaves, func(*args, **kwargs)), ()))


class _Watch(TorchFunctionMode):
    """While entered, notes on a tape the calls of ``_ESCAPES``, which reach no dispatcher."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self._tape.obstacle and func in _ESCAPES:
            self._tape.obstacle = f"{_ESCAPES[func]}{_location()}"
        return func(*args, **(kwargs or {}))


_ESCAPES = {
    Tensor.tolist: "tolist() reads the values of a tensor",
    Tensor.numpy: "numpy() reads the values of a tensor",
    Tensor.__array__: "NumPy reads the values of a tensor",
    Tensor.data.__set__: "'.data = ...' gives a tensor other memory (use copy_())",  # type: ignore[attr-defined]
}
"""Functions of PyTorch after which a replay would use old values, and what they do."""


class _Listening:
    """A proxy of the compiled library that records calls on a tape."""

    def __init__(self, functions: ctypes.CDLL, tape: Tape) -> None:
        self._functions, self._tape = functions, tape

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._functions, name)

        def call(*inputs: object) -> Any:
            self._tape.calls.append(CompiledCall(function, inputs))
            return function(*inputs)

        return call


class _Call(ctypes.Structure):
    """A call of a compiled function: the struct ``Recorded`` of ``replay.c``."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("whole", ctypes.c_int64 * MAX_INT_ARGS),
        ("real", ctypes.c_double * MAX_FLOAT_ARGS),
    )


def _join_calls(calls: Sequence[Call | CompiledCall]) -> Iterator[Call | CompiledCall]:
    """Yield the same calls, with each unbroken run of compiled functions joined into one call."""
    for is_packable, run in itertools.groupby(calls, _is_packable):
        group = list(run)
        if is_packable:
            array = (_Call * len(group))(*[_pack_call(call) for call in group])
            yield CompiledCall(_library().replay_calls, (array, len(group)), group)
        else:
            yield from group


def _library() -> ctypes.CDLL:
    functions = load_kernels()
    assert functions is not None
    return functions


def _is_packable(call: Call | CompiledCall) -> bool:
    """Return whether ``replay.c`` can make this call: a compiled function with few enough inputs, on a known system."""
    if not isinstance(call, CompiledCall) or not _library().replay_known():
        return False
    real = sum(kind in (ctypes.c_float, ctypes.c_double) for kind in call.function.argtypes or ())
    return bool(real <= MAX_FLOAT_ARGS and len(call.inputs) - real <= MAX_INT_ARGS)


def _pack_call(call: Call | CompiledCall) -> _Call:
    """Return a call in the layout that ``replay.c`` reads."""
    integers, real = [], []
    function: Any = call.function
    for kind, x in zip(function.argtypes or (), call.inputs, strict=True):
        if kind is ctypes.c_float:
            real.append(struct.unpack("<d", struct.pack("<fxxxx", x))[0])
        elif kind is ctypes.c_double:
            real.append(x)
        elif isinstance(x, Integral):  # also NumPy's
            integers.append(int(x))
        else:
            integers.append(ctypes.addressof(getattr(x, "_obj", x)))  # the argument of byref(), or an array
    address = ctypes.cast(function, ctypes.c_void_p).value
    return _Call(address, tuple(integers), tuple(real))


def _agree(calls: Sequence[Plain] | None, out: Tensor, results: Tensor) -> bool:
    """Return whether the compiled calls give PyTorch's ``out`` bit for bit; leave ``out`` in ``results``."""
    if calls is None or load_kernels() is None:
        return False
    for inputs, _ in calls:
        _library().plain(*inputs)
    computed = results.clone()
    results.copy_(out)
    return _equal(computed, out)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors have the same values; NaN equals NaN."""
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) if a.is_floating_point() else a.equal(b)


def _is_exact(write: Callable[..., Any], names: Sequence[str], outputs: Sequence[Any], arguments: object) -> bool:
    """Return whether an ``out=`` overload writes ``outputs``; ``native_batch_norm.out`` does not for inputs with gaps.

    Batch norm also changes its running statistics, which its schema does not mention: their values are restored.
    """
    copies = [(x, x.clone()) for x in tree_leaves(arguments) if isinstance(x, Tensor)]
    trial = tree_map_only(Tensor, _blank, outputs)
    state = torch.get_rng_state()
    write(**dict(zip(names, trial, strict=True)))
    torch.set_rng_state(state)
    for x, before in copies:
        if not _equal(x, before):
            x.copy_(before)
    return all(map(_equal, tree_leaves(trial), tree_leaves(outputs)))


def _blank(x: Tensor) -> Tensor:
    """Return a tensor like ``x`` that surely does not have its values, as uninitialized memory may by chance."""
    blank = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    return blank.fill_(math.nan if x.is_floating_point() else 0)


_aten = torch.ops.aten
_DRAWN = {
    _aten.randn: "normal_", _aten.randn_like: "normal_", _aten.rand: "uniform_", _aten.rand_like: "uniform_",
    _aten.randint: "random_",
}  # fmt: skip
"""Random operations, and the methods that fill a given tensor with the same numbers."""


def _writing(func: OpOverload) -> Any:
    """Return the ``out=`` overload of an operation with the same arguments, or None if there is none."""
    mine = [(a.name, str(a.type)) for a in func._schema.arguments]
    for name in func.overloadpacket.overloads():
        overload = getattr(func.overloadpacket, name)
        arguments = [(a.name, str(a.type)) for a in overload._schema.arguments if not a.is_out]
        if arguments == mine and len(overload._schema.arguments) - len(mine) == len(func._schema.returns):
            return overload
    return None


def _shares(out: object, arguments: object) -> bool:
    """Return whether a result shares memory with an input: a view, or a constant made from a Python number."""
    addresses = {x.untyped_storage().data_ptr() for x in tree_leaves(arguments) if isinstance(x, Tensor)} - {0}
    return any(x.untyped_storage().data_ptr() in addresses for x in tree_leaves(out) if isinstance(x, Tensor))


def _obstacle(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: object) -> str:
    """Return why this operation cannot be repeated, or an empty string."""
    if any(isinstance(x, torch.Generator) for x in (*args, *kwargs.values())):
        return f"it draws from a separate generator, not from PyTorch's default generator{_location()}"
    if any(isinstance(x, bool | int | float) for x in tree_leaves(out)):
        return f"it reads the value of a tensor{_location()}"
    if torch.Tag.dynamic_output_shape in func.tags:
        masks = func is not _aten.index.Tensor or any(x is not None and x.dtype == torch.bool for x in args[1])
        return f"the shape of a result depends on the values of the inputs{_location()}" if masks else ""
    return ""


TORCH_FOLDER = f"{os.path.dirname(torch.__file__)}{os.sep}"


def _location() -> str:
    """Return the line outside of PyTorch that made the call, and its file."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_code.co_filename == __file__ or frame.f_code.co_filename.startswith(TORCH_FOLDER)
    ):
        frame = frame.f_back
    place = frame.f_code.co_filename, frame.f_lineno
    code = linecache.getline(*place).strip()
    return (f" in `{code}`" if code else "") + f" at {place[0]}:{place[1]}"


def _copy_all(results: Sequence[Any], out: object) -> None:
    for result, x in zip(results, [out] if isinstance(out, Tensor) else tree_leaves(out), strict=True):
        if isinstance(x, Tensor):
            result.copy_(x)


# ---------------------------------------------------------------- memory


ALIGNED = 64
"""Alignment of blocks, in bytes."""


class MemoryPool:
    """A pool of memory for results. A block is reused as soon as no tensor refers to it.

    Each block is a ctypes array over a bytearray. A tensor's storage, which its views and what autograd saved share,
    has one reference to it. Once the pool's own reference is the only one left, no operation recorded later can read
    the old value, and replays keep the order. Recorded calls use tensors without a reference (``weak_view``).
    """

    def __init__(self) -> None:
        self._blocks: dict[int, list[Any]] = {}
        self._memory: dict[int, tuple[bytearray, int]] = {}

    def like(self, x: Tensor) -> Tensor:
        """Return an uninitialized tensor of the same dtype, shape and strides in a free block."""
        size = -(-max(1, x.untyped_storage().nbytes()) // ALIGNED) * ALIGNED
        return torch.frombuffer(self._block(size), dtype=x.dtype).as_strided(x.shape, x.stride(), x.storage_offset())

    def contains(self, x: Tensor) -> bool:
        """Return whether ``x`` lies in a block of this pool."""
        return x.untyped_storage().data_ptr() in self._memory

    def weak_view(self, x: Tensor) -> Tensor:
        """Return the same memory as a tensor without gradient that does not count as a user of its block."""
        memory, start = self._memory.get(x.untyped_storage().data_ptr(), (None, 0))
        if memory is None:
            return x.detach()
        flat = torch.frombuffer(memory, dtype=x.dtype, offset=start, count=(len(memory) - start) // x.element_size())
        return flat.as_strided(x.shape, x.stride(), x.storage_offset())

    def _block(self, size: int) -> Any:
        blocks = self._blocks.setdefault(size, [])
        for i in range(len(blocks)):
            if _references(blocks, i) == _UNUSED:
                return blocks[i]
        memory = bytearray(size + ALIGNED)
        start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % ALIGNED
        block = (ctypes.c_char * size).from_buffer(memory, start)
        self._blocks[size].append(block)
        self._memory[ctypes.addressof(block)] = memory, start
        return block


def _references(blocks: list[Any], i: int) -> int:
    """Return the reference count of block ``i``. The call itself adds some; how many depends on the Python version."""
    return sys.getrefcount(blocks[i])


_UNUSED = _references([object()], 0)
"""Reference count of a block that no tensor uses, measured with an object that only a list holds."""

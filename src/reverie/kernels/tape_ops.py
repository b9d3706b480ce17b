"""Small PyTorch operations as calls of one compiled function (``elementwise.c``), for tapes (``kernels/tape.py``).

PyTorch takes up to 100 microseconds to dispatch an addition when its code is not in the caches. Only operations that
load, round once or compare, and store are replaced: their results are the same to the last bit. The tape compares new
tensors, not those changed in place, and keeps PyTorch's operation if they differ, as it does for all others.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

DIMS = 4
"""Number of dimensions in ``elementwise.c``."""

SMALL = 2**18
"""Number of elements up to which one thread finishes before PyTorch's other threads are awake."""

SEQUENTIAL = 7 if platform.machine() in ("x86_64", "AMD64") else 3
"""Number of elements that PyTorch sums one by one; it sums more of them with vector instructions."""

KINDS = (
    "copy_1", "copy_4", "copy_8", "widen", "not", "fill", "neg", "abs", "square", "clamp", "add", "less",
    "add_8", "from", "mul", "div", "min", "max", "eq", "ge", "le", "lt", "and", "put",
)  # fmt: skip
"""Names of the operations, in the order of ``elementwise.c``."""


class _Layout(ctypes.Structure):
    """The struct ``Layout`` of ``elementwise.c``."""

    _fields_ = tuple((name, ctypes.c_int64 * DIMS) for name in ("sizes", "to", "a", "b"))


class Plain(NamedTuple):
    """A call of the library's function ``plain``."""

    inputs: tuple[Any, ...]
    tensors: tuple[Tensor, ...]  # the tensors to which the inputs point


class _Done(NamedTuple):
    """A PyTorch operation that was made: its arguments and its result."""

    out: Tensor
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def get(self, position: int, name: str, default: object) -> Any:
        """Return an optional argument, by position or by name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)


Calls = list[Plain] | None
"""Calls that compute the same as an operation; None if there are none."""


def plain_calls(func: object, args: Sequence[Any], kwargs: dict[str, Any], out: object) -> Calls:
    """Return calls that compute ``out`` as ``func(*args, **kwargs)`` did; None if this module cannot replace it."""
    func, written = _IN_PLACE.get(func, (func, False))
    out = args[0] if written else out
    make_calls = _KNOWN.get(func)
    if make_calls is None or not isinstance(out, Tensor) or out.numel() > SMALL or out.device.type != "cpu":
        return None
    if not out.numel():
        return []
    return make_calls(_Done(out, tuple(args), kwargs))


def _call(kind: str, out: Tensor, a: Tensor, b: Tensor | None = None, x: float = 0.0, y: float = 0.0) -> Plain | None:
    """Return one call, or None if there are too many dimensions. Inputs are broadcast to ``out``."""
    tensors = (out, a.expand(out.shape), (a if b is None else b).expand(out.shape))
    layout = _layout(out.shape, [t.stride() for t in tensors])
    if layout is None:
        return None
    return Plain((KINDS.index(kind), *(t.data_ptr() for t in tensors), ctypes.byref(layout), x, y), tensors)


def _layout(shape: Sequence[int], strides: list[Sequence[int]]) -> _Layout | None:
    """Return sizes and strides with adjacent dimensions merged where all tensors allow it; None if too many remain."""
    sizes: list[int] = []
    gaps: list[tuple[int, ...]] = []
    for size, *steps in zip(shape, *strides, strict=True):
        if size == 1:
            continue
        if sizes and all(before == size * step for before, step in zip(gaps[-1], steps, strict=True)):
            sizes[-1], gaps[-1] = sizes[-1] * size, tuple(steps)
        else:
            sizes.append(size)
            gaps.append(tuple(steps))
    missing = DIMS - len(sizes)
    if missing < 0:
        return None
    sizes, gaps = [1] * missing + sizes, [(0, 0, 0)] * missing + gaps
    return _Layout(tuple(sizes), *(tuple(g[i] for g in gaps) for i in range(3)))


def _all(*calls: Plain | None) -> Calls:
    """Return the calls, or None if one of them is None."""
    existing = [call for call in calls if call is not None]
    return existing if len(existing) == len(calls) else None


def _floats(*tensors: object) -> bool:
    return all(isinstance(t, Tensor) and t.dtype is torch.float32 and t.device.type == "cpu" for t in tensors)


def _number(x: float) -> Tensor:
    return torch.tensor(float(x), dtype=torch.float32, device="cpu")


def _copy_call(to: Tensor, x: Tensor) -> Plain | None:
    """Return the call that copies ``x`` to ``to``, of the same dtype or from bool to float32; else None."""
    if to.dtype is x.dtype and to.element_size() in (1, 4, 8):
        return _call(f"copy_{to.element_size()}", to, x)
    if to.dtype is torch.float32 and x.dtype is torch.bool:
        return _call("widen", to, x)
    return None


def _copy(s: _Done) -> Calls:
    return _all(_copy_call(s.out, s.args[0]))


def _cat(s: _Done) -> Calls:
    tensors, dim = [t for t in s.args[0] if t.numel()], s.get(1, "dim", 0)
    parts = torch.split(s.out, [t.shape[dim] for t in tensors], dim)
    return _all(*(_copy_call(part, t) for part, t in zip(parts, tensors, strict=True)))


def _stack(s: _Done) -> Calls:
    return _all(*(_copy_call(part, t) for part, t in zip(s.out.unbind(s.get(1, "dim", 0)), s.args[0], strict=True)))


def _pad(s: _Done) -> Calls:
    (x, pads), value = s.args[:2], s.get(2, "value", 0.0)
    if not _floats(s.out, x) or min(pads) < 0:
        return None
    inside = s.out
    for i in range(len(pads) // 2):
        dim = s.out.ndim - 1 - i
        inside = inside.narrow(dim, pads[2 * i], x.shape[dim])
    return _all(_call("fill", s.out, s.out, x=float(value)), _copy_call(inside, x))


def _constant(s: _Done) -> Calls:
    """A tensor filled with one value."""
    if s.out.element_size() not in (1, 4, 8):
        return None
    return _all(_copy_call(s.out, s.out.flatten()[0].clone()))


def _part(find: Callable[[_Done], Tensor]) -> Callable[[_Done], Calls]:
    """The gradient of taking a part of a tensor: zeros, with the given gradient at that part."""

    def calls(s: _Done) -> Calls:
        grad = s.args[0]
        return _all(_call("fill", s.out, s.out, x=0.0), _copy_call(find(s), grad)) if _floats(s.out, grad) else None

    return calls


def _inverse(s: _Done) -> Calls:
    return _all(_call("div", s.out, _number(1), s.args[0])) if _floats(s.out, s.args[0]) else None


def _unary(kind: str) -> Callable[[_Done], Calls]:
    """An elementwise operation of one float32 tensor."""

    def calls(s: _Done) -> Calls:
        return _all(_call(kind, s.out, s.args[0])) if _floats(s.out, s.args[0]) else None

    return calls


def _not(s: _Done) -> Calls:
    return _all(_call("not", s.out, s.args[0])) if s.args[0].dtype is torch.bool else None


def _power(s: _Done) -> Calls:
    if s.args[1] == 1 and _floats(s.out, s.args[0]):
        return _copy(s)
    return _unary("square")(s) if s.args[1] == 2 else None


def _clamp(s: _Done) -> Calls:
    x, low, high = s.args[0], s.get(1, "min", None), s.get(2, "max", None)
    if not _floats(s.out, x):
        return None
    limits = -torch.inf if low is None else float(low), torch.inf if high is None else float(high)
    return _all(_call("clamp", s.out, x, x=limits[0], y=limits[1]))


def _binary(kind: str) -> Callable[[_Done], Calls]:
    """An elementwise operation of two float32 tensors, or of one and a number."""

    def calls(s: _Done) -> Calls:
        a, b = s.args[:2]
        truth = kind in ("eq", "ge", "le", "lt")
        if isinstance(b, int | float):
            b = _number(b)
        if not _floats(a, b) or (s.out.dtype is not torch.bool if truth else not _floats(s.out)):
            return None
        return _all(_call(kind, s.out, a, b))

    return calls


def _sum_of_two(sign: float) -> Callable[[_Done], Calls]:
    """The sum a + b, or a - b. Another multiple of b stays PyTorch's, which rounds once or twice by processor."""

    def calls(s: _Done) -> Calls:
        (a, b), by = s.args[:2], sign * s.get(2, "alpha", 1)
        if s.out.dtype is a.dtype is torch.int64 and isinstance(b, int):
            return _all(_call("add_8", s.out, a, torch.tensor(int(by * b), device="cpu")))
        if isinstance(b, int | float):
            b = _number(b)
        if abs(by) != 1 or not _floats(s.out, a, b):
            return None
        return _all(_call("add" if by == 1 else "less", s.out, a, b))

    return calls


def _from_number(s: _Done) -> Calls:
    """A number minus a tensor: x - a."""
    a, x = s.args[:2]
    fits = isinstance(x, int | float) and s.get(2, "alpha", 1) == 1 and _floats(s.out, a)
    return _all(_call("from", s.out, a, x=float(x))) if fits else None


def _and(s: _Done) -> Calls:
    flags = all(isinstance(x, Tensor) and x.dtype is torch.bool for x in s.args)
    return _all(_call("and", s.out, *s.args)) if flags else None


def _select(s: _Done) -> Calls:
    mask, a, b = s.args
    fits = mask.dtype is torch.bool and _floats(s.out, a, b)
    return _all(_copy_call(s.out, b.expand(s.out.shape)), _call("put", s.out, a, mask)) if fits else None


def _mean(s: _Done) -> Calls:
    dims = s.get(1, "dim", None) or []
    sums = _along("add", SEQUENTIAL)(s) if len(dims) == 1 else None
    return sums and _all(*sums, _call("div", s.out, s.out, _number(s.args[0].shape[dims[0]])))


def _along(kind: str, max_size: int) -> Callable[[_Done], Calls]:
    """The minimum, maximum or sum along one dimension of at most ``max_size`` elements."""

    def calls(s: _Done) -> Calls:
        x, dims = s.args[0], s.get(1, "dim", None) or []
        if len(dims) != 1 or not _floats(s.out, x) or not 1 <= x.shape[dims[0]] <= max_size:
            return None
        first, *slices = x.unbind(dims[0])
        if kind == "add" and x.stride(dims[0]) == 1:
            slices = slices[3:] + slices[:3]  # the order in which PyTorch sums contiguous elements
        elif kind == "add" and len(slices) > 2:
            return None  # PyTorch's order of summing rows depends on their width
        to = s.out.view(first.shape)
        return _all(_copy_call(to, first), *(_call(kind, to, to, part) for part in slices))

    return calls


_aten = torch.ops.aten
_KNOWN: dict[Any, Callable[[_Done], Calls]] = {
    _aten.copy.default: lambda s: _all(_copy_call(s.out, s.args[1].expand(s.out.shape))),
    _aten.clone.default: _copy, _aten._to_copy.default: _copy, _aten.cat.default: _cat,
    _aten.stack.default: _stack, _aten.constant_pad_nd.default: _pad, _aten.neg.default: _unary("neg"),
    _aten.abs.default: _unary("abs"), _aten.bitwise_not.default: _not, _aten.logical_not.default: _not,
    _aten.pow.Tensor_Scalar: _power, _aten.clamp.default: _clamp, _aten.add.Tensor: _sum_of_two(1.0),
    _aten.sub.Tensor: _sum_of_two(-1.0), _aten.rsub.Scalar: _from_number, _aten.mul.Tensor: _binary("mul"),
    _aten.div.Tensor: _binary("div"), _aten.minimum.default: _binary("min"), _aten.maximum.default: _binary("max"),
    _aten.eq.Tensor: _binary("eq"), _aten.ge.Tensor: _binary("ge"), _aten.ge.Scalar: _binary("ge"),
    _aten.amin.default: _along("min", 32), _aten.amax.default: _along("max", 32),
    _aten.sum.dim_IntList: _along("add", SEQUENTIAL),
    _aten.mul.Scalar: _binary("mul"), _aten.div.Scalar: _binary("div"), _aten.le.Scalar: _binary("le"),
    _aten.le.Tensor: _binary("le"), _aten.lt.Scalar: _binary("lt"), _aten.lt.Tensor: _binary("lt"),
    _aten.logical_and.default: _and, _aten.bitwise_and.Tensor: _and,
    _aten.where.self: _select, _aten.mean.dim: _mean, _aten.reciprocal.default: _inverse,
    _aten.slice_backward.default: _part(lambda s: _aten.slice(s.out, *s.args[2:])),
    _aten.select_backward.default: _part(lambda s: s.out.select(s.args[2], s.args[3])),
} | {
    getattr(_aten, name).default: _constant
    for name in ("ones_like", "zeros_like", "full_like", "ones", "zeros", "full", "scalar_tensor", "new_zeros",
                 "new_ones", "new_full")
}  # fmt: skip
_IN_PLACE = {
    getattr(_aten, f"{name}_").__getattr__(kind): (getattr(getattr(_aten, name), kind), True)
    for name, kind in [("add", "Tensor"), ("sub", "Tensor"), ("mul", "Tensor"), ("div", "Tensor"), ("clamp", "default"),
                       ("neg", "default"), ("logical_and", "default")]
} | {_aten.copy_.default: (_aten.copy.default, True)}  # fmt: skip
"""In-place operations, and the operation that each makes on its first input."""

"""Multilayer perceptrons with ReLU, several side by side: one call forwards and one backwards (``perceptron.c``).

Each layer alone is a product of a few microseconds, so that half of the time would go to PyTorch's calls between them.
The definition in PyTorch stands beside it, for GPUs, for other precisions and where there is no compiler.
"""

from __future__ import annotations

import ctypes
import functools
import math
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from reverie.core.compiled import call, compiled, library

PANEL, NARROW, ALIGNED = 32, 8, 16
"""As in ``perceptron.h``: outputs of which a thread has sums at once; too few for that; numbers in a cache line."""

TOGETHER = 512
"""Rows that go back together, where there are no matrix units: many strips of ``perceptron.h``."""

TILED = 64
"""Rows from which on matrix units, where there are some, are worth writing weights as tiles."""

SHARED = 2**20
"""Multiplications from which on a second thread is worth waking."""


class _Network(ctypes.Structure):
    """Fields in the order of ``Network`` in ``perceptron.c``."""

    _fields_ = (
        ("copies", ctypes.c_int64),
        ("layers", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("squash", ctypes.c_int64),
        ("widths", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p),
    )


@functools.cache
def tiles_granted() -> bool:
    """Whether this processor has matrix units that ``perceptron_tiles.c`` may use."""
    return bool(library().perceptron_tiles_granted())


class Layout:
    """Where the layers of K perceptrons lie among their parameters ``[K, P]``, and how much room a call takes."""

    def __init__(self, widths: tuple[int, ...], copies: int, squash: bool = False) -> None:
        self.widths, self.copies, self.squash = widths, copies, squash
        self.multiplications = sum(i * o for i, o in pairwise(widths))
        used = sum((i + 1) * o for i, o in pairwise(widths))
        self.stride = -(-used // ALIGNED) * ALIGNED
        self.widest = max(widths)
        self.hidden = copies * sum(widths[1:-1])
        self.transposed = copies * sum(-(-i // PANEL) * PANEL * o for i, o in pairwise(widths))
        self._widths = (ctypes.c_int64 * len(widths))(*widths)

    def __deepcopy__(self, memo: Any) -> Layout:
        """It never changes."""
        return self

    def network(self, parameters: Tensor) -> Any:
        """What the C functions take."""
        widths = ctypes.addressof(self._widths)
        return ctypes.byref(
            _Network(self.copies, len(self.widths) - 1, self.stride, self.squash, widths, parameters.data_ptr())
        )

    def threads(self, rows: int) -> int:
        """How many threads are worth their while."""
        return torch.get_num_threads() if rows * self.copies * self.multiplications >= SHARED else 1

    def tiled(self, rows: int) -> bool:
        """Whether so many rows are a matter for matrix units, and there are some."""
        return rows >= TILED and len(self.widths) <= 32 and tiles_granted()

    def layers(self, parameters: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Weights ``[K, inputs, outputs]`` and biases ``[K, 1, outputs]``, views of the parameters."""
        at, out = 0, []
        for i, o in pairwise(self.widths):
            weight = parameters[:, at : at + i * o].view(self.copies, i, o)
            out.append((weight, parameters[:, None, at + i * o : at + i * o + o]))
            at += i * o + o
        return out


class Pass(NamedTuple):
    """What the way back needs of one way forth."""

    x: Tensor  # [M, inputs]
    hidden: Tensor  # [K, M, width] of one hidden layer after the other
    y: Tensor  # [K, M, outputs]


def forth(theta: Tensor, layout: Layout, *parts: Tensor, keep: bool = True) -> Pass:
    """Of parameters ``[K, P]`` and inputs ``[M, I]`` in one or more parts that belong side by side; no gradient.

    Without ``keep`` there is no way back.
    """
    x = parts[0].contiguous() if len(parts) == 1 else torch.cat(parts, 1)  # [M, inputs]
    rows, threads, tiled = x.shape[0], layout.threads(x.shape[0]), layout.tiled(x.shape[0])
    hidden = x.new_empty(rows * layout.hidden if keep or not tiled else 0)
    y = x.new_empty(layout.copies, rows, layout.widths[-1])
    found = layout.network(theta), x.data_ptr(), hidden.data_ptr() if len(hidden) else 0, y.data_ptr(), rows
    if tiled:
        library().perceptron_tiles(*found, threads)
    else:
        scratch = x.new_empty(threads * layout.widest * PANEL)
        library().perceptron(*found, scratch.data_ptr(), threads)
    return Pass(x, hidden, y)


def back(
    theta: Tensor, layout: Layout, passed: Pass, grad: Tensor, *, inputs: bool = False, parameters: bool = True
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of x ``[M, inputs]`` and of theta ``[K, P]``, those that are wanted, from ``[K, M, outputs]``."""
    x, hidden, y = passed
    grad = torch.ops.aten.tanh_backward(grad.contiguous(), y) if layout.squash else grad.contiguous()
    dx = torch.empty_like(x) if inputs else None
    dtheta = torch.empty_like(theta) if parameters else None
    rows, threads = x.shape[0], layout.threads(x.shape[0])
    to = 0 if dx is None else dx.data_ptr(), 0 if dtheta is None else dtheta.data_ptr()
    found = layout.network(theta), x.data_ptr(), hidden.data_ptr(), grad.data_ptr()
    if layout.tiled(rows):
        library().perceptron_tiles_backward(*found, *to, rows, threads)
        return dx, dtheta
    some = min(rows, TOGETHER)
    gradients, scratch = layout.hidden * some, max(PANEL * some, NARROW * (layout.widest + 1))
    room = x.new_empty(gradients + layout.transposed + threads * scratch)
    dhidden = room.data_ptr()
    transposed = dhidden + 4 * gradients
    library().perceptron_backward(
        *found, dhidden, *to, rows, some, transposed, transposed + 4 * layout.transposed, scratch, threads
    )  # fmt: skip
    return dx, dtheta


class _Perceptron(torch.autograd.Function):
    """The same with a gradient."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, layout: Layout, *parts: Tensor) -> Tensor:
        passed = forth(theta, layout, *parts, keep=ctx is not None)
        if ctx is not None:
            ctx.save_for_backward(theta, *passed)
            ctx.layout, ctx.sizes = layout, [part.shape[1] for part in parts]
        return passed.y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        theta, *passed = ctx.saved_tensors
        wanted = {"inputs": any(ctx.needs_input_grad[2:]), "parameters": ctx.needs_input_grad[0]}
        dx, dtheta = back(theta, ctx.layout, Pass(*passed), grad, **wanted)
        return dtheta, None, *([None] * len(ctx.sizes) if dx is None else torch.split(dx, ctx.sizes, 1))


class Perceptron(nn.Module):
    """Layers with ReLU between them. ``copies`` of it share their input and answer side by side; ``squash``: by tanh.

    Initialised as ``torch.nn.Linear`` is. All parameters are one tensor ``theta`` ``[K, P]``, a copy in each row, so
    that optimisers and slow copies have one array to go through; :meth:`layers` shows them as weights and biases. What
    fills up the last cache line of a row is 0 and stays 0.
    """

    def __init__(
        self, inputs: int, units: tuple[int, ...], outputs: int, copies: int | None = None, *, squash: bool = False
    ) -> None:
        super().__init__()
        self.copies = copies
        self.layout = Layout((inputs, *units, outputs), copies or 1, squash)
        self.alone = Layout((inputs, *units, outputs), 1, squash)
        self.theta = nn.Parameter(torch.zeros(copies or 1, self.layout.stride))
        with torch.no_grad():
            for weight, bias in self.layers():
                bound = 1 / math.sqrt(weight.shape[1])
                weight.uniform_(-bound, bound)
                bias.uniform_(-bound, bound)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}widths"] = torch.tensor(self.layout.widths)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Any, strict: bool, missing: list[str],
        unexpected: list[str], errors: list[str],
    ) -> None:  # fmt: skip
        """Layers of other widths may come to as many numbers, so these are compared; older states do not have them."""
        state = dict(state_dict)
        widths = state.pop(f"{prefix}widths", None)
        super()._load_from_state_dict(state, prefix, local_metadata, strict, missing, unexpected, errors)
        if widths is not None and tuple(widths.tolist()) != self.layout.widths:
            errors.append(f"{prefix}widths are {tuple(widths.tolist())} there and {self.layout.widths} here.")

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Weights ``[K, inputs, outputs]`` and biases ``[K, 1, outputs]`` of all layers, views of the parameters."""
        return self.layout.layers(self.theta)

    def forward(self, *parts: Tensor, copy: int | None = None) -> Tensor:
        """``[..., inputs]`` to ``[..., outputs]``, or to ``[K, ..., outputs]`` of K copies.

        Args:
            parts: the inputs, in one tensor or in several that belong side by side.
            copy: which copy is asked, if it is to be one alone.
        """
        lead, theta, layout = parts[0].shape[:-1], cast(Tensor, self.theta), self.layout
        if copy is not None:
            theta, layout = theta[copy : copy + 1], self.alone
        flat = [part.reshape(-1, part.shape[-1]) for part in parts]  # [M, I]
        if compiled(theta, *flat) and flat[0].numel():
            y: Tensor = call(_Perceptron, theta, layout, *flat)  # [K, M, outputs]
        else:
            x = torch.cat(flat, 1)  # [M, inputs]
            y = defined(x, layout.layers(theta.to(x.dtype)))
            y = y.tanh() if layout.squash else y
        alone = self.copies is None or copy is not None
        return y.view(*lead, y.shape[-1]) if alone else y.view(layout.copies, *lead, y.shape[-1])


def defined(x: Tensor, layers: list[tuple[Tensor, Tensor]]) -> Tensor:
    """What is computed: x W + b of each layer and the larger of that and 0, ``[M, inputs]`` to ``[K, M, outputs]``."""
    y = x.expand(len(layers[0][0]), *x.shape)  # [K, M, inputs]
    for k, (weight, bias) in enumerate(layers):
        y = torch.baddbmm(bias, y if k == 0 else y.relu(), weight)
    return y

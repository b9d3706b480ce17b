"""Multilayer perceptrons (MLPs) with ReLU, with a hand-written backward pass in C (``perceptron_backward.c``).

Each layer is a product of a few microseconds, so half of the time would go to PyTorch's calls between layers. Here one
C call computes all layers of K MLPs (``copies``) forward, and one backward:

* :func:`forth` returns the output and keeps the hidden layers' values in a :class:`Pass`.
* :func:`back` applies the chain rule from the last layer to the first. With x the input of a layer, W its weights and g
  the gradient of its output, dW = x^T g, db = sum of g over rows, and dx = g W^T, set to 0 where ReLU gave 0.

:class:`ReluMLP` uses them, as an autograd function, for float32 on CPUs if there is a C compiler. GPUs, other
precisions and machines without a compiler use :func:`defined` and autograd. ``kernels/steps.py`` calls them without
autograd. ``tests/nn/test_perceptron.py: test_results_and_gradients_are_those_of_the_definition`` holds both equal to
autograd in float64.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from reverie.core.compiled import call, compiled, first_order, library
from reverie.core.shapes import expect

ALIGNED = 16
"""Floats in a cache line."""

TILED = 64
"""Smallest number of rows for which matrix units (AMX) are used: below, converting the weights takes too long."""

SHARED = 2**20
"""Smallest number of multiplications for which several threads are used."""


class _Network(ctypes.Structure):
    """The C struct ``Network`` of ``perceptron.h``."""

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
    """Return whether this processor has matrix units (AMX) that ``perceptron_tiles.c`` may use."""
    return bool(library().perceptron_tiles_granted())


class Layout:
    """The places of the layers of K MLPs in their parameters ``[K, P]``, and the memory that a call needs."""

    def __init__(self, widths: tuple[int, ...], copies: int, squash: bool = False) -> None:
        self.widths, self.copies, self.squash = widths, copies, squash
        self.multiplications = sum(i * o for i, o in pairwise(widths))
        used = sum((i + 1) * o for i, o in pairwise(widths))
        self.stride = -(-used // ALIGNED) * ALIGNED
        self.hidden = copies * sum(widths[1:-1])
        self._widths = (ctypes.c_int64 * len(widths))(*widths)

    def __deepcopy__(self, memo: Any) -> Layout:
        """Return the object itself, which is immutable."""
        return self

    def network(self, parameters: Tensor) -> Any:
        """Return a pointer to the C struct ``Network``; ``parameters`` must outlive it."""
        widths = ctypes.addressof(self._widths)
        return ctypes.byref(
            _Network(self.copies, len(self.widths) - 1, self.stride, self.squash, widths, parameters.data_ptr())
        )

    def threads(self, rows: int) -> int:
        """Return the number of threads to use for so many rows."""
        return torch.get_num_threads() if rows * self.copies * self.multiplications >= SHARED else 1

    def check(self, parts: Sequence[Tensor]) -> None:
        """Raise ValueError unless :func:`joined` makes inputs of ``parts`` that fit: C would read other memory."""
        if sum(part.shape[1] for part in parts) != self.widths[0]:
            found = " + ".join(str(part.shape[1]) for part in parts)
            raise ValueError(f"inputs of width {found}: this network expects {self.widths[0]} numbers in each row.")
        rows = parts[-1].shape[0]
        for part in parts[:-1]:
            if part.shape[0] != rows and (part.shape[0] == 0 or rows % part.shape[0]):
                raise ValueError(
                    f"inputs of {[part.shape[0] for part in parts]} rows: expected the same number of each."
                )

    def tiled(self, rows: int) -> bool:
        """Return whether to use matrix units for so many rows."""
        return rows >= TILED and len(self.widths) <= 32 and tiles_granted()

    def layers(self, parameters: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the weights ``[K, inputs, outputs]`` and biases ``[K, 1, outputs]`` of each layer, as views."""
        at, out = 0, []
        for i, o in pairwise(self.widths):
            weight = parameters[:, at : at + i * o].view(self.copies, i, o)
            out.append((weight, parameters[:, None, at + i * o : at + i * o + o]))
            at += i * o + o
        return out


class Pass(NamedTuple):
    """The values of a forward pass that the backward pass needs."""

    x: Tensor  # [M, inputs]
    hidden: Tensor  # [K, M, width] of each hidden layer, one after the other, flat
    y: Tensor  # [K, M, outputs]


def joined(*parts: Tensor) -> Tensor:
    """Concatenate inputs ``[M, I]``, and others ``[M / n, I]`` of which each row belongs to n rows of the last one."""
    rows = len(parts[-1])
    if any(len(part) != rows for part in parts):
        each = (part.unsqueeze(1).expand(-1, rows // max(1, len(part)), -1) for part in parts)  # [M / n, n, I]
        parts = tuple(part.reshape(rows, part.shape[-1]) for part in each)
    return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts, 1)  # [M, inputs]


def forth(theta: Tensor, layout: Layout, *parts: Tensor, keep: bool = True) -> Pass:
    """Compute the forward pass of parameters ``theta`` ``[K, P]``, without autograd.

    The input is the concatenation of ``parts``, as in :func:`joined`. Without ``keep``, :func:`back` is not possible.

    Raises:
        ValueError: ``theta`` has another shape, or see :meth:`Layout.check`.
    """
    expect((layout.copies, layout.stride), theta=theta)
    layout.check(parts)
    own = parts[-1].contiguous()  # [M, I]
    rows = own.shape[0]
    threads, tiled = layout.threads(rows), layout.tiled(rows)
    shares = not tiled and len(parts) == 2 and len(parts[0]) < rows
    x = own.new_empty(0) if shares and not keep else joined(*parts)  # [M, inputs]
    hidden = x.new_empty(rows * layout.hidden if keep or not tiled else 0)
    y = x.new_empty(layout.copies, rows, layout.widths[-1])
    found = hidden.data_ptr() if len(hidden) else 0, y.data_ptr(), rows, threads
    if tiled:
        library().perceptron_tiles(layout.network(theta), x.data_ptr(), *found)
    elif shares:
        shared = parts[0].contiguous()  # [M / n, I]
        groups = shared.data_ptr(), shared.shape[1], rows // len(shared)
        library().perceptron(layout.network(theta), own.data_ptr(), *groups, *found)
    else:
        library().perceptron(layout.network(theta), x.data_ptr(), 0, 0, 1, *found)
    return Pass(x, hidden, y)


def back(
    theta: Tensor, layout: Layout, passed: Pass, grad: Tensor, *, inputs: bool = False, parameters: bool = True
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of x ``[M, inputs]`` and theta ``[K, P]``, given that of the output, ``[K, M, outputs]``.

    ``inputs`` and ``parameters`` say which of the two are computed; the other one is None.
    """
    x, hidden, y = passed
    if grad.numel() != y.numel():
        raise ValueError(f"a gradient of shape {tuple(grad.shape)}: expected {tuple(y.shape)}, that of the output.")
    grad = torch.ops.aten.tanh_backward(grad.contiguous(), y) if layout.squash else grad.contiguous()
    dx = torch.empty_like(x) if inputs else None
    dtheta = torch.empty_like(theta) if parameters else None
    to = 0 if dx is None else dx.data_ptr(), 0 if dtheta is None else dtheta.data_ptr()
    rows, tiled = x.shape[0], layout.tiled(x.shape[0])
    backward = library().perceptron_tiles_backward if tiled else library().perceptron_backward
    found = layout.network(theta), x.data_ptr(), hidden.data_ptr(), grad.data_ptr()
    backward(*found, *to, rows, layout.threads(rows))
    return dx, dtheta


class _Perceptron(torch.autograd.Function):
    """:func:`forth` and :func:`back` as a function of autograd."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, layout: Layout, *parts: Tensor) -> Tensor:
        passed = forth(theta, layout, *parts, keep=ctx is not None)
        if ctx is not None:
            ctx.save_for_backward(theta, *passed)
            ctx.layout, ctx.shapes = layout, [part.shape for part in parts]
        return passed.y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        theta, *passed = ctx.saved_tensors
        wanted = {"inputs": any(ctx.needs_input_grad[2:]), "parameters": ctx.needs_input_grad[0]}
        dx, dtheta = back(theta, ctx.layout, Pass(*passed), grad, **wanted)
        if dx is None:
            return dtheta, None, *[None] * len(ctx.shapes)
        each = zip(torch.split(dx, [width for _, width in ctx.shapes], 1), ctx.shapes, strict=True)
        return dtheta, None, *(g if g.shape == s else g.view(s[0], -1, s[1]).sum(1) for g, s in each)


class ReluMLP(nn.Module):
    """An MLP with ReLU, or K of them (``copies``) that share their input. ``squash`` applies tanh to the output.

    It is initialised as ``torch.nn.Linear``. All parameters are one tensor ``theta`` ``[K, P]``, one copy in each row,
    so that optimisers and target networks process a single array; :meth:`layers` returns weights and biases. Rows are
    padded to whole cache lines with zeros, which stay 0.
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
        """Check the widths, as other layers can have the same number of parameters; older states do not have widths."""
        state = dict(state_dict)
        widths = state.pop(f"{prefix}widths", None)
        super()._load_from_state_dict(state, prefix, local_metadata, strict, missing, unexpected, errors)
        if widths is not None and tuple(widths.tolist()) != self.layout.widths:
            errors.append(
                f"{prefix}widths are {tuple(widths.tolist())} in the checkpoint, but {self.layout.widths} here."
            )

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Return each layer's weights ``[K, inputs, outputs]`` and biases ``[K, 1, outputs]``, views of ``theta``."""
        return self.layout.layers(self.theta)

    def forward(self, *parts: Tensor, copy: int | None = None) -> Tensor:
        """Map ``[..., inputs]`` to ``[..., outputs]``, or to ``[K, ..., outputs]`` of K copies.

        Args:
            parts: the inputs, as one tensor or as several that are concatenated along the last axis. One with an axis
                less than the last, ``[..., I]`` beside ``[..., n, J]``, is shared by the n rows.
            copy: the index of the only copy to compute; None computes all.
        """
        lead, theta, layout = parts[-1].shape[:-1], cast(Tensor, self.theta), self.layout
        if copy is not None:
            theta, layout = theta[copy : copy + 1], self.alone
        if any(part.shape[:-1] != lead and part.shape[:-1] != lead[:-1] for part in parts):
            raise ValueError(
                f"inputs of shapes {', '.join(str(tuple(part.shape)) for part in parts)}: expected the same but for "
                "the last axis, or [..., n, J] last and [..., I] that is shared by n rows."
            )
        flat = [part.reshape(-1, part.shape[-1]) for part in parts]  # [M, I], or [M / n, I]
        layout.check(flat)
        if compiled(theta, *flat) and flat[-1].numel():
            y: Tensor = call(_Perceptron, theta, layout, *flat)  # [K, M, outputs]
        else:
            x = joined(*flat)  # [M, inputs]
            y = defined(x, layout.layers(theta.to(x.dtype)))
            y = y.tanh() if layout.squash else y
        alone = self.copies is None or copy is not None
        return y.view(*lead, y.shape[-1]) if alone else y.view(layout.copies, *lead, y.shape[-1])


def defined(x: Tensor, layers: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Compute the MLP in PyTorch: x W + b of each layer, ReLU between them; ``[M, inputs]`` to ``[K, M, outputs]``."""
    y = x.expand(len(layers[0][0]), *x.shape)  # [K, M, inputs]
    for k, (weight, bias) in enumerate(layers):
        y = torch.baddbmm(bias, y if k == 0 else y.relu(), weight)
    return y

"""Weights in the panel layout of the C files, cached until a parameter changes; MLPs at few rows with them."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.kernels.compiler import load_kernels
from reverie.kernels.ctypes_call import call_compiled, data_pointers, empty_float32, is_cpu_float32
from reverie.kernels.matmul import MIN_ROWS
from reverie.nn.layers import MLP, Linear, RMSNormSiLU

PANEL = 32
"""Outputs in a panel, as in ``panels.h``."""

T = TypeVar("T")


def pack_panels(weight: Tensor) -> Tensor:
    """Return ``weight`` ``[..., outputs, inputs]`` as panels ``[..., outputs / 32, inputs, 32]``, padded with zeros."""
    *lead, outputs, inputs = weight.shape
    panels = -(-outputs // PANEL)
    padded = F.pad(weight.detach(), (0, 0, 0, panels * PANEL - outputs))
    return padded.view(*lead, panels, PANEL, inputs).transpose(-1, -2).contiguous()


class ParameterCache(Generic[T]):
    """A cached value that depends on a module's parameters; recomputed when one was changed or replaced.

    PyTorch counts changes, except through ``parameter.data``. A sample of the values detects these if a whole
    parameter changes; an edit of a few values may go unnoticed. It refers to no module, so that caches may be keyed by
    modules.
    """

    def __init__(self, module: nn.Module) -> None:
        # References to the modules' dictionaries, so that a check for changes need not walk through all modules.
        self.tables: list[dict[str, nn.Parameter]] = [m._parameters for m in module.modules() if m._parameters]  # type: ignore[misc]  # none of ours is None
        self.state: list[tuple[int, int]] = []
        self.sample: int = 0
        self.sampler: Callable[[], int] = lambda: 0
        self.value: T | None = None

    def get(self, make: Callable[[], T]) -> T:
        """Return ``make()``, called again only if the parameters have changed since the last call."""
        state = [(p.data_ptr(), p._version) for table in self.tables for p in table.values()]
        if self.value is None or state != self.state or self.sampler() != self.sample:
            with torch.no_grad():
                self.value = make()
            self.state, self.sampler = state, _sampler([p for table in self.tables for p in table.values()])
            self.sample = self.sampler()
        return self.value


def _sampler(parameters: list[nn.Parameter]) -> Callable[[], int]:
    """Return a function that hashes some numbers of each parameter, or a constant where they cannot be read."""
    functions = load_kernels()
    if functions is None or not is_cpu_float32(*parameters) or not all(p.is_contiguous() for p in parameters):
        return lambda: 0
    hashed, sizes = ctypes.c_uint64(), (ctypes.c_int64 * len(parameters))(*[p.numel() for p in parameters])
    arguments = *(ctypes.cast(x, ctypes.c_void_p) for x in (data_pointers(*parameters), sizes)), len(parameters)
    into, hash_some = ctypes.byref(hashed), functions.sample_bits

    def sample() -> int:
        hash_some(*arguments, into)
        return hashed.value

    return sample


# ---------------------------------------------------------------------- MLPs at few rows: a policy is acting


class _Packed:
    """Cached facts about an MLP, valid while its layers are the same."""

    def __init__(self, mlp: MLP) -> None:
        self.layers = [*mlp._modules.values()]
        self.supported = bool(self.layers) and has_standard_layers(mlp)
        self.widths = [linear.weight.shape[1] for linear in self.layers[::2] if isinstance(linear, Linear)]
        self.widths.append(mlp.width)
        self.weights: ParameterCache[list[Tensor]] = ParameterCache(mlp)


_packed: weakref.WeakKeyDictionary[MLP, _Packed] = weakref.WeakKeyDictionary()


def has_standard_layers(mlp: MLP) -> bool:
    """Return whether no layer was added, or replaced by a layer of another class."""
    return all(type(m) is (RMSNormSiLU if i % 2 else Linear) for i, m in enumerate(mlp._modules.values()))


def _get_packed(mlp: MLP) -> _Packed:
    packed = _packed.get(mlp)
    if packed is None or packed.layers != [*mlp._modules.values()]:
        packed = _packed[mlp] = _Packed(mlp)
    return packed


def supports_mlp(mlp: MLP, x: Tensor) -> bool:
    """Return whether :func:`mlp_forward_cpu` can be used."""
    if torch.is_grad_enabled() or not x.is_cpu or not 0 < x.numel() < MIN_ROWS * x.shape[-1]:
        return False
    packed = _get_packed(mlp)
    right = packed.supported and x.shape[-1] == packed.widths[0]
    return right and is_cpu_float32(*(p for table in packed.weights.tables for p in table.values()))


def mlp_forward_cpu(mlp: MLP, x: Tensor) -> Tensor:
    """Compute ``MLP.forward`` in one call."""
    packed = _get_packed(mlp)
    flat = x.reshape(-1, x.shape[-1]).float().contiguous()
    layers = packed.weights.get(lambda: [pack_panels(p) if p.ndim == 2 else p for p in mlp.parameters()])
    rows, widths, norm = len(flat), packed.widths, packed.layers[1]
    assert isinstance(norm, RMSNormSiLU)
    y, scratch = empty_float32(rows, widths[-1]), empty_float32(2 * rows * max(widths[1:]))
    call_compiled("mlp", flat, data_pointers(*layers), (ctypes.c_int64 * len(widths))(*widths), len(widths) - 1, y,
        scratch, rows,
            norm.eps)  # fmt: skip
    return y.view(*x.shape[:-1], mlp.width).to(x.dtype)

"""The layers of state-space models, prepared once for the steps of an imagined sequence, without gradients.

``nn/state_space.py`` and ``algos/imagination.py`` define the computation. Here weights are cast and cut once for a
sequence.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from reverie.kernels.module_watch import ModuleWatch
from reverie.nn.dense_rssm import CellStack, DenseRSSM, KerasGRU, LayerNormGRU
from reverie.nn.functional import cast_parameter, gru, linear
from reverie.nn.layers import BlockLinear, Dense, Linear
from reverie.nn.modules import find_hook
from reverie.nn.rssm import RSSM, bound
from reverie.nn.state_space import Latent, LogitNet, StateSpaceModel

REPLACED_METHODS = ("step", "q", "p", "stats", "sample", "imagine", "observe")
"""The methods of a model that the kernels replace; if others override them, the definition runs."""


PreparedClass: TypeAlias = "type[PreparedRSSM] | type[PreparedDenseRSSM] | None"
_classes: weakref.WeakKeyDictionary[StateSpaceModel, tuple[ModuleWatch, PreparedClass]] = weakref.WeakKeyDictionary()


def prepared_class(rssm: StateSpaceModel) -> PreparedClass:
    """Return the class that prepares the layers of ``rssm``; None if its methods or modules are not the library's."""
    return watched_class(rssm)[1] if isinstance(rssm, RSSM | DenseRSSM) else None


def watched_class(rssm: StateSpaceModel) -> tuple[ModuleWatch, PreparedClass]:
    """Return :func:`prepared_class`, and what notices that it changes: another object after each change."""
    known = _classes.get(rssm)
    if known is None or known[0].find_change():
        known = _classes[rssm] = ModuleWatch(rssm), _find_class(rssm)
    return known


def _find_class(rssm: StateSpaceModel) -> PreparedClass:
    if any(name in vars(rssm) for name in REPLACED_METHODS):
        return None
    for kind, prepared in ((RSSM, PreparedRSSM), (DenseRSSM, PreparedDenseRSSM)):
        if isinstance(rssm, kind) and all(
            getattr(type(rssm), name) is getattr(kind, name) for name in REPLACED_METHODS
        ):
            return prepared if _can_prepare(rssm) else None
    return None


def _can_prepare(rssm: RSSM | DenseRSSM) -> bool:
    """Return whether the modules that are not called, but taken apart, are the library's; no module has a hook."""
    if find_hook(rssm) or any("forward" in vars(module) for module in rssm.modules()):
        return False
    nets = rssm.posterior, rssm.prior_net
    if any(type(net) is not LogitNet for net in nets):
        return False
    chains = [rssm.after] if isinstance(rssm, DenseRSSM) else [rssm.in_deter, rssm.in_stoch, rssm.in_action]
    linears = [rssm.posterior.first, *([rssm.input] if isinstance(rssm, DenseRSSM) else [])]
    return all(type(chain) is nn.Sequential for chain in (*chains, *(net.rest for net in nets))) and all(
        type(linear) in (Linear, Dense) for linear in linears
    )


def embedded(rssm: StateSpaceModel, x: Tensor) -> Tensor:
    """Return the part of the posterior's first layer, which is linear in [h, x], for x ``[B, T, E]``."""
    first, dtype = rssm.posterior.first, x.dtype
    weight = cast_parameter(first.weight, dtype)[:, rssm.cfg.deter :]
    return linear(x, weight, cast_parameter(first.bias, dtype))  # [B, T, hidden]


# ---------------------------------------------------------------------- layers of a step


class PreparedRSSM:
    """The layers of a step of :class:`RSSM`."""

    def __init__(self, rssm: RSSM, dtype: torch.dtype) -> None:
        self.rssm: RSSM = rssm
        self.in_deter: StepLayers = StepLayers(rssm.in_deter, dtype)
        self.in_stoch: StepLayers = StepLayers(rssm.in_stoch, dtype)
        self.in_action: StepLayers = StepLayers(rssm.in_action, dtype)
        self.recurrent: list[Any] = [_block_steps(layer, dtype) for layer in rssm.recurrent]
        self.norms: list[Any] = list(rssm.recurrent_norms)
        self.gates: Any = _block_steps(rssm.gates, dtype)
        self.prior: StepLayers = StepLayers(_all_layers(rssm.prior_net), dtype)

    @cached_property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Weight ``[2 N, D + Z]``, bias ``[2 N]`` and norms' scales ``[2, N]`` that embed h and z side by side."""
        (first, norm), (second, another) = self.in_deter.layers, self.in_stoch.layers
        weight = torch.block_diag(first.weight, second.weight)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return weight, torch.cat([first.bias, second.bias]), torch.stack([norm.weight, another.weight])

    def step(self, h: Tensor, z: Tensor, action: Tensor) -> Tensor:
        """Return the next h ``[M, D]``; the action is embedded, ``[M, hidden]``."""
        shared: Tensor | None = torch.cat([self.in_deter(h), self.in_stoch(z.flatten(1)), action], -1)
        x = h  # [M, D]
        for layer, norm in zip(self.recurrent, self.norms, strict=True):
            x, shared = norm(layer(x, shared)), None  # [M, D]
        gates = self.gates(x, shared).view(len(x), self.rssm.cfg.blocks, 3, -1)  # three gates of each block
        return gru(gates, h)

    def imagine(self, latent: Latent, action: Tensor) -> Latent:
        """Compute ``StateSpaceModel.imagine``."""
        h = self.step(*latent, self.in_action(bound(action.to(latent.deter.dtype))))
        return Latent(h, self.rssm.sample(self.rssm.stats(self.prior(h))).to(h.dtype))


class PreparedDenseRSSM:
    """The layers of a step of :class:`DenseRSSM`."""

    def __init__(self, rssm: DenseRSSM, dtype: torch.dtype) -> None:
        self.rssm: DenseRSSM = rssm
        weight = rssm.input.weight.to(dtype)
        self.in_stoch: StepLinear = StepLinear(weight[:, : rssm.width], None)
        self.in_action: StepLinear = StepLinear(weight[:, rssm.width :], rssm.input.bias.to(dtype))
        self.cell: Cell = _cell_steps(rssm.gru, dtype)
        self.prior: StepLayers = StepLayers(_all_layers(rssm.prior_net), dtype)

    def step(self, h: Tensor, z: Tensor, action: Tensor) -> Tensor:
        """Return the next h ``[M, D]``; the action is embedded, ``[M, hidden]``."""
        return self.cell(self.rssm.after(self.in_stoch(z.flatten(1), action)), h)

    def imagine(self, latent: Latent, action: Tensor) -> Latent:
        """Compute ``StateSpaceModel.imagine``."""
        h = self.step(*latent, self.in_action(action.to(latent.deter.dtype)))
        return Latent(h, self.rssm.sample(self.rssm.stats(self.prior(h))).to(h.dtype))


def prepare(rssm: StateSpaceModel, dtype: torch.dtype) -> PreparedRSSM | PreparedDenseRSSM:
    """Prepare the layers of a model with library methods for one sequence."""
    kind: Any = prepared_class(rssm)
    prepared: PreparedRSSM | PreparedDenseRSSM = kind(rssm, dtype)
    return prepared


def _all_layers(net: LogitNet) -> nn.Sequential:
    """Return all layers of ``net``, in their order."""
    return nn.Sequential(net.first, *net.rest)


Cell = Callable[[Tensor, Tensor], Tensor]


def _cell_steps(cell: nn.Module, dtype: torch.dtype) -> Cell:
    """Return the step of a recurrent cell, from x ``[M, inputs]`` and h ``[M, D]`` to the next h.

    Any other module than a cell of this library is returned as it is.
    """
    if type(cell) is LayerNormGRU:
        layer, norm = _linear_steps(cell.layer, dtype), cell.norm

        def layer_norm_step(x: Tensor, h: Tensor) -> Tensor:
            return gru(norm(layer(torch.cat([x, h], -1))).view(len(h), 1, 3, -1), h)

        return layer_norm_step
    if type(cell) is KerasGRU:
        gate, from_input = cell.gate, _linear_steps(cell.from_input, dtype)
        from_state = _linear_steps(cell.from_state, dtype)
        return lambda x, h: gate(from_input(x), from_state(h), h)
    if type(cell) is not CellStack:
        return cell
    cells = [_cell_steps(part, dtype) for part in cell.cells]

    def stacked_step(x: Tensor, h: Tensor) -> Tensor:
        shares = []
        for part, share in zip(cells, h.chunk(len(cells), -1), strict=True):
            x = part(x, share.contiguous())
            shares.append(x)
        return torch.cat(shares, -1)

    return stacked_step


class StepLayers:
    """A chain of layers that is applied at every step of a sequence."""

    def __init__(self, layers: nn.Sequential, dtype: torch.dtype) -> None:
        self.layers: list[Any] = [_linear_steps(layer, dtype) for layer in layers]

    def __call__(self, x: Tensor) -> Tensor:
        """Map ``[M, inputs]`` to ``[M, outputs]``."""
        for layer in self.layers:
            x = layer(x)
        return x


class BlockSteps(NamedTuple):
    """A :class:`BlockLinear` that is applied at every step of a sequence."""

    block: StepLinear
    shared: StepLinear | None

    def __call__(self, x: Tensor, shared: Tensor | None = None) -> Tensor:
        """Map ``[M, inputs]``, and ``[M, shared]`` if there are shared inputs, to ``[M, outputs]``."""
        return self.block(x, self.shared(shared) if self.shared and shared is not None else None)


def _block_steps(layer: object, dtype: torch.dtype) -> Any:
    """Return a block-diagonal layer for all steps of a sequence; a custom module is returned as it is."""
    if type(layer) is not BlockLinear:
        return layer
    block, shared = torch.tensor_split(cast_parameter(layer.weight, dtype), [layer.own], -1)
    bias = cast_parameter(layer.bias, dtype)
    if not shared.shape[-1]:
        return BlockSteps(StepLinear(block, bias), None)
    return BlockSteps(StepLinear(block, None), StepLinear(shared.reshape(len(bias), -1), bias))


def _linear_steps(layer: Any, dtype: torch.dtype) -> Any:
    """Return a layer for all steps of a sequence: weights are cast, and their gradients computed, once.

    Any other module than a linear layer of this library is returned as it is.
    """
    if type(layer) not in (Linear, Dense):
        return layer
    bias = None if layer.bias is None else cast_parameter(layer.bias, dtype)
    return StepLinear(cast_parameter(layer.weight, dtype), bias)


# ---------------------------------------------------------------------- products


def _blockwise_linear(x: Tensor, weight: Tensor, base: Tensor | None) -> Tensor:
    """Return x W^T ``[M, outputs]`` plus ``base``, ``[outputs]`` or ``[M, outputs]``.

    W is ``[outputs, inputs]`` or, block-diagonal, ``[blocks, outputs / blocks, inputs / blocks]``.
    """
    if weight.ndim == 2:
        return torch.addmm(base, x, weight.T) if base is not None and base.ndim == 2 else linear(x, weight, base)
    rows, blocks, outputs = x.shape[0], weight.shape[0], weight.shape[1]
    grouped = x.view(rows, blocks, -1).transpose(0, 1)  # [blocks, M, inputs / blocks]
    if base is None:
        y = torch.bmm(grouped, weight.transpose(1, 2))  # [blocks, M, outputs / blocks]
    else:
        y = torch.baddbmm(base.view(-1, blocks, outputs).transpose(0, 1), grouped, weight.transpose(1, 2))
    return y.transpose(0, 1).reshape(rows, -1)


class StepLinear:
    """``x W^T + b`` at the steps of a sequence: see :func:`_blockwise_linear`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor, base: Tensor | None = None) -> Tensor:
        """Return ``[M, outputs]``. ``base`` ``[M, outputs]`` replaces the bias."""
        return _blockwise_linear(x, self.weight, self.bias if base is None else base)

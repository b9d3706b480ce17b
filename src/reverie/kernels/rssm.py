"""An RSSM's sequences in C or, on a GPU, with Triton kernels, and when these can be used.

``nn/state_space.py`` and ``nn/rssm.py`` define the computation. ``recurrence.c`` does it for many steps in one call
(``rssm_cpu.py``), ``rssm_gpu.py`` with few kernels. On CPUs it computes in float32, regardless of the dtype.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from reverie.kernels import gpu, rssm_cpu, rssm_gpu
from reverie.kernels.ctypes_call import empty_float32, has_no_grad, is_cpu_float32, once_differentiable_strict
from reverie.kernels.module_watch import ModuleWatch
from reverie.kernels.packing import ParameterCache
from reverie.kernels.steps import PreparedRSSM, embedded, watched_class
from reverie.nn.functional import cast_parameter
from reverie.nn.layers import BlockLinear, Linear, RMSNormSiLU
from reverie.nn.rssm import RSSM, bound
from reverie.nn.state_space import Latent, LogitNet, StateSpaceModel


class _RSSMCache:
    """Cached facts about an RSSM, valid while its modules are the same: whether kernels fit, and packed weights."""

    def __init__(self, rssm: RSSM, watch: ModuleWatch) -> None:
        c = rssm.cfg
        self.watch = watch
        layers = (c.recurrent_layers, c.posterior_layers, c.prior_layers) == (1, 1, 2) and c.hidden <= c.deter
        self.usual = layers and _as_defined(rssm)
        if not self.usual:
            return
        self.sequence: ParameterCache[dict[str, Tensor]] = ParameterCache(rssm)
        self.prior: ParameterCache[dict[str, Tensor]] = ParameterCache(rssm)
        self.posterior: ParameterCache[dict[str, Tensor]] = ParameterCache(rssm)
        eps = cast(float, rssm.recurrent_norms[0].eps)
        self.sizes = rssm_cpu.Sizes(c.deter, c.blocks, c.hidden, c.stoch, c.classes, eps, c.unimix)


_LAYER = {"": nn.Sequential, ".0": Linear, ".1": RMSNormSiLU}
_MODULES: dict[str, dict[str, type[nn.Module]]] = {
    "in_deter": _LAYER,
    "in_stoch": _LAYER,
    "in_action": _LAYER,
    "recurrent": {"": nn.ModuleList, ".0": BlockLinear},
    "recurrent_norms": {"": nn.ModuleList, ".0": RMSNormSiLU},
    "gates": {"": BlockLinear},
    "posterior": {"": LogitNet, ".first": Linear, ".rest": nn.Sequential, ".rest.0": RMSNormSiLU, ".rest.1": Linear},
    "prior_net": {"": LogitNet, ".first": Linear, ".rest": nn.Sequential}
    | {f".rest.{i}": Linear if i % 2 else RMSNormSiLU for i in range(4)},
}
"""The modules of an RSSM with the usual layers, and their exact classes."""


def _as_defined(rssm: RSSM) -> bool:
    """Return whether all modules are of the classes that RSSM makes, with one eps; a subclass may add more."""
    expected = {part + name: kind for part, kinds in _MODULES.items() for name, kind in kinds.items()}
    modules = {n: m for n, m in rssm.named_modules() if n.partition(".")[0] in _MODULES}
    epsilons = {m.eps for m in modules.values() if isinstance(m, RMSNormSiLU)}
    return expected == {n: type(m) for n, m in modules.items()} and len(epsilons) == 1


_caches: weakref.WeakKeyDictionary[RSSM, _RSSMCache] = weakref.WeakKeyDictionary()


def _find_cache(rssm: RSSM) -> _RSSMCache | None:
    """Return the cache of ``rssm``; None if its methods or modules are not the library's."""
    watch, prepared = watched_class(rssm)
    if prepared is not PreparedRSSM:
        return None
    cache = _caches.get(rssm)
    if cache is None or cache.watch is not watch:
        cache = _caches[rssm] = _RSSMCache(rssm, watch)
    return cache


def _supports_rows(rssm: StateSpaceModel, latent: Latent, rows: int) -> bool:
    if rssm.draw is not None or not isinstance(rssm, RSSM) or not has_no_grad(*latent):
        return False
    c, on_cpu = rssm.cfg, latent.deter.is_cpu and latent.stoch.is_cpu
    shapes = latent.deter.shape == (rows, c.deter) and latent.stoch.shape == (rows, c.stoch, c.classes)
    cache = _find_cache(rssm) if shapes else None
    usual = cache is not None and cache.usual
    return usual and ((on_cpu and is_cpu_float32(rssm.gates.weight)) or gpu.can_use_triton(latent.deter))


def supports_observe_compiled(
    rssm: StateSpaceModel, start: Latent, x: Tensor, action: Tensor, is_first: Tensor
) -> bool:
    """Return whether :func:`observe_compiled` can be used."""
    return x.shape[:2] == action.shape[:2] == is_first.shape and _supports_rows(rssm, start, len(is_first))


def observe_compiled(rssm: RSSM, start: Latent, x: Tensor, action: Tensor, is_first: Tensor) -> tuple[Latent, Tensor]:
    """Compute ``StateSpaceModel.observe``."""
    keep = (~is_first).to(x.dtype)  # [B, T]
    actions = rssm.in_action(bound((action * keep.unsqueeze(-1)).to(x.dtype)))  # [B, T, hidden]
    return _filter_rows(rssm, start, actions, embedded(rssm, x), keep)


def _filter_rows(
    rssm: RSSM, latent: Latent, actions: Tensor, from_embed: Tensor, keep: Tensor
) -> tuple[Latent, Tensor]:
    """Compute the recurrent part of :func:`observe_compiled`: its other inputs ``[B, T, ...]`` are computed already."""
    c, cache, on_gpu = rssm.cfg, _caches[rssm], not is_cpu_float32(rssm.gates.weight)
    dtype = latent.deter.dtype if on_gpu else torch.float32
    inputs = (latent.deter, latent.stoch.flatten(1), actions.transpose(0, 1), from_embed.transpose(0, 1))
    uniform = torch.rand(*keep.T.shape, c.stoch, dtype=torch.float32, device=keep.device)
    arguments = (*(x.to(dtype).contiguous() for x in inputs), keep.T.float().contiguous(), uniform)
    if on_gpu or torch.is_grad_enabled():
        backend = _GPU if on_gpu else _CPU
        weights = rssm_cpu.Weights(**_sequence_weights(rssm, dtype), **_posterior_head(rssm, dtype))
        out = _Filter.apply(backend, cache.sizes, *arguments, *weights)
    else:
        packed = cache.posterior.get(
            lambda: _packed_sequence(rssm, cache) | rssm_cpu.pack_weights(_posterior_head(rssm))
        )
        trace = rssm_cpu.filter_sequence(cache.sizes, packed, *arguments)
        out = (trace.deter, trace.stoch, trace.probs)
    deter, stoch, probs = (x.transpose(0, 1) for x in out)  # [B, T, ...]
    stoch, probs = (x.view(*keep.shape, c.stoch, c.classes) for x in (stoch, probs))
    return Latent(deter.to(latent.deter.dtype), stoch.to(latent.deter.dtype)), probs


class _Backend(NamedTuple):
    """The two passes of a sequence."""

    forward: Callable[..., Any]
    backward: Callable[..., tuple[Tensor, Tensor, rssm_cpu.Weights]]


_CPU = _Backend(rssm_cpu.filter_forward_cpu, rssm_cpu.filter_backward_cpu)
_GPU = _Backend(rssm_gpu.filter_forward_triton, rssm_gpu.filter_backward_triton)


class _Filter(torch.autograd.Function):
    """The passes of a backend, from ``[T, M, ...]`` and the weights."""

    @staticmethod
    def forward(ctx: Any, backend: _Backend, sizes: rssm_cpu.Sizes, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inputs, weights = tensors[:6], tensors[6:]  # the state, actions, embedded observations, keep, random numbers
        trace = backend.forward(sizes, rssm_cpu.Weights(*weights), *inputs)
        ctx.backend, ctx.sizes, ctx.trace = backend, sizes, type(trace)
        ctx.save_for_backward(inputs[4], *trace, *weights)
        return trace.deter, trace.stoch, trace.probs

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        keep, *saved = ctx.saved_tensors
        count, arrived = len(ctx.trace._fields), [grad.contiguous() for grad in grads]
        trace, weights = ctx.trace(*saved[:count]), rssm_cpu.Weights(*saved[count:])
        daction, dembed, dweights = ctx.backend.backward(ctx.sizes, weights, trace, keep, *arrived)
        return (None, None, None, None, daction, dembed, None, None, *dweights)


def supports_dream_step(rssm: StateSpaceModel, latent: Latent) -> bool:
    """Return whether :func:`dream_step` can be used from latents ``[M, ...]``."""
    return _supports_rows(rssm, latent, len(latent.deter))


def dream_step(rssm: Any, steps: Any, feature: Tensor, action: Tensor, out: Tensor) -> None:
    """Take one step under the prior, from features ``[M, F]`` and actions ``[M, A]`` to features ``out`` ``[M, F]``.

    ``steps``: the prepared layers. Nothing has a gradient.
    """
    action, cache = bound(action.to(feature.dtype)), _caches[rssm]
    if not is_cpu_float32(rssm.gates.weight):
        rssm_gpu.prior_step_triton(cache.sizes, steps, feature, action, out.data)
        return
    action = steps.in_action(action)
    wide = out if out.dtype is torch.float32 and out.is_contiguous() else empty_float32(out.shape)
    weights = cache.prior.get(lambda: _packed_prior(rssm, cache))
    rssm_cpu.prior_step_cpu(cache.sizes, weights, feature.float().contiguous(), action.float().contiguous(), wide)
    if wide is not out:
        out.data.copy_(wide)


# ---------------------------------------------------------------------- parameters, by the names of the kernels


def _packed_sequence(rssm: RSSM, cache: _RSSMCache) -> dict[str, Tensor]:
    return cache.sequence.get(lambda: rssm_cpu.pack_weights(_sequence_weights(rssm)))


def _packed_prior(rssm: RSSM, cache: _RSSMCache) -> dict[str, Tensor]:
    first, (norm, second, another, logits) = rssm.prior_net.first, rssm.prior_net.rest
    heads = _parameters("head", first, norm) | _parameters("second", second, another) | _parameters("logits", logits)
    return _packed_sequence(rssm, cache) | rssm_cpu.pack_weights(heads)


def _posterior_head(rssm: RSSM, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return the posterior's weights after h: the rest of its first layer is computed before."""
    first, (norm, logits) = rssm.posterior.first, rssm.posterior.rest
    weight = cast_parameter(first.weight, dtype)[:, : rssm.cfg.deter]
    return {"head": weight, "head_scale": cast(Tensor, norm.weight)} | _parameters("logits", logits, dtype=dtype)


def _sequence_weights(rssm: RSSM, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    layer = cast(BlockLinear, rssm.recurrent[0])
    block, shared = torch.tensor_split(cast_parameter(layer.weight, dtype), [layer.own], -1)
    return {
        **_parameters("in_deter", *rssm.in_deter, dtype=dtype),
        **_parameters("in_stoch", *rssm.in_stoch, dtype=dtype),
        "own": block,
        "shared": shared.reshape(rssm.cfg.deter, -1),
        "recurrent_bias": cast_parameter(layer.bias, dtype),
        "recurrent_scale": cast(Tensor, rssm.recurrent_norms[0].weight),
        "gates": cast_parameter(rssm.gates.weight, dtype),
        "gates_bias": cast_parameter(rssm.gates.bias, dtype),
    }


def _parameters(
    name: str, linear: nn.Module, norm: nn.Module | None = None, *, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Return a linear layer's parameters as ``dtype``, and the scale of the norm after it."""
    weights = cast(tuple[Tensor, Tensor], (linear.weight, linear.bias))
    out = dict(zip((name, f"{name}_bias"), (cast_parameter(x, dtype) for x in weights), strict=True))
    return cast(dict[str, Tensor], out if norm is None else {**out, f"{name}_scale": norm.weight})

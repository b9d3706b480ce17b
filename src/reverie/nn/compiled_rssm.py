"""Runs an RSSM's sequences in C or, on a GPU, with Triton kernels, and says when that can be done.

``nn/rssm.py`` defines the computation. ``recurrence.c`` does it for many steps in one call, ``nn/gpu_recurrence.py``
with few kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from reverie.core.compiled import compiled, floats
from reverie.core.shapes import expect
from reverie.nn import gpu, gpu_recurrence, recurrence
from reverie.nn.packing import Kept

if TYPE_CHECKING:
    from reverie.nn.layers import BlockLinear
    from reverie.nn.rssm import RSSM, Cell, Latent


class CompiledRSSM:
    """The compiled path of an :class:`~reverie.nn.rssm.RSSM`. On CPUs it computes in float32, whatever the dtype."""

    def __init__(self, rssm: RSSM, *methods: Callable[..., object]) -> None:
        """``methods``: those of RSSM that the compiled functions stand for; if others replace them, they are called."""
        c = rssm.cfg
        self.rssm, self.names = rssm, {f.__name__ for f in methods}
        layers = (c.recurrent_layers, c.posterior_layers, c.prior_layers) == (1, 1, 2) and c.hidden <= c.deter
        self.usual = layers and all(getattr(type(rssm), f.__name__, None) is f for f in methods)
        # The dictionaries that hold the modules, which a check need not walk through, and what they hold.
        self.own, *self.inner = [m._modules for m in rssm.modules() if m._modules]
        self.made, self.made_inner = [*self.own.values()], [*chain.from_iterable(map(dict.values, self.inner))]
        self.sequence: Kept[dict[str, Tensor]] = Kept(rssm)
        self.prior: Kept[dict[str, Tensor]] = Kept(rssm)
        self.posterior: Kept[dict[str, Tensor]] = Kept(rssm)
        eps = cast(float, rssm.recurrent_norms[0].eps) if c.recurrent_layers else 0.0
        self.sizes = recurrence.Sizes(c.deter, c.blocks, c.hidden, c.stoch, c.classes, eps, c.unimix)

    def fits(self, latent: Latent) -> bool:
        """Return whether the compiled functions exist and support these layers, and ``latent`` needs no gradient."""
        needs_grad = torch.is_grad_enabled() and (latent.deter.requires_grad or latent.stoch.requires_grad)
        fit, here = not needs_grad and self._supports(), latent.deter.is_cpu and latent.stoch.is_cpu
        return fit and ((here and compiled(self.rssm.gates.weight)) or gpu.ready(latent.deter))

    def _supports(self) -> bool:
        """Return whether the compiled functions compute what this RSSM does, whose class may be a user's own."""
        if not self.usual or not self.names.isdisjoint(vars(self.rssm)):
            return False
        own, inner = [*self.own.values()], [*chain.from_iterable(map(dict.values, self.inner))]
        # A subclass may add modules of its own to the RSSM itself.
        return own[: len(self.made)] == self.made and inner == self.made_inner

    def observe(self, latent: Latent, actions: Tensor, embeds: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Filter a sequence of observations, starting from ``latent``; inputs outside the recurrence come precomputed.

        Args:
            latent: the state before the first row, ``[B, ...]``.
            actions: the embedded actions, ``[T, B, hidden]``.
            embeds: the observations' part of the posterior's first layer, with its bias, ``[T, B, hidden]``.
            keep: ``[B, T]``, 0 where an episode begins and 1 elsewhere.

        Returns:
            h ``[B, T, D]``, z ``[B, T, S, C]`` and posterior probabilities ``[B, T, S, C]``.
        """
        c, inputs = self.rssm.cfg, (latent.deter, latent.stoch.flatten(1), actions, embeds)
        rows, steps = keep.shape
        expect((rows, c.deter), deter=latent.deter)
        expect((rows, c.stoch, c.classes), stoch=latent.stoch)
        expect((steps, rows, c.hidden), actions=actions, embeds=embeds)
        on_gpu = not compiled(self.rssm.gates.weight)
        dtype = latent.deter.dtype if on_gpu else torch.float32
        uniform = torch.rand(len(actions), len(keep), c.stoch, dtype=torch.float32, device=keep.device)
        given = (*(x.to(dtype).contiguous() for x in inputs), keep.T.float().contiguous(), uniform)
        if on_gpu or torch.is_grad_enabled():
            weights = recurrence.Weights(**_cast(self._sequence_weights() | self._posterior_head(), dtype))
            function = gpu_recurrence.Observe if on_gpu else recurrence.Observe
            out = function.apply(self.sizes, *given, *weights)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        else:
            trace = recurrence.run(self.sizes, self.posterior.get(self._packed_posterior), *given)
            out = (trace.deter, trace.stoch, trace.probs)
        deter, stoch, probs = (x.transpose(0, 1) for x in out)  # [B, T, ...]
        stoch, probs = (x.view(*keep.shape, c.stoch, c.classes) for x in (stoch, probs))
        return deter.to(latent.deter.dtype), stoch.to(latent.deter.dtype), probs

    def dream_step(self, feature: Tensor, action: Tensor, out: Tensor, cell: Cell) -> None:
        """Take a step under the prior, from features ``[M, F]`` and embedded actions ``[M, hidden]`` to ``out``."""
        if not compiled(self.rssm.gates.weight):
            gpu_recurrence.imagine(self.sizes, cell, feature, action, out.data)
            return
        expect((len(feature), self.rssm.feature_width), feature=feature, out=out)
        expect((len(feature), self.rssm.cfg.hidden), action=action)
        wide = out if out.dtype is torch.float32 and out.is_contiguous() else floats(out.shape)
        weights = self.prior.get(self._packed_prior)
        recurrence.imagine(self.sizes, weights, feature.float().contiguous(), action.float().contiguous(), wide)
        if wide is not out:
            out.data.copy_(wide)

    def _packed_sequence(self) -> dict[str, Tensor]:
        return recurrence.pack(self._sequence_weights())

    def _packed_posterior(self) -> dict[str, Tensor]:
        return self.sequence.get(self._packed_sequence) | recurrence.pack(self._posterior_head())

    def _packed_prior(self) -> dict[str, Tensor]:
        first, (norm, second, another, logits) = self.rssm.prior_net.first, self.rssm.prior_net.rest
        heads = _named("head", first, norm) | _named("second", second, another) | _named("logits", logits)
        return self.sequence.get(self._packed_sequence) | recurrence.pack(heads)

    def _posterior_head(self) -> dict[str, Tensor]:
        """Return the posterior's weights behind h: :meth:`observe` gets the rest of its first layer precomputed."""
        net = self.rssm.posterior
        norm, logits = net.rest
        head = {"head": net.first.weight[:, : self.rssm.cfg.deter], "head_scale": cast(Tensor, norm.weight)}
        return head | _named("logits", logits)

    def _sequence_weights(self) -> dict[str, Tensor]:
        """Return the sequence model's parameters under the names of ``recurrence.Weights``."""
        rssm, layer = self.rssm, cast("BlockLinear", self.rssm.recurrent[0])
        own, shared = torch.tensor_split(layer.weight, [layer.own], -1)
        return {
            **_named("in_deter", *rssm.in_deter),
            **_named("in_stoch", *rssm.in_stoch),
            "own": own,
            "shared": shared.reshape(rssm.cfg.deter, -1),
            "recurrent_bias": layer.bias,
            "recurrent_scale": cast(Tensor, rssm.recurrent_norms[0].weight),
            "gates": rssm.gates.weight,
            "gates_bias": rssm.gates.bias,
        }


def _cast(weights: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the weights in ``dtype``; the scales of norms stay as they are."""
    return {name: x if name.endswith("_scale") else x.to(dtype) for name, x in weights.items()}


def _named(name: str, linear: nn.Module, norm: nn.Module | None = None) -> dict[str, Tensor]:
    """Return a linear layer's parameters, and the scale of the norm after it, under names of ``recurrence.Weights``."""
    out = {name: linear.weight, f"{name}_bias": linear.bias}
    return cast(dict[str, Tensor], out if norm is None else {**out, f"{name}_scale": norm.weight})

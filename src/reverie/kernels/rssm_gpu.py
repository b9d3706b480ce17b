"""Whole sequences of the recurrent state-space model (RSSM) on a GPU, with as few kernels as possible.

``nn/rssm.py`` defines the computation. Autograd would start some 85 kernels for each step of a sequence, forward and
backward; here it is 22, more than half of them matrix products:

- The backward pass is written by hand, and the weights' gradients are products over all steps at once.
- Element-wise chains are single kernels (``kernels/gpu.py``).
- Biases are written to the outputs of all steps beforehand, so that products only add to them.
- h and z lie side by side, and one product with both layers' weights, and zeros, embeds them.
- All intermediate values of a sequence are slices of a few tensors, so that nothing is stacked or concatenated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reverie.kernels import gpu
from reverie.kernels.rssm_cpu import Sizes, Weights
from reverie.kernels.steps import PreparedRSSM


class TraceGPU(NamedTuple):
    """The intermediate values of all steps, ``[T, M, ...]``. N: hidden units. D: deterministic ones. Z = S * C."""

    before: Tensor  # [T, M, D + Z], h and z before the step: zeros where an episode begins
    pre_inputs: Tensor  # [T, M, 2, N], before the norms of the embedded h and z
    shared: Tensor  # [T, M, 3 N], the embedded h, z and action
    pre_recurrent: Tensor  # [T, M, D]
    recurrent: Tensor  # [T, M, D]
    gates: Tensor  # [T, M, 3 D], without the bias
    deter: Tensor  # [T, M, D]
    pre_head: Tensor  # [T, M, N]
    head: Tensor  # [T, M, N]
    logits: Tensor  # [T, M, Z]
    probs: Tensor  # [T, M, Z] float32
    stoch: Tensor  # [T, M, Z]


def _blocks(x: Tensor, blocks: int) -> Tensor:
    """View ``[M, K * width]`` as ``[K, M, width]``."""
    return x.view(len(x), blocks, -1).transpose(0, 1)


def _pair(shared: Tensor, hidden: int) -> Tensor:
    """View the parts of h and z in the shared inputs ``[M, 3 N]`` as ``[M, 2, N]``."""
    return shared.view(len(shared), 3, hidden)[:, :2]


def _trace(
    s: Sizes, w: Weights, deter: Tensor, stoch: Tensor, action: Tensor, embed: Tensor, keep: Tensor
) -> TraceGPU:  # fmt: skip
    """Return a trace that already contains the first step's state, and what is added to each product."""
    (steps, rows), d, n, z = keep.shape, s.deter, s.hidden, s.stoch * s.classes

    def new(*shape: int, dtype: torch.dtype = deter.dtype) -> Tensor:
        return torch.empty(steps, rows, *shape, dtype=dtype, device=deter.device)

    x = TraceGPU(
        new(d + z), new(2, n), new(3 * n), new(d), new(d), new(3 * d), new(d), embed.clone(), new(n), new(z),
        new(z, dtype=torch.float32), new(z),
    )  # fmt: skip
    x.before[0, :, :d] = deter * keep[0, :, None]
    x.before[0, :, d:] = stoch * keep[0, :, None]
    x.pre_inputs.copy_(torch.stack([w.in_deter_bias, w.in_stoch_bias]))
    x.shared[..., 2 * n :] = action
    x.pre_recurrent.copy_(w.recurrent_bias)
    x.logits.copy_(w.logits_bias)
    return x


def _input_weights(w: Weights) -> Tensor:
    """Return the weights that embed h and z side by side, ``[2 N, D + Z]``."""
    weights: Tensor = torch.block_diag(w.in_deter, w.in_stoch)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return weights


def filter_forward_triton(
    s: Sizes, w: Weights, deter: Tensor, stoch: Tensor, action: Tensor, embed: Tensor, keep: Tensor, uniform: Tensor
) -> TraceGPU:
    """Filter a sequence ``[T, M, ...]``, from the state ``deter`` ``[M, D]``, ``stoch`` ``[M, Z]``."""
    x, d, n, k = _trace(s, w, deter, stoch, action, embed, keep), s.deter, s.hidden, s.blocks
    scales, weights = torch.stack([w.in_deter_scale, w.in_stoch_scale]), _input_weights(w)  # [2, N], [2 N, D + Z]
    for t in range(len(keep)):
        h, pre, has_next = x.before[t, :, :d], x.pre_inputs[t], t + 1 < len(keep)
        following, following_stoch = x.before[t + 1].tensor_split([d], -1) if has_next else (None, None)
        next_keep = keep[t + 1] if has_next else None
        pre.view(-1, 2 * n).addmm_(x.before[t], weights.T)
        gpu.norm_silu_into(pre, scales, _pair(x.shared[t], n), s.eps)
        x.pre_recurrent[t].addmm_(x.shared[t], w.shared.T)  # [M, D]
        _blocks(x.pre_recurrent[t], k).baddbmm_(_blocks(h, k), w.own.mT)
        gpu.norm_silu_into(x.pre_recurrent[t], w.recurrent_scale, x.recurrent[t], s.eps)
        torch.bmm(_blocks(x.recurrent[t], k), w.gates.mT, out=_blocks(x.gates[t], k))  # [M, 3 D]
        gpu.gru_into(x.gates[t], w.gates_bias, h, x.deter[t], k, following, next_keep)
        x.pre_head[t].addmm_(x.deter[t], w.head.T)  # [M, N]
        gpu.norm_silu_into(x.pre_head[t], w.head_scale, x.head[t], s.eps)
        x.logits[t].addmm_(x.head[t], w.logits.T)  # [M, Z]
        gpu.sample_into(x.logits[t], uniform[t], x.stoch[t], s.unimix, x.probs[t], following_stoch, next_keep)
    return x


class _Gradients(NamedTuple):
    """The gradients of the layers' outputs at all steps, ``[T, M, ...]``, and parts of the scales' ``[M, ...]``."""

    inputs: Tensor  # [T, M, 2, N]
    shared: Tensor  # [T, M, 3 N]
    recurrent: Tensor  # [T, M, D]
    gates: Tensor  # [T, M, 3 D]
    head: Tensor  # [T, M, N]
    logits: Tensor  # [T, M, Z]
    inputs_scale: Tensor  # [M, 2 N]
    recurrent_scale: Tensor  # [M, D]
    head_scale: Tensor  # [M, N]


def _backward_steps(
    s: Sizes, w: Weights, x: TraceGPU, keep: Tensor, ddeter: Tensor, dstoch: Tensor, dprobs: Tensor
) -> _Gradients:  # fmt: skip
    """Go back through all steps, given the gradients of h ``[T, M, D]``, z and its probabilities ``[T, M, Z]``."""
    rows, n, k = keep.shape[1], s.hidden, s.blocks
    scales, weights = torch.stack([w.in_deter_scale, w.in_stoch_scale]), _input_weights(w)  # [2, N], [2 N, D + Z]
    parts = (torch.zeros(rows, width, dtype=torch.float32, device=keep.device) for width in (2 * n, s.deter, n))
    like = (x.pre_inputs, x.shared, x.pre_recurrent, x.gates, x.pre_head, x.logits)
    g = _Gradients(*(torch.empty_like(y) for y in like), *parts)
    dhead, drecurrent = torch.empty_like(x.head[0]), torch.empty_like(x.recurrent[0])
    dh, both = torch.empty_like(drecurrent), torch.zeros_like(x.before[0])  # [M, D], [M, D + Z]
    before, dz = both.tensor_split([s.deter], -1)
    for t in reversed(range(len(keep))):
        next_keep = keep[t + 1] if t + 1 < len(keep) else None  # the following step wrote gradients to before and dz
        gpu.sample_gradient(x.probs[t], (dprobs[t], dstoch[t]), s.stoch, s.unimix, g.logits[t], dz, next_keep)
        torch.mm(g.logits[t], w.logits, out=dhead)
        gpu.norm_silu_gradient(x.pre_head[t], w.head_scale, dhead, g.head[t], g.head_scale, s.eps, add=True)
        torch.mm(g.head[t], w.head, out=dh)
        h = x.before[t, :, : s.deter]
        gpu.gru_gradient(x.gates[t], w.gates_bias, h, (dh, ddeter[t]), k, g.gates[t], before, next_keep)
        torch.bmm(_blocks(g.gates[t], k), w.gates, out=_blocks(drecurrent, k))
        gpu.norm_silu_gradient(
            x.pre_recurrent[t], w.recurrent_scale, drecurrent, g.recurrent[t], g.recurrent_scale, s.eps, add=True
        )
        _blocks(before, k).baddbmm_(_blocks(g.recurrent[t], k), w.own)
        torch.mm(g.recurrent[t], w.shared, out=g.shared[t])
        dinputs = _pair(g.shared[t], n)  # [M, 2, N]
        gpu.norm_silu_gradient(x.pre_inputs[t], scales, dinputs, g.inputs[t], g.inputs_scale, s.eps, add=True)
        both.addmm_(g.inputs[t].view(rows, 2 * n), weights)
    return g


def _weight_gradients(s: Sizes, x: TraceGPU, g: _Gradients) -> Weights:
    """Return each weight's gradient, by one product over all steps."""

    def product(grad: Tensor, value: Tensor) -> Tensor:
        return grad.flatten(0, 1).T @ value.flatten(0, 1)  # [outputs, inputs]

    def by_block(grad: Tensor, value: Tensor) -> Tensor:
        return _blocks(grad.flatten(0, 1), s.blocks).mT @ _blocks(value.flatten(0, 1), s.blocks)  # [K, out, in]

    biases = {
        "in_deter": g.inputs[:, :, 0], "in_stoch": g.inputs[:, :, 1], "recurrent": g.recurrent, "gates": g.gates,
        "logits": g.logits,
    }  # fmt: skip
    before_deter, before_stoch = x.before.tensor_split([s.deter], -1)
    in_deter_scale, in_stoch_scale = g.inputs_scale.sum(0).chunk(2)
    return Weights(
        in_deter=product(g.inputs[:, :, 0], before_deter), in_stoch=product(g.inputs[:, :, 1], before_stoch),
        shared=product(g.recurrent, x.shared), own=by_block(g.recurrent, before_deter),
        gates=by_block(g.gates, x.recurrent), head=product(g.head, x.deter), logits=product(g.logits, x.head),
        in_deter_scale=in_deter_scale, in_stoch_scale=in_stoch_scale, recurrent_scale=g.recurrent_scale.sum(0),
        head_scale=g.head_scale.sum(0), **{f"{name}_bias": grad.sum((0, 1)) for name, grad in biases.items()},
    )  # fmt: skip


def filter_backward_triton(
    s: Sizes, w: Weights, x: TraceGPU, keep: Tensor, ddeter: Tensor, dstoch: Tensor, dprobs: Tensor
) -> tuple[Tensor, Tensor, Weights]:  # fmt: skip
    """See ``rssm_cpu.py``."""
    g = _backward_steps(s, w, x, keep, ddeter, dstoch, dprobs)
    return g.shared[..., 2 * s.hidden :], g.head, _weight_gradients(s, x, g)


def prior_step_triton(s: Sizes, steps: PreparedRSSM, feature: Tensor, action: Tensor, out: Tensor) -> None:
    """Take a step under the prior, from features ``[M, D + Z]`` and actions ``[M, A]`` to ``out``."""
    rows, d, n, k = len(feature), s.deter, s.hidden, s.blocks
    h, (weight, bias, scales) = feature[:, :d], steps.inputs
    shared, recurrent = feature.new_empty(rows, 3 * n), feature.new_empty(rows, d)
    inputs = torch.addmm(bias, feature, weight.T).view(rows, 2, n)  # of h and z
    gpu.norm_silu_into(inputs, scales, _pair(shared, n), s.eps)
    _layer(action, steps.in_action.layers, shared[:, 2 * n :])
    (layer,), (norm,) = steps.recurrent, steps.norms
    assert layer.shared is not None, "the first recurrent layer reads the shared inputs"
    pre = layer.shared(shared)  # [M, D]
    _blocks(pre, k).baddbmm_(_blocks(h, k), layer.block.weight.mT)
    gpu.norm_silu_into(pre, norm.weight, recurrent, s.eps)
    assert steps.gates.block.bias is not None, "gates have a bias"
    gates = feature.new_empty(rows, 3 * d)
    torch.bmm(_blocks(recurrent, k), steps.gates.block.weight.mT, out=_blocks(gates, k))
    gpu.gru_into(gates, steps.gates.block.bias, h, out[:, :d], k)
    *layers, last = steps.prior.layers
    hidden = _layer(out[:, :d], layers[:2], feature.new_empty(rows, n))
    hidden = _layer(hidden, layers[2:], torch.empty_like(hidden))
    uniform = torch.rand(rows, s.stoch, dtype=torch.float32, device=out.device)
    gpu.sample_into(last(hidden), uniform, out[:, d:], s.unimix)


def _layer(x: Tensor, layers: Sequence[Any], out: Tensor) -> Tensor:
    """Write a linear layer of x ``[M, inputs]``, with norm and SiLU, to ``out`` ``[M, outputs]``, and return it."""
    linear, norm = layers
    gpu.norm_silu_into(linear(x), norm.weight, out, norm.eps)
    return out

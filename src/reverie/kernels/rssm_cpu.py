"""Whole sequences of the recurrent state-space model (RSSM) in one C call: the Python side of ``recurrence.c``."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from reverie.kernels.ctypes_call import call_compiled, data_pointers, empty_float32
from reverie.kernels.packing import pack_panels

STRIP = 32
"""Rows that a thread processes at once, as in ``recurrence.c``."""

_SEQUENCE = (
    "in_deter in_deter_bias in_deter_scale in_stoch in_stoch_bias in_stoch_scale shared own recurrent_bias "
    "recurrent_scale gates gates_bias"
)
_HEADS = "head head_bias head_scale second second_bias second_scale logits logits_bias"
_WEIGHTS = f"{_SEQUENCE} {_HEADS}".split(" ")


class Model(ctypes.Structure):
    """The C struct ``Model`` of ``recurrence.c``: sizes and pointers to packed weights."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("rows", "deter", "blocks", "hidden", "stoch", "classes")),
        *((name, ctypes.c_double) for name in ("eps", "unimix")),
        *((name, ctypes.c_void_p) for name in _WEIGHTS),
    ]


class Sizes(NamedTuple):
    """The numbers of the C struct ``Model`` that do not depend on the batch."""

    deter: int
    blocks: int
    hidden: int
    stoch: int
    classes: int
    eps: float
    unimix: float


class Weights(NamedTuple):
    """Parameters in PyTorch's layout: matrices are ``[outputs, inputs]``, or ``[K, outputs, inputs]`` in blocks."""

    in_deter: Tensor
    in_deter_bias: Tensor
    in_deter_scale: Tensor
    in_stoch: Tensor
    in_stoch_bias: Tensor
    in_stoch_scale: Tensor
    shared: Tensor
    own: Tensor
    recurrent_bias: Tensor
    recurrent_scale: Tensor
    gates: Tensor
    gates_bias: Tensor
    head: Tensor
    head_scale: Tensor
    logits: Tensor
    logits_bias: Tensor


PRODUCTS = ("in_deter", "in_stoch", "shared", "own", "gates", "head", "second", "logits")


def pack_weights(weights: dict[str, Tensor], transposed: bool = False) -> dict[str, Tensor]:
    """Return the weights with matrices packed for ``x W^T`` or, ``transposed``, for ``g W``."""
    plain = {name: weight.detach().contiguous() for name, weight in weights.items() if name not in PRODUCTS}
    matrices = {name: weight.mT if transposed else weight for name, weight in weights.items() if name in PRODUCTS}
    return plain | {name: pack_panels(matrix) for name, matrix in matrices.items()}


def _make_model_struct(sizes: Sizes, rows: int, weights: dict[str, Tensor]) -> Model:
    """Return the C struct; the tensors must outlive it."""
    return Model(rows=rows, **sizes._asdict(), **{name: weight.data_ptr() for name, weight in weights.items()})


class TraceCPU(NamedTuple):
    """The intermediate values of all steps, each ``[T, M, width]``."""

    before_deter: Tensor
    before_stoch: Tensor
    pre_deter: Tensor
    pre_stoch: Tensor
    shared: Tensor
    pre_recurrent: Tensor
    recurrent: Tensor
    gates: Tensor
    deter: Tensor
    pre_head: Tensor
    head: Tensor
    probs: Tensor
    stoch: Tensor


def _trace(s: Sizes, steps: int, rows: int) -> TraceCPU:
    d, n, z = s.deter, s.hidden, s.stoch * s.classes
    widths = (d, z, n, n, 3 * n, d, d, 3 * d, d, n, n, z, z)
    return TraceCPU(*(empty_float32(steps, rows, width) for width in widths))


def filter_sequence(
    sizes: Sizes, weights: dict[str, Tensor], deter: Tensor, stoch: Tensor, action: Tensor, embed: Tensor,
    keep: Tensor, uniform: Tensor,
) -> TraceCPU:  # fmt: skip
    """Filter a sequence ``[T, M, ...]``, from the state ``deter`` ``[M, D]``, ``stoch`` ``[M, S*C]``."""
    steps, rows = keep.shape
    trace = _trace(sizes, steps, rows)
    call_compiled("observe", ctypes.byref(_make_model_struct(sizes, rows, weights)), data_pointers(*trace), deter,
        stoch, action, embed, keep,
            uniform, steps, min(torch.get_num_threads(), rows))  # fmt: skip
    return trace


def filter_forward_cpu(sizes: Sizes, weights: Weights, *inputs: Tensor) -> TraceCPU:
    """Compute :func:`filter_sequence` with weights in PyTorch's layout."""
    return filter_sequence(sizes, pack_weights(weights._asdict()), *inputs)


def filter_backward_cpu(
    s: Sizes, weights: Weights, trace: TraceCPU, keep: Tensor, ddeter: Tensor, dstoch: Tensor, dprobs: Tensor
) -> tuple[Tensor, Tensor, Weights]:
    """Return the gradients of actions, embeddings and weights, given those of h ``[T, M, D]``, z and its probs."""
    (steps, rows), threads = keep.shape, min(torch.get_num_threads(), keep.shape[1])
    widths = (s.hidden, s.hidden, s.hidden, s.deter, 3 * s.deter, s.hidden, s.stoch * s.classes)
    grads = [empty_float32(steps, rows, width) for width in widths]
    scales = [empty_float32(threads, width) for width in (s.hidden, s.hidden, s.deter, s.hidden)]
    scratch = empty_float32(rows * (3 * s.deter + 3 * s.hidden + s.stoch * s.classes) + threads * s.deter)
    transposed = pack_weights(weights._asdict(), transposed=True)
    call_compiled("observe_backward", ctypes.byref(_make_model_struct(s, rows, transposed)), data_pointers(*trace),
        data_pointers(*grads, *scales),
            keep, ddeter, dprobs, dstoch, scratch, steps, threads)  # fmt: skip
    flat, back = TraceCPU(*(x.flatten(0, 1) for x in trace)), [x.flatten(0, 1) for x in grads]
    return grads[2], grads[5], _weight_gradients(s, flat, back, scales)


def _weight_gradients(s: Sizes, x: TraceCPU, grads: list[Tensor], scales: list[Tensor]) -> Weights:
    """Return each weight's gradient, by one product over all steps; x and ``grads`` are ``[T * M, width]``."""
    deter, stoch, _, recurrent, gates, head, logits = grads
    return Weights(
        in_deter=deter.T @ x.before_deter, in_deter_bias=deter.sum(0),
        in_stoch=stoch.T @ x.before_stoch, in_stoch_bias=stoch.sum(0),
        shared=recurrent.T @ x.shared, recurrent_bias=recurrent.sum(0),
        own=_block_gradient(x.before_deter, recurrent, s.blocks),
        gates=_block_gradient(x.recurrent, gates, s.blocks), gates_bias=gates.sum(0),
        head=head.T @ x.deter,
        logits=logits.T @ x.head, logits_bias=logits.sum(0),
        in_deter_scale=scales[0].sum(0), in_stoch_scale=scales[1].sum(0), recurrent_scale=scales[2].sum(0),
        head_scale=scales[3].sum(0),
    )  # fmt: skip


def _block_gradient(x: Tensor, grad: Tensor, blocks: int) -> Tensor:
    """Return the gradient of block-diagonal weights, ``[K, outputs / K, inputs / K]``."""
    return torch.stack([g.T @ i for i, g in zip(x.chunk(blocks, 1), grad.chunk(blocks, 1), strict=True)])


def prior_step_cpu(sizes: Sizes, weights: dict[str, Tensor], feature: Tensor, action: Tensor, out: Tensor) -> None:
    """Take a step under the prior, from features ``[M, F]`` and embedded actions ``[M, hidden]`` to ``out``."""
    rows, s = len(feature), sizes
    uniform = torch.rand(rows, s.stoch, dtype=torch.float32, device="cpu")
    threads = min(torch.get_num_threads(), -(-rows // STRIP))
    scratch = empty_float32(threads * STRIP * (5 * s.deter + 7 * s.hidden + s.stoch * s.classes))
    call_compiled(
        "imagine", ctypes.byref(_make_model_struct(s, rows, weights)), feature, action, uniform, out, scratch, threads
    )

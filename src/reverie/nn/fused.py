"""Fused chains of element-wise operations: compiled for CPUs (``kernels.c``), in plain PyTorch everywhere else.

PyTorch code defines each function; the compiled one is used for float32 on CPUs if there is a compiler. PyTorch runs
such a chain operation by operation, reading and writing memory each time, forward and backward. On GPUs, the norm is a
Triton kernel (``nn/gpu.py``).
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.core.compiled import call, compiled, first_order, floats, library, threads
from reverie.core.shapes import expect, expect_classes
from reverie.nn import gpu
from reverie.objectives.transforms import symmetric_mean

# ---------------------------------------------------------------------- norm and activation


class _NormSiLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, eps: float, size: tuple[int, int]) -> Tensor:
        x, scale = x.contiguous(), scale.contiguous()
        if ctx is not None:
            ctx.save_for_backward(x, scale)
            ctx.eps, ctx.size = eps, size
        y, width = torch.empty_like(x), x.shape[-1]
        library().norm_silu(
            x.data_ptr(), scale.data_ptr(), y.data_ptr(), x.numel() // width, width, *size, eps, threads(x)
        )
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, scale = ctx.saved_tensors
        grad, width, workers = grad.contiguous(), x.shape[-1], threads(x)
        dx, dscale = torch.empty_like(x), x.new_zeros(workers, width, dtype=torch.float64)
        scratch = floats(workers, 2 * width)
        library().norm_silu_backward(
            x.data_ptr(), scale.data_ptr(), grad.data_ptr(), dx.data_ptr(), dscale.data_ptr(), scratch.data_ptr(),
            x.numel() // width, width, *ctx.size, ctx.eps, workers,
        )  # fmt: skip
        return dx, dscale.sum(0).float(), None, None


def norm_silu(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Return SiLU(scale x / sqrt(mean(x^2) + eps)), normed over the last axis of ``[..., C]``, computed in float32."""
    if gpu.ready(x, scale):
        return gpu.norm_silu(x, scale, eps)
    wide = x.float()
    if compiled(wide, scale) and x.numel():
        expect(x.shape[-1:], scale=scale)
        y: Tensor = call(_NormSiLU, wide, scale, eps, (0, 0))
        return y.to(x.dtype)
    return F.silu(F.rms_norm(wide, scale.shape, scale, eps).to(x.dtype))


def unfold_parities(x: Tensor) -> Tensor:
    """Rearrange ``[M, h, w, 2, 2, C]``, four pixels for each place, to an image ``[M, 2 h, 2 w, C]``."""
    m, h, w, _, _, channels = x.shape
    return x.transpose(2, 3).reshape(m, 2 * h, 2 * w, channels)


def unfold_norm_silu(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Return :func:`norm_silu` of :func:`unfold_parities`, writing each pixel directly to its final place."""
    if gpu.ready(x, scale):
        return gpu.norm_silu(unfold_parities(x), scale, eps)
    wide, (m, h, w, _, _, channels) = x.float(), x.shape
    if not (compiled(wide, scale) and x.numel()):
        return norm_silu(unfold_parities(x), scale, eps)
    expect((m, h, w, 2, 2, channels), x=x)
    expect((channels,), scale=scale)
    y: Tensor = call(_NormSiLU, wide, scale, eps, (h, w))
    return y.view(m, 2 * h, 2 * w, channels).to(x.dtype)


class _ELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        library().elu(x.data_ptr(), y.data_ptr(), x.numel(), threads(x))
        if ctx is not None:
            ctx.save_for_backward(y)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,), grad = ctx.saved_tensors, grad.contiguous()
        out = torch.empty_like(y)
        library().elu_backward(y.data_ptr(), grad.data_ptr(), out.data_ptr(), y.numel(), threads(y))
        return out


def elu(x: Tensor) -> Tensor:
    """Return x above 0 and exp(x) - 1 below, element by element."""
    return cast(Tensor, call(_ELU, x)) if compiled(x) else F.elu(x)


# ---------------------------------------------------------------------- recurrence


class _GRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, h: Tensor) -> Tensor:
        gates, h = gates.contiguous(), h.contiguous()
        if ctx is not None:
            ctx.save_for_backward(gates, h)
        out, (rows, blocks, _, width) = torch.empty_like(h), gates.shape
        library().gru(gates.data_ptr(), h.data_ptr(), out.data_ptr(), rows, blocks, width, threads(gates))
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gates, h = ctx.saved_tensors
        grad, dgates, dh, (rows, blocks, _, width) = (
            grad.contiguous(), torch.empty_like(gates), torch.empty_like(h), gates.shape,
        )  # fmt: skip
        library().gru_backward(
            gates.data_ptr(), h.data_ptr(), grad.data_ptr(), dgates.data_ptr(), dh.data_ptr(), rows, blocks, width,
            threads(gates),
        )  # fmt: skip
        return dgates, dh


def gru(gates: Tensor, h: Tensor) -> Tensor:
    """Return the next state h + z (n - h), where n = tanh(sigmoid(reset) candidate) and z = sigmoid(update - 1).

    ``gates`` are ``[M, blocks, 3, D / blocks]``: reset, candidate and update of each block. h is ``[M, D]``.
    """
    if compiled(gates, h):
        rows, blocks, _, width = gates.shape
        expect((rows, blocks, 3, width), gates=gates)
        expect((rows, blocks * width), h=h)
        return cast(Tensor, call(_GRU, gates, h))
    reset, candidate, update = gates.unbind(2)  # [M, blocks, D / blocks]
    candidate = torch.tanh(torch.sigmoid(reset) * candidate).flatten(1)  # [M, D]
    return torch.lerp(h, candidate, torch.sigmoid(update - 1).flatten(1))


# ---------------------------------------------------------------------- categorical latents


class _Unimix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, mix: float) -> Tensor:
        logits = logits.contiguous()
        probs, width = torch.empty_like(logits), logits.shape[-1]
        library().unimix(logits.data_ptr(), probs.data_ptr(), logits.numel() // width, width, mix, threads(logits))
        if ctx is not None:
            ctx.save_for_backward(probs)
            ctx.mix = mix
        return probs

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (probs,) = ctx.saved_tensors
        grad, out, width = grad.contiguous(), torch.empty_like(probs), probs.shape[-1]
        library().unimix_backward(
            probs.data_ptr(), grad.data_ptr(), out.data_ptr(), probs.numel() // width, width, ctx.mix, threads(probs)
        )
        return out, None


def unimix_probs(logits: Tensor, unimix: float) -> Tensor:
    """Return (1 - unimix) softmax(logits) + unimix / C over the last axis, in float32: above 0 where unimix is."""
    logits = logits.float()
    if compiled(logits) and logits.numel():
        return cast(Tensor, call(_Unimix, logits, unimix))
    probs = torch.softmax(logits, -1)
    return probs if unimix == 0 else (1 - unimix) * probs + unimix / probs.shape[-1]


def draw(probs: Tensor) -> Tensor:
    """Sample class indices ``[...]`` from probabilities ``[..., C]`` by inverting the cumulative distribution.

    This takes one uniform random number for each sample; the Gumbel and exponential tricks take C.
    """
    probs = probs.detach()
    uniform = torch.rand(probs.shape[:-1], dtype=torch.float32, device=probs.device)
    if compiled(probs) and probs.numel():
        probs, out = probs.contiguous(), torch.empty_like(uniform, dtype=torch.int64)
        library().draw(
            probs.data_ptr(), uniform.data_ptr(), out.data_ptr(), out.numel(), probs.shape[-1], threads(probs)
        )
        return out
    cumulative = probs.cumsum(-1)  # [..., C]
    # The last sum is not exactly 1 because of rounding; scaling by it keeps every index within the C classes.
    return (cumulative < uniform.unsqueeze(-1) * cumulative[..., -1:]).sum(-1)


def one_hot(index: Tensor, probs: Tensor) -> Tensor:
    """Return class indices ``[...]``, int64, as one-hot ``[..., C]``, in the shape and dtype of ``probs``.

    Raises:
        ValueError: ``index`` has another shape, dtype or device.
    """
    expect_classes(index, probs.device)
    expect(probs.shape[:-1], index=index)
    if not compiled(probs):
        return torch.zeros_like(probs).scatter_(-1, index.unsqueeze(-1), 1.0)
    index, out = index.contiguous(), floats(probs.shape)
    library().one_hot(index.data_ptr(), out.data_ptr(), index.numel(), probs.shape[-1], threads(out))
    return out


# ---------------------------------------------------------------------- numbers as classes


def _log_sum_exp(x: Tensor) -> Tensor:
    lse = floats(x.shape[:-1])
    library().log_sum_exp(x.data_ptr(), lse.data_ptr(), lse.numel(), x.shape[-1], threads(x))
    return lse


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        lse = _log_sum_exp(x)
        if ctx is not None:
            ctx.save_for_backward(x, lse)
        return lse

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x, lse), grad = ctx.saved_tensors, grad.contiguous()
        out = torch.empty_like(x)
        library().log_sum_exp_backward(
            x.data_ptr(), lse.data_ptr(), grad.data_ptr(), out.data_ptr(), lse.numel(), x.shape[-1], threads(x)
        )
        return out


def log_sum_exp(x: Tensor) -> Tensor:
    """Return ln sum_j exp(x_j), ``[..., C]`` to ``[...]``; compiled, it is NaN if the largest x_j is infinite."""
    if compiled(x) and x.numel():
        return cast(Tensor, call(_LogSumExp, x))
    return x.logsumexp(-1)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        logits = logits.contiguous()
        lse = _log_sum_exp(logits)
        if ctx is not None:
            ctx.save_for_backward(logits, lse, index, weight)
        return (weight * (lse.unsqueeze(-1) - logits.gather(-1, index))).sum(-1)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        logits, lse, index, weight = (x.contiguous() for x in ctx.saved_tensors)
        grad, out, (*_, width) = grad.contiguous(), torch.empty_like(logits), logits.shape
        library().cross_entropy_backward(
            logits.data_ptr(), lse.data_ptr(), index.data_ptr(), weight.data_ptr(), grad.data_ptr(), out.data_ptr(),
            lse.numel(), width, index.shape[-1], threads(logits),
        )  # fmt: skip
        return out, None, None


def cross_entropy(logits: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """Return -sum_k weight_k ln softmax(logits)[index_k] for a few classes k; ``weight`` gets no gradient.

    ``logits`` are ``[..., C]``, ``index`` and ``weight`` ``[..., k]``, the result ``[...]``.

    Raises:
        ValueError: ``index`` or ``weight`` has another shape, or ``index`` another dtype or device.
    """
    expect_classes(index, logits.device)
    expect((*logits.shape[:-1], index.shape[-1]), index=index, weight=weight)
    if compiled(logits, weight) and logits.numel():
        return cast(Tensor, call(_CrossEntropy, logits, index, weight))
    return -(torch.log_softmax(logits, -1).gather(-1, index) * weight).sum(-1)


def softmax_mean(logits: Tensor, bins: Tensor) -> Tensor:
    """Return sum_j softmax(logits)_j bins_j for bins ``[C]`` symmetric about zero: ``[..., C]`` to ``[...]``.

    Raises:
        ValueError: ``bins`` are not as many as the classes.
    """
    expect(logits.shape[-1:], bins=bins)
    if not (compiled(logits, bins) and logits.numel()) or (torch.is_grad_enabled() and logits.requires_grad):
        return symmetric_mean(torch.softmax(logits, -1), bins)
    logits, bins, width, workers = logits.contiguous(), bins.contiguous(), logits.shape[-1], threads(logits)
    out, scratch = floats(logits.shape[:-1]), floats(workers, width)
    library().softmax_mean(
        logits.data_ptr(), bins.data_ptr(), out.data_ptr(), out.numel(), width, scratch.data_ptr(), workers
    )
    return out

"""The Triton kernels of ``triton_source.py`` and ``triton_images.py`` on PyTorch tensors, and whether they can be used.

Each function starts one kernel where PyTorch would start two to ten. The first call of a family on a device compares
its kernels' results with PyTorch's. If one fails or differs, the family's work runs in PyTorch, and a warning says so.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from reverie.core.kernel_dispatch import KERNEL_ENV_VAR, kernels_disabled
from reverie.kernels.ctypes_call import once_differentiable_strict
from reverie.nn import functional
from reverie.nn.distributions import Categoricals
from reverie.nn.optim import LaPropAGCConfig, laprop

TILE = 2048
"""Elements that a program processes at once."""

PROGRAMS = 1024
"""Maximum number of programs in a backward pass of norms; each sums the scale's gradient over its rows."""

MIN_PROGRAMS = 64
"""Programs over which few rows are spread, so that many of the GPU's processors take part."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

Family = Literal[
    "recurrence", "images", "two-hot", "optimizers", "losses", "perceptrons", "policies", "replay", "search"
]  # fmt: skip
"""Kernels that are checked together; none is used if one fails."""
FAMILIES: tuple[Family, ...] = get_args(Family)

Compared = list[tuple[str, Tensor, Tensor]]
"""Names of kernels, their results and the definitions'."""

Numbers = Callable[..., Tensor]
"""Returns random tensors of a shape."""
COMPARISONS: dict[Family, Callable[[Numbers], Compared]] = {}
"""For each family, runs its kernels and their definitions on the tensors that its argument returns for a shape."""


def can_use_triton(*tensors: Tensor, family: Family = "recurrence") -> bool:
    """Return whether the Triton kernels of ``family`` can be used: ``tensors`` are on a GPU on which they work."""
    device = tensors[0].device
    if device.type != "cuda" or any(x.dtype not in DTYPES for x in tensors) or torch.compiler.is_compiling():
        return False
    return not triton_problem(device, family)


@functools.cache
def triton_problem(device: torch.device, family: Family = "recurrence") -> str:
    """Return why kernels cannot be used on ``device``, or an empty string; warn once unless that is intended."""
    if kernels_disabled():
        return f"{KERNEL_ENV_VAR}=off"
    if torch.version.cuda is None and torch.version.hip is None:
        return "this PyTorch was built without GPU support"
    try:
        check_triton_kernels(device, family)
    except Exception as error:  # Triton, its compiler and the driver raise various errors: PyTorch works without them
        warnings.warn(f"Triton kernels of {family} are not used, so GPU updates are slower: {error!r}.", stacklevel=3)
        return repr(error)
    return ""


def triton_status(device: torch.device) -> str:
    """Return whether the kernels are used on ``device``, for reports: ``Triton``, or ``PyTorch`` and the reason."""
    reasons = {family: triton_problem(device, family) for family in FAMILIES}
    problems = dict.fromkeys(reason for reason in reasons.values() if reason)
    if not problems:
        return "Triton"
    failed = "" if all(reasons.values()) else f" for {', '.join(name for name in reasons if reasons[name])}"
    return f"PyTorch{failed} ({'; '.join(problems)})"


@functools.cache
def _kernels() -> SimpleNamespace:
    from reverie.kernels import triton_images, triton_source  # import Triton, which only PyTorch's GPU builds include

    return SimpleNamespace(**vars(triton_source) | vars(triton_images))


def _launch(name: str, grid: tuple[int, ...], *args: object, **constants: object) -> None:
    """Start a kernel near its first tensor, which may be in a tuple."""
    if 0 in grid:
        return
    near = next(y for x in args for y in (x if isinstance(x, tuple) else (x,)) if isinstance(y, Tensor))
    with torch.cuda.device_of(near):  # type: ignore[no-untyped-call]  # Triton launches on the current device
        getattr(_kernels(), name)[grid](*args, **constants)


def _tile(rows: int, width: int) -> dict[str, int]:
    """Return the shape of a program's tile of ``rows`` rows of ``width`` elements: fewer rows if there are few."""
    wide = 1 << (width - 1).bit_length()
    tall = max(1, min(TILE // wide, rows // MIN_PROGRAMS))
    # AMD's GPUs take at most 16 warps, of 64 threads each.
    return {"ROWS": 1 << (tall.bit_length() - 1), "WIDTH": wide, "num_warps": max(4, min(16, wide // 512))}


def _count(total: int, size: int) -> int:
    return -(-total // size)


# ---------------------------------------------------------------------- norm and activation


def norm_silu_into(x: Tensor, scale: Tensor, out: Tensor, eps: float) -> None:
    """Write SiLU(scale x / sqrt(mean(x^2) + eps)) of x ``[M, C]`` or ``[M, G, C]`` into ``out`` of that shape.

    Each of G groups has its own row of ``scale`` ``[G, C]``. The last two axes must have no gaps.
    """
    groups, width = (1, *x.shape)[-2:] if x.ndim == 3 else (1, x.shape[-1])
    rows = x.numel() // width
    tile = _tile(rows, width)
    _launch("norm_silu_kernel", (_count(rows, tile["ROWS"]),), x, scale, out, rows, width, groups, x.stride(0),
            out.stride(0), eps, **tile)  # fmt: skip


def norm_silu_gradient(
    x: Tensor, scale: Tensor, grad: Tensor, dx: Tensor, dscale: Tensor, eps: float, add: bool = False
) -> None:
    """Write the gradients of :func:`norm_silu_into`: ``dx`` like x, and parts of scale's, ``[programs, G * C]``.

    The sum of the parts over programs is scale's gradient; with ``add`` they are added to ``dscale``.
    """
    groups, width = x.shape[1:] if x.ndim == 3 else (1, x.shape[-1])
    _launch("norm_silu_backward_kernel", (len(dscale), groups), x, scale, grad, dx, dscale, len(x), width, x.stride(0),
            grad.stride(0), dx.stride(0), eps, ADD=add, **_tile(len(x), width))  # fmt: skip


class _NormSiLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, eps: float) -> Tensor:
        flat = x.reshape(-1, x.shape[-1]).contiguous()
        ctx.save_for_backward(flat, scale)
        ctx.eps, out = eps, torch.empty_like(flat)
        norm_silu_into(flat, scale, out, eps)
        return out.view(x.shape)

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, scale = ctx.saved_tensors
        rows, width = x.shape
        flat, dx = grad.reshape(rows, width).contiguous(), torch.empty_like(x)
        programs = max(1, min(PROGRAMS, _count(rows, _tile(rows, width)["ROWS"])))
        dscale = torch.empty(programs, width, dtype=torch.float32, device=x.device)
        norm_silu_gradient(x, scale, flat, dx, dscale, ctx.eps)
        return dx.view(grad.shape), dscale.sum(0), None


def supports_norm_silu_triton(x: Tensor, scale: Tensor, eps: float) -> bool:
    """Return whether :func:`norm_silu_triton` can be used: ``scale`` has one number for each column."""
    return scale.shape == x.shape[-1:] and scale.is_contiguous() and can_use_triton(x, scale)


def norm_silu_triton(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Return SiLU(scale x / sqrt(mean(x^2) + eps)) over the last axis of ``[..., C]``, computed in float32."""
    out: Tensor = _NormSiLU.apply(x, scale, eps)
    return out


# ---------------------------------------------------------------------- recurrence


def gru_into(
    gates: Tensor, bias: Tensor, h: Tensor, out: Tensor, blocks: int, before: Tensor | None = None,
    keep: Tensor | None = None,
) -> None:  # fmt: skip
    """Write the GRU's next state (``functional.gru``) of h ``[M, D]`` into ``out`` ``[M, D]``.

    The gates are ``gates`` ``[M, 3 * D]``, which have no gaps, plus ``bias`` ``[3 * D]``. ``before`` ``[M, D]`` gets
    keep * out, for ``keep`` ``[M]``.
    """
    rows, deter = h.shape
    _launch("gru_kernel", (_count(rows * deter, TILE // 2),), gates, bias, h, out, before, keep, rows, deter,
            deter // blocks, h.stride(0), out.stride(0), 0 if before is None else before.stride(0),
            BEFORE=before is not None, BLOCK=TILE // 2)  # fmt: skip


def gru_gradient(
    gates: Tensor, bias: Tensor, h: Tensor, grads: tuple[Tensor, Tensor], blocks: int, dgates: Tensor, dh: Tensor,
    keep: Tensor | None,
) -> None:  # fmt: skip
    """Write the gradients of :func:`gru_into` for the sum of ``grads``, ``[M, D]`` each.

    With ``keep`` ``[M]``, keep times the old ``dh`` ``[M, D]`` is added to that sum before dh is written.
    """
    rows, deter = h.shape
    _launch("gru_backward_kernel", (_count(rows * deter, TILE // 2),), gates, bias, h, *grads, dh, keep, dgates, dh,
            rows, deter, deter // blocks, h.stride(0), grads[1].stride(0), dh.stride(0), CARRIED=keep is not None,
            BLOCK=TILE // 2)  # fmt: skip


# ---------------------------------------------------------------------- categorical latents


def sample_into(
    logits: Tensor, uniform: Tensor, onehot: Tensor, mix: float, probs: Tensor | None = None,
    before: Tensor | None = None, keep: Tensor | None = None,
) -> None:  # fmt: skip
    """Write one-hot samples of logits ``[M, S * C]`` into ``onehot`` of that shape, optionally their probabilities.

    The probabilities ``[M, S * C]`` are ``functional.unimix_probs``; ``uniform`` are random numbers ``[M, S]``.
    ``before`` ``[M, S * C]`` gets keep ``[M]`` * onehot.
    """
    rows, stoch = uniform.shape
    classes = logits.shape[1] // stoch
    tile = _tile(rows * stoch, classes)
    _launch("sample_kernel", (_count(rows * stoch, tile["ROWS"]),), logits, uniform, probs, onehot, before, keep,
            rows * stoch, stoch, classes, onehot.stride(0), 0 if before is None else before.stride(0), mix,
            PROBS=probs is not None, BEFORE=before is not None, **tile)  # fmt: skip


def supports_sample_classes(dist: Categoricals) -> bool:
    """Return whether :func:`sample_classes_triton` can be used: all variables have the same number of legal classes."""
    return not dist.ragged and dist.legal is None and can_use_triton(dist.padded)


def sample_classes_triton(dist: Categoricals) -> Tensor:
    """Compute ``Categoricals.sample``."""
    *lead, stoch, classes = dist.padded.shape
    flat = dist.padded.detach().reshape(-1, stoch * classes).contiguous()
    onehot = torch.empty_like(flat)
    sample_into(flat, torch.rand(len(flat), stoch, dtype=torch.float32, device=flat.device), onehot, dist.unimix)
    return onehot.view(*lead, stoch * classes)


def sample_gradient(
    probs: Tensor, grads: tuple[Tensor, Tensor], stoch: int, mix: float, dlogits: Tensor, carried: Tensor,
    keep: Tensor | None,
) -> None:  # fmt: skip
    """Write the gradient of :func:`sample_into`'s logits ``[M, S * C]``, given the probabilities' and the samples'.

    The samples' gradient passes straight to the probabilities. With ``keep`` ``[M]``, keep times ``carried``
    ``[M, S * C]`` is added to them, and ``carried`` is set to 0.
    """
    rows, classes = len(probs) * stoch, probs.shape[1] // stoch
    tile = _tile(rows, classes)
    _launch("sample_backward_kernel", (_count(rows, tile["ROWS"]),), probs, *grads, carried, keep, dlogits, rows, stoch,
            classes, carried.stride(0), mix, CARRIED=keep is not None, **tile)  # fmt: skip


# ---------------------------------------------------------------------- precision


def supports_cast_all(parameters: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Return whether :func:`cast_all_on_gpu` can be used."""
    return dtype is not torch.float32 and can_use_triton(*parameters)


def cast_all_on_gpu(parameters: Sequence[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    """Compute ``functional.cast_all`` in a few launches; gradients of several uses are added in ``dtype``."""
    copies: tuple[Tensor, ...] = _Copies.apply(dtype, *parameters)
    return copies


class _Copies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return _convert_all(parameters, dtype)

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        converted = iter(_convert_all([grad for grad in grads if grad is not None], torch.float32))
        return None, *(None if grad is None else next(converted) for grad in grads)


def _convert_all(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    out = [torch.empty_like(x, dtype=dtype) for x in tensors]
    if out:
        torch._foreach_copy_(out, list(tensors))
    return tuple(out)


# ---------------------------------------------------------------------- optimizer


def supports_laprop(g: Tensor, clip: Tensor, owner: Tensor | None, *_: object) -> bool:
    """Return whether :func:`laprop_triton` can be used."""
    return owner is not None and can_use_triton(g, clip)


def laprop_triton(
    g: Tensor, clip: Tensor, owner: Tensor | None, square: Tensor, momentum: Tensor, rate: Tensor,
    corrections: tuple[Tensor, Tensor], cfg: LaPropAGCConfig,
) -> Tensor:  # fmt: skip
    """Compute ``nn/optim.py: laprop``."""
    step, betas = torch.empty_like(g), (cfg.beta1, cfg.beta2)
    _launch("laprop_kernel", (_count(len(g), TILE // 2),), g, clip, owner, square, momentum, step, rate, *corrections,
            len(g), *betas, *(1 - beta for beta in betas), cfg.eps, BLOCK=TILE // 2)  # fmt: skip
    return step


# ---------------------------------------------------------------------- self-check


def check_triton_kernels(device: torch.device, *families: Family) -> None:
    """Run every kernel of ``families``, or of all, once on ``device``, and compare its results with PyTorch's."""
    g = torch.Generator().manual_seed(0)  # so that the generators of training do not change

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float32, device="cpu").to(device)

    with torch.inference_mode(False), torch.enable_grad():  # regardless of the caller's mode
        compared = [pair for family in families or FAMILIES for pair in COMPARISONS[family](numbers)]
        for name, ours, defined in ((name, a.detach(), b.detach()) for name, a, b in compared):
            if not torch.allclose(ours, defined, rtol=1e-3, atol=1e-3):
                raise RuntimeError(f"{name} is off by {(ours - defined).abs().max().item():.3g}")


def _norms(numbers: Numbers) -> Compared:
    x, scale, grad = numbers(9, 40).requires_grad_(), numbers(40).requires_grad_(), numbers(9, 40)
    ours = norm_silu_triton(x, scale, 1e-4)  # first, so that its memory does not contain the definition's results
    gradients = torch.autograd.grad(ours, (x, scale), grad)
    defined = functional.norm_silu.definition(x, scale, 1e-4)  # type: ignore[attr-defined]  # without kernels
    pairs = zip(gradients, torch.autograd.grad(defined, (x, scale), grad), strict=True)
    return [("norm_silu", ours, defined), *(("norm_silu_backward", *pair) for pair in pairs)]


def _cells(numbers: Numbers) -> Compared:
    gates, h, grad = numbers(5, 2, 3, 6).requires_grad_(), numbers(5, 12).requires_grad_(), numbers(5, 12)
    bias = numbers(2, 3, 6)
    defined = functional.gru(gates + bias, h)
    keep = (numbers(5) > 0).float()
    ours, before, dgates, dh = (torch.full_like(x, torch.nan) for x in (h, h, gates, h))
    gru_into(gates, bias, h, ours, 2, before, keep)
    dh.fill_(1.0)
    gru_gradient(gates, bias, h, (grad, grad), 2, dgates, dh, keep)
    expected = torch.autograd.grad(defined, (gates, h), 2 * grad + keep[:, None])
    pairs = [("gru", ours, defined), ("gru", before, defined * keep[:, None])]
    return [*pairs, ("gru_backward", dgates, expected[0]), ("gru_backward", dh, expected[1])]


def _samples(numbers: Numbers) -> Compared:
    logits, grad, keep = numbers(6, 15).requires_grad_(), numbers(6, 15), (numbers(6) > 0).float()
    uniform = torch.sigmoid(numbers(6, 3))
    defined = functional.unimix_probs(logits.view(6, 3, 5), 0.01).flatten(1)
    probs, onehot, before, dlogits = (torch.full_like(logits, torch.nan) for _ in range(4))
    sample_into(logits, uniform, onehot, 0.01, probs, before, keep)
    carried = torch.ones_like(grad)
    sample_gradient(probs, (grad, grad), 3, 0.01, dlogits, carried, keep)
    index = functional.inverse_cdf(defined.view(6, 3, 5), uniform)
    drawn = functional.one_hot(index, defined.view(6, 3, 5)).flatten(1)
    (expected,) = torch.autograd.grad(defined, logits, 2 * grad + keep[:, None])
    pairs = [("sample", probs, defined), ("sample", onehot, drawn), ("sample", before, drawn * keep[:, None])]
    return [*pairs, ("sample_backward", dlogits, expected), ("sample_backward", carried, torch.zeros_like(carried))]


def _updates(numbers: Numbers) -> Compared:
    cfg, owner = LaPropAGCConfig(beta1=0.8, beta2=0.9), torch.arange(9, device=numbers(1).device).int() // 3
    g, momentum, square, clip = numbers(9), numbers(9), numbers(9).square(), numbers(3)
    rate, corrections = numbers(1)[0], (numbers(1)[0], numbers(1)[0].square())
    both = []
    for run in (laprop_triton, laprop.definition):  # type: ignore[attr-defined]  # without kernels
        moments = square.clone(), momentum.clone()
        both.append([run(g.clone(), clip, owner, *moments, rate, corrections, cfg), *moments])
    return [("laprop", *pair) for pair in zip(*both, strict=True)]


COMPARISONS["recurrence"] = lambda numbers: [
    *_norms(numbers), *_cells(numbers), *_samples(numbers), *_updates(numbers),
]  # fmt: skip

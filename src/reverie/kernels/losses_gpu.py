"""Targets and losses of critics on a GPU (``triton_losses.py``), each one launch for values and gradient."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from reverie.core.collectives import is_distributed
from reverie.core.types import Batch
from reverie.kernels import gpu
from reverie.kernels.ctypes_call import call, has_no_grad
from reverie.kernels.gpu import Compared, Numbers
from reverie.kernels.losses import LossWithSlope, Values, to_losses
from reverie.objectives import policy, td
from reverie.objectives.estimators import TD0, ValueEstimator
from reverie.objectives.td import Losses, check_shapes

LARGEST = 4096
"""Numbers of a loss that one program computes; larger losses are PyTorch's."""


def _power(n: int) -> int:
    """Return the smallest power of two that is at least ``n``."""
    return 1 << (n - 1).bit_length()


def _are(dtype: torch.dtype, *tensors: Tensor) -> bool:
    return all(x.dtype is dtype for x in tensors)


def supports_td0_targets(estimator: ValueEstimator, batch: Batch, value: Tensor, discount: float) -> bool:
    """Return whether :func:`td0_targets_triton` can be used; it has no gradient."""
    if type(estimator) is not TD0 or not gpu.can_use_triton(value, family="losses"):
        return False
    reward, ends = batch.reward, (batch.is_terminal, batch.is_last)
    if value.shape != reward[:, 1:].shape or not value.numel():
        return False
    fit = _are(torch.float32, reward, value) and _are(torch.bool, *ends) and has_no_grad(reward, value)
    return fit and all(x.shape == reward.shape for x in ends)


def td0_targets_triton(estimator: TD0, batch: Batch, value: Tensor, discount: float) -> Tensor:
    """Compute ``ValueEstimator.__call__`` of TD(0)."""
    inputs = [x.contiguous() for x in (batch.reward, batch.is_terminal, batch.is_last, value)]
    target, (windows, rows) = torch.empty_like(inputs[3]), batch.reward.shape
    count = windows * (rows - 1)
    gpu._launch("td0_kernel", (-(-count // 1024),), *inputs, target, count, rows - 1, float(discount), BLOCK=1024)
    return target


def supports_td_error_triton(prediction: Tensor, target: Tensor, batch: Batch, *_: float, **__: float) -> bool:
    """Return whether :func:`squared_error_triton` and :func:`huber_error_triton` can be used."""
    if not gpu.can_use_triton(prediction, family="losses") or target.ndim != 2 or is_distributed():
        return False
    if prediction.shape[-2:] != target.shape or prediction.ndim > 3:
        return False
    windows, steps = target.shape
    same = batch.is_last.shape == (windows, steps + 1) and batch.weight.shape == (windows,) and target.numel() > 0
    fit = (
        same and len(prediction) > 0 and _power(windows) * _power(steps) <= LARGEST and _are(torch.bool, batch.is_last)
    )
    return fit and _are(torch.float32, prediction, target, batch.weight) and has_no_grad(target, batch.weight)


def squared_error_triton(prediction: Tensor, target: Tensor, batch: Batch, scale: float = 1.0) -> Losses:
    """Compute ``td.squared_error``."""
    return to_losses(call(LossWithSlope, _td_error, prediction, target, batch, scale))


def huber_error_triton(prediction: Tensor, target: Tensor, batch: Batch, kappa: float, scale: float = 1.0) -> Losses:
    """Compute ``td.huber_error``."""
    return to_losses(call(LossWithSlope, _td_error, prediction, target, batch, scale, kappa))


def _td_error(
    prediction: Tensor, target: Tensor, batch: Batch, scale: float, kappa: float | None = None
) -> tuple[Values, Tensor]:
    check_shapes(prediction, target, batch)
    inputs = [x.contiguous() for x in (prediction, target, batch.is_last, batch.weight)]
    slope, priority, out = torch.empty_like(inputs[0]), torch.empty_like(inputs[3]), target.new_empty(5)
    sizes = prediction.numel() // target.numel(), *target.shape
    tile = {"ROWS": _power(target.shape[0]), "WIDTH": _power(target.shape[1]), "num_warps": 8}
    gpu._launch("td_error_kernel", (1,), *inputs, slope, priority, out, *sizes, float(scale), float(kappa or 0.0),
                HUBER=kappa is not None, **tile)  # fmt: skip
    loss, *metrics = out.unbind()
    return (loss, priority, *metrics), slope


def supports_masked_mean_triton(x: Tensor, mask: Tensor) -> bool:
    """Return whether :func:`masked_mean_triton` can be used."""
    if not gpu.can_use_triton(x, family="losses") or is_distributed():
        return False
    return x.shape == mask.shape and 0 < x.numel() <= LARGEST and _are(torch.bool, mask) and _are(torch.float32, x)


def masked_mean_triton(x: Tensor, mask: Tensor) -> Tensor:
    """Compute ``td.masked_mean``, with gradient."""
    return cast(Tensor, call(LossWithSlope, _masked_mean, x, mask)[0])


def _masked_mean(x: Tensor, mask: Tensor) -> tuple[tuple[Tensor], Tensor]:
    x, mask = x.contiguous(), mask.contiguous()
    share, mean, count = torch.empty_like(x), x.new_empty(()), x.numel()
    gpu._launch("masked_mean_kernel", (1,), x, mask, share, mean, count, BLOCK=_power(count))
    return (mean,), share


# ---------------------------------------------------------------------- policies


def supports_standardize(x: Tensor, mask: Tensor) -> bool:
    """Return whether :func:`standardize_triton` can be used; it has no gradient."""
    return supports_masked_mean_triton(x, mask) and has_no_grad(x)


def standardize_triton(x: Tensor, mask: Tensor) -> Tensor:
    """Compute ``objectives/policy.py: standardize``."""
    x, mask = x.contiguous(), mask.contiguous()
    y, count = torch.empty_like(x), x.numel()
    gpu._launch("standardize_kernel", (1,), x, mask, y, count, BLOCK=_power(count))
    return y


def supports_clipped_objective(
    log_prob: Tensor, before: Tensor, advantage: Tensor, last: Tensor, clip: float | Tensor
) -> bool:
    """Return whether :func:`clipped_objective_triton` can be used."""
    if not gpu.can_use_triton(log_prob, family="losses") or isinstance(clip, Tensor) or not log_prob.numel():
        return False
    same = log_prob.shape == before.shape == advantage.shape == last.shape
    fit = same and _are(torch.float32, log_prob, before, advantage) and _are(torch.bool, last)
    return fit and has_no_grad(before, advantage)


def clipped_objective_triton(
    log_prob: Tensor, before: Tensor, advantage: Tensor, last: Tensor, clip: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ``objectives/policy.py: clipped_objective``."""
    inputs = log_prob, before, advantage, last, clip
    return cast(tuple[Tensor, Tensor, Tensor], call(LossWithSlope, _clipped_objective, *inputs))


def _clipped_objective(*inputs: Any) -> tuple[tuple[Tensor, ...], Tensor]:
    *columns, clip = inputs
    arrays = [x.contiguous() for x in columns]
    slope, loss, divergence, clipped = (torch.empty_like(arrays[0]) for _ in range(4))
    count = loss.numel()
    gpu._launch("clipped_objective_kernel", (-(-count // 1024),), *arrays, slope, loss, divergence, clipped, count,
                float(clip), BLOCK=1024)  # fmt: skip
    return (loss, divergence, clipped), slope


def compare_losses(numbers: Numbers) -> Compared:
    """Return the results of each kernel and of its definition; ``numbers`` returns random tensors of a shape."""
    windows, steps = 9, 3
    reward = numbers(windows, steps + 1)
    last, weight = numbers(windows, steps + 1) > 0.5, numbers(windows).abs()
    batch = Batch(
        obs={}, action=reward[..., None], reward=reward, is_first=last, is_last=last,
        is_terminal=last & (reward > 0), weight=weight, index=torch.arange(windows, device=reward.device),
    )  # fmt: skip
    value, prediction = numbers(windows, steps), numbers(2, windows, steps).requires_grad_()
    target = td0_targets_triton(TD0(), batch, value, 0.9)
    expected = ValueEstimator.__call__.definition(TD0(), batch, value, 0.9)  # type: ignore[attr-defined]
    compared = [("td0", target, expected)]
    functions: list[tuple[Any, Any, dict[str, float]]] = [
        (squared_error_triton, td.squared_error, {}), (huber_error_triton, td.huber_error, {"kappa": 0.7}),
    ]  # fmt: skip
    for ours, replaced, rest in functions:
        a, b = (function(prediction, expected, batch, scale=0.5, **rest) for function in (ours, replaced.definition))
        gradients = [torch.autograd.grad(x.terms["critic"], prediction)[0] for x in (a, b)]
        pairs = zip([*a.metrics.values(), a.priority, gradients[0]], [*b.metrics.values(), b.priority, gradients[1]],
                    strict=True)  # fmt: skip
        compared += [("td_error", *pair) for pair in pairs]
    mask, learned = ~last[:, :-1], value.requires_grad_()
    compared.append(("standardize", standardize_triton(value.detach(), mask), _plain(policy.standardize)(value, mask)))
    clipped_inputs = learned, prediction[0].detach(), prediction[1].detach(), ~mask, 0.2
    for name, ours, replaced, inputs in (
        ("masked_mean", masked_mean_triton, td.masked_mean, (learned, mask)),
        ("clipped_objective", clipped_objective_triton, policy.clipped_objective, clipped_inputs),
    ):
        results: list[Any] = [function(*inputs) for function in (ours, _plain(replaced))]
        values = [x if isinstance(x, tuple) else (x,) for x in results]
        compared += [(name, *pair) for pair in zip(*values, strict=True)]
        lhs, rhs = (torch.autograd.grad(x[0].sum(), learned)[0] for x in values)
        compared.append((name, lhs, rhs))
    return compared


def _plain(function: Any) -> Any:
    """Return the definition of an accelerated function."""
    return function.definition


gpu.COMPARISONS["losses"] = compare_losses

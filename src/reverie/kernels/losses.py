"""Losses of ``objectives`` with their gradients, each in one compiled call (``td.c``, ``quantile.c``).

Pairs of quantiles stay in registers: 200 predictions and as many targets make 40,000, and PyTorch would write them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from reverie.core.collectives import is_distributed
from reverie.core.tree import check_tensor_shapes
from reverie.core.types import Batch
from reverie.kernels.ctypes_call import (
    call,
    call_compiled,
    empty_float32,
    has_no_grad,
    is_cpu_bool,
    is_cpu_float32,
    once_differentiable_strict,
)
from reverie.nn.latent_model import KNOT, KNOTS
from reverie.objectives.estimators import SingleBootstrap
from reverie.objectives.td import Losses, check_shapes

PAIRS = 2**17
"""Number of pairs of quantiles from which several threads are faster than one."""

Values = tuple[Tensor, ...]
"""The loss ``[]`` of a critic, its priorities ``[B]``, and the metrics ``METRICS`` after the first, each ``[]``."""
METRICS = ("loss/critic", "train/value", "train/value_max", "train/target", "train/target_max")


def to_losses(values: Values) -> Losses:
    """Return ``values`` as the term ``critic``, its metrics and priorities."""
    loss, priority, *metrics = values
    return Losses({"critic": loss}, dict(zip(METRICS, (loss.detach(), *metrics), strict=True)), priority)


class LossWithSlope(torch.autograd.Function):
    """Values, of which only the first has a gradient; ``function(x, *others)`` returns it next to them."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], x: Tensor, *inputs: object) -> tuple[Tensor, ...]:
        """Return the values."""
        values, gradient = function(x, *inputs)
        if ctx is not None:
            ctx.save_for_backward(gradient)
            ctx.mark_non_differentiable(*values[1:])
            ctx.set_materialize_grads(False)  # of metrics
            ctx.num_inputs = len(inputs)
        return tuple(values)

    @staticmethod
    @once_differentiable_strict
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of x."""
        (gradient,) = ctx.saved_tensors
        axes = [1] * (gradient.ndim - grad.ndim)
        return None, gradient * grad.view(*grad.shape, *axes), *[None] * ctx.num_inputs


def _columns(batch: Batch) -> bool:
    """Return whether compiled functions can read the ends and weights of a batch."""
    return is_cpu_bool(batch.is_last) and is_cpu_float32(batch.weight) and len(batch.weight) == len(batch.is_last)


# ---------------------------------------------------------------------- means and targets


def supports_td0(*, reward: Tensor, terminal: Tensor, last: Tensor, value: Tensor, discount: float) -> bool:
    """Return whether :func:`td0_cpu` can be used; it has no gradient."""
    same = reward.shape == terminal.shape == last.shape == value.shape
    return same and is_cpu_bool(terminal, last) and is_cpu_float32(reward, value) and has_no_grad(reward, value)


def td0_cpu(*, reward: Tensor, terminal: Tensor, last: Tensor, value: Tensor, discount: float) -> Tensor:
    """Compute ``returns.td0``."""
    reward, terminal, last, value = (x.contiguous() for x in (reward, terminal, last, value))
    windows, rows = reward.shape
    target = reward.new_empty(windows, rows - 1)
    call_compiled("td0", reward, terminal, last, value, target, windows, rows, discount)
    return target


def supports_masked_mean(x: Tensor, mask: Tensor) -> bool:
    """Return whether :func:`masked_mean_cpu` can be used."""
    return is_cpu_float32(x) and is_cpu_bool(mask) and x.shape == mask.shape and x.numel() > 0 and not is_distributed()


def masked_mean_cpu(x: Tensor, mask: Tensor) -> Tensor:
    """Compute ``td.masked_mean``, with gradient."""
    return cast(Tensor, call(LossWithSlope, _mean, x, mask)[0])


def _mean(x: Tensor, mask: Tensor) -> tuple[tuple[Tensor], Tensor]:
    x, mask = x.contiguous(), mask.contiguous()
    share, mean = torch.empty_like(x), x.new_empty(())
    call_compiled("masked_mean", x, mask, share, mean, x.numel())
    return (mean,), share


# ---------------------------------------------------------------------- errors of values


def supports_td_error(prediction: Tensor, target: Tensor, batch: Batch, *_: float, **__: float) -> bool:
    """Return whether :func:`squared_error_cpu` and :func:`huber_error_cpu` can be used; the target has no gradient."""
    shapes = target.ndim == 2 and prediction.shape[-2:] == target.shape and prediction.ndim <= 3
    same = shapes and batch.is_last.shape == (target.shape[0], target.shape[1] + 1) and target.numel() > 0
    is_supported = same and is_cpu_float32(prediction, target) and _columns(batch) and has_no_grad(target, batch.weight)
    return is_supported and not is_distributed()


def squared_error_cpu(prediction: Tensor, target: Tensor, batch: Batch, scale: float = 1.0) -> Losses:
    """Compute ``td.squared_error``."""
    return to_losses(call(LossWithSlope, _error_and_gradient, prediction, target, batch, scale))


def huber_error_cpu(prediction: Tensor, target: Tensor, batch: Batch, kappa: float, scale: float = 1.0) -> Losses:
    """Compute ``td.huber_error``."""
    return to_losses(call(LossWithSlope, _error_and_gradient, prediction, target, batch, scale, kappa))


def _error_and_gradient(
    prediction: Tensor, target: Tensor, batch: Batch, scale: float = 1.0, kappa: float = -1.0
) -> tuple[Values, Tensor]:
    """Compute ``td.huber_error``, or ``td.squared_error`` if kappa is negative, and the gradient by ``prediction``."""
    check_shapes(prediction, target, batch)
    prediction, target = prediction.contiguous(), target.float().contiguous()  # a user's target may be float64
    last, weight = batch.is_last.contiguous(), batch.weight.contiguous()
    gradient, priority, out = torch.empty_like(prediction), torch.empty_like(weight), weight.new_empty(5)
    call_compiled("td_error", prediction, target, last, weight, gradient, priority, out,
            prediction.numel() // target.numel(), *last.shape, scale, kappa)  # fmt: skip
    loss, *metrics = out.unbind()
    return (loss, priority, *metrics), gradient


# ---------------------------------------------------------------------- quantiles


def supports_quantile_huber(prediction: Tensor, target: Tensor, kappa: float = 1.0, tau: Tensor | None = None) -> bool:
    """Return whether :func:`quantile_huber_cpu` can be used: for evenly spaced fractions."""
    same = tau is None and prediction.shape[:-1] == target.shape[:-1] and prediction.numel() > 0 and target.numel() > 0
    return same and is_cpu_float32(prediction, target) and 0 <= kappa < float("inf")


def quantile_huber_cpu(prediction: Tensor, target: Tensor, kappa: float = 1.0, tau: None = None) -> Tensor:
    """Compute ``quantile.quantile_huber``."""
    return cast(Tensor, call(LossWithSlope, _pairs, prediction, target.detach(), kappa)[0])


def _pairs(prediction: Tensor, target: Tensor, kappa: float) -> tuple[tuple[Tensor], Tensor]:
    prediction, target = prediction.contiguous(), target.contiguous()
    n, m = prediction.shape[-1], target.shape[-1]
    loss, slope = prediction.new_empty(prediction.shape[:-1]), torch.empty_like(prediction)
    pairs = prediction.numel() * m
    call_compiled("quantile_huber", prediction, target, loss, slope, loss.numel(), n, m, kappa, _threads(pairs))
    return (loss,), slope


def _threads(pairs: int) -> int:
    return torch.get_num_threads() if pairs >= PAIRS else 1


def supports_greedy_quantiles(quantiles: Tensor, selector: Tensor) -> bool:
    """Return whether :func:`greedy_quantiles_cpu` can be used."""
    return quantiles.shape == selector.shape and quantiles.numel() > 0 and is_cpu_float32(quantiles, selector)


def greedy_quantiles_cpu(quantiles: Tensor, selector: Tensor) -> Tensor:
    """Compute ``quantile.greedy_quantiles``."""
    quantiles, selector = quantiles.detach().contiguous(), selector.detach().contiguous()
    *lead, classes, n = quantiles.shape
    out = quantiles.new_empty(*lead, n)
    call_compiled("best_quantiles", quantiles, selector, out, out.numel() // n, classes, n)
    return out


def supports_quantile_targets(
    next_quantiles: Tensor, batch: Batch, estimator: SingleBootstrap, discount: float
) -> bool:
    """Return whether :func:`quantile_targets_cpu` can be used; a custom estimator may bootstrap differently."""
    same = type(estimator).bootstrap is SingleBootstrap.bootstrap and estimator.steps(batch.shape[1]) > 0
    same = same and next_quantiles.ndim == 3 and next_quantiles.numel() > 0
    rows = same and batch.reward.shape == batch.is_last.shape == batch.is_terminal.shape
    fit = rows and batch.reward.shape == (next_quantiles.shape[0], next_quantiles.shape[1] + 1)
    fit = fit and is_cpu_float32(next_quantiles, batch.reward) and is_cpu_bool(batch.is_last, batch.is_terminal)
    return fit and has_no_grad(batch.reward)


def quantile_targets_cpu(next_quantiles: Tensor, batch: Batch, estimator: SingleBootstrap, discount: float) -> Tensor:
    """Compute ``quantile.quantile_targets``, without gradient."""
    theta, reward = next_quantiles.detach().contiguous(), batch.reward.contiguous()
    terminal, last, y = batch.is_terminal.contiguous(), batch.is_last.contiguous(), torch.empty_like(theta)
    call_compiled("quantile_targets", theta, reward, terminal, last, y, *reward.shape, y.shape[-1],
            estimator.steps(batch.shape[1]), discount)  # fmt: skip
    return y


def supports_quantile_error(
    prediction: Tensor,
    target: Tensor,
    batch: Batch,
    kappa: float,
    classes: Sequence[int] = (),
    tau: Tensor | None = None,
) -> bool:
    """Return whether :func:`quantile_error_cpu` can be used: for one choice and evenly spaced fractions."""
    shapes = (
        tau is None
        and prediction.ndim == 4
        and target.shape == (*prediction.shape[:2], prediction.shape[3])
        and len(classes) < 2
    )
    windows, rows = prediction.shape[0], prediction.shape[1] + 1
    same = shapes and batch.is_last.shape == (windows, rows) and prediction.numel() > 0
    has_actions = same and batch.action.shape == (windows, rows, prediction.shape[2])
    fit = (
        has_actions
        and is_cpu_float32(prediction, target, batch.action)
        and _columns(batch)
        and has_no_grad(batch.weight)
    )
    return fit and not is_distributed()


def quantile_error_cpu(
    prediction: Tensor, target: Tensor, batch: Batch, kappa: float, classes: Sequence[int] = ()
) -> Losses:
    """Compute ``quantile.quantile_error`` of one choice, with gradient."""
    return to_losses(call(LossWithSlope, _quantile_error_and_gradient, prediction, target.detach(), batch, kappa))


def _quantile_error_and_gradient(
    prediction: Tensor, target: Tensor, batch: Batch, kappa: float
) -> tuple[Values, Tensor]:
    """Compute ``quantile.quantile_error`` and the gradient of its loss by ``prediction``, without autograd."""
    rows = (prediction, batch.action, target.float(), batch.is_last, batch.weight)  # a user's target may be float64
    read = [x.contiguous() for x in rows]
    windows, steps, classes, n = prediction.shape
    check_tensor_shapes((windows, steps, n), target=target)
    gradient, priority = empty_float32(prediction.shape), empty_float32(windows)
    sums, out = empty_float32(5, windows), empty_float32(5)
    call_compiled("quantile_error", *read, gradient, priority, sums, out, windows, steps, classes, n, kappa,
            _threads(windows * steps * n * n))  # fmt: skip
    loss, *metrics = out.unbind()
    return (loss, priority, *metrics), gradient


# ---------------------------------------------------------------------- latents


def supports_normality(x: Tensor) -> bool:
    """Return whether :func:`normality_cpu` can be used."""
    return is_cpu_float32(x) and x.numel() > 0


def normality_cpu(x: Tensor) -> Tensor:
    """Compute ``nn/latent_model.py: normality``. The same pass sums up the gradient, without cosines of knots."""
    return cast(Tensor, call(LossWithSlope, _normality_and_gradient, x)[0])


def _normality_and_gradient(x: Tensor) -> tuple[tuple[Tensor], Tensor]:
    total, slope = x.new_zeros(x.shape[1:]), torch.zeros_like(x)
    cos, sin = (KNOT * x).cos(), (KNOT * x).sin()
    c, s = torch.ones_like(x), torch.zeros_like(x)
    for k, (phi, weight) in enumerate(KNOTS, 1):
        c, s = c * cos - s * sin, s * cos + c * sin  # of k times the angle
        real, imaginary = c.mean(0) - phi, s.mean(0)  # [T, P]
        total += weight * (real.square() + imaginary.square())
        factor = 2 * weight * k * KNOT / total.numel()
        slope += c * (factor * imaginary) - s * (factor * real)
    return (len(x) * total.mean(),), slope

"""Quantile regression: the loss whose minimum is a distribution's quantiles. Dabney et al. 2018, arXiv:1710.10044.

The definition compares each of N predicted quantiles with each of N' targets. Here that table is never made. The
targets are sorted, and the loss of a prediction follows from sums over four runs of sorted targets: those below and
above the prediction, within kappa of it and beyond.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from reverie.core.compiled import call, compiled, constant, first_order
from reverie.core.errors import ConfigError
from reverie.core.types import Batch
from reverie.objectives import compiled_quantile
from reverie.objectives.estimators import OneRow
from reverie.objectives.td import Losses, critic_losses, losses_of


def midpoints(count: int, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the fractions tau^_i = (2 i + 1) / (2 N) of N learned quantiles, ``[N]``: lemma 2."""
    return (torch.arange(count, device=device, dtype=dtype) + 0.5) / count


def quantile_huber(prediction: Tensor, target: Tensor, kappa: float = 1.0) -> Tensor:
    """Return the quantile Huber loss, summed over predictions and averaged over targets: equations 9 and 10.

    sum_i E_j[ |tau^_i - 1{u < 0}| L(u) ],  u = target_j - prediction_i,
    L(u) = u^2 / 2 where |u| <= kappa and kappa (|u| - kappa / 2) beyond. With kappa = 0, L(u) = |u|: equation 8.

    Algorithm 1 minimises it. It takes O((N + N') log N') time and O(N + N') memory for each distribution. It computes
    in float64, as sums over runs are differences of large sums. In float32 on CPUs a compiled loop goes over the pairs
    instead. Gradients reach the prediction alone; there are no second derivatives.

    Args:
        prediction: ``[..., N]``, need not be sorted; entry i is quantile tau^_i.
        target: ``[..., N']``, in any order.
        kappa: error up to which the loss is squared, 0 or more.

    Returns:
        ``[...]``, in the dtype of the prediction.

    Raises:
        ValueError: the leading axes differ, there are no quantiles, or kappa is out of range (a ConfigError).
    """
    check_kappa(kappa)
    _check_pairs(prediction, target)
    if compiled(prediction, target):
        return compiled_quantile.quantile_huber(prediction, target, kappa)
    loss: Tensor = call(_Sorted, prediction, target.detach(), kappa)
    return loss


def _check_pairs(prediction: Tensor, target: Tensor) -> None:
    if prediction.shape[:-1] != target.shape[:-1] or not (prediction.shape[-1] and target.shape[-1]):
        shapes = f"prediction {tuple(prediction.shape)}, target {tuple(target.shape)}"
        raise ValueError(f"{shapes}: expected [..., N] and [..., N'] with the same leading axes.")


def best_quantiles(quantiles: Tensor, preferred: Tensor) -> Tensor:
    """Return the quantiles ``[..., N]`` of the action with the highest mean, from ``[..., A, N]``, without gradient.

    The means of ``preferred`` ``[..., A, N]`` choose the action: the same quantiles, or another network's.
    """
    quantiles, preferred = quantiles.detach(), preferred.detach()
    if compiled(quantiles, preferred) and quantiles.numel():
        return compiled_quantile.best_quantiles(quantiles, preferred)
    return of_class(quantiles, preferred.mean(-1).argmax(-1))


def of_class(quantiles: Tensor, index: Tensor) -> Tensor:
    """Return the quantiles ``[..., N]`` of the actions ``index`` ``[...]``, from ``[..., A, N]``."""
    return _picked(quantiles.reshape(-1, *quantiles.shape[-2:]), index.reshape(-1, 1)).view(*index.shape, -1)


def _picked(x: Tensor, index: Tensor) -> Tensor:
    """Return ``x[m, index[m, j]]``: ``[M, K, N]`` and ``[M, J]`` to ``[M, J, N]``. Copies whole rows of N."""
    start = torch.arange(0, x.shape[0] * x.shape[1], x.shape[1], device=x.device).unsqueeze(1)  # [M, 1]
    return x.flatten(0, 1).index_select(0, (start + index).flatten()).view(*index.shape, -1)


def quantile_targets(following: Tensor, batch: Batch, estimator: OneRow, discount: float) -> Tensor:
    """Return targets y_j of rows 0 ... T-2, ``[B, T - 1, N]``, from distributions of rows 1 ... T-1, without gradient.

    y_j = G + gamma^m (1 - terminal) theta_j, where ``estimator`` gives the sum of rewards G and the row after m steps.
    Targets of rows that are the last of their episode are meaningless and must be masked.
    """
    estimator.check_window(batch.shape[1])
    same = type(estimator).bootstrap is OneRow.bootstrap  # a user's class may scale rewards or discount otherwise
    if same and compiled_quantile.fits(following, batch):
        return compiled_quantile.quantile_targets(following, batch, estimator.checked_steps(batch.shape[1]), discount)
    reward, live, row = estimator.bootstrap(
        reward=batch.reward, terminal=batch.is_terminal, last=batch.is_last, discount=discount
    )  # [B, T-1]
    reached = _picked(following.detach(), (row - 1).clamp(min=0))  # [B, T-1, N]
    return reward.unsqueeze(-1) + live.unsqueeze(-1) * reached


def quantile_error(prediction: Tensor, target: Tensor, batch: Batch, kappa: float) -> Losses:
    """Return the term ``critic``: :func:`quantile_huber` of the taken actions, averaged as in ``td.critic_losses``.

    Args:
        prediction: quantiles of all actions, ``[B, T - 1, A, N]``.
        target: ``[B, T - 1, N]``.
        batch: its actions ``[B, T, A]``, one-hot, weights ``[B]`` and ends of episodes are read.
        kappa: that of :func:`quantile_huber`.

    Returns:
        The losses. The loss is a sum over the quantiles, priorities are means over them.
    """
    if compiled_quantile.fits(prediction, batch) and compiled(target) and constant(batch.weight):
        return losses_of(compiled_quantile.quantile_error(prediction, target, batch, kappa))
    theta = of_class(prediction, batch.action[:, :-1].argmax(-1))  # [B, T-1, N]
    loss = quantile_huber(theta, target, kappa)  # [B, T-1]
    wrong, value = loss.detach() / theta.shape[-1], theta.detach().mean(-1)  # [B, T-1]
    return critic_losses(loss, wrong, value, target.mean(-1), batch)


def check_kappa(kappa: float) -> None:
    """Raise ConfigError if the kappa of a quantile Huber loss is negative or not finite."""
    if not 0 <= kappa < float("inf"):
        raise ConfigError(
            f"kappa = {kappa}: expected a finite number, 0 or more; 0 gives the quantile loss without smoothing."
        )


class _Sorted(torch.autograd.Function):
    """Computes the loss and its gradient in the forward pass."""

    @staticmethod
    def forward(ctx: Any, prediction: Tensor, target: Tensor, kappa: float) -> Tensor:
        n, m = prediction.shape[-1], target.shape[-1]
        ordered = target.reshape(-1, m).double().sort(-1).values  # [M, N']
        centre = ordered.mean(-1, keepdim=True)  # [M, 1]: sums of squares of small numbers cancel less
        theta = prediction.reshape(-1, n).double() - centre  # [M, N]
        below, above = _sides(theta, ordered - centre, kappa)
        tau = midpoints(n, theta.device, torch.float64)  # [N]
        loss = ((1 - tau) * below.loss + tau * above.loss).sum(-1) / m  # [M]
        if ctx is not None:
            slope = ((1 - tau) * below.slope - tau * above.slope) / m  # [M, N]
            ctx.save_for_backward(slope.to(prediction.dtype).view_as(prediction))
        return loss.to(prediction.dtype).view(prediction.shape[:-1])

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return slope * grad.unsqueeze(-1), None, None


class _Side(NamedTuple):
    """Sums over the targets on one side of each prediction."""

    loss: Tensor  # [M, N], of L(u)
    slope: Tensor  # [M, N], of |L'(u)|


def _sides(theta: Tensor, y: Tensor, kappa: float) -> tuple[_Side, _Side]:
    """Sum the targets below and above predictions theta ``[M, N]``, from sorted targets y ``[M, N']``."""
    far_below = torch.searchsorted(y, theta - kappa)  # [M, N]: number of targets below theta - kappa
    far_above = torch.searchsorted(y, theta + kappa, right=True)  # [M, N]: number of targets up to theta + kappa
    sums = _running(y)  # [M, N' + 1]
    reach = kappa if kappa else 1.0
    total, m = sums[:, -1:], y.shape[-1]
    below = _beyond(far_below * theta - sums.gather(-1, far_below), far_below, reach, kappa)
    rest = m - far_above
    above = _beyond(total - sums.gather(-1, far_above) - rest * theta, rest, reach, kappa)
    if not kappa:
        return below, above
    at = torch.searchsorted(y, theta)  # [M, N]
    squares = _running(y.square())
    below = _joined(below, _within(theta, sums, squares, far_below, at))
    return below, _joined(above, _within(theta, sums, squares, at, far_above))


def _running(y: Tensor) -> Tensor:
    """Return the sums of the first k numbers of each row, ``[M, N' + 1]`` for k = 0 ... N'."""
    return torch.nn.functional.pad(y.cumsum(-1), (1, 0))


def _beyond(distance: Tensor, count: Tensor, reach: float, kappa: float) -> _Side:
    """Sum the targets where the loss is linear, given their summed distance and their count."""
    count = count.to(distance.dtype)  # integers times a Python float would become float32
    return _Side(reach * distance - 0.5 * kappa**2 * count, reach * count)


def _within(theta: Tensor, sums: Tensor, squares: Tensor, start: Tensor, stop: Tensor) -> _Side:
    """Sum the targets number ``start`` to ``stop``, where the loss is a square."""
    count = stop - start
    first = sums.gather(-1, stop) - sums.gather(-1, start)
    second = squares.gather(-1, stop) - squares.gather(-1, start)
    loss = 0.5 * (second - 2 * theta * first + theta.square() * count)
    return _Side(loss.clamp(min=0), (theta * count - first).abs())


def _joined(a: _Side, b: _Side) -> _Side:
    return _Side(a.loss + b.loss, a.slope + b.slope)

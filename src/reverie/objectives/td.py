"""Temporal-difference learning from windows of rows: targets, masks, losses and priorities."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.core.collectives import is_distributed, mean_across_ranks
from reverie.core.kernel_dispatch import accelerated
from reverie.core.tree import check_tensor_shapes
from reverie.core.types import Batch, Metrics, Obs, Update
from reverie.objectives.returns import transition_mask

RegressionLoss = Literal["l2", "l1", "smooth_l1"]
"""The loss of an error: its square, its absolute value, or Huber's with kappa 1."""


class Losses(NamedTuple):
    """The losses of an objective on a batch, with metrics and priorities."""

    terms: dict[str, Tensor]
    """Scalar losses by name. The gradient of each reaches only the parameters that it is meant for."""
    metrics: Metrics = {}  # noqa: RUF012 - it is never written to
    """Scalars without gradient, in addition to the terms."""
    priority: Tensor | None = None
    """The critic's error on each window, ``[B]``: the mean of abs(y - Q), or of the loss of a distribution."""

    def total(self) -> Tensor:
        """Return the sum of all terms, for a single backward pass."""
        return torch.stack(list(self.terms.values())).sum()

    def update(self) -> Update:
        """Return the report of an update: metrics, terms as ``loss/NAME`` even if such a metric exists, priority."""
        terms = {f"loss/{name}": term.detach() for name, term in self.terms.items()}
        return Update(metrics=terms | self.metrics | terms, priority=self.priority)


class SplitObs(dict[str, Tensor]):
    """Observations of rows 0 ... T-2, ``[B, T - 1, ...]``, with the ``last`` row kept separately.

    Features of images are computed like this, since the last row's need no gradient: neither part is copied.
    """

    def __init__(self, obs: Obs, last: Obs) -> None:
        super().__init__(obs)
        self.last = last
        """``[B, 1, ...]``."""


def obs_before(obs: Obs) -> Obs:
    """Return the observations of rows 0 ... T-2, ``[B, T - 1, ...]``: where the window's transitions start."""
    return dict(obs) if isinstance(obs, SplitObs) else {k: v[:, :-1] for k, v in obs.items()}


def obs_after(obs: Obs) -> Obs:
    """Return the observations of rows 1 ... T-1, ``[B, T - 1, ...]``: where the window's transitions lead."""
    if not isinstance(obs, SplitObs):
        return {k: v[:, 1:] for k, v in obs.items()}
    return {k: torch.cat([v[:, 1:], obs.last[k]], 1) if v.shape[1] > 1 else obs.last[k] for k, v in obs.items()}


def whole_obs(obs: Obs) -> Obs:
    """Return the observations of all rows, ``[B, T, ...]``."""
    return {k: torch.cat([v, obs.last[k]], 1) for k, v in obs.items()} if isinstance(obs, SplitObs) else obs


@accelerated
def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of ``x`` ``[B, T - 1]`` where ``mask`` is 1, or 0 if it is 0 everywhere.

    With several learners, each returns its share: the mean of these shares is the mean over all rows.

    Raises:
        ValueError: the shapes differ. They are not broadcast, because that would not be a mean.
    """
    if mask.shape != x.shape:
        check_tensor_shapes(x.shape, mask=mask)
    return (x * mask).sum() / num_rows(mask)


def draw_critics(values: Tensor, count: int) -> Tensor:
    """Return the values ``[count, ...]`` of some of the critics of ``[K, ...]``, drawn at random for the whole batch.

    REDQ: Chen et al. 2021, arXiv:2101.05982, Algorithm 1.
    """
    return values.index_select(0, torch.rand(len(values), device=values.device).argsort()[:count])


def num_rows(mask: Tensor) -> Tensor:
    """Return the number of rows where ``mask`` is 1, at least 1; with several learners, the mean of their numbers."""
    count = mask.sum()
    if not is_distributed():
        return count.clamp(min=1)
    return mean_across_ranks(count.float()).clamp(min=1e-6)  # where it is 0, so is each sum


@accelerated
def squared_error(prediction: Tensor, target: Tensor, batch: Batch, scale: float = 1.0) -> Losses:
    """Return the term ``critic``: scale E[w (Q - y)^2] over all actions taken, summed over the critics.

    Args:
        prediction: Q ``[B, T - 1]`` of one critic or ``[K, B, T - 1]`` of K.
        target: y ``[B, T - 1]``.
        batch: provides the importance weights w ``[B]`` of prioritized replay, and the ends of episodes.
        scale: factor of the loss; ``0.5`` in some papers.

    Raises:
        ValueError: the shapes do not fit, for example ``[B, T - 1, 1]``.
    """
    check_shapes(prediction, target, batch)
    error = prediction - target  # [(K,) B, T-1]
    return critic_losses(error.square(), error.detach().abs(), prediction, target, batch, scale)


@accelerated
def huber_error(prediction: Tensor, target: Tensor, batch: Batch, kappa: float, scale: float = 1.0) -> Losses:
    """Return the term ``critic``: scale E[w L(Q - y)] over all actions taken, with the loss L of Huber (1964).

    L(u) = u^2 / 2 where |u| <= kappa and kappa (|u| - kappa / 2) beyond; its derivative is u clipped to
    [-kappa, kappa]. kappa is above 0 and may be infinite. The rest is as in :func:`squared_error`; K values may also
    belong to the choices of one critic.
    """
    check_shapes(prediction, target, batch)
    error = prediction - target  # [(K,) B, T-1]
    loss = F.huber_loss(error, torch.zeros_like(error), reduction="none", delta=kappa)
    return critic_losses(loss, error.detach().abs(), prediction, target, batch, scale)


def regression_error(
    prediction: Tensor, target: Tensor, batch: Batch, loss: RegressionLoss, scale: float = 1.0
) -> Losses:
    """Return the term ``critic``: E[w L(Q - y)], with L(u) = scale u^2 (l2), abs(u) (l1) or Huber's of kappa 1.

    The rest is as in :func:`squared_error`.
    """
    if loss == "l2":
        return squared_error(prediction, target, batch, scale)
    if loss == "smooth_l1":
        return huber_error(prediction, target, batch, kappa=1.0)
    check_shapes(prediction, target, batch)
    error = (prediction - target).abs()  # [(K,) B, T-1]
    return critic_losses(error, error.detach(), prediction, target, batch)


def check_shapes(prediction: Tensor, target: Tensor, batch: Batch) -> None:
    """Raise ValueError unless the shapes match Q, y and the batch in :func:`squared_error`."""
    if prediction.shape[-2:] != target.shape or prediction.ndim > 3:
        raise ValueError(
            f"values of shape {tuple(prediction.shape)}: expected [(K,) B, T - 1] = {tuple(target.shape)}."
        )
    windows, steps = target.shape
    if batch.is_last.shape != (windows, steps + 1) or batch.weight.shape != (windows,):
        raise ValueError(
            f"is_last has shape {tuple(batch.is_last.shape)} and weight {tuple(batch.weight.shape)}: expected [B, T] = "
            f"{(windows, steps + 1)} and [B] = {(windows,)}."
        )


def critic_losses(
    loss: Tensor, error: Tensor, value: Tensor, target: Tensor, batch: Batch, scale: float = 1.0
) -> Losses:
    """Return the term ``critic``: scale E[w loss] over all actions taken, summed over the critics.

    Args:
        loss: ``[B, T - 1]`` of one critic or ``[K, B, T - 1]`` of K.
        error: same shape; absolute error of each prediction, for the priorities.
        value: same shape; the predictions, for the metrics.
        target: y ``[B, T - 1]``.
        batch: provides the importance weights w ``[B]`` of prioritized replay, and the ends of episodes.
        scale: factor of the loss.
    """
    mask = transition_mask(batch.is_last)  # [B, T-1]
    count = num_rows(mask)
    weight = mask * (scale * batch.weight / count)[:, None]  # [B, T-1]
    total = (weight * loss).sum()
    with torch.no_grad():
        if loss.ndim > 2:
            error, value = error.mean(0), value.mean(0)  # [B, T-1]
        priority = (error * mask).sum(1) / mask.sum(1).clamp(min=1)  # [B]
        metrics = {"loss/critic": total.detach()}
        for name, x in (("value", value), ("target", target)):  # [B, T-1]
            largest = x.masked_fill(~mask, -torch.inf).amax() if x.numel() else x.sum()
            metrics[f"train/{name}"] = (x * mask).sum() / count
            metrics[f"train/{name}_max"] = torch.where(mask.any(), largest, torch.zeros_like(largest))
    return Losses({"critic": total}, metrics, priority)


def with_entropy_bonus(batch: Batch, bonus: Tensor) -> tuple[Batch, Tensor]:
    """Return the batch with the previous row's entropy bonus added to each reward, and this bonus ``[B, T - 1]``.

    Multi-step estimators thereby include the entropy of all rows on the way. Subtract the bonus of row t from the
    target of row t: the value of an action includes the entropy of later states, but not of its own state.

    Args:
        batch: rows ``[B, T]``.
        bonus: ``[B, T - 1]``, alpha times the entropy at rows 1 ... T-1.
    """
    bonus = F.pad(bonus, (1, 0))[:, :-1]  # [B, T-1], of rows 0 ... T-2; 0 in row 0, whose bonus cancels
    reward = torch.cat([batch.reward[:, :1], batch.reward[:, 1:] + bonus], 1)  # [B, T]
    return replace(batch, reward=reward), bonus

"""Temporal-difference learning from windows of rows: targets, masks, losses and priorities."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.core.accelerate import accelerated
from reverie.core.errors import ConfigError
from reverie.core.shapes import expect
from reverie.core.types import Batch, Metrics, Obs
from reverie.objectives.estimators import ValueEstimator
from reverie.objectives.returns import transition_mask


class Losses(NamedTuple):
    """The losses of an objective on a batch, with metrics and priorities."""

    terms: dict[str, Tensor]
    """Scalar losses by name. The gradient of each reaches only the parameters that it is meant for."""
    metrics: Metrics
    """Scalars without gradient."""
    priority: Tensor | None = None
    """The critic's error on each window, ``[B]``: the mean of abs(y - Q), or of the loss of a distribution."""

    def total(self) -> Tensor:
        """Return the sum of all terms, for a single backward pass."""
        return torch.stack(list(self.terms.values())).sum()

    def joined(self, other: Losses) -> Losses:
        """Return the terms and metrics of both. The priority is the other's, if it has one."""
        priority = self.priority if other.priority is None else other.priority
        return Losses({**self.terms, **other.terms}, {**self.metrics, **other.metrics}, priority)


def before(obs: Obs) -> Obs:
    """Return the observations of rows 0 ... T-2, ``[B, T - 1, ...]``: where the window's transitions start."""
    return {k: v[:, :-1] for k, v in obs.items()}


def after(obs: Obs) -> Obs:
    """Return the observations of rows 1 ... T-1, ``[B, T - 1, ...]``: where the window's transitions lead."""
    return {k: v[:, 1:] for k, v in obs.items()}


@accelerated
def mean_over(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of ``x`` ``[B, T - 1]`` where ``mask`` is 1, or 0 if that is nowhere.

    Raises:
        ValueError: the shapes differ. They are not broadcast, because that would not be a mean.
    """
    expect(x.shape, mask=mask)
    return (x * mask).sum() / mask.sum().clamp(min=1)


def td_targets(
    batch: Batch,
    value: Tensor,
    estimator: ValueEstimator,
    discount: float,
    reward: Tensor | None = None,
    within: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return the targets y of rows 0 ... T-2, ``[B, T - 1]``, from the ``value`` of rows 1 ... T-1, ``[B, T - 1]``.

    No target depends on the value of row 0. ``reward`` ``[B, T]`` replaces the batch's own. ``within`` clips the values
    first.

    Raises:
        ValueError: the values have another shape, such as ``[B, T - 1, 1]``.
    """
    if value.shape != batch.reward[:, 1:].shape:
        raise ValueError(
            f"values of shape {tuple(value.shape)}: expected [B, T - 1] = {tuple(batch.reward[:, 1:].shape)}."
        )
    if within is not None:
        value = within(value)
    return estimator.targets(
        reward=batch.reward if reward is None else reward,
        terminal=batch.is_terminal,
        last=batch.is_last,
        value=F.pad(value, (1, 0)),  # [B, T]
        discount=discount,
    )


@accelerated
def squared_error(prediction: Tensor, target: Tensor, batch: Batch, scale: float = 1.0) -> Losses:
    """Return the term ``critic``: scale E[w (Q - y)^2] over all actions taken, summed over the critics.

    Args:
        prediction: Q ``[B, T - 1]`` of one critic or ``[K, B, T - 1]`` of K.
        target: y ``[B, T - 1]``.
        batch: its weights ``[B]`` and ends of episodes are read.
        scale: factor of the loss; ``0.5`` in some papers.

    Raises:
        ValueError: the shapes do not fit, for example ``[B, T - 1, 1]``.
    """
    check_error(prediction, target)
    error = prediction - target  # [(K,) B, T-1]
    return critic_losses(error.square(), error.detach().abs(), prediction, target, batch, scale)


@accelerated
def huber_error(prediction: Tensor, target: Tensor, batch: Batch, kappa: float) -> Losses:
    """Return the term ``critic``: E[w L(Q - y)] over all actions taken, with the loss L of Huber (1964).

    L(u) = u^2 / 2 where |u| <= kappa and kappa (|u| - kappa / 2) beyond; its derivative is u clipped to
    [-kappa, kappa]. kappa is above 0 and may be infinite. The rest is as in :func:`squared_error`.
    """
    check_error(prediction, target)
    error = prediction - target  # [(K,) B, T-1]
    loss = F.huber_loss(error, torch.zeros_like(error), reduction="none", delta=kappa)
    return critic_losses(loss, error.detach().abs(), prediction, target, batch)


def check_error(prediction: Tensor, target: Tensor) -> None:
    """Raise ValueError unless the shapes are those of Q and y in :func:`squared_error`."""
    if prediction.shape[-2:] != target.shape or prediction.ndim > 3:
        raise ValueError(
            f"values of shape {tuple(prediction.shape)}: expected [(K,) B, T - 1] = {tuple(target.shape)}."
        )


def check_rows(target: Tensor, batch: Batch) -> None:
    """Raise ValueError unless ``target`` is ``[B, T - 1]`` for a batch ``[B, T]``."""
    windows, steps = target.shape
    expect((windows, steps + 1), is_last=batch.is_last)
    expect((windows,), weight=batch.weight)


def critic_losses(
    loss: Tensor, wrong: Tensor, value: Tensor, target: Tensor, batch: Batch, scale: float = 1.0
) -> Losses:
    """Return the term ``critic``: scale E[w loss] over all actions taken, summed over the critics.

    Args:
        loss: ``[B, T - 1]`` of one critic or ``[K, B, T - 1]`` of K.
        wrong: same shape; absolute error of each prediction, for the priorities.
        value: same shape; the predictions, for the metrics.
        target: y ``[B, T - 1]``.
        batch: its weights ``[B]`` and ends of episodes are read.
        scale: factor of the loss.
    """
    check_rows(target, batch)
    mask = transition_mask(batch.is_last)  # [B, T-1]
    weight = mask * (scale * batch.weight / mask.sum().clamp(min=1))[:, None]  # [B, T-1]
    total = (weight * loss).sum()
    with torch.no_grad():
        if loss.ndim > 2:
            wrong, value = wrong.mean(0), value.mean(0)  # [B, T-1]
        priority = (wrong * mask).sum(1) / mask.sum(1).clamp(min=1)  # [B]
        metrics = {
            "loss/critic": total.detach(),
            "train/value": mean_over(value, mask),
            "train/target": mean_over(target, mask),
        }
    return Losses({"critic": total}, metrics, priority)


def check_td(discount: float, tau: float, target_every: int = 1, value_estimator: ValueEstimator | None = None) -> None:
    """Raise ConfigError if a setting of temporal-difference learning is out of range."""
    if not 0 <= discount <= 1:
        raise ConfigError(f"discount = {discount}: expected a number in [0, 1].")
    if not 0 < tau <= 1:
        raise ConfigError(f"tau = {tau}: expected a number in (0, 1].")
    if value_estimator is not None and not isinstance(value_estimator, ValueEstimator):
        raise ConfigError(f"value_estimator = {value_estimator!r}: expected an estimator such as TD0() or NStep(3).")
    if target_every < 1:
        raise ConfigError(f"target_every = {target_every}: expected at least 1 update.")

"""Learning by temporal differences from windows of rows: what is predicted, for which rows, and how wrong it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.core.errors import ConfigError
from reverie.core.types import Batch, Metrics, Obs
from reverie.objectives import compiled_td
from reverie.objectives.estimators import ValueEstimator
from reverie.objectives.returns import followed


class Losses(NamedTuple):
    """What an objective says of a batch."""

    terms: dict[str, Tensor]
    """Scalars by name. The gradient of each reaches only the parameters that it is meant for."""
    metrics: Metrics
    """Scalars without gradient."""
    priority: Tensor | None = None
    """How wrong the critic was about each window, ``[B]``: the mean of abs(y - Q), or of the loss of a distribution."""

    def total(self) -> Tensor:
        """The sum of all terms: one backward pass for all of them."""
        return torch.stack(list(self.terms.values())).sum()

    def joined(self, other: Losses) -> Losses:
        """The terms and metrics of both."""
        priority = self.priority if other.priority is None else other.priority
        return Losses({**self.terms, **other.terms}, {**self.metrics, **other.metrics}, priority)


def before(obs: Obs) -> Obs:
    """The observations of rows 0 ... T-2, ``[B, T - 1, ...]``: where actions were taken whose outcome is known."""
    return {k: v[:, :-1] for k, v in obs.items()}


def after(obs: Obs) -> Obs:
    """The observations of rows 1 ... T-1, ``[B, T - 1, ...]``: where those actions led."""
    return {k: v[:, 1:] for k, v in obs.items()}


def mean_over(x: Tensor, mask: Tensor) -> Tensor:
    """The mean of ``x`` ``[B, T - 1]`` where ``mask`` is 1; 0 if that is nowhere."""
    if compiled_td.fits(x, mask) and x.numel():
        return compiled_td.masked_mean(x, mask)
    return (x * mask).sum() / mask.sum().clamp(min=1)


def bootstrapped(
    batch: Batch,
    value: Tensor,
    estimator: ValueEstimator,
    discount: float,
    reward: Tensor | None = None,
    within: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The targets y of rows 0 ... T-2, ``[B, T - 1]``, from the ``value`` of rows 1 ... T-1, ``[B, T - 1]``.

    No target depends on the value of row 0: there the action that was taken counts, not those that the policy prefers.
    ``reward`` ``[B, T]`` stands in the place of the batch's own. ``within`` brings values into a range first.

    Raises:
        ValueError: the values have other shapes, as those of a critic that keeps a last axis of one.
    """
    if value.shape != batch.reward[:, 1:].shape:
        raise ValueError(f"values {tuple(value.shape)}: expected [B, T - 1] = {tuple(batch.reward[:, 1:].shape)}.")
    if within is not None:
        value = within(value)
    return estimator.targets(
        reward=batch.reward if reward is None else reward,
        terminal=batch.is_terminal,
        last=batch.is_last,
        value=F.pad(value, (1, 0)),  # [B, T]
        discount=discount,
    )


def squared_error(prediction: Tensor, target: Tensor, batch: Batch, scale: float = 1.0) -> Losses:
    """The term ``critic``: scale E[w (Q - y)^2] over all actions taken, summed over the critics.

    Args:
        prediction: Q ``[B, T - 1]`` of one critic or ``[K, B, T - 1]`` of K.
        target: y ``[B, T - 1]``.
        batch: where weights ``[B]`` and ends of episodes are read.
        scale: ``0.5`` where a paper has it.

    Raises:
        ValueError: the shapes differ, as those of a critic that keeps a last axis of one.
    """
    check_error(prediction, target)
    if compiled_td.fits_error(prediction, target, batch):
        return _compiled(prediction, target, batch, scale)
    error = prediction - target  # [(K,) B, T-1]
    return critic_losses(error.square(), error.detach().abs(), prediction, target, batch, scale)


def huber_error(prediction: Tensor, target: Tensor, batch: Batch, kappa: float) -> Losses:
    """The term ``critic``: E[w L(Q - y)] over all actions taken, with the loss of Huber (1964).

    L(u) = u^2 / 2 where |u| <= kappa and kappa (|u| - kappa / 2) beyond; its derivative is u clipped to
    [-kappa, kappa]. kappa may be infinite. All else is as in :func:`squared_error`.
    """
    check_error(prediction, target)
    if compiled_td.fits_error(prediction, target, batch):
        return _compiled(prediction, target, batch, kappa=kappa)
    error = prediction - target  # [(K,) B, T-1]
    loss = F.huber_loss(error, torch.zeros_like(error), reduction="none", delta=kappa)
    return critic_losses(loss, error.detach().abs(), prediction, target, batch)


def check_error(prediction: Tensor, target: Tensor) -> None:
    """Raises ValueError if the shapes are not those of Q and y in :func:`squared_error`."""
    if prediction.shape[-2:] != target.shape or prediction.ndim > 3:
        raise ValueError(f"values {tuple(prediction.shape)}: expected [(K,) B, T - 1] = {tuple(target.shape)}.")


def _compiled(prediction: Tensor, target: Tensor, batch: Batch, scale: float = 1.0, kappa: float = -1.0) -> Losses:
    return losses_of(compiled_td.td_error(prediction, target, batch.is_last, batch.weight, scale, kappa))


def losses_of(found: compiled_td.Error) -> Losses:
    """The term ``critic``, its metrics and priorities."""
    metrics = {"loss/critic": found.loss.detach(), "train/value": found.predicted, "train/target": found.target}
    return Losses({"critic": found.loss}, metrics, found.priority)


def critic_losses(
    loss: Tensor, wrong: Tensor, value: Tensor, target: Tensor, batch: Batch, scale: float = 1.0
) -> Losses:
    """The term ``critic``, scale E[w loss] over all actions taken, summed over the critics; its metrics; priorities.

    Args:
        loss: ``[B, T - 1]`` of one critic or ``[K, B, T - 1]`` of K.
        wrong: the same; how wrong each prediction was, to draw windows by.
        value: the same; what was predicted.
        target: y ``[B, T - 1]``.
        batch: where weights ``[B]`` and ends of episodes are read.
        scale: a factor of the loss.
    """
    mask = followed(batch.is_last)  # [B, T-1]
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
    """Refuse what no learner with targets can have.

    Raises:
        ConfigError: one of them is out of range.
    """
    if not 0 <= discount <= 1:
        raise ConfigError(f"discount = {discount}: expected a number in [0, 1].")
    if not 0 < tau <= 1:
        raise ConfigError(f"tau = {tau}: expected a number in (0, 1].")
    if value_estimator is not None and not isinstance(value_estimator, ValueEstimator):
        raise ConfigError(f"value_estimator = {value_estimator!r}: expected an estimator such as TD0() or NStep(3).")
    if target_every < 1:
        raise ConfigError(f"target_every = {target_every}: expected every n-th update, n at least 1.")

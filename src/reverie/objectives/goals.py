"""Goal-conditioned learning: observations with their goals, and the losses that several methods share."""

from __future__ import annotations

import torch
from torch import Tensor

from reverie.core.specs import GOAL
from reverie.core.types import Batch, Obs
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, masked_mean, obs_after, obs_before
from reverie.objectives.transforms import exp

MAX_WEIGHT = 100.0
"""Upper bound of the weights of imitated actions: the authors' code."""


def goal_of(batch: Batch, name: str) -> Obs:
    """Return the goals called ``name`` of the transitions ``[B, 1]``, by the keys ``goal/KEY``."""
    prefix = f"{name}/"
    return {f"{GOAL}{key.removeprefix(prefix)}": x for key, x in batch.goals.items() if key.startswith(prefix)}


def start_and_goal(batch: Batch, name: str) -> Obs:
    """Return the observations at which the transitions ``[B, 1]`` start, with their goals called ``name``."""
    return obs_before(batch.obs) | goal_of(batch, name)


def next_and_goal(batch: Batch, name: str) -> Obs:
    """Return the observations to which the transitions ``[B, 1]`` lead, with their goals called ``name``."""
    return obs_after(batch.obs) | goal_of(batch, name)


def obs_of_goal(batch: Batch, name: str) -> Obs:
    """Return the goals called ``name`` of the transitions ``[B, 1]`` as observations: by their own keys."""
    return {key.removeprefix(GOAL): x for key, x in goal_of(batch, name).items()}


def rows_and_goal(batch: Batch, name: str) -> Obs:
    """Return the observations of both rows ``[B, 2]`` of the transitions, with their goals called ``name``."""
    return batch.obs | {key: x.expand(-1, 2, *x.shape[2:]) for key, x in goal_of(batch, name).items()}


def expectile_error(error: Tensor, advantage: Tensor, expectile: float) -> Tensor:
    """Abs(tau - 1(advantage < 0)) error^2, ``[...]``: the sign and the error may come from different targets."""
    return torch.where(advantage >= 0, expectile, 1 - expectile) * error.square()


def implicit_value_loss(values: Tensor, targets: Tensor, batch: Batch, discount: float, expectile: float) -> Losses:
    """Return the term ``value``: sum_i E[abs(tau - 1(A < 0)) (y_i - V_i(s, g))^2], as in OGBench's code.

    y_i = r + gamma (1 - terminal) V'_i(s', g),  A = min_i y_i - mean_i V'_i(s, g).

    Args:
        values: V_i(s, g) ``[K, B, 1]``.
        targets: V'_i of both rows ``[K, B, 2]``, by the target networks.
        batch: transitions ``[B, 2]``.
        discount: gamma.
        expectile: tau.
    """
    before, after = targets[..., :1], targets[..., 1:]  # [K, B, 1]
    y = batch.reward[:, 1:] + discount * ~batch.is_terminal[:, 1:] * after
    advantage, mask = y.amin(0) - before.mean(0), transition_mask(batch.is_last)  # [B, 1]
    loss = masked_mean(expectile_error(y - values, advantage, expectile).sum(0), mask)
    return Losses({"value": loss}, {"train/state_value": masked_mean(values.detach().mean(0), mask)})


def progress(values: Tensor) -> Tensor:
    """V(s', g) - V(s, g) ``[B, 1]`` of the values of both rows ``[B, 2]``: the advantage of an action."""
    return values[:, 1:] - values[:, :1]


def imitation_loss(log_pi: Tensor, advantage: Tensor, temperature: float, batch: Batch, part: str = "") -> Losses:
    """Return the term ``actor``: E[-min(exp(temperature A), 100) ln pi(a | s, g)], all ``[B, 1]``.

    ``part``: suffix of the names of the term and metrics.
    """
    mask = transition_mask(batch.is_last)
    weight = exp(temperature * advantage).clamp(max=MAX_WEIGHT)
    metrics = {"train/advantage": masked_mean(advantage, mask), "train/weight": masked_mean(weight, mask)}
    metrics = {f"{name}{part}": value for name, value in metrics.items()}
    return Losses({f"actor{part}": -masked_mean(weight * log_pi, mask)}, metrics)

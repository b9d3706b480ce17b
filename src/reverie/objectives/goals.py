"""Goal-conditioned learning: observations with their goals, and the losses that several methods share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.core.collectives import mean_across_ranks
from reverie.core.specs import GOAL
from reverie.core.types import Batch, Obs
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, masked_mean, obs_after, obs_before
from reverie.objectives.transforms import exp

MAX_WEIGHT = 100.0
"""Upper bound of the weights of imitated actions: the authors' code."""
SMALLEST_SIZE = 1e-6
"""Added to the mean absolute value by which values are divided: the authors' code."""
INTERVALS = 8
"""Number of intervals in a component of the interval quasimetric."""


def _goal_of(batch: Batch, name: str) -> Obs:
    """Return the goals called ``name`` of the transitions ``[B, 1]``, by the keys ``goal/KEY``."""
    prefix = f"{name}/"
    return {f"{GOAL}{key.removeprefix(prefix)}": x for key, x in batch.goals.items() if key.startswith(prefix)}


def start_and_goal(batch: Batch, name: str) -> Obs:
    """Return the observations at which the transitions ``[B, 1]`` start, with their goals called ``name``."""
    return obs_before(batch.obs) | _goal_of(batch, name)


def next_and_goal(batch: Batch, name: str) -> Obs:
    """Return the observations to which the transitions ``[B, 1]`` lead, with their goals called ``name``."""
    return obs_after(batch.obs) | _goal_of(batch, name)


def obs_of_goal(batch: Batch, name: str) -> Obs:
    """Return the goals called ``name`` of the transitions ``[B, 1]`` as observations: by their own keys."""
    return {key.removeprefix(GOAL): x for key, x in _goal_of(batch, name).items()}


def rows_and_goal(batch: Batch, name: str) -> Obs:
    """Return the observations of both rows ``[B, 2]`` of the transitions, with their goals called ``name``."""
    return batch.obs | {key: x.expand(-1, 2, *x.shape[2:]) for key, x in _goal_of(batch, name).items()}


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


def value_imitation_loss(value: Tensor, log_pi: Tensor, weight: float, batch: Batch) -> Losses:
    """Return the term ``actor``: -E[Q] / E[abs(Q)] - weight E[ln pi(a | s, g)], where the divisor has no gradient.

    DDPG+BC: Fujimoto and Gu 2021, equations 3 and 5, with the sizes of both terms exchanged.

    Args:
        value: Q of the policy's actions ``[B, 1]``.
        log_pi: of the dataset's actions ``[B, 1]``.
        weight: of imitation.
        batch: transitions ``[B, 2]``.
    """
    mask = transition_mask(batch.is_last)
    size = mean_across_ranks(masked_mean(value.detach().abs(), mask)) + SMALLEST_SIZE
    imitation = -masked_mean(log_pi, mask)
    metrics = {"loss/bc": imitation.detach(), "train/lambda": 1 / size}
    return Losses({"actor": weight * imitation - masked_mean(value, mask) / size}, metrics)


def contrastive_loss(logits: Tensor) -> Tensor:
    """Return the mean of -ln sigmoid(f_ii) and -ln(1 - sigmoid(f_ij)) over all pairs ``[K, B, B]`` of states and goals.

    Eysenbach et al. 2022, equation 3: state i leads to goal i; other goals j are of other states.
    """
    same = torch.eye(logits.shape[-1], dtype=logits.dtype, device=logits.device)
    return F.binary_cross_entropy_with_logits(logits, same.expand_as(logits))


def interval_distance(start: Tensor, goal: Tensor, mixture: Tensor) -> Tensor:
    """Return the interval quasimetric ``[...]`` from ``start`` to ``goal``, both ``[..., D]``.

    Wang and Isola 2022, "Improved representation of asymmetrical distances with interval quasimetric embeddings",
    equation 3: each component is the length of the union of 8 intervals from start_k to goal_k, if start_k < goal_k.
    The distance is the mean of the components times ``mixture`` and their maximum times 1 - ``mixture``.
    """
    low, order = start.reshape(*start.shape[:-1], -1, INTERVALS).sort(-1)  # [..., D / 8, 8]
    high = goal.reshape(*start.shape[:-1], -1, INTERVALS).gather(-1, order)
    high = torch.where(high > low, high, low)  # empty intervals cover nothing
    covered = F.pad(high.cummax(-1).values[..., :-1], (1, 0), value=-torch.inf)  # up to here, by intervals before
    component = (high - torch.where(covered > low, covered, low)).clamp(min=0).sum(-1)  # [..., D / 8]
    return mixture * component.mean(-1) + (1 - mixture) * component.amax(-1)

"""Goal-conditioned learning: observations with their goals, and the losses that several methods share."""

from __future__ import annotations

import torch
from torch import Tensor

from reverie.core.specs import GOAL
from reverie.core.types import Batch, Obs
from reverie.objectives.td import obs_after, obs_before
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


def expectile_error(error: Tensor, advantage: Tensor, expectile: float) -> Tensor:
    """Abs(tau - 1(advantage < 0)) error^2, ``[...]``: the sign and the error may come from different targets."""
    return torch.where(advantage >= 0, expectile, 1 - expectile) * error.square()


def imitation_weight(advantage: Tensor, temperature: float) -> Tensor:
    """min(exp(temperature advantage), 100), ``[...]``, of advantage-weighted regression."""
    return exp(temperature * advantage).clamp(max=MAX_WEIGHT)

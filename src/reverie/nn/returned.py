"""What was earned from each row on, as a column beside rows: datasets know it, and policies that live them do not."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from reverie.core.types import Mode, Step
from reverie.nn.exploration import SampledPolicy

RETURN = "return"
"""The name of the column."""


class Later(NamedTuple):
    """The row behind those that are looked at."""

    first: bool = True
    worth: float = -math.inf
    reward: float = 0.0


def returns_to_go(
    *,
    reward: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
    terminal: np.ndarray,
    discount: float,
    later: Later = Later(),  # noqa: B008 - it cannot be changed
) -> np.ndarray:
    """What a stream of rows earned from each on, float32 ``[n]``: G_t = r_{t+1} + gamma G_{t+1}, 0 where terminal.

    It is -inf where that is not known: in episodes that were cut off by a time limit, by a failure or by the end of the
    stream.

    Args:
        reward: ``[n]``, the reward that came with each row.
        first: ``[n]`` bool; so are ``last`` and ``terminal``.
        last: where an episode ends.
        terminal: ... and the future is worth nothing.
        discount: gamma.
        later: the row behind the last one; the stream ends unless it is given.
    """
    ends = last | np.append(first[1:], later.first)
    rows = zip(reward[::-1].tolist(), ends[::-1].tolist(), terminal[::-1].tolist(), strict=True)
    found, worth, gained = [], later.worth, later.reward
    for earned, end, terminated in rows:
        if end:
            worth = 0.0 if terminated else -math.inf
        elif worth > -math.inf:
            worth = gained + discount * worth
        found.append(worth)
        gained = earned
    return np.array(found[::-1], np.float32)


class Unreturned(SampledPolicy):
    """Draws actions, and stores with each row that what it will have earned is not known."""

    def initial(self, num_envs: int) -> Any:
        """``[N]``, what is stored."""
        return torch.full((num_envs,), -math.inf)

    def act(self, step: Step, state: Any, mode: Mode) -> tuple[Tensor, Any]:
        """``(action [N, A] on the CPU, state)``."""
        action, _ = super().act(step, None, mode)
        return action, state

    def override(self, state: Any, action: Tensor) -> Any:
        """It stays what it is."""
        return state

    def extras(self, state: Any) -> dict[str, Tensor]:
        """One number for each environment."""
        return {RETURN: state}

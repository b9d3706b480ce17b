"""Returns-to-go as an extra column of rows, for Cal-QL.

They are computed for datasets as they are read. In rows that a run collects they are unknown (-inf) until the episode
has ended.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from reverie.core.protocols import RowStorage
from reverie.core.specs import EXTRAS
from reverie.core.types import FLAGS, Mode, Step
from reverie.nn.exploration import SampledPolicy

RETURN = "return"
"""Name of the column."""


class Later(NamedTuple):
    """The row after the given ones: whether it is first, its return-to-go, and the reward that came with it."""

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
    """Return the return-to-go of each row of a stream, float32 ``[n]``: G_t = r_{t+1} + gamma G_{t+1}, 0 if terminal.

    It is -inf where it is unknown: in episodes that were cut off by a time limit, by a failure or by the end of the
    stream.

    Args:
        reward: ``[n]``, the reward that came with each row.
        first: ``[n]`` bool; so are ``last`` and ``terminal``.
        last: whether the row is its episode's last.
        terminal: whether the environment ended the episode there, so that its return-to-go is 0.
        discount: gamma, in [0, 1].
        later: the row after the last one; without it the stream ends.
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


class ReturnsInHindsight:
    """Writes the returns-to-go of an episode's rows when a terminal row has ended it. A ``Hindsight``."""

    def __init__(self, discount: float) -> None:
        self.discount = discount
        self.begun: list[int] = []  # number of the row at which each stream's episode began

    def added(self, storage: RowStorage, step: Step) -> None:
        """See ``Hindsight``."""
        now, self.begun = storage.count - 1, self.begun or [storage.oldest] * storage.streams
        for stream, (first, terminal) in enumerate(zip(step.is_first.tolist(), step.is_terminal.tolist(), strict=True)):
            if first:
                self.begun[stream] = now
            if terminal:
                self._write(storage, stream, self.begun[stream])

    def filled(self, storage: RowStorage) -> None:
        """See ``Hindsight``."""
        self.begun = [self._write(storage, stream, storage.oldest) for stream in range(storage.streams)]

    def _write(self, storage: RowStorage, stream: int, start: int) -> int:
        """Write the returns-to-go of a stream's rows from ``start`` on; return where its last episode begins."""
        start = max(start, storage.oldest)  # an episode may be longer than the memory
        names = ["reward", *FLAGS]
        rows = storage.read(start, storage.count, names, stream)
        reward, first, last, terminal = (rows[name][0] for name in names)
        found = returns_to_go(reward=reward, first=first, last=last, terminal=terminal, discount=self.discount)
        storage.replace(EXTRAS + RETURN, start, stream, found)
        begins = np.flatnonzero(first)
        return start + int(begins[-1]) if len(begins) else start


class Unreturned(SampledPolicy):
    """A stochastic policy that stores -inf (unknown) as the return-to-go of each row."""

    def initial(self, num_envs: int) -> Any:
        """Return the values to store, -inf ``[N]``."""
        return torch.full((num_envs,), -math.inf)

    def act(self, step: Step, state: Any, mode: Mode) -> tuple[Tensor, Any]:
        """Return ``(action [N, A] on the CPU, state)``."""
        action, _ = super().act(step, None, mode)
        return action, state

    def extras(self, state: Any) -> dict[str, Tensor]:
        """Return the column's values, one for each environment."""
        return {RETURN: state}

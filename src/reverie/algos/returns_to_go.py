"""Returns-to-go and time steps that are stored with recorded rows, for Cal-QL and Decision Transformer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.core import types
from reverie.core.protocols import RowStorage
from reverie.core.specs import EXTRAS
from reverie.core.types import FLAGS, Step
from reverie.nn.exploration import SampledPolicy, ignore_executed
from reverie.objectives.returns import returns_to_go

RETURN_TO_GO_COLUMN = "return"
"""Name of the column of returns-to-go."""
TIMESTEP_COLUMN = "timestep"
"""Name of the column of time steps: the number of rows before each row in its episode."""


class ReturnToGoAnnotator:
    """Writes the returns-to-go of an episode's rows once a terminal row has ended it. A ``RowAnnotator``.

    With ``ends_at_limits``, an episode that a time limit has ended has returns too: nothing follows its last row. With
    ``has_timesteps``, it also writes time steps.
    """

    def __init__(self, discount: float, *, ends_at_limits: bool = False, has_timesteps: bool = False) -> None:
        self.discount = discount
        self.ends_at_limits = ends_at_limits
        self.has_timesteps = has_timesteps
        self.begun: list[int] = []  # number of the row at which each stream's episode began

    def on_add(self, storage: RowStorage, step: Step) -> None:
        row, self.begun = storage.count - 1, self.begun or [storage.oldest] * storage.streams
        ends = step.is_last if self.ends_at_limits else step.is_terminal
        for stream, (first, end) in enumerate(zip(step.is_first.tolist(), ends.tolist(), strict=True)):
            if first:
                self.begun[stream] = row
            if end:
                self._write(storage, stream, self.begun[stream])

    def on_extend(self, storage: RowStorage) -> None:
        self.begun = [self._write(storage, stream, storage.oldest) for stream in range(storage.streams)]

    def _write(self, storage: RowStorage, stream: int, start: int) -> int:
        """Write the returns-to-go of a stream's rows from ``start`` on; return where its last episode begins."""
        start = max(start, storage.oldest)  # an episode may be longer than the replay buffer
        names = ["reward", *FLAGS]
        rows = storage.read(start, storage.count, names, stream)
        reward, first, last, terminal = (rows[name][0] for name in names)
        terminal = last if self.ends_at_limits else terminal
        returns = returns_to_go(reward=reward, first=first, last=last, terminal=terminal, discount=self.discount)
        storage.replace(EXTRAS + RETURN_TO_GO_COLUMN, start, stream, returns)
        begins = np.flatnonzero(first)
        if self.has_timesteps:
            storage.replace(EXTRAS + TIMESTEP_COLUMN, start, stream, timesteps(begins, np.arange(len(first))))
        return start + int(begins[-1]) if len(begins) else start


def timesteps(begins: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the time steps ``[n]``, float32, of ``rows`` ``[n]``, given the rows at which episodes begin, ascending.

    Row 0 counts as the begin of an episode too.
    """
    begins = np.append(0, begins)
    return (rows - begins[np.searchsorted(begins, rows, "right") - 1]).astype(np.float32)


class UnknownReturnPolicy(SampledPolicy):
    """A stochastic policy that stores -inf (unknown) as the return-to-go of each row."""

    override = ignore_executed

    def initial(self, num_envs: int) -> Any:
        return torch.full((num_envs,), -math.inf)

    def act(self, step: Step, state: object, mode: types.Mode) -> tuple[Tensor, Any]:
        action, _ = super().act(step, None, mode)
        return action, state

    def extras(self, state: Any) -> dict[str, Tensor]:
        return {RETURN_TO_GO_COLUMN: state}

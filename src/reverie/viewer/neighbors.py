"""How often the data has a row like the one where truth and dream part."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from reverie.agent.agent import Agent
from reverie.agent.world_model_inspector import WorldModelInspector
from reverie.core.errors import ReverieError
from reverie.core.types import Obs
from reverie.viewer.goals import read_recorded_rows

NUM_SAMPLED, MAX_SECONDS = 200, 3.0
"""Recorded rows whose nearest neighbors say what is usual; seconds after which no more of the data is read."""


class RecordedRows:
    """Rows of a world model's data, drawn uniformly; none if the data is not there, or rows are pictures alone."""

    def __init__(self, agent: Agent, data: str | None = None) -> None:
        """``data``: dataset to read; None: the run's."""
        kinds = {key: agent.obs_spec[key].kind for key in WorldModelInspector(agent).keys}
        self.kind: str = next((kind for kind in ("categorical", "vector") if kind in kinds.values()), "")
        self.keys: list[str] = [key for key, kind in kinds.items() if kind == self.kind]
        self.rows: Tensor = torch.empty(0)  # [M, D]
        if self.keys:
            with contextlib.suppress(ReverieError, OSError):
                self.rows = self._flatten(read_recorded_rows(agent, data, MAX_SECONDS))
        if self.kind == "vector" and len(self.rows) > 1:
            self.scale: Tensor = self.rows.std(0).clamp(min=1e-6)
            distances = self._distances(self.rows[:NUM_SAMPLED])  # [S, M], each to itself too
            self.usual: float = float(distances.topk(2, largest=False).values[:, 1].median())

    def _flatten(self, obs: Obs) -> Tensor:
        return torch.cat([obs[key].flatten(1).float() for key in self.keys], -1)

    def _distances(self, rows: Tensor) -> Tensor:
        return torch.cdist(rows / self.scale, self.rows / self.scale, compute_mode="donot_use_mm_for_euclid_dist")

    def describe(self, obs: Obs) -> str:
        """Say how often a row ``[1, ...]`` is in the data, or how far the nearest one is; "" if this is unknown."""
        count = len(self.rows)
        if count < 2:
            return ""
        row = self._flatten(obs)
        if self.kind == "categorical":
            return f"{int((self.rows == row).all(-1).sum()):,} of {count:,} rows of the data have the same classes."
        ratio = float(self._distances(row).min()) / max(self.usual, 1e-12)
        return (
            f"The nearest of {count:,} rows of the data is {ratio:.2g} times as far as such rows are from each other."
        )

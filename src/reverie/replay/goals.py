"""Goals of sampled transitions: observations of other stored rows, for goal-conditioned learning.

Source: Park et al. 2025, OGBench, arXiv 2410.20092, with the distributions of its code (impls/utils/datasets.py).

An episode with rows ``b`` to ``e`` has transitions from its rows ``b`` to ``e - 1``. No goal is its last row ``e``::

    row            b  ...  t  t+1  ...  e-1  e
    current                x
    episode                   x   ...   x         geometric: t + k, at most e - 1, with P(k) = gamma^(k-1) (1 - gamma)
    random         any row of the data at which a sampled transition can start

**Success is judged before the action, by the row's number**: transition ``t`` reaches its goal if the goal is row
``t`` itself. Its reward is then 0, without a value of the future, and -1 otherwise. Environments, and hindsight
experience replay, judge the row to which the action leads: their rewards do not fit these.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from reverie.core.goals import VALUE, GoalSampling, GoalShares
from reverie.core.seeding import GeneratorState
from reverie.core.types import Window
from reverie.replay.episodes import EpisodeBounds
from reverie.replay.storage import Storage
from reverie.replay.windows import Windows

GOALS = "goals/"
"""Name prefix of the columns of goals ``goals/NAME/KEY`` among sampled rows."""


class GoalSampler(GeneratorState):
    """Adds goals to sampled transitions of a storage."""

    def __init__(self, storage: Storage, window: Window, windows: Windows, config: GoalSampling, seed: int) -> None:
        """``windows``: of two rows within one episode; random goals are their first learned rows."""
        self.storage = storage
        self.context: int = window.context
        self.windows = windows
        self.config = config
        self.rng: np.random.Generator = np.random.default_rng([seed, 100])  # samplers have smaller numbers
        self.episodes: EpisodeBounds = EpisodeBounds(storage)

    def annotate(self, rows: dict[str, Tensor], handles: Tensor) -> None:
        """Add goals ``goals/NAME/KEY`` ``[B, context + 1, ...]`` to windows ``[B, T, ...]`` that begin at ``handles``.

        The goals :data:`VALUE` also replace ``reward`` and ``is_terminal`` of the windows' last rows.
        """
        row, stream = np.divmod(handles.numpy(), self.storage.streams)  # [B]
        row = row + self.context
        goals = self.draw(row, stream)
        if VALUE in goals:
            reached = torch.from_numpy(goals[VALUE] == row * self.storage.streams + stream).to(rows["reward"].device)
            rows["reward"][:, -1] = reached.float() - 1
            rows["is_terminal"][:, -1] = reached
        size, past = len(handles), self.config.context + 1
        sources = self._with_context(np.concatenate(list(goals.values())))  # [G B (context + 1)]
        for key in self.config.keys:
            values = self.storage.gather_column(f"obs/{key}", sources)
            for goal, part in zip(goals, values.view(len(goals), size, past, *values.shape[1:]), strict=True):
                rows[f"{GOALS}{goal}/{key}"] = part

    def draw(self, row: np.ndarray, stream: np.ndarray) -> dict[str, np.ndarray]:
        """Return handles of goals ``[B]`` by name, for transitions from ``row`` ``[B]`` of ``stream`` ``[B]``."""
        streams, steps = self.storage.streams, self.config.subgoal_steps
        last = self.episodes.find(row, stream)[1] - 1  # the last row with an action
        goals = {}
        for name, shares in self.config.shares.items():
            goal, is_random = self._draw_rows(shares, row, last)
            handles = goal * streams + stream
            handles[is_random] = self._draw_random(int(is_random.sum()))
            goals[name] = handles
            if name == "actor" and steps:
                goals["low"] = np.minimum(row + steps, last) * streams + stream
                goals["high"] = np.minimum(row + steps, np.where(is_random, last, goal)) * streams + stream
        return goals

    def _draw_rows(self, shares: GoalShares, row: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return rows ``[B]`` of the same episodes, and which of them random goals replace, bool ``[B]``."""
        coin = self.rng.random(len(row))
        if shares.geometric:
            goal = np.minimum(row + self.rng.geometric(1 - self.config.discount, len(row)), last)
        else:  # rounded, so that the first and the last of the later rows have half the weight of those between
            part = self.rng.random(len(row))
            goal = np.round(part * np.minimum(row + 1, last) + (1 - part) * last).astype(np.int64)
        return np.where(coin < shares.current, row, goal), coin >= shares.current + shares.episode

    def _draw_random(self, count: int) -> np.ndarray:
        """Return handles ``[count]`` of rows at which transitions can start, uniformly."""
        first = self.windows.queue.handles
        return first[self.rng.integers(len(first), size=count)] + self.context * self.storage.streams

    def _with_context(self, handles: np.ndarray) -> np.ndarray:
        """Return ``handles`` ``[R]``, each after those of its context: ``[R (context + 1)]``."""
        if not self.config.context:
            return handles
        row, stream = np.divmod(handles, self.storage.streams)
        begin = self.episodes.find(row, stream)[0]
        lags = np.arange(self.config.context, -1, -1)
        rows = np.maximum(row[:, None] - lags, begin[:, None])
        with_context: np.ndarray = rows * self.storage.streams + stream[:, None]
        return with_context.ravel()

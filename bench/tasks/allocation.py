"""Multi-discrete allocation: how many crews does each of four sites get?"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from .base import Task, box, numbers

SITES, MOST, CREWS = 4, 5, 8
WEIGHTS = np.array([1.0, 1.5, 2.0, 3.0])


class Allocation(Task):
    """Send crews to four sites every day for 50 days; each site may ask for 0 to 5, and there are 8.

    Observes the work left at each site, the new work that is expected there, and the day. The reward is minus the
    weighted work left, minus 2 for each crew beyond 8, minus 0.3 for each crew that moved.
    """

    steps = 50

    def __init__(self) -> None:
        high = numbers(np.full(SITES, 50), np.full(SITES, 5), self.steps)
        self.observation_space = box(np.zeros(2 * SITES + 1), high)
        self.action_space = gymnasium.spaces.MultiDiscrete([MOST + 1] * SITES)

    def begin(self) -> None:
        self.left = self.np_random.uniform(0, 3, SITES)
        self.crews = np.zeros(SITES)
        self.expect()

    def expect(self) -> None:
        self.expected = np.clip(self.np_random.gamma(2.0, 0.8, SITES), 0, 5)

    def act(self, action: Any) -> tuple[float, bool]:
        crews = np.asarray(action, float)
        moved = np.clip(crews - self.crews, 0, None).sum()
        beyond = max(0.0, crews.sum() - CREWS)
        useful = crews * min(1.0, CREWS / max(1.0, crews.sum()))
        arriving = self.np_random.poisson(self.expected)
        self.left = np.clip(self.left + arriving - useful, 0, 50)
        self.crews = crews
        self.expect()
        return -float(WEIGHTS @ self.left) / 4 - 2 * beyond - 0.3 * moved, False

    def observe(self) -> np.ndarray:
        return numbers(self.left, self.expected, self.time)

    def heuristic(self, obs: np.ndarray) -> np.ndarray:
        need = obs[:SITES] + obs[SITES : 2 * SITES]
        crews = np.zeros(SITES, np.int64)
        for _ in range(CREWS):
            urgent = WEIGHTS * np.clip(need - crews, 0, 1) * (crews < MOST)
            if urgent.max() > 0.3:
                crews[urgent.argmax()] += 1
        return crews

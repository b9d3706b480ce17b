"""An inventory with large numbers: orders arrive two weeks later, and what is missing is expensive."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import Task, box, numbers

MOST, PROFIT, HOLDING, MISSING, ORDER = 500.0, 3.0, 0.5, 20.0, 50.0
DELAY = 2


class Inventory(Task):
    """Order goods every week for two years; orders arrive after two weeks.

    Observes the stock (negative: customers wait), the two orders on the way, the last demand, and the season. The
    reward is 3 for each unit of demand, minus 0.5 for each in stock, minus 20 for each that a customer waits for, minus
    50 for an order.
    """

    steps = 104

    def __init__(self) -> None:
        self.observation_space = box([-5e3, 0, 0, 0, -1, -1], [5e4, MOST, MOST, 1e3, 1, 1])
        self.action_space = box([0], [MOST])

    def begin(self) -> None:
        self.stock = self.np_random.uniform(50, 300)
        self.coming = self.np_random.uniform(50, 150, DELAY)
        self.demand, self.phase = 100.0, self.np_random.uniform(0, 2 * np.pi)

    def act(self, action: Any) -> tuple[float, bool]:
        order = float(np.clip(np.ravel(action)[0], 0, MOST))
        self.stock += self.coming[0]
        self.coming = np.append(self.coming[1:], order)
        mean = 100 + 40 * np.sin(self.phase + 2 * np.pi * self.time / 52)
        self.demand = float(self.np_random.poisson(mean))
        self.stock = float(np.clip(self.stock - self.demand, -5e3, 5e4))
        holding, missing = HOLDING * max(0.0, self.stock), MISSING * max(0.0, -self.stock)
        return PROFIT * self.demand - holding - missing - ORDER * (order > 1), False

    def observe(self) -> np.ndarray:
        angle = self.phase + 2 * np.pi * self.time / 52
        return numbers(self.stock, self.coming, self.demand, np.sin(angle), np.cos(angle))

    def heuristic(self, obs: np.ndarray) -> np.ndarray:
        stock, first, second, _, sine, _ = map(float, obs)
        wanted = 3 * (100 + 40 * sine) + 60
        return numbers(np.clip(wanted - stock - first - second, 0, MOST))

"""Storage and prices: a battery buys energy when it is cheap, and sells it when it is dear."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import Task, box, numbers

CAPACITY, POWER, EFFICIENCY, WEAR = 40.0, 10.0, 0.92, 0.3  # kWh, kWh in an hour, share, cents per kWh


class Battery(Task):
    """Trade with a battery for a week of hours.

    Observes the charge (kWh), the price (cents per kWh), the hour of the day as sine and cosine, and the demand of the
    house (kWh), which has to be bought unless the battery serves it. The action is the power of the battery, from -1
    (sell) to 1 (buy). The reward is the income in units of 10 cents, compared with a house without a battery.
    """

    steps = 168

    def __init__(self) -> None:
        self.observation_space = box([0, 0, -1, -1, 0], [CAPACITY, 100, 1, 1, 20])
        self.action_space = box([-1], [1])

    def begin(self) -> None:
        self.charge = self.np_random.uniform(0, CAPACITY)
        self.level, self.shift = self.np_random.uniform(15, 25), self.np_random.uniform(-2, 2)
        self.noise = 0.0
        self.advance()

    def advance(self) -> None:
        hour = self.time % 24
        self.noise = 0.8 * self.noise + 1.5 * self.np_random.normal()
        daily = 6 * np.sin(2 * np.pi * (hour + self.shift - 9) / 24) + 3 * np.sin(4 * np.pi * (hour - 5) / 24)
        self.price = float(np.clip(self.level + daily + self.noise, 1, 100))
        self.demand = float(np.clip(2 + np.sin(2 * np.pi * (hour - 12) / 24) + 0.3 * self.np_random.normal(), 0, 20))

    def act(self, action: Any) -> tuple[float, bool]:
        energy = POWER * float(np.clip(np.ravel(action)[0], -1, 1))
        if energy > 0:
            stored = min(energy * EFFICIENCY, CAPACITY - self.charge)
            cents = -self.price * stored / EFFICIENCY
        else:
            stored = -min(-energy, self.charge)
            sold = -stored * EFFICIENCY
            home = min(sold, self.demand)
            cents = self.price * home + 0.8 * self.price * (sold - home)
        self.charge += stored
        reward = (cents - WEAR * abs(stored)) / 10
        self.advance()
        return reward, False

    def observe(self) -> np.ndarray:
        angle = 2 * np.pi * self.time / 24
        return numbers(self.charge, self.price, np.sin(angle), np.cos(angle), self.demand)

    def heuristic(self, obs: np.ndarray) -> np.ndarray:
        price, usual = float(obs[1]), self.level
        return numbers(1.0 if price < usual - 4 else -1.0 if price > usual + 3 else 0.0)

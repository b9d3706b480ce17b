"""Badly scaled control: a chamber in kelvin and pascals, with a heater in watts and a pump in pascals a minute."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import Task, box, numbers

HEAT_CAPACITY = 4e5  # J/K
LOSS = 60.0  # W/K
MINUTE = 60.0  # s
AIR = 101_325.0  # Pa
LEAK = 0.03  # of the overpressure, a minute
WATTS, PASCALS = 4000.0, 3000.0


class Thermostat(Task):
    """Hold a chamber at a temperature and at a pressure for 200 minutes.

    Observes its temperature and the wanted one, the temperature outside (K), its pressure and the wanted one (Pa). The
    reward is minus the squared error in kelvin, minus that in kilopascals, minus the heat in kilowatt-hours.
    """

    steps = 200

    def __init__(self) -> None:
        self.observation_space = box([200, 200, 200, 5e4, 5e4], [400, 400, 400, 3e5, 3e5])
        self.action_space = box([-WATTS, -PASCALS], [WATTS, PASCALS])

    def begin(self) -> None:
        random = self.np_random
        self.outside = random.uniform(278, 298)
        self.temperature = self.outside + random.uniform(0, 4)
        self.wanted = random.uniform(300, 315)
        self.pressure = AIR
        self.wanted_pressure = AIR + random.uniform(5e3, 2.5e4)

    def act(self, action: Any) -> tuple[float, bool]:
        watts, pascals = np.clip(action, self.action_space.low, self.action_space.high).astype(float)
        lost = LOSS * (self.temperature - self.outside)
        self.temperature += MINUTE * (watts - lost) / HEAT_CAPACITY + 0.02 * self.np_random.normal()
        self.pressure += pascals - LEAK * (self.pressure - AIR) + 20 * self.np_random.normal()
        self.outside += 0.02 * self.np_random.normal()
        error = self.temperature - self.wanted
        error_pressure = (self.pressure - self.wanted_pressure) / 1e3
        return -(error**2) - error_pressure**2 - abs(watts) * MINUTE / 3.6e6, False

    def observe(self) -> np.ndarray:
        return numbers(self.temperature, self.wanted, self.outside, self.pressure, self.wanted_pressure)

    def heuristic(self, obs: np.ndarray) -> np.ndarray:
        temperature, wanted, outside, pressure, wanted_pressure = obs
        watts = LOSS * (wanted - outside) + 3000 * (wanted - temperature)
        pascals = LEAK * (wanted_pressure - AIR) + 0.5 * (wanted_pressure - pressure)
        return np.clip(numbers(watts, pascals), self.action_space.low, self.action_space.high)

"""Admission to a queue: which customers are worth the wait of all others?"""

from __future__ import annotations

import gymnasium
import numpy as np

from .base import Task, box, numbers

VALUES = np.array([2.0, 6.0, 15.0])  # of a customer that is served
SHARES = np.array([0.5, 0.3, 0.2])
PLACES, SERVED, WAITING = 20, 0.45, 0.15


class Admission(Task):
    """Admit a customer, or send it away: 300 arrivals, of which the server serves less than a half.

    Observes the number of customers in the queue, the value of the arriving one, and how busy the hour is. The reward
    is the value of an admitted customer, minus a cost for each in the queue; one that finds no place costs 10.
    """

    steps = 300

    def __init__(self) -> None:
        self.observation_space = box([0, 0, 0], [PLACES, VALUES.max(), 1])
        self.action_space = gymnasium.spaces.Discrete(2)

    def begin(self) -> None:
        self.queue = 0
        self.phase = self.np_random.uniform(0, 2 * np.pi)
        self.arrive()

    def arrive(self) -> None:
        self.value = float(self.np_random.choice(VALUES, p=SHARES))
        self.busy = 0.5 + 0.4 * np.sin(self.phase + 2 * np.pi * self.time / 100)

    def act(self, action: int) -> tuple[float, bool]:
        reward = 0.0
        if action == 1 and self.queue < PLACES:
            self.queue += 1
            reward += self.value
        elif action == 1:
            reward -= 10
        arrivals_take = 1.6 - self.busy  # time between two arrivals is short in busy hours
        served = self.np_random.binomial(2, min(1.0, SERVED * arrivals_take / 2))
        self.queue = max(0, self.queue - int(served))
        reward -= WAITING * self.queue
        self.arrive()
        return reward, False

    def observe(self) -> np.ndarray:
        return numbers(self.queue, self.value, self.busy)

    def heuristic(self, obs: np.ndarray) -> int:
        queue, value, _ = obs
        return int(value > 10 or (value > 4 and queue < 6) or queue < 2)

"""Scheduling with a mask: which of the waiting jobs does a machine do next?"""

from __future__ import annotations

import gymnasium
import numpy as np

from .base import Task, box, numbers

PLACES, KINDS, SETUP = 6, 3, 3


class Scheduling(Task):
    """Choose the next job of a machine among six places, 80 times; another kind of job takes three hours of setup.

    Observes for each place whether there is a job, its hours, the hours until it is due, and its kind, and the kind of
    the last job. Only places with a job may be chosen: others cost 5 and an hour. The reward is 2 for a finished job,
    minus a tenth of the hours by which it is late.
    """

    steps = 80

    def __init__(self) -> None:
        high = numbers(np.tile([1, 10, 100, *[1] * KINDS], PLACES), [1] * KINDS)
        low = numbers(np.tile([0, 0, -1000, *[0] * KINDS], PLACES), [0] * KINDS)
        self.observation_space = box(low, high)
        self.action_space = gymnasium.spaces.Discrete(PLACES)

    def begin(self) -> None:
        self.jobs = np.zeros((PLACES, 4))  # whether there is one, hours, hours until it is due, kind
        self.kind = int(self.np_random.integers(KINDS))
        for _ in range(3):
            self.arrive()

    def arrive(self) -> None:
        free = np.flatnonzero(self.jobs[:, 0] == 0)
        if len(free):
            hours = self.np_random.integers(1, 6)
            due = hours + self.np_random.integers(4, 40)
            self.jobs[self.np_random.choice(free)] = [1, hours, due, self.np_random.integers(KINDS)]

    def act(self, action: int) -> tuple[float, bool]:
        job, hours, reward = self.jobs[int(action)], 1.0, -5.0
        if job[0]:
            hours = job[1] + SETUP * (int(job[3]) != self.kind)
            self.kind = int(job[3])
            reward = 2 - 0.1 * max(0.0, hours - job[2])
            job[:] = 0
        self.jobs[:, 2] = np.where(self.jobs[:, 0] == 1, np.maximum(self.jobs[:, 2] - hours, -1000), 0)
        for _ in range(max(int(not self.jobs[:, 0].any()), self.np_random.poisson(0.22 * hours))):
            self.arrive()
        return reward, False

    def action_masks(self) -> np.ndarray:
        """Return which places have a job."""
        return self.jobs[:, 0] == 1

    def observe(self) -> np.ndarray:
        kinds = np.eye(KINDS)[self.jobs[:, 3].astype(int)] * self.jobs[:, :1]
        return numbers(np.hstack([self.jobs[:, :3], kinds]), np.eye(KINDS)[self.kind])

    def heuristic(self, obs: np.ndarray) -> int:
        there, hours, due, kind = self.jobs.T
        waits = hours + SETUP * (kind != self.kind)
        return int(np.argmin(np.where(there == 1, 2 * waits + np.clip(due, 0, None) * 0.2, np.inf)))

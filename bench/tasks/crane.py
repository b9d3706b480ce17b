"""A crane: a trolley carries a load on a rope, which swings."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import Task, box, numbers

TROLLEY, LOAD, ROPE, FORCE, RAIL = 200.0, 300.0, 4.0, 500.0, 12.0  # kg, kg, m, N, m
GRAVITY, FRICTION, DAMPING, STEP = 9.8, 20.0, 0.05, 0.1  # m/s^2, N s/m, 1/s, s
NEAR, STILL = 0.3, 0.3  # m, m/s


class Crane(Task):
    """Bring a hanging load to a place, and hold it there without swing, for 20 seconds.

    Observes the trolley's position and velocity, the rope's angle and its angular velocity, and the place. The action
    is the force on the trolley in newtons. The reward of a step is 1 where the load is near the place and still, minus
    a tenth of its distance in meters; -1 at an end of the rail.
    """

    steps = 200

    def __init__(self) -> None:
        self.observation_space = box([0, -20, -np.pi, -20, 0], [RAIL, 20, np.pi, 20, RAIL])
        self.action_space = box([-FORCE], [FORCE])

    def begin(self) -> None:
        self.position, self.goal = self.np_random.uniform(1, RAIL - 1, 2)
        while abs(self.goal - self.position) < RAIL / 4:
            self.goal = self.np_random.uniform(1, RAIL - 1)
        self.velocity, self.angle, self.turning = 0.0, self.np_random.uniform(-0.1, 0.1), 0.0

    def act(self, action: Any) -> tuple[float, bool]:
        force = float(np.clip(np.ravel(action)[0], -FORCE, FORCE))
        for _ in range(4):
            self.move(force, STEP / 4)
        at_end = not 0 < self.position < RAIL
        if at_end:
            self.position, self.velocity = float(np.clip(self.position, 0, RAIL)), 0.0
        distance = abs(self.position + ROPE * np.sin(self.angle) - self.goal)
        speed = abs(self.velocity + ROPE * np.cos(self.angle) * self.turning)
        return float(distance < NEAR and speed < STILL) - 0.1 * distance - at_end, False

    def move(self, force: float, seconds: float) -> None:
        sine, cosine = np.sin(self.angle), np.cos(self.angle)
        pull = LOAD * sine * (ROPE * self.turning**2 + GRAVITY * cosine)
        acceleration = (force - FRICTION * self.velocity + pull) / (TROLLEY + LOAD * sine**2)
        self.velocity += seconds * acceleration
        self.position += seconds * self.velocity
        self.turning -= seconds * ((acceleration * cosine + GRAVITY * sine) / ROPE + DAMPING * self.turning)
        self.angle = float(np.clip(self.angle + seconds * self.turning, -np.pi, np.pi))

    def observe(self) -> np.ndarray:
        return numbers(self.position, self.velocity, self.angle, np.clip(self.turning, -20, 20), self.goal)

    def heuristic(self, obs: np.ndarray) -> np.ndarray:
        position, velocity, angle, turning, goal = map(float, obs)
        wanted = np.clip(0.4 * (goal - position), -1, 1)
        return numbers(np.clip(300 * (wanted - velocity) + 600 * angle + 300 * turning, -FORCE, FORCE))

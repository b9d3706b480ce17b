"""A swing-up: a pole on a cart, which is too weak to lift it at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import Task, box, numbers

GRAVITY, LENGTH, FORCE, TRACK, STEP, DAMPING = 9.8, 0.6, 6.0, 2.4, 0.04, 0.05


class SwingUp(Task):
    """Swing up a hanging pole by pushing its cart, and balance it for the rest of 200 steps.

    Observes the cart's position and velocity, sine and cosine of the pole's angle, and its angular velocity. The reward
    of a step is the cosine where the pole is above the cart, minus a little for the force; -1 at the end of the track.
    """

    steps = 200

    def __init__(self) -> None:
        self.observation_space = box(np.full(5, -30), np.full(5, 30))
        self.action_space = box([-FORCE], [FORCE])

    def begin(self) -> None:
        self.place, self.velocity = 0.0, 0.0
        self.angle = np.pi + self.np_random.uniform(-0.2, 0.2)
        self.turning = self.np_random.uniform(-0.2, 0.2)

    def act(self, action: Any) -> tuple[float, bool]:
        push = float(np.clip(np.ravel(action)[0], -FORCE, FORCE))
        for _ in range(2):
            acceleration = push - 0.5 * self.velocity
            torque = GRAVITY * np.sin(self.angle) - acceleration * np.cos(self.angle)
            self.velocity += STEP / 2 * acceleration
            self.place += STEP / 2 * self.velocity
            self.turning += STEP / 2 * (torque / LENGTH - DAMPING * self.turning)
            self.angle += STEP / 2 * self.turning
        at_end = abs(self.place) > TRACK
        if at_end:
            self.place, self.velocity = float(np.clip(self.place, -TRACK, TRACK)), 0.0
        reward = max(0.0, float(np.cos(self.angle))) - 0.002 * (push / FORCE) ** 2 - at_end
        return reward, False

    def observe(self) -> np.ndarray:
        return numbers(
            self.place, self.velocity, np.sin(self.angle), np.cos(self.angle), np.clip(self.turning, -30, 30)
        )

    def heuristic(self, obs: np.ndarray) -> np.ndarray:
        place, velocity, sine, cosine, turning = map(float, obs)
        if cosine > 0.85:
            push = 35 * sine + 7 * turning + 1.0 * place + 2.0 * velocity
        else:  # raise the energy of the pole
            energy = 0.5 * LENGTH * turning**2 + GRAVITY * (cosine - 1)
            push = FORCE * np.sign(turning * cosine) * np.clip(energy, -1, 1) - 1.5 * place - 0.5 * velocity
        return numbers(np.clip(push, -FORCE, FORCE))

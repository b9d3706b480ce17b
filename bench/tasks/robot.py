"""A point robot among obstacles, with a dense reward and continuous forces, or a sparse one and discrete moves."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from .base import Task, box, numbers

SIDE, RADIUS, NEAR = 10.0, 1.0, 0.6
MOVES = 0.75 * np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])


class Robot(Task):
    """Drive to a goal around three round obstacles, with forces in two directions.

    Observes position, velocity, and the vectors to the goal and to the obstacles. The reward is the progress toward the
    goal, 10 at the goal, minus 1 for a step inside an obstacle, minus 0.05 for each step.
    """

    steps = 150
    far = SIDE / 2
    """Least distance of the goal at first."""

    def __init__(self) -> None:
        self.observation_space = box(np.full(12, -2 * SIDE), np.full(12, 2 * SIDE))
        self.action_space: gymnasium.Space[Any] = box([-1, -1], [1, 1])

    def begin(self) -> None:
        self.position, self.goal = self.np_random.uniform(0, SIDE, 2), self.np_random.uniform(0, SIDE, 2)
        while np.linalg.norm(self.goal - self.position) < self.far:
            self.position = self.np_random.uniform(0, SIDE, 2)
        across = self.goal - self.position
        shares, aside = np.array([0.3, 0.5, 0.7]), self.np_random.uniform(-2, 2, (3, 1))
        self.obstacles = self.position + shares[:, None] * across + aside * [-across[1], across[0]] / SIDE
        self.velocity = np.zeros(2)

    def act(self, action: Any) -> tuple[float, bool]:
        before = np.linalg.norm(self.goal - self.position)
        self.move(np.clip(action, -1, 1))
        distance = np.linalg.norm(self.goal - self.position)
        inside = np.linalg.norm(self.obstacles - self.position, axis=1).min() < RADIUS
        arrived = bool(distance < NEAR)
        return before - distance + 10 * arrived - inside - 0.05, arrived

    def move(self, action: Any) -> None:
        self.velocity = 0.9 * self.velocity + 0.08 * action
        position = self.position + self.velocity
        self.position = np.clip(position, 0, SIDE)
        self.velocity = np.where(position == self.position, self.velocity, 0.0)

    def observe(self) -> np.ndarray:
        return numbers(self.position, self.velocity, self.goal - self.position, self.obstacles - self.position)

    def heuristic(self, obs: np.ndarray) -> Any:
        velocity, goal, obstacles = obs[2:4], obs[4:6], obs[6:].reshape(3, 2)
        distances = np.linalg.norm(obstacles, axis=1, keepdims=True)
        away = -(obstacles / distances * np.clip(2 - distances, 0, None)).sum(0)
        return np.clip(goal / np.linalg.norm(goal) + 2 * away - velocity, -1, 1).astype(np.float32)


class SparseRobot(Robot):
    """Walk to a goal around three obstacles, in four directions; the reward is 1 at the goal, and 0 elsewhere."""

    steps = 60
    far = SIDE / 4

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Discrete(len(MOVES))

    def act(self, action: Any) -> tuple[float, bool]:
        position = np.clip(self.position + MOVES[int(action)], 0, SIDE)
        if np.linalg.norm(self.obstacles - position, axis=1).min() > RADIUS / 2:
            self.position = position
        arrived = bool(np.linalg.norm(self.goal - self.position) < NEAR)
        return float(arrived), arrived

    def heuristic(self, obs: np.ndarray) -> Any:
        goal, obstacles = obs[4:6], obs[6:].reshape(3, 2)
        blocked = (np.linalg.norm(obstacles - MOVES[:, None], axis=2) <= RADIUS / 2).any(1)
        return int(np.argmin(np.linalg.norm(goal - MOVES, axis=1) + 10 * blocked + self.np_random.uniform(0, 0.3, 4)))

"""A point in a maze: it is pushed in two directions, keeps its speed for a while, and is far from the goal at first."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

PLAN = (
    "##########",
    "#....#...#",
    "#.##.#.#.#",
    "#.#..#.#.#",
    "#.#.##.#.#",
    "#.#....#.#",
    "#.######.#",
    "#........#",
    "##########",
)
FREE = np.array([[cell != "#" for cell in line] for line in PLAN])
MIDDLE = np.array(FREE.shape[::-1]) / 2
START, GOAL = (1, 1), (8, 1)
"""Columns and rows of the cells."""


class Maze(gymnasium.Env[np.ndarray, np.ndarray]):
    """Observation: position in cells and velocity. Each step in the goal's cell is worth 1; 200 steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.time, self.velocity = 0, np.zeros(2)
        self.position = np.array(START) + 0.5 + self.np_random.uniform(-0.2, 0.2, 2)
        return self.seen(), {}

    def seen(self) -> np.ndarray:
        """Return the position in cells from the middle, and the velocity in cells within ten steps."""
        return np.concatenate([self.position - MIDDLE, 10 * self.velocity]).astype(np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.velocity = 0.9 * self.velocity + 0.03 * np.clip(action, -1, 1)  # at most 0.3 cells a step
        for axis in range(2):  # a wall stops the point in one direction, and it slides on in the other
            moved = self.position.copy()
            moved[axis] += self.velocity[axis]
            if FREE[int(moved[1]), int(moved[0])]:
                self.position = moved
            else:
                self.velocity[axis] = 0
        self.time += 1
        at_goal = tuple(self.position.astype(int)) == GOAL
        return self.seen(), float(at_goal), False, self.time >= 200, {}


def cells(seen: np.ndarray) -> np.ndarray:
    """The cells ``[n, 2]`` of observations ``[n, 4]``."""
    return (seen[:, :2] + MIDDLE).astype(int)


CELLS = int(FREE.sum())
"""Cells that the point can be in."""

gymnasium.register("Maze-v0", entry_point="maze:Maze")

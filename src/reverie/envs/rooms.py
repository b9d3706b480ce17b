"""The demonstration's environment: a MiniGrid of four rooms with lava, in which the agent begins anywhere."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from gymnasium import spaces
from minigrid.core.grid import Grid
from minigrid.core.mission import MissionSpace
from minigrid.core.world_object import Floor, Goal, Lava, Wall, WorldObj
from minigrid.minigrid_env import MiniGridEnv

PLAN = ("#######",
        "#bb~pp#",
        "#bb.pp#",
        "#.###.#",
        "#yy~rr#",
        "#yy.rg#",
        "#######")  # fmt: skip
"""Walls, lava (~), the goal (g), and floors by the first letter of their color; the others have none."""
FLOORS = {"b": "blue", "p": "purple", "r": "red", "y": "yellow"}
MISSION = "get to the green goal square"


class Rooms(MiniGridEnv):
    """The agent turns left, turns right or walks: a reward of 1 at the goal. Lava and 50 steps end an episode."""

    page_program = "pages/rooms.js"

    def __init__(self, **options: Any) -> None:
        mission = MissionSpace(mission_func=lambda: MISSION)
        super().__init__(mission, width=len(PLAN[0]), height=len(PLAN), max_steps=50, **options)
        self.action_space: spaces.Space[Any] = spaces.Discrete(3)

    def _gen_grid(self, width: int, height: int) -> None:
        self.grid: Grid = Grid(width, height)
        self.mission = MISSION
        for x, y in product(range(width), range(height)):
            if (cell := self._make_cell(PLAN[y][x])) is not None:
                self.grid.set(x, y, cell)
        free = [(x, y) for x, y in product(range(width), range(height)) if PLAN[y][x] not in "#~g"]
        self.agent_pos: np.ndarray | tuple[int, int] = free[self._rand_int(0, len(free))]
        self.agent_dir: int = self._rand_int(0, 4)

    @staticmethod
    def _make_cell(letter: str) -> WorldObj | None:
        kinds = {"#": Wall, "~": Lava, "g": Goal}
        return kinds[letter]() if letter in kinds else Floor(FLOORS[letter]) if letter in FLOORS else None

    def _reward(self) -> float:
        return 1.0

    def step(self, action: object) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step as MiniGrid does; ``info`` says at an end what the agent reached."""
        obs, reward, terminated, truncated, info = super().step(action)
        return (
            obs,
            reward,
            terminated,
            truncated,
            info | ({"ending": "the goal" if reward else "lava"} if terminated else {}),
        )

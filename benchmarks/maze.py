"""A maze of MiniGrid, always the same: the agent starts in one corner, and the goal is in the opposite one."""

from __future__ import annotations

from typing import Any

import gymnasium
from minigrid.core.grid import Grid
from minigrid.core.mission import MissionSpace
from minigrid.core.world_object import Goal, Wall
from minigrid.minigrid_env import MiniGridEnv

PLAN = (
    "#############",
    "#.....#.....#",
    "#.###.#.###.#",
    "#.#...#.#...#",
    "#.#.###.#.###",
    "#.#.....#...#",
    "#.#########.#",
    "#.....#.....#",
    "#####.#.###.#",
    "#.....#...#.#",
    "#.#######.#.#",
    "#...........#",
    "#############",
)


class Maze(MiniGridEnv):
    """Reach the goal within ``max_steps``; the reward is MiniGrid's, 1 - 0.9 steps / max_steps."""

    def __init__(self, max_steps: int = 200, **kwargs: Any) -> None:
        mission = MissionSpace(lambda: "reach the goal")
        super().__init__(mission, width=len(PLAN[0]), height=len(PLAN), max_steps=max_steps, **kwargs)

    def _gen_grid(self, width: int, height: int) -> None:
        self.grid = Grid(width, height)
        for y, line in enumerate(PLAN):
            for x, cell in enumerate(line):
                if cell == "#":
                    self.grid.set(x, y, Wall())
        self.put_obj(Goal(), width - 2, height - 2)
        self.agent_pos, self.agent_dir = (1, 1), 0
        self.mission = "reach the goal"


CELLS = sum(line.count(".") for line in PLAN)
"""Cells that the agent can be in."""

gymnasium.register("Maze-v0", entry_point="maze:Maze")

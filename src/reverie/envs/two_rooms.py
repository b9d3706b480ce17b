"""A dot in two rooms that a door connects, seen as a picture; the goal is another picture."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.envs.wrappers import Reset, Stepped

SIDE = 32
WALL = 16
"""Column of the wall between the rooms."""
DOOR = (20, 25)
"""Rows of the wall that are open."""
MARGIN = 2
"""Smallest distance of the dot from the edges of the picture."""
RADIUS = 2.3
"""Distance from the goal, in pixels, within which it is reached."""
SHAPE = (SIDE, SIDE, 3)


class TwoRooms(gymnasium.Env[dict[str, Any], np.ndarray]):
    """The dot moves by the action, at most one pixel each way, within 100 steps: a reward of 1 at the goal.

    ``reset(options={"image": PICTURE, "goal": PICTURE})`` begins at the dot of one picture, with that of another one
    as the goal. Without them, both are anywhere.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - as in Gymnasium

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        picture = spaces.Box(0, 255, SHAPE, np.uint8)
        self.observation_space: spaces.Dict = spaces.Dict({"image": picture, "goal": spaces.Dict({"image": picture})})
        self.action_space: spaces.Box = spaces.Box(-1, 1, (2,), np.float32)
        self.position: np.ndarray = np.zeros(2)
        self.target: np.ndarray = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        options = options or {}
        self.position, self.target = (
            find_dot(options[name]) if name in options else self.draw_position() for name in ("image", "goal")
        )
        return self._observe(), {}

    def draw_position(self) -> np.ndarray:
        """Return a random free position, its column and row."""
        while True:
            position = self.np_random.uniform(MARGIN, SIDE - 1 - MARGIN, 2)
            if _is_free(position):
                return position

    def step(self, action: np.ndarray) -> Stepped:
        move = np.clip(np.asarray(action, np.float64), -1, 1)
        for axis in (0, 1):  # one after the other, so that the dot slides along walls
            moved = self.position.copy()
            moved[axis] = np.clip(moved[axis] + move[axis], MARGIN, SIDE - 1 - MARGIN)
            if _is_free(moved):
                self.position = moved
        reached = bool(np.linalg.norm(self.position - self.target) < RADIUS)
        return self._observe(), float(reached), reached, False, {"success": reached}

    def _observe(self) -> dict[str, Any]:
        return {"image": draw(self.position), "goal": {"image": draw(self.target)}}

    def render(self) -> np.ndarray:
        return draw(self.position).repeat(8, 0).repeat(8, 1)


def _is_free(position: np.ndarray) -> bool:
    """Return whether the dot can be at ``position``, its column and row."""
    return bool(abs(position[0] - WALL) >= 1.5 or DOOR[0] <= position[1] <= DOOR[1])


def draw(position: np.ndarray) -> np.ndarray:
    """Return the picture ``[32, 32, 3]`` of a dot at ``position``: red, with the walls in blue."""
    column, row = np.meshgrid(np.arange(SIDE), np.arange(SIDE))
    picture = np.zeros(SHAPE, np.uint8)
    squares = (column - position[0]) ** 2 + (row - position[1]) ** 2
    picture[..., 0] = np.round(255 * np.exp(-squares / 2))
    picture[(column == WALL) & ((row < DOOR[0]) | (row > DOOR[1])), 2] = 255
    picture[[0, -1], :, 2] = picture[:, [0, -1], 2] = 255
    return picture


def find_dot(picture: object) -> np.ndarray:
    """Return the column and row of the dot in a picture of this environment; DataError if there is none."""
    image = np.asarray(picture["image"] if isinstance(picture, dict) else picture)
    if image.shape != SHAPE or not image[..., 0].any():
        raise DataError(f"the picture has shape {image.shape}: expected {SHAPE} with a red dot.")
    red = image[..., 0].astype(np.float64)
    return np.array([(red.sum(axis) * np.arange(SIDE)).sum() / red.sum() for axis in (0, 1)])

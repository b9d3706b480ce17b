"""An environment with several kinds of observations and actions."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Corridor(gymnasium.Env[Any, Any]):
    """An image, a vector and a class; ends after nine steps."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Dict(
            eye=gymnasium.spaces.Box(0, 255, (6, 5, 4), np.uint8),
            sense=gymnasium.spaces.Dict(
                x=gymnasium.spaces.Box(-1, 1, (3,), np.float32), n=gymnasium.spaces.Discrete(3)
            ),
        )
        self.action_space = gymnasium.spaces.Dict(
            go=gymnasium.spaces.Discrete(2, start=1), turn=gymnasium.spaces.Box(-2.0, 4.0, (1,), np.float32)
        )

    def _obs(self) -> dict[str, Any]:
        eye = np.zeros((6, 5, 4), np.uint8)
        eye[self.t % 6, :, self.t % 4] = 255
        return {"eye": eye, "sense": {"x": np.full(3, self.t / 10, np.float32), "n": self.t % 3}}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.t += 1
        return self._obs(), 1.0, self.t == 9, False, {}

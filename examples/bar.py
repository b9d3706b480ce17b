"""A picture whose bright bar tells the best action: for learning from pixels with continuous actions.

The bar's place is a number x in [-1, 1], new at each step; the reward is -|action - x|. Each of 20 steps costs 2 / 3 on
the mean if actions are random, 1 / 2 if they are 0, and 0 at best.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

SIDE, WIDTH, STEPS = 64, 12, 20


class Bar(gymnasium.Env):  # type: ignore[type-arg]
    """Pictures ``[64, 64, 3]`` uint8; one action."""

    observation_space = gymnasium.spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def _picture(self) -> np.ndarray:
        self.best = self.np_random.uniform(-1, 1)
        picture = np.zeros((SIDE, SIDE, 3), np.uint8)
        left = int((self.best + 1) / 2 * (SIDE - WIDTH))
        picture[:, left : left + WIDTH] = 255
        return picture

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self.steps = 0
        return self._picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Pay for the distance to the bar, and move it."""
        reward, self.steps = -abs(float(action[0]) - self.best), self.steps + 1
        return self._picture(), reward, False, self.steps == STEPS, {}


gymnasium.register("Bar-v0", entry_point=Bar)

"""An environment without an end; workers that run it import nothing else, and so no PyTorch."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Endless(gymnasium.Env[Any, Any]):
    """Ends after ``length`` steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    length = 10**9

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return np.zeros(1, np.float32), 1.0, self.time == self.length, False, {"cost": 1}

"""What the tasks share: an episode has a number of steps, and a heuristic plays it."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np


class Task(gymnasium.Env[Any, Any]):
    """An environment whose episodes are truncated after `steps` steps."""

    steps: ClassVar[int]
    time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        self.begin()
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        reward, terminated = self.act(action)
        return self.observe(), float(reward), terminated, self.time == self.steps, {}

    def begin(self) -> None:
        """Draw the first state of an episode."""
        raise NotImplementedError

    def act(self, action: Any) -> tuple[float, bool]:
        """Move the state by `action`; return the reward, and whether the episode is over."""
        raise NotImplementedError

    def observe(self) -> Any:
        """Return the observation of the state."""
        raise NotImplementedError

    def heuristic(self, obs: Any) -> Any:
        """Return an action that somebody would write by hand."""
        raise NotImplementedError


def box(low: Any, high: Any) -> gymnasium.spaces.Box:
    """Return a space of float32 between `low` and `high`."""
    return gymnasium.spaces.Box(np.asarray(low, np.float32), np.asarray(high, np.float32))


def numbers(*values: Any) -> np.ndarray:
    """Return numbers and arrays as one vector, float32."""
    return np.concatenate([np.ravel(value) for value in values]).astype(np.float32)

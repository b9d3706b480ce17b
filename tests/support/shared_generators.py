"""Environments that draw from the generators that everybody shares.

They are not in a test's file: processes that run them import it, and so all that it imports.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np


class Shared(gymnasium.Env[Any, Any]):
    """Draws from the generators that everybody shares."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.left = 7
        return self.draw(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self.draw(), 0.0, self.left == 0, False, {}

    def draw(self) -> np.ndarray:
        return np.array([random.random() * np.random.random()], np.float32)  # noqa: NPY002


class Paying(Shared):
    """Pays for each of seven steps, and says in which processes it was."""

    def __init__(self, pay: float = 1.0, told: str = "") -> None:
        self.pay, self.told = pay, told

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.told:
            (Path(self.told) / f"{os.getpid()}").touch()
        obs, _, terminated, truncated, info = super().step(action)
        return obs, self.pay, terminated, truncated, info


class Lucky(Shared):
    """Pays what it draws."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float(self.draw()[0]), terminated, truncated, info

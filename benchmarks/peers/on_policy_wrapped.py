"""What all peers of `on_policy.py` need: environments with the rewards and actions of ours, and ramps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np


def wrapped(env: gymnasium.Env, factor: float) -> gymnasium.Env:
    """Actions of [-1, 1] and smaller rewards, as our policy and learner see them."""
    if isinstance(env.action_space, gymnasium.spaces.Box):
        env = gymnasium.wrappers.RescaleAction(env, -1.0, 1.0)
    return env if factor == 1 else gymnasium.wrappers.TransformReward(env, lambda reward: factor * reward)


def made(s: dict[str, Any]) -> gymnasium.Env:
    """One environment of the settings; normalised ones as CleanRL wraps them."""
    env = wrapped(gymnasium.make(s["env"]), s["factor"])
    if s["normalise"]:
        env = gymnasium.wrappers.NormalizeObservation(env)
        env = gymnasium.wrappers.TransformObservation(env, lambda obs: np.clip(obs, -10, 10), env.observation_space)
        env = gymnasium.wrappers.NormalizeReward(env, gamma=s["discount"])
        env = gymnasium.wrappers.TransformReward(env, lambda reward: float(np.clip(reward, -10, 10)))
    return env


def ramp(points: Any, steps: int) -> Callable[[float], float]:
    """What gives a number, or one that falls with the steps taken; asked with the part of the steps that is left."""
    if isinstance(points, float):
        return lambda left: points
    at, values = zip(*points, strict=True)
    return lambda left: float(np.interp((1 - left) * steps, at, values))

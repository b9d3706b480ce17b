"""Idle actions at the start of episodes (no-op starts), repeated actions, and stacks of the latest observations."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from reverie.core.errors import EnvError
from reverie.core.specs import ObsPart
from reverie.envs.answers import Reset, Stepped, begun, stepped

Env = gymnasium.Env[Any, Any]
FlatObs = dict[str, np.ndarray]


class NoopReset(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Begins each episode with 0 to ``most`` idle actions; their number is drawn from a generator of its own.

    Raises:
        EnvError: action 0 is not known to be idle.
    """

    def __init__(self, env: Env, most: int) -> None:
        RecordConstructorArgs.__init__(self, most=most)
        gymnasium.Wrapper.__init__(self, env)
        meanings: list[str] = getattr(env.unwrapped, "get_action_meanings", lambda: [])()
        if not isinstance(env.action_space, spaces.Discrete) or meanings[:1] != ["NOOP"]:
            has = f"has the actions {meanings}" if meanings else "does not name its actions"
            raise EnvError(
                f"env.noop_max needs an environment whose action 0 is NOOP, as in Atari, but this one {has}."
            )
        self._most = most
        self._random = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode and take the idle actions; an episode that ends meanwhile is started again."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        obs, info = begun(self.env, seed, options)
        for _ in range(int(self._random.integers(self._most + 1))):
            obs, _, terminated, truncated, info = stepped(self.env, 0)
            if terminated or truncated:
                obs, info = begun(self.env, None, options)
        return obs, info


class ActionRepeat(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Takes each action ``times`` times, sums the rewards, and stops where the episode ends.

    With ``pool`` above 1 the observation is the maximum over the last ``pool`` frames of the action: Atari draws some
    sprites on every other frame only.

    Raises:
        EnvError: ``pool`` is above 1 and the observation is not a ``uint8`` Box.
    """

    def __init__(self, env: Env, times: int, pool: int = 1) -> None:
        RecordConstructorArgs.__init__(self, times=times, pool=pool)
        gymnasium.Wrapper.__init__(self, env)
        self._times = times
        self._pool = pool
        space = env.observation_space
        if pool > 1 and not (isinstance(space, spaces.Box) and space.dtype == np.uint8):
            raise EnvError(
                f"env.pool_frames = {pool} needs uint8 images as observations, but the environment has {space}."
            )

    def step(self, action: Any) -> Stepped:
        """Take ``action`` up to ``times`` times; the reward is the sum."""
        total, frames = 0.0, deque[np.ndarray](maxlen=self._pool)
        for _ in range(self._times):
            # Copied: the environment may change it in place.
            obs, reward, terminated, truncated, info = stepped(self.env, copy.deepcopy(action))
            total += reward
            if self._pool > 1:
                frames.append(np.array(obs))  # copied: the environment may draw each frame into the same array
            if terminated or truncated:
                break
        if len(frames) > 1:
            obs = np.maximum.reduce(frames)
        return obs, total, terminated, truncated, info


class FrameStack:
    """Stacks the last ``count`` observations, the newest last; at the start of an episode the first one is repeated.

    Images are stacked along their channels, everything else along a new first axis.
    """

    def __init__(self, spec: Mapping[str, ObsPart], count: int) -> None:
        self._count = count
        self.past: FlatObs = {}
        self.spec = {key: self._stacked(part) for key, part in spec.items()}

    def _stacked(self, part: ObsPart) -> ObsPart:
        if part.kind == "image":
            return replace(part, shape=(*part.shape[:2], part.shape[2] * self._count))
        return replace(part, shape=(self._count, *part.shape), classes=part.classes * self._count)

    def __call__(self, obs: FlatObs, first: bool) -> FlatObs:
        """Return the stack with ``obs`` added, in memory that the next call reuses. ``first``: an episode begins."""
        if first:
            self.past = {key: self._fill(key, array) for key, array in obs.items()}
            return self.past
        for key, array in obs.items():
            past = self.past[key]
            if self.spec[key].kind == "image":
                channels = array.shape[-1]
                past[..., :-channels] = past[..., channels:].copy()
                past[..., -channels:] = array
            else:
                past[:-1] = past[1:].copy()
                past[-1] = array
        return self.past

    def _fill(self, key: str, array: np.ndarray) -> np.ndarray:
        if self.spec[key].kind == "image":
            return np.concatenate([array] * self._count, axis=-1)
        return np.stack([array] * self._count)

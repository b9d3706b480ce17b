"""Crafter (Hafner 2021) with Gymnasium's interface: seeds, and separate termination and truncation."""

from __future__ import annotations

import collections
from typing import Any

import crafter
import gymnasium
import numpy as np
from gymnasium import spaces

from reverie.envs.wrappers import Reset, Stepped


class _Creatures(dict[Any, None]):
    """The creatures of a region, in order of arrival."""

    def add(self, creature: object) -> None:
        self[creature] = None

    remove = dict.pop


class _World(crafter.engine.World):  # type: ignore[misc]  # has no types
    """A world determined by the seed: Crafter picks creatures by set order, which depends on memory addresses."""

    def reset(self, seed: int | None = None) -> None:
        super().reset(seed)
        self._chunks: dict[Any, _Creatures] = collections.defaultdict(_Creatures)


class Crafter(gymnasium.Env[np.ndarray, Any]):
    """Crafter (Hafner 2021): images ``[*size, 3]``, 17 actions, ends by death or after ``length`` steps."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012  # an instance variable in Gymnasium

    def __init__(
        self, reward: bool = True, size: tuple[int, int] = (64, 64), length: int = 10000,
        render_mode: str | None = None, **kwargs: object,
    ) -> None:  # fmt: skip
        self.render_mode = render_mode
        self.max_episode_steps: int = length
        self._game = crafter.Env(size=tuple(size), reward=reward, length=length, seed=0, **kwargs)
        self._game._world.__class__ = _World
        self.observation_space: spaces.Box = spaces.Box(0, 255, (*size, 3), np.uint8)
        self.action_space: spaces.Discrete = spaces.Discrete(len(self._game.action_names))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode in a new world; the observation is uint8 ``[H, W, 3]``."""
        fresh = self._np_random is None
        super().reset(seed=seed)
        if seed is not None or fresh:
            # The game derives each world from its seed and the number of the episode.
            self._game._seed = int(self.np_random.integers(2**31 - 1))
            self._game._episode = 0
        return self._game.reset(), {}

    def step(self, action: int) -> Stepped:
        """Take one step of the game. Death terminates the episode, the time limit truncates it."""
        obs, reward, done, info = self._game.step(int(action))
        dead = info["discount"] == 0
        return obs, float(reward), bool(dead), bool(done and not dead), info

    def render(self) -> np.ndarray | None:
        """Return the agent's view, enlarged to uint8 ``[256, 256, 3]``; None without a render mode."""
        return self._game.render((256, 256)) if self.render_mode == "rgb_array" else None

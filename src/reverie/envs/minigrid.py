"""MiniGrid's symbolic observations as one-hot images.

A cell of the grid is three small integers: object 0..10, colour 0..5, state 0..2. As grey levels they would all look
black, and their order has no meaning. Here each cell is one-hot along 20 channels of an image. The direction is not
changed. The mission is left out unless ``env.mission`` asks for it; then it is text.
"""

from __future__ import annotations

import string
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from minigrid import wrappers as grids
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX
from minigrid.core.mission import MissionSpace
from minigrid.minigrid_env import MiniGridEnv

from reverie.envs.unchanged import layers_of

Env = gymnasium.Env[Any, Any]
PICTURES = (grids.RGBImgObsWrapper, grids.RGBImgPartialObsWrapper)
OTHER_CODES = (grids.SymbolicObsWrapper, grids.FlatObsWrapper, grids.DictObservationSpaceWrapper)
CHARACTERS = string.ascii_lowercase + " ,"
LONGEST_MISSION = 160


def is_minigrid(env: Env) -> bool:
    """Return whether ``env`` is a MiniGrid or BabyAI environment, wrapped or not."""
    return isinstance(env.unwrapped, MiniGridEnv)


def readable(env: Env, mission: bool) -> Env:
    """Wrap ``env`` so that grids are one-hot, and the mission is text or left out.

    Grids that a wrapper of MiniGrid has turned into pixels or other codes stay as they are.
    """
    layers = layers_of(env)
    if not any(isinstance(layer, PICTURES + OTHER_CODES) for layer in layers):
        if any(isinstance(layer, grids.OneHotPartialObsWrapper) for layer in layers):
            env = _OnImage(env, np.eye(2, dtype=np.uint8)[:, 1:] * 255, (2,), _image_shape(env))
        else:
            env = _one_hot(env, layers)
    has_mission = isinstance(env.observation_space, spaces.Dict) and "mission" in env.observation_space.spaces
    return _Mission(env, mission) if has_mission else env


def _one_hot(env: Env, layers: list[Env]) -> Env:
    # With a view of the whole grid, the state of the agent's cell is its direction, one of four.
    states = max(len(STATE_TO_IDX), 4 if any(isinstance(e, grids.FullyObsWrapper) for e in layers) else 0)
    counts = (len(OBJECT_TO_IDX), len(COLOR_TO_IDX), states)
    width, height, _ = _image_shape(env)
    return _OnImage(env, np.eye(sum(counts), dtype=np.uint8) * 255, counts, (width, height, sum(counts)))


def _image_shape(env: Env) -> tuple[int, ...]:
    space = env.observation_space
    shape = (space["image"] if isinstance(space, spaces.Dict) else space).shape
    assert shape is not None
    return shape


class _OnImage(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Replaces the codes of each cell by one-hot rows of ``table``; ``counts`` is the number of codes per channel."""

    def __init__(self, env: Env, table: np.ndarray, counts: tuple[int, ...], shape: tuple[int, ...]) -> None:
        super().__init__(env)
        self._table = table
        self._starts = np.cumsum((0, *counts[:-1]))
        self._shape = shape
        image = spaces.Box(0, 255, shape, np.uint8)
        space = env.observation_space
        self._nested = isinstance(space, spaces.Dict)
        self.observation_space = spaces.Dict({**space.spaces, "image": image}) if self._nested else image  # type: ignore[attr-defined]  # a Dict where nested

    def observation(self, observation: Any) -> Any:
        """Return ``observation`` with a one-hot image, uint8 0 or 255."""
        if self._nested:
            return {**observation, "image": self._image(observation["image"])}
        return self._image(observation)

    def _image(self, codes: np.ndarray) -> np.ndarray:
        rows: np.ndarray = self._table[codes + self._starts]  # [W, H, codes, table width]
        if len(self._starts) == 1:
            return rows.reshape(self._shape)
        one_hot: np.ndarray = rows.max(axis=2)  # the codes of a cell never share a column
        return one_hot


class _Mission(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Removes the mission, or shows it as text of a ``Text`` space."""

    def __init__(self, env: Env, keep: bool) -> None:
        super().__init__(env)
        self._keep = keep
        space = env.observation_space
        assert isinstance(space, spaces.Dict)
        parts = {key: part for key, part in space.spaces.items() if key != "mission"}
        self._length = _longest(space.spaces["mission"])
        if keep:
            parts["mission"] = spaces.Text(self._length, min_length=0, charset=CHARACTERS)
        self.observation_space = spaces.Dict(parts)

    def observation(self, observation: Any) -> Any:
        """Return ``observation`` with the mission as lower-case text, or without it."""
        out = {key: value for key, value in observation.items() if key != "mission"}
        if self._keep:
            text = observation["mission"].lower()[: self._length]
            out["mission"] = "".join(c if c in CHARACTERS else " " for c in text)
        return out


def _longest(space: spaces.Space[Any]) -> int:
    """Return the length of the longest mission, from the longest word of each placeholder.

    BabyAI does not list its words: ``LONGEST_MISSION`` for it, and longer missions are cut off.
    """
    if type(space) is not MissionSpace:
        return LONGEST_MISSION
    words = [max(choices, key=len) for choices in space.ordered_placeholders or []]
    return len(space.mission_func(*words))

"""MiniGrid's symbolic observations as one-hot images, and as its renderer draws them.

A cell of the grid is three small integers: object 0..10, color 0..5, state 0..2. Here it is one-hot along 20 channels
of an image. The mission is omitted unless ``env.mission`` is set; then it is text. With ``env.full_view`` the
observation is the whole grid: the agent's position, and one class per cell, since a small world model learns slowly
from codes.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from itertools import product
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from minigrid import wrappers as grids
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX, TILE_PIXELS
from minigrid.core.grid import Grid
from minigrid.core.mission import MissionSpace
from minigrid.minigrid_env import MiniGridEnv

from reverie.envs.wrappers import Env, Reset, wrapper_stack

RECODING_WRAPPERS = (grids.RGBImgObsWrapper, grids.RGBImgPartialObsWrapper, grids.SymbolicObsWrapper,
grids.FlatObsWrapper,
           grids.DictObservationSpaceWrapper, grids.OneHotPartialObsWrapper)  # fmt: skip
"""MiniGrid's wrappers that recode cells."""
CHARACTERS = string.ascii_lowercase + " ,"
LONGEST_MISSION = 160
DIRECTIONS = 4
SINGLE_COLOR_OBJECTS = {"empty": "red", "wall": "grey", "goal": "green", "lava": "red"}
"""Objects with only one color; other colors count as the same."""
COLORED_OBJECTS = ("floor", "key", "ball", "box")
CARRIABLE_OBJECTS = ("key", "ball", "box")
CELL_KINDS = np.array([
    *((OBJECT_TO_IDX[name], COLOR_TO_IDX[color], 0) for name, color in SINGLE_COLOR_OBJECTS.items()),
    *((OBJECT_TO_IDX[name], color, 0) for name in COLORED_OBJECTS for color in range(len(COLOR_TO_IDX))),
    *product([OBJECT_TO_IDX["door"]], range(len(COLOR_TO_IDX)), range(len(STATE_TO_IDX))),
])  # fmt: skip
"""Codes of all distinguishable cells, ``[K, 3]``; the empty cell comes first."""
CELL_KIND_INDEX = np.zeros((len(OBJECT_TO_IDX), len(COLOR_TO_IDX), DIRECTIONS), np.int64)
"""Index of the kind by object, color and state."""
for _number, (_object, _color, _state) in enumerate(CELL_KINDS):
    CELL_KIND_INDEX[_object, slice(None) if _number < len(SINGLE_COLOR_OBJECTS) else _color, _state] = _number
PYDREAMER_CELLS = np.array([
    (OBJECT_TO_IDX["unseen"], 0, 0),
    *((OBJECT_TO_IDX[name], COLOR_TO_IDX[SINGLE_COLOR_OBJECTS[name]], 0) for name in ("empty", "wall", "goal")),
    *((OBJECT_TO_IDX["agent"], 0, direction) for direction in range(DIRECTIONS)),
    *product([OBJECT_TO_IDX["door"]], range(len(COLOR_TO_IDX)), [STATE_TO_IDX["open"], STATE_TO_IDX["closed"]]),
    *((OBJECT_TO_IDX[name], color, 0) for name in CARRIABLE_OBJECTS for color in range(len(COLOR_TO_IDX))),
])  # fmt: skip
"""Codes of the cells that PyDreamer numbers, ``[38, 3]``. It stores lava, floor and locked doors as unseen, 0."""


def _kind_of(codes: np.ndarray) -> np.ndarray:
    """Return the class of ``MapView`` of each cell; unseen cells have the last class, and the agent's cell is empty."""
    kinds = CELL_KIND_INDEX[tuple(np.moveaxis(codes, -1, 0))]  # [W, H]
    return np.where(codes[..., 0] == OBJECT_TO_IDX["unseen"], len(CELL_KINDS), kinds)


PYDREAMER_KINDS = _kind_of(PYDREAMER_CELLS)
"""Class of ``MapView`` by PyDreamer's number, ``[38]``."""


def is_minigrid(env: Env) -> bool:
    """Return whether ``env`` is a MiniGrid or BabyAI environment, wrapped or not."""
    return isinstance(env.unwrapped, MiniGridEnv)


def with_learnable_grid(env: Env, mission: bool) -> Env:
    """Encode grids one-hot, unless a MiniGrid wrapper has recoded them, and the mission as text or not at all."""
    layers = wrapper_stack(env)
    if not any(isinstance(layer, (*RECODING_WRAPPERS, FullView)) for layer in layers):
        env = OneHotGrid(env, full_grid=any(isinstance(layer, grids.FullyObsWrapper) for layer in layers))
    has_mission = isinstance(env.observation_space, spaces.Dict) and "mission" in env.observation_space.spaces
    return _Mission(env, mission) if has_mission else env


class OneHotGrid(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Encodes the three codes of each cell as one-hot channels, uint8 0 or 255. ``full_grid``: with four states."""

    DRAWN_FROM = frozenset({"image"})

    def __init__(self, env: Env, full_grid: bool) -> None:
        super().__init__(env)
        counts = (len(OBJECT_TO_IDX), len(COLOR_TO_IDX), DIRECTIONS if full_grid else len(STATE_TO_IDX))
        self._full_grid, self._starts = full_grid, np.cumsum((0, *counts))
        self._table = np.eye(sum(counts), dtype=np.uint8) * 255
        space = env.observation_space
        self._nested = isinstance(space, spaces.Dict)
        parts: Any = space.spaces if isinstance(space, spaces.Dict) else {"image": space}
        image = spaces.Box(0, 255, (*parts["image"].shape[:2], sum(counts)), np.uint8)
        self.observation_space = spaces.Dict({**parts, "image": image}) if self._nested else image

    def observation(self, observation: Mapping[str, Any]) -> Any:
        """Return ``observation`` with a one-hot image."""
        codes = observation["image"] if self._nested else observation
        image = self._table[codes + self._starts[:-1]].max(axis=2)  # the codes of a cell never share a column
        return {**observation, "image": image} if self._nested else image

    def render_observation(self, observation: Mapping[str, np.ndarray] | np.ndarray) -> np.ndarray:
        """Draw a one-hot image, or the most likely codes of a predicted one; uint8 ``[H, W, 3]``."""
        image = observation["image"] if isinstance(observation, Mapping) else observation
        parts = np.split(image, self._starts[1:-1], axis=-1)
        return _draw_grid(np.stack([part.argmax(-1) for part in parts], axis=-1), self._full_grid)


def _draw_grid(codes: np.ndarray, full_grid: bool) -> np.ndarray:
    """Draw the codes ``[W, H, 3]`` of a grid with MiniGrid's own tiles, uint8 ``[32 H, 32 W, 3]``.

    In a full grid, a cell code marks the agent. Otherwise the agent is in the middle of the last row, and unseen cells
    are dark.
    """
    grid, visible = Grid.decode(codes)
    if not full_grid:
        return grid.render(TILE_PIXELS, (codes.shape[0] // 2, codes.shape[1] - 1), 3, visible)
    x, y = next(iter(np.argwhere(codes[..., 0] == OBJECT_TO_IDX["agent"])), (-1, -1))
    return grid.render(TILE_PIXELS, (x, y), int(codes[x, y, 2]))


class FullView(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Observes the whole grid as classes: ``agent`` ``[4]``, ``grid`` ``[W, H]``, and the mission.

    ``agent`` contains x, y, direction, and the carried object: 0 for none, else its kind and color. A cell is one of
    ``KINDS``. Not an ``ObservationWrapper``, since agents cannot convert the wrapped observation, which lacks the
    position.
    """

    DRAWN_FROM = frozenset({"agent", "grid"})

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        inner = env.unwrapped
        assert isinstance(inner, MiniGridEnv)
        self._inner = inner
        agent = spaces.MultiDiscrete(
            [inner.width, inner.height, DIRECTIONS, 1 + len(CARRIABLE_OBJECTS) * len(COLOR_TO_IDX)]
        )
        grid = spaces.MultiDiscrete(np.full((inner.width, inner.height), len(CELL_KINDS)))
        self.observation_space = spaces.Dict(
            {"agent": agent, "grid": grid, "mission": env.observation_space["mission"]}  # type: ignore[index]  # a Dict
        )

    def reset(self, **options: Any) -> Reset:
        obs, info = self.env.reset(**options)
        return self._to_classes(obs), info

    def step(self, action: object) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._to_classes(obs), reward, terminated, truncated, info

    def _to_classes(self, obs: Mapping[str, Any]) -> dict[str, Any]:
        inner, item = self._inner, self._inner.carrying
        carried = 1 + CARRIABLE_OBJECTS.index(item.type) * len(COLOR_TO_IDX) + COLOR_TO_IDX[item.color] if item else 0
        agent = np.array([*inner.agent_pos, inner.agent_dir, carried])
        return {"agent": agent, "grid": _kind_of(inner.grid.encode()), "mission": obs["mission"]}

    def render_observation(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        """Draw an observation, for stacked observations the newest, uint8 ``[H, W, 3]``."""
        x, y, direction, _ = (int(number) for number in observation["agent"].reshape(-1, 4)[-1])
        kinds = observation["grid"].reshape(-1, self._inner.width, self._inner.height)[-1]
        return Grid.decode(CELL_KINDS[kinds])[0].render(self._inner.tile_size, (x, y), direction)


class MapView(FullView):
    """Observes the agent's view as classes, ``view`` ``[7, 7]``: ``KINDS`` and, as the last class, unseen cells.

    In addition, the inputs of a map probe: ``map`` ``[W, H]``, the same classes of the grid without the agent (unseen
    cells are only in PyDreamer's files), and ``map_coord`` ``[4]``, the agent's position, starting at -1 with 2 / W or
    2 / H per cell, and its direction as a unit vector.

    Source: github.com/jurgisp/pydreamer, envs/minigrid.py: MiniGrid, and preprocessing.py, whose classes are fewer.
    """

    DRAWN_FROM = frozenset({"view"})
    TABLE: ClassVar[np.ndarray] = np.vstack([CELL_KINDS, [[OBJECT_TO_IDX["unseen"], 0, 0]]])

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        side, parts = self._inner.agent_view_size, self.observation_space
        shapes = {"view": (side, side), "map": (self._inner.width, self._inner.height)}
        classes = {key: spaces.MultiDiscrete(np.full(shape, len(self.TABLE))) for key, shape in shapes.items()}
        view_parts = classes | {"map_coord": spaces.Box(-1, 1, (4,), np.float32)}
        self.observation_space = spaces.Dict(view_parts | {"mission": parts["mission"]})  # type: ignore[index]

    def _to_classes(self, obs: Mapping[str, Any]) -> dict[str, Any]:
        full_obs, inner = super()._to_classes(obs), self._inner
        view, grid = _kind_of(obs["image"]), full_obs["grid"]
        position = np.array(inner.agent_pos) / (inner.width, inner.height) * 2 - 1
        coord = np.array([*position, *inner.dir_vec], np.float32)
        return {"view": view, "map": grid, "map_coord": coord, "mission": full_obs["mission"]}

    def render_observation(self, observation: Mapping[str, np.ndarray] | np.ndarray) -> np.ndarray:
        """Draw the agent's view, for stacked observations the newest, uint8 ``[H, W, 3]``."""
        view = observation["view"] if isinstance(observation, Mapping) else observation
        side = self._inner.agent_view_size
        return _draw_grid(self.TABLE[view.reshape(-1, side, side)[-1]], full_grid=False)


class PyDreamerCells(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shows the cells of ``MapView`` that PyDreamer cannot number, such as locked doors, as unseen, as in its files."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._kinds = np.full(len(MapView.TABLE), PYDREAMER_KINDS[0])
        self._kinds[PYDREAMER_KINDS] = PYDREAMER_KINDS

    def observation(self, observation: Mapping[str, Any]) -> Any:
        """Return ``observation`` with such cells in ``view`` and ``map`` unseen."""
        return {**observation, **{key: self._kinds[observation[key]] for key in ("view", "map")}}


class _Mission(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Removes the mission, or returns it as text in a ``Text`` space."""

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

    def observation(self, observation: Mapping[str, Any]) -> Any:
        """Return ``observation`` with the mission as lower-case text, or without it."""
        out = {key: value for key, value in observation.items() if key != "mission"}
        if self._keep:
            text = observation["mission"].lower()[: self._length]
            out["mission"] = "".join(c if c in CHARACTERS else " " for c in text)
        return out


def _longest(space: spaces.Space[Any]) -> int:
    """Return the length of the longest mission; ``LONGEST_MISSION`` for BabyAI, which does not list its words."""
    if type(space) is not MissionSpace:
        return LONGEST_MISSION
    words = [max(choices, key=len) for choices in space.ordered_placeholders or []]
    return len(space.mission_func(*words))

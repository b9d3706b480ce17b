"""Generates datasets of OGBench as its authors did, without a download: by oracles in its environments.

Recipes: https://github.com/seohongpark/ogbench, data_gen_scripts/generate_locomaze.py and generate_manipspace.py. Their
generators were not seeded, so the data have the published distribution but other numbers.
"""

from __future__ import annotations

import functools
import importlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.bounds import AtLeast
from reverie.core.errors import ConfigError, did_you_mean
from reverie.core.rows import Rows
from reverie.datasets.ogbench import OGBENCH_PREFIX, RECIPES, check_dataset_name, parse_name, source_advice
from reverie.datasets.output import write_generated
from reverie.envs.config import EnvConfig
from reverie.envs.goal_tasks import global_generator
from reverie.envs.make import make_base
from reverie.envs.suites import register_suite

_random: Any = np.random  # the global generator, from which OGBench draws too
MAZE_NOISE = 0.5
"""Standard deviation of the noise on actions in a maze."""
STITCHED_CELLS = 4
"""Distance in cells from the start to the goal of an episode to be stitched."""
ROBOT_NOISE = np.array([1.0, 1.0, 1.0, 3.0, 10.0])
"""Standard deviations of the noise on a robot's actions, times up to 0.1 by episode."""
DTYPES: dict[str, type[np.generic]] = {"terminals": np.bool_, "button_states": np.int64}
"""Types of the arrays that are not float32."""
STACKING: dict[str, tuple[float, float]] = {
    "single": (0, 0),
    "double": (0, 0.25),
    "triple": (0.05, 0.35),
    "quadruple": (0.1, 0.5),
}
"""Range of the probability that a new target of a cube is on another cube, by the number of cubes."""
OBJECTS: dict[str, tuple[str, ...]] = {
    "cube": ("cube",),
    "scene": ("cube", "button", "drawer", "window"),
    "puzzle": ("button",),
}
"""What the robot moves, by environment."""


def make_dataset(
    name: str, folder: Path, episodes: int | None = None, seed: int = 0,
    progress: Callable[[str, int, int], None] = lambda file, count, total: None,
) -> list[Path]:  # fmt: skip
    """Write ``episodes`` of the dataset called ``name`` to ``folder``, and a tenth of them held out; return the files.

    None: the number of episodes that OGBench has. ``progress`` is called with a file, its episodes so far and in total.

    Raises:
        ConfigError: there is no such dataset, or a trained expert recorded it.
        EnvError: OGBench is not installed, or pictures cannot be drawn.
        RunError: a file exists.
    """
    check_dataset_name(name)
    if name not in RECIPES:
        raise ConfigError(f"{OGBENCH_PREFIX}{name} cannot be made.{did_you_mean(name, RECIPES)} {source_advice(name)}")
    AtLeast(1).check("episodes", episodes)
    AtLeast(0).check("seed", seed)
    recipe, (env_id, kind) = RECIPES[name], parse_name(name)
    count = recipe.episodes if episodes is None else episodes
    register_suite(env_id)
    with global_generator(np.random.MT19937(seed)):
        play = (_Maze if env_id.startswith("pointmaze-") else _Robot)(env_id, kind).play
        return write_generated(folder, name, count, lambda: play(recipe.states), progress)


class _Recorder:
    """The rows of one episode."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Any]] = defaultdict(list)

    def add(self, obs: np.ndarray, action: np.ndarray, info: dict[str, Any]) -> None:
        """Add an observation, the action taken after it, and the state before it, which is in the ``info`` after it."""
        before = {name: info[f"prev_{name}"] for name in ("qpos", "qvel", "button_states") if f"prev_{name}" in info}
        for name, value in {"observations": obs, "actions": action, **before}.items():
            self._rows[name].append(value)

    def finish(self) -> Rows:
        """Return the rows; the last one ends the episode."""
        count = len(self._rows["actions"])
        columns = {**self._rows, "terminals": [False] * (count - 1) + [True]}
        types = {"observations": np.uint8 if np.ndim(columns["observations"][0]) == 3 else np.float32, **DTYPES}
        return {name: np.array(values, types.get(name, np.float32)) for name, values in columns.items()}


def _make(env_id: str, **kwargs: object) -> Any:
    """Return an environment that goes on at a goal; EnvError if it cannot be made, or draws pictures and cannot."""
    env: Any = make_base(EnvConfig(id=env_id, kwargs={"terminate_at_goal": False, **kwargs}), None, render=False)
    return env.unwrapped


class _Maze:
    """A point that walks through a maze: to one goal after another, or to a nearby goal, where it stays."""

    def __init__(self, env_id: str, kind: str) -> None:
        self._env = _make(env_id)
        self._navigates = kind == "navigate"
        free: np.ndarray = self._env.maze_map == 0
        self._cells: list[list[int]] = np.argwhere(free).tolist()
        self._vertices = [cell for cell in self._cells if not _is_corridor(free, *cell)]

    @functools.cache  # noqa: B019 - of the few cells of one maze
    def _subgoal(self, cell: tuple[int, int], goal: tuple[int, int]) -> np.ndarray:
        """Return the center of the next cell on the shortest way from ``cell`` to ``goal``."""
        env = self._env
        subgoal: np.ndarray = env.get_oracle_subgoal(env.ij_to_xy(cell), env.ij_to_xy(goal))[0]
        return subgoal

    def _begin(self) -> np.ndarray:
        """Begin an episode; return its first observation."""
        start, goals = _choose(self._cells), self._vertices
        if not self._navigates:
            center = self._env.ij_to_xy(start)
            distances = self._env.get_oracle_subgoal(center, center)[1]
            goals = np.argwhere(distances == STITCHED_CELLS).tolist() or [start]
        obs: np.ndarray = self._env.reset(options={"task_info": {"init_ij": start, "goal_ij": _choose(goals)}})[0]
        return obs

    def play(self, states: int) -> Rows:
        """Return an episode of this many ``states``."""
        env, obs, recorder = self._env, self._begin(), _Recorder()
        goal = env.xy_to_ij(env.cur_goal_xy)
        for _ in range(states):
            xy = env.get_xy()
            direction = self._subgoal(env.xy_to_ij(xy), goal) - xy
            direction = direction / (np.linalg.norm(direction) + 1e-6)
            noise = _random.normal(0, MAZE_NOISE, 2)
            action = np.clip(direction + noise, -1, 1)
            next_obs, _, _, _, info = env.step(action)
            recorder.add(obs, action, info)
            if info["success"] and self._navigates:
                goal = tuple(_choose(self._vertices))
                env.set_goal(goal_xy=env.add_noise(env.ij_to_xy(goal)))
            obs = next_obs
        return recorder.finish()


def _is_corridor(free: np.ndarray, i: int, j: int) -> bool:
    """Return whether the cell has free neighbors on two opposite sides alone; ``free`` ``[I, J]`` bool."""
    north, south, west, east = free[i - 1, j], free[i + 1, j], free[i, j - 1], free[i, j + 1]
    return bool(north == south and west == east and north != west)


def _choose(cells: list[list[int]]) -> list[int]:
    return cells[_random.randint(len(cells))]


class _Robot:
    """A robot that moves one object after another: by plans with noise, or with noise on each action."""

    def __init__(self, env_id: str, kind: str) -> None:
        scene, self._size = env_id.removeprefix("visual-").split("-")[:2]
        self._env = _make(env_id, mode="data_collection")
        self._is_noisy, self._has_drawer = kind == "noisy", scene == "scene"
        self._random_fraction = (0.2 if scene == "puzzle" else 0.1) if self._is_noisy else 0.0
        policy = "markov" if self._is_noisy else "plan"
        self._oracles: dict[str, Any] = {}
        for part in OBJECTS[scene]:
            module = importlib.import_module(f"ogbench.manipspace.oracles.{policy}.{part}_{policy}")
            oracle = getattr(module, f"{part.title()}{policy.title()}Oracle")
            self._oracles[part] = oracle(
                env=self._env, **({"gripper_always_closed": True} if scene == "puzzle" else {})
            )

    def play(self, states: int) -> Rows:
        """Return an episode of this many ``states``, in which a cube, if it can fall, stays visible."""
        while True:
            rows = self._play_once(states)
            if not self._has_drawer or _is_visible(rows["qpos"][:, 14:17]):
                return rows

    def _play_once(self, states: int) -> Rows:
        env, recorder = self._env, _Recorder()
        obs, info = env.reset()
        low, high = STACKING.get(self._size, (0.5, 0.5))
        stacking = _random.uniform(low, high) if low < high else low
        noise = _random.uniform(0, 0.1) * ROBOT_NOISE if self._is_noisy else None
        oracle = self._oracles[info["privileged/target_task"]]
        oracle.reset(obs, info)
        for _ in range(states):
            if _random.uniform() < self._random_fraction:
                action = env.action_space.sample()
            else:
                action = np.array(oracle.select_action(obs, info))
                action = action if noise is None else action + _random.normal(0, noise)
            action = np.clip(action, -1, 1)
            next_obs, _, _, _, info = env.step(action)
            if oracle.done:
                target_obs, target_info = env.set_new_target(p_stack=stacking)
                oracle = self._oracles[target_info["privileged/target_task"]]
                oracle.reset(target_obs, target_info)
            recorder.add(obs, action, info)
            obs = next_obs
        return recorder.finish()


def _is_visible(positions: np.ndarray) -> bool:
    """Return whether a cube at ``positions`` ``[T, 3]`` never falls off the table, on the left beside the drawer."""
    _, y, z = positions.T
    in_drawer = (z >= 0.06) & (z <= 0.08)
    return not bool((y >= 0.29).any() or ((y <= -0.3) & ~in_drawer).any())

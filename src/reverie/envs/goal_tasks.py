"""Environments with numbered tasks and goals to observe, by the interface of OGBench.

The environment has an attribute ``num_tasks``. ``reset(options={"task_id": k})``, with k from 1, begins an episode of
task k, and the ``goal`` in its info is the observation to reach.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import seeding

from reverie.core.errors import ConfigError
from reverie.core.obs_codec import default_key
from reverie.core.specs import GOAL_KEY
from reverie.envs.config import Env, EnvConfig
from reverie.envs.episode_info import TASK
from reverie.envs.wrappers import Reset, Stepped, checked_reset, checked_step

_legacy: Any = np.random  # NumPy's types lack its functions that replace the global generator


@contextlib.contextmanager
def global_generator(bits: np.random.BitGenerator) -> Iterator[None]:
    """Draw from ``bits`` inside the context where code uses NumPy's global generator, or a space without a seed."""
    outer_bits, make_generator = _legacy.get_bit_generator(), seeding.np_random
    _legacy.set_bit_generator(bits)
    seeding.np_random = lambda seed=None: make_generator(int(_legacy.randint(2**31)) if seed is None else seed)
    try:
        yield
    finally:
        seeding.np_random = make_generator
        _legacy.set_bit_generator(outer_bits)


def with_goal_tasks(env: Env, config: EnvConfig, index: int) -> Env:
    """Return ``env`` as :class:`GoalTasks` if it has tasks; it is number ``index`` of ``config.num`` environments."""
    num_tasks = getattr(env.unwrapped, "num_tasks", None)
    if isinstance(num_tasks, int):
        seeded = SeededEnv(env)
        has_rewards = getattr(env.unwrapped, "_reward_task_id", None) is not None  # OGBench's singletask
        first: Reset = (None, {}) if has_rewards else seeded.reset(options={TASK: 1})
        obs, info = first
        if GOAL_KEY in info:
            if (shape := np.shape(info[GOAL_KEY])) != np.shape(obs):
                raise ConfigError(
                    f"the environment's goals have shape {shape}: expected {np.shape(obs)}, that of an observation. "
                    "In OGBench, leave out use_oracle_rep."
                )
            return GoalTasks(env, config, num_tasks, index)
        env = seeded
    if config.tasks:
        raise ConfigError(f"env.tasks = {config.tasks}: the environment has no tasks to choose. Remove this option.")
    return env


class SeededEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Seeds, by the seed of a reset, also what the environment draws from NumPy's global generator and its spaces."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._bits = np.random.MT19937()
        self.action_space = env.action_space  # OGBench's robot makes another one at each access

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]  # as of Gymnasium's own wrappers
        """The spec of the environment alone, which implies this wrapper."""
        return self.env.spec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        if seed is not None:
            self._bits = np.random.MT19937(seed)
            self.action_space.seed(seed)
        with global_generator(self._bits):
            return checked_reset(self.env, seed, options)

    def step(self, action: object) -> Stepped:
        with global_generator(self._bits):
            return checked_step(self.env, action)


class GoalTasks(SeededEnv):
    """Begins the episodes of tasks in turn, and observes the goal under ``goal``; ``task_id`` in the info is the task.

    Episode n of environment i of N is of task i + n N, modulo the number of tasks, counted from the last reset with a
    seed: the first episodes of N environments have all tasks equally often.
    """

    def __init__(self, env: Env, config: EnvConfig, num_tasks: int, index: int) -> None:
        super().__init__(env)
        if beyond := [task for task in config.tasks if task > num_tasks]:
            raise ConfigError(
                f"env.tasks = {config.tasks}: the environment has no task {beyond[0]}, only 1 to {num_tasks}."
            )
        self.tasks: tuple[int, ...] = config.tasks or tuple(range(1, num_tasks + 1))
        self._index, self._stride = index, config.num
        self._num_episodes = self._task = 0
        self._goal: dict[str, Any] = {}
        parts = self._parts(env.observation_space)
        self.observation_space = spaces.Dict({**parts, GOAL_KEY: spaces.Dict(parts)})

    def _parts(self, value: Any) -> dict[str, Any]:
        """Return the parts of an observation, or of its space, by key."""
        space = self.env.observation_space
        return dict(value.items()) if isinstance(space, spaces.Dict) else {default_key(space): value}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        self._num_episodes = 0 if seed is not None else self._num_episodes
        task = self.tasks[(self._index + self._num_episodes * self._stride) % len(self.tasks)]
        self._num_episodes += 1
        options = {TASK: task, **(options or {})}
        self._task = options[TASK]
        obs, info = super().reset(seed=seed, options=options)
        self._goal = self._parts(copy.deepcopy(info[GOAL_KEY]))
        if GOAL_KEY in options and hasattr(self.unwrapped, "set_goal"):  # a maze, whose goal can be anywhere
            goal = options[GOAL_KEY]
            goal = dict(goal) if isinstance(goal, Mapping) else self._parts(goal)
            if (state := np.asarray(next(iter(goal.values())))).ndim == 1:
                self._goal = goal
                self.unwrapped.set_goal(goal_xy=state[:2])
        return {**self._parts(obs), GOAL_KEY: self._goal}, {**info, TASK: self._task}

    def step(self, action: object) -> Stepped:
        obs, reward, terminated, truncated, info = super().step(action)
        return {**self._parts(obs), GOAL_KEY: self._goal}, reward, terminated, truncated, {**info, TASK: self._task}

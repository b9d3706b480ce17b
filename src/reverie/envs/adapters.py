"""Adapters to Gymnasium for other interfaces: old Gym, ProcGen, JAX, PettingZoo.

The packages are imported when an environment is made.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.envs.wrappers import Env, Reset, Stepped

MAX_SEED = 2**31 - 1


def _convert_space(space: Any) -> spaces.Space[Any]:
    """Convert a space of the old Gym, or of a package derived from it, to a Gymnasium space."""
    kinds = {kind.__name__ for kind in type(space).__mro__}
    if "Dict" in kinds:
        return spaces.Dict({str(key): _convert_space(inner) for key, inner in space.spaces.items()})
    if "Tuple" in kinds:
        return spaces.Tuple([_convert_space(inner) for inner in space.spaces])
    if "Box" in kinds:
        return spaces.Box(space.low, space.high, space.shape, space.dtype)
    if "Discrete" in kinds:
        return spaces.Discrete(int(space.n))
    if "MultiDiscrete" in kinds:
        return spaces.MultiDiscrete(space.nvec)
    return spaces.MultiBinary(space.n)


def _convert_action(space: Any, action: object) -> Any:
    """Convert an action of ``_convert_space(space)`` to ``space``: MineRL names the choices of its ``Enum``."""
    if isinstance(action, Mapping):
        return {key: _convert_action(space.spaces[key], part) for key, part in action.items()}
    return space.values[action] if type(space).__name__ == "Enum" else action


class Adapter(Env):
    """A Gymnasium environment. Subclasses implement ``_begin``, and ``_render_image`` for rendering."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012  # an instance variable in Gymnasium

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        return self._begin(seed)

    def _begin(self, seed: int | None) -> Reset:
        """Return the first observation and its info; the random generator is already seeded."""
        raise NotImplementedError

    def _seed(self) -> int:
        return int(self.np_random.integers(MAX_SEED))

    def render(self) -> Any:
        """Return an image; None without a render mode."""
        return self._render_image() if self.render_mode == "rgb_array" else None

    def _render_image(self) -> Any:
        return self._image

    _image: np.ndarray
    """The agent's view, for environments that render nothing else."""


class OldGym(Adapter):
    """An environment of Gym before 0.26, whose ``step`` returns ``done``, or one that already returns five values."""

    def __init__(self, env: Any, render_mode: str | None = None) -> None:
        self._old = env
        self.render_mode: str | None = render_mode
        self.observation_space: spaces.Space[Any] = _convert_space(env.observation_space)
        self.action_space: spaces.Space[Any] = _convert_space(env.action_space)

    def _begin(self, seed: int | None) -> Reset:
        if seed is not None and callable(getattr(self._old, "seed", None)):
            self._old.seed(seed)
        result = self._old.reset()
        both = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        return result if both else (result, {})

    def step(self, action: object) -> Stepped:
        """Take ``action``. An episode end is a truncation if the info marks it."""
        obs, reward, *ends, info = self._old.step(_convert_action(self._old.action_space, action))
        cut = bool(ends[1] if len(ends) == 2 else info.get("TimeLimit.truncated"))
        return obs, float(reward), bool(ends[0]) and (len(ends) == 2 or not cut), cut, info

    def _render_image(self) -> Any:
        return self._old.render(mode="rgb_array")

    def close(self) -> None:
        self._old.close()


def super_mario(
    old_id: str, movement: str = "simple_movement", render_mode: str | None = None, **kwargs: object
) -> OldGym:
    """Make Super Mario Bros. with one of its button sets: right_only, simple_movement or complex_movement."""
    import gym
    import gym_super_mario_bros as mario
    from gym_super_mario_bros import actions
    from nes_py.wrappers import JoypadSpace

    kind = mario.SuperMarioBrosRandomStagesEnv if "RandomStages" in old_id else mario.SuperMarioBrosEnv
    env = kind(**{**gym.spec(old_id).kwargs, **kwargs})  # gym.make would wrap it in the newer interface
    return OldGym(JoypadSpace(env, getattr(actions, movement.upper())), render_mode)


class MemoryMaze(Adapter):
    """A Memory Maze (Pasukonis et al. 2022): images ``[64, 64, 3]``, six actions; episodes end at a time limit."""

    def __init__(self, size: str, render_mode: str | None = None, **kwargs: object) -> None:
        from memory_maze import tasks
        from shimmy.utils.dm_env import dm_env_step2gym_step, dm_spec2gym_space

        self.render_mode: str | None = render_mode
        self._read = dm_env_step2gym_step
        task = getattr(tasks, f"memory_maze_{size}")
        self._make = functools.partial(task, **{"image_only_obs": True, **kwargs})
        self._maze = self._make(seed=0)
        self.observation_space: spaces.Space[Any] = dm_spec2gym_space(self._maze.observation_spec())
        self.action_space: spaces.Space[Any] = dm_spec2gym_space(self._maze.action_spec())

    def _begin(self, seed: int | None) -> Reset:
        if seed is not None:  # only its constructor takes a seed
            self._maze.close()
            self._maze = self._make(seed=self._seed())
        return self._read(self._maze.reset())[0], {}

    def step(self, action: int) -> Stepped:
        stepped: Stepped = self._read(self._maze.step(action))
        return stepped

    def _render_image(self) -> Any:
        return self._maze.physics.render(height=256, width=256)  # top view

    def close(self) -> None:
        self._maze.close()


def minedojo(task: str, render_mode: str | None = None, **kwargs: object) -> OldGym:
    """Make a task of MineDojo, such as ``harvest_milk``, with images of 64 x 64 pixels."""
    return OldGym(importlib.import_module("minedojo").make(task, **{"image_size": (64, 64), **kwargs}), render_mode)


class Procgen(Adapter):
    """ProcGen (Cobbe et al. 2020): images ``[64, 64, 3]``, or ``[512, 512, 3]`` if ``detailed``; 15 actions.

    ProcGen starts the next episode itself. It never returns the last observation of an episode: the previous
    observation is repeated instead.
    """

    def __init__(self, name: str, detailed: bool = False, render_mode: str | None = None, **kwargs: object) -> None:
        self.render_mode: str | None = render_mode
        self._kwargs = {"env_name": name, "num": 1, **({"render_mode": "rgb_array"} if detailed else {}), **kwargs}
        self._game: Any = None
        self._detailed = detailed
        side = 512 if detailed else 64
        self.observation_space: spaces.Box = spaces.Box(0, 255, (side, side, 3), np.uint8)
        self.action_space: spaces.Discrete = spaces.Discrete(15)

    def _begin(self, seed: int | None) -> Reset:
        if self._game is None or seed is not None:  # only its constructor takes a seed
            from procgen import ProcgenGym3Env

            self._game = ProcgenGym3Env(**{"rand_seed": self._seed(), "num_threads": 0} | self._kwargs)
        elif not self._game.observe()[2][0]:
            self._game.act(np.array([-1]))  # ends the episode
        self._image = self._draw()
        return self._image, {}

    def _draw(self) -> np.ndarray:
        images = self._game.get_info()[0]["rgb"] if self._detailed else self._game.observe()[1]["rgb"][0]
        return np.array(images)

    def step(self, action: int) -> Stepped:
        """Take ``action``; every episode end is a termination, since ProcGen does not mark its time limit."""
        self._game.act(np.array([action]))
        reward, _, first = self._game.observe()
        if not first[0]:
            self._image = self._draw()
        return self._image, float(reward[0]), bool(first[0]), False, {}


class Craftax(Adapter):
    """Craftax (Matthews et al. 2024), compiled by JAX: a vector of symbols, or an image for ``...-Pixels-v1``."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, name: str, render_mode: str | None = None) -> None:
        import jax
        from craftax.craftax_env import make_craftax_env_from_name

        self.render_mode: str | None = render_mode
        self._jax, self._game = jax, make_craftax_env_from_name(name, auto_reset=False)
        self._params = self._game.default_params
        self.max_episode_steps: int = int(self._params.max_timesteps)
        obs_space = self._game.observation_space(self._params)
        self._pixels = "Pixels" in name
        high, kind = (255, np.uint8) if self._pixels else (obs_space.high, np.float32)
        self.observation_space: spaces.Space[Any] = spaces.Box(0, high, obs_space.shape, kind)
        self.action_space: spaces.Discrete = spaces.Discrete(int(self._game.action_space(self._params).n))

    def _key(self) -> Any:
        return self._jax.random.PRNGKey(self._seed())

    def _to_array(self, obs: object) -> np.ndarray:
        return np.rint(np.asarray(obs) * 255).astype(np.uint8) if self._pixels else np.asarray(obs)

    def _begin(self, seed: int | None) -> Reset:
        obs, self._state = self._game.reset(self._key(), self._params)
        return self._to_array(obs), {}

    def step(self, action: int) -> Stepped:
        """Take ``action``. The info contains the achievements, such as ``Achievements/collect_wood``."""
        obs, self._state, reward, done, info = self._game.step(self._key(), self._state, int(action), self._params)
        late = bool(self._state.timestep >= self._params.max_timesteps)
        return self._to_array(obs), float(reward), bool(done) and not late, late, {k: float(x) for k, x in info.items()}


class SingleAgentEnv(Adapter):
    """One agent of a PettingZoo world, such as ``classic.connect_four_v3``; the others act at random.

    They also take only actions that a mask in their observation or info allows. ``agent`` is the agent's index in the
    order of play.
    """

    def __init__(self, world: Any, agent: int = 0) -> None:
        self.render_mode: str | None = getattr(world, "render_mode", None)
        self._world = world
        self._agent = self._world.possible_agents[agent]
        self.observation_space: spaces.Space[Any] = self._world.observation_space(self._agent)
        self.action_space: spaces.Space[Any] = self._world.action_space(self._agent)

    def _begin(self, seed: int | None) -> Reset:
        world_seed = self._seed()
        self._world.reset(seed=world_seed)
        for number, agent in enumerate(self._world.possible_agents):
            self._world.action_space(agent).seed(world_seed + number)
        obs, *_, info = self._current_observation()
        return obs, info

    def step(self, action: object) -> Stepped:
        """Take ``action``, and step the other agents until it is this agent's turn again. Rewards are summed."""
        self._world.step(action)
        obs, reward, terminated, truncated, info = self._current_observation()
        return obs, float(reward), bool(terminated), bool(truncated), info

    def _current_observation(self) -> Any:
        while (agent := self._world.agent_selection) != self._agent:
            obs, _, terminated, truncated, info = self._world.last()
            mask = (obs if isinstance(obs, dict) else info).get("action_mask")
            space = self._world.action_space(agent)
            over = terminated or truncated
            self._world.step(None if over else space.sample(None if mask is None else np.asarray(mask, np.int8)))
        return self._world.last()

    def _render_image(self) -> Any:
        return self._world.render()

    def close(self) -> None:
        self._world.close()

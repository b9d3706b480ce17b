"""Native vector environments: from Gymnasium, EnvPool, or a function; and a view of a single environment."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from reverie.core.errors import ConfigError, EnvError, ReverieError, format_error, short_repr
from reverie.core.imports import import_module_of
from reverie.core.signals import is_interrupt
from reverie.envs.config import EnvConfig
from reverie.envs.suites import ENVPOOL, register_id
from reverie.envs.vector_steps import (
    Vector,
    checked_vector_step,
    episode_info_at,
    final_obs,
    info_at,
    resets_in_same_step,
)
from reverie.envs.wrappers import Reset, Stepped, check_spaces

SINGLE_ENV_SETTINGS = ("wrappers", "action_repeat", "pool_frames", "noop_max", "terminal_on_life_loss", "fire_on_reset",
         "max_episode_steps", "frame_stack", "pixels", "mission", "full_view", "map_view", "log_info")  # fmt: skip
"""Settings that require single environments."""


def check_native_settings(config: EnvConfig) -> None:
    """Raise ConfigError if a setting cannot be applied to a native vector environment."""
    usual = EnvConfig()
    for name in SINGLE_ENV_SETTINGS:
        if (value := getattr(config, name)) != getattr(usual, name):
            raise ConfigError(
                f"env.{name} = {value!r} with env.vectorization = native: native vector environments are used "
                "unchanged. Remove this option, or use env.vectorization = sync."
            )


def make_native_vector(config: EnvConfig, factory: Callable[..., Any] | None, num: int) -> Vector:
    """Make ``num`` environments at once: ``factory(num_envs=num)``, EnvPool's, or by Gymnasium's ``make_vec``."""
    module, _, name = config.id.rpartition(":")
    try:
        if factory is not None:
            vector = factory(num_envs=num, **config.kwargs)
        elif config.id.startswith(ENVPOOL):
            package, task = importlib.import_module("envpool"), config.id.removeprefix(ENVPOOL)
            kwargs = {"env_type": "gymnasium", "num_envs": num, **config.kwargs}
            vector = EnvPoolVector(functools.partial(package.make, task, **kwargs))
        else:
            if module:
                import_module_of(config.id, f"environment '{config.id}'", EnvError)
            register_id(name)
            vector = gymnasium.make_vec(name, num, vectorization_mode="vector_entry_point", **config.kwargs)
    except ReverieError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        source = config.id if factory is None else short_repr(factory)
        failed = f"env.vectorization = native: {source} with num_envs = {num} could not be made"
        raise EnvError(f"{failed}: {format_error(error)}") from error
    if not isinstance(vector, VectorEnv) or vector.num_envs != num:
        problem = f"env.vectorization = native: the factory returned {short_repr(vector)} for num_envs = {num}"
        raise EnvError(f"{problem}: expected a gymnasium.vector.VectorEnv of {num}.")
    check_spaces(vector, "single_")
    if isinstance(vector.unwrapped, SyncVectorEnv):
        vector.unwrapped.autoreset_mode = AutoresetMode.NEXT_STEP  # takes effect at once
    elif vector_mode(vector) == AutoresetMode.DISABLED:
        vector.close()
        raise EnvError(
            "env.vectorization = native: the vector environment has AutoresetMode.DISABLED: expected NEXT_STEP or "
            "SAME_STEP."
        )
    return vector


def vector_mode(vector: Vector) -> AutoresetMode:
    """Return when ``vector``, by its metadata, resets an ended environment; by default in the next step."""
    if isinstance(vector.unwrapped, SyncVectorEnv):
        return vector.unwrapped.autoreset_mode
    return AutoresetMode(vector.metadata.get("autoreset_mode") or AutoresetMode.NEXT_STEP)


class VectorOfOne(gymnasium.Env[Any, Any]):
    """The environment of a vector of one, as a single environment."""

    def __init__(self, vector: Vector) -> None:
        self._vector = vector
        self.observation_space: gymnasium.Space[Any] = vector.single_observation_space
        self.action_space: gymnasium.Space[Any] = vector.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        obs, info = self._vector.reset(seed=seed)
        return first_item(obs), info_at(info, 0, 1)

    def step(self, action: Any) -> Stepped:
        obs, reward, terminated, truncated, info = checked_vector_step(self._vector, add_batch_axis(action))
        ended = terminated | truncated
        if ended[0] and (vector_mode(self._vector) == AutoresetMode.SAME_STEP or resets_in_same_step(info)):
            obs = final_obs(info, obs, ended, self._vector)
        info = episode_info_at(info, 0, 1) if ended[0] else info_at(info, 0, 1)
        return first_item(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), info

    def close(self) -> None:
        self._vector.close()


def first_item(value: Any) -> Any:
    """Return the first value of a batch, as a vector environment returns observations."""
    if isinstance(value, Mapping):
        return {key: first_item(part) for key, part in value.items()}
    return tuple(map(first_item, value)) if isinstance(value, tuple) else value[0]


def add_batch_axis(value: Any) -> Any:
    """Return a value as a batch of one."""
    if isinstance(value, Mapping):
        return {key: add_batch_axis(part) for key, part in value.items()}
    return tuple(map(add_batch_axis, value)) if isinstance(value, tuple) else np.asarray(value)[None]


class EnvPoolVector(VectorWrapper):
    """Environments of EnvPool, which takes a seed only when it is made."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        super().__init__(make(seed=0))

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start all episodes; a ``seed`` makes the environments again."""
        if seed is not None:
            self.env.close()
            self.env: VectorEnv[Any, Any, Any] = self._make(seed=int(seed) % 2**31)
        return self.env.reset()

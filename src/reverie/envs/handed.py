"""Environments that are handed over in Python: functions that make them, and single instances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from reverie.core.errors import ConfigError, brief
from reverie.envs.base import EnvConfig, refused

MakeEnv = Callable[..., gymnasium.Env[Any, Any]]
EnvLike = str | MakeEnv | gymnasium.Env[Any, Any]
"""An id of Gymnasium's registry, a function that makes an environment, or one that exists."""


def env_factory(config: EnvConfig, env: EnvLike | None) -> MakeEnv | None:
    """How to make the environment; None to make ``config.id``.

    Raises:
        ConfigError: one instance cannot be many environments.
    """
    if env is None or isinstance(env, str):
        return None
    if isinstance(env, gymnasium.vector.VectorEnv) or not (isinstance(env, gymnasium.Env) or callable(env)):
        raise ConfigError(
            f"env = {brief(env)}: expected an id, a function that makes an environment, or one environment of "
            "Gymnasium. Many at once are env.num copies of one."
        )
    if not isinstance(env, gymnasium.Env):
        return env
    if config.num != 1 or config.vector != "serial":
        raise ConfigError(
            f"env.num = {config.num}, env.vector = '{config.vector}' with an environment instance: an instance "
            "is one environment in this process. Give a function that makes environments instead."
        )
    if config.kwargs:
        raise ConfigError(
            f"env.kwargs = {brief(config.kwargs)} with an environment instance, which is made already. Give its class "
            "or a function that makes it, or make it so."
        )
    return Single(env)


def as_handed(config: EnvConfig, env: EnvLike | None) -> EnvConfig:
    """A saved run's settings for the function or instance that is handed over now, without arguments that it takes not.

    Earlier versions saved such that nobody was given; an instance is made already.
    """
    if env is None or isinstance(env, str) or not config.kwargs:
        return config
    unwanted = config.kwargs if isinstance(env, gymnasium.Env) else refused(env, config.kwargs)
    return config.merge({"kwargs": {name: x for name, x in config.kwargs.items() if name not in unwanted}})


class Single:
    """Makes the one instance that was handed over, which is not ours to close."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env = Open(env)

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """The same one each time."""
        return self.env


class Open(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Stays open: whoever has made it goes on with it."""

    def close(self) -> None:
        """Nothing."""


def env_name(env: EnvLike) -> str:
    """What a run is said to be on: the id, or where the function or instance comes from."""
    if isinstance(env, str):
        return env
    if isinstance(env, gymnasium.Env):
        return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    return str(getattr(env, "__qualname__", type(env).__qualname__))

"""Environments that users pass in Python: functions that make them, and single instances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from reverie.core.errors import ConfigError, brief
from reverie.envs.base import EnvConfig, foreign, refused

MakeEnv = Callable[..., gymnasium.Env[Any, Any]]
EnvLike = str | MakeEnv | gymnasium.Env[Any, Any]
"""A Gymnasium id, a function (or class) that makes an environment, or an environment."""


def env_factory(config: EnvConfig, env: EnvLike | None) -> MakeEnv | None:
    """Return a function that makes ``env``; None if ``config.id`` is to be made.

    Raises:
        ConfigError: ``env`` is none of the three kinds, such as an environment of another library, or it is an
            instance and the settings ask for several environments, for workers or for ``kwargs``.
    """
    if env is None or isinstance(env, str):
        return None
    known = isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv | type)  # a class makes one
    if not known and all(callable(getattr(env, name, None)) for name in ("reset", "step")):
        raise ConfigError(f"env is {foreign(env)}")  # it may be callable, such as one of TorchRL
    if isinstance(env, gymnasium.vector.VectorEnv) or not (isinstance(env, gymnasium.Env) or callable(env)):
        raise ConfigError(
            f"env = {brief(env)}: expected an environment id, a function that makes an environment, or a single "
            "gymnasium.Env. Set env.num to run several copies of one."
        )
    if not isinstance(env, gymnasium.Env):
        return env
    if config.num != 1 or config.vector != "serial":
        raise ConfigError(
            f"env.num = {config.num}, env.vector = '{config.vector}' with an environment instance: expected "
            "env.num = 1 and env.vector = 'serial'. Pass a function that makes environments instead of an instance."
        )
    if config.kwargs:
        raise ConfigError(
            f"env.kwargs = {brief(config.kwargs)} with an environment instance: these arguments have no effect on it. "
            "Pass them when you create the instance, or pass its class or a function that makes it."
        )
    return Single(env)


def as_handed(config: EnvConfig, env: EnvLike | None) -> EnvConfig:
    """Return a saved run's settings without the ``kwargs`` that ``env``, passed now, does not accept.

    Earlier versions saved ``kwargs`` that were not used. An instance accepts none, as it is made already.
    """
    if env is None or isinstance(env, str) or not config.kwargs:
        return config
    unwanted = config.kwargs if isinstance(env, gymnasium.Env) else refused(env, config.kwargs)
    return config.merge({"kwargs": {name: x for name, x in config.kwargs.items() if name not in unwanted}})


class Single:
    """Returns the one instance that the user passed, which belongs to the user and is never closed here."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env = Open(env)

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Return the same environment each time."""
        return self.env


class Open(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ignores ``close``: the user goes on with the environment. Its spec is the environment's."""

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]  # as of Gymnasium's own wrappers
        """The spec of the environment alone, which others can make again without this wrapper."""
        return self.env.spec

    def close(self) -> None:
        """Do nothing."""


def env_name(env: EnvLike) -> str:
    """Return the name of ``env`` in messages: the id, or the name of the class or function."""
    if isinstance(env, str):
        return env
    if isinstance(env, gymnasium.Env):
        return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    return str(getattr(env, "__qualname__", type(env).__qualname__))

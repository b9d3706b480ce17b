"""One environment: its configuration, and how it is made with the options that the configuration asks for."""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import gymnasium
from gymnasium.error import DependencyNotInstalled
from gymnasium.error import Error as GymError

from reverie.core.config import Config, check_at_least, check_regex
from reverie.core.errors import ConfigError, EnvError, ReverieError, brief, did_you_mean
from reverie.core.importing import importable
from reverie.envs import dmc
from reverie.envs.suites import load_suite, not_registered, unknown
from reverie.envs.wrappers import ActionRepeat, NoopReset

Env = gymnasium.Env[Any, Any]
Factory = Callable[..., Env]
"""Takes ``EnvConfig.kwargs``."""

OF_ALL = {"num", "vector", "start_method", "restarts", "restart_window", "timeout"}
"""Settings that say nothing about a single environment."""


@dataclass(frozen=True, kw_only=True)
class EnvConfig(Config):
    """Which environment, how many of it, and what happens between it and the agent."""

    id: str = "CartPole-v1"
    """An id of Gymnasium's registry, or `module:Id`."""

    num: int = 1
    """How many environments are stepped together."""

    vector: Literal["serial", "process"] = "serial"
    """Step them one after the other in this process, or each in a worker process with shared memory."""

    start_method: Literal["auto", "forkserver", "spawn", "fork"] = "auto"
    """How workers start. `auto` is forkserver where there is one; scripts then need `if __name__ == "__main__":`."""

    restarts: int = 10
    """An environment that fails is started again, all of them together so often in `restart_window`. 0: never."""

    restart_window: float = 3600.0
    """Seconds after which a failure is forgotten."""

    timeout: float = 600.0
    """Seconds that a step, a reset or making an environment may take before that is a failure. 0: any time."""

    action_repeat: int = 1
    """Take each action this many times and sum the rewards. Above 1, `ALE/` ids skip no frames of their own."""

    pool_frames: int = 1
    """Show the pixelwise maximum of the last so many of the repeated frames (Atari: 2)."""

    noop_max: int = 0
    """Begin each episode with up to so many idle actions (Atari: 30)."""

    time_limit: int | None = None
    """End an episode after so many decisions of the agent, in place of the registered limit. Never a terminal end."""

    clip_reward: Literal["none", "sign", "tanh"] = "none"
    """Replace each reward by its sign or its tanh. Scores are then sums of these."""

    resize: tuple[int, int] | None = None
    """Resize images to this height and width. None keeps their size."""

    grayscale: bool = False
    """Turn coloured images grey."""

    frame_stack: int = 1
    """Show the last so many observations together."""

    pixels: Literal["none", "add", "only"] = "none"
    """Show what render() draws as the observation `image`: beside the others, or in their place."""

    channels: Literal["auto", "first", "last"] = "auto"
    """Where images carry their channels. `auto` takes a small first axis before two larger ones as channels."""

    include: str = ".*"
    """Only observations whose whole key matches this pattern are seen. Nested keys read `arm/camera`."""

    exclude: str = ""
    """Observations whose whole key matches this pattern are not seen."""

    mission: bool = False
    """MiniGrid and BabyAI: observe the mission, as text."""

    kwargs: dict[str, Any] = field(default_factory=dict)
    """Handed to gymnasium.make, such as `full_action_space` or `repeat_action_probability` for Atari; or to the class
    or function that makes the environment."""

    def __post_init__(self) -> None:
        for name in ("num", "action_repeat", "pool_frames", "frame_stack"):
            check_at_least(f"env.{name}", getattr(self, name), 1)
        for name in ("noop_max", "restarts", "timeout"):
            check_at_least(f"env.{name}", getattr(self, name), 0)
        if not self.restart_window > 0.0:
            raise ConfigError(f"env.restart_window = {self.restart_window}: expected seconds above 0.")
        if self.time_limit is not None:
            check_at_least("env.time_limit", self.time_limit, 1)
        if self.pool_frames > self.action_repeat:
            raise ConfigError(
                f"env.pool_frames = {self.pool_frames}: there are only action_repeat = {self.action_repeat} frames."
            )
        for side in self.resize or ():
            check_at_least("env.resize", side, 1)
        for name in ("include", "exclude"):
            check_regex(f"env.{name}", getattr(self, name))

    def one(self) -> str:
        """What makes one environment what it is; how many there are, and what happens when they fail, is left out."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in OF_ALL}
        return re.sub(r" at 0x[0-9a-f]+", "", repr(values))

    def keeps(self, key: str) -> bool:
        """Whether the observation ``key`` is seen."""
        return bool(re.fullmatch(self.include, key)) and not (self.exclude and re.fullmatch(self.exclude, key))


def make_gym(config: EnvConfig, factory: Factory | Env | None, render: bool) -> Env:
    """One Gymnasium environment with every option that concerns actions, rewards and time.

    ``factory`` makes the environment in place of ``config.id``; an instance stands for itself. ``render`` asks for
    frames, and is satisfied with an environment that cannot draw unless ``config.pixels`` needs it.

    Raises:
        EnvError: the environment is unknown, or cannot be made or wrapped.
    """
    env = _from_registry(config, render) if factory is None else _from_factory(factory, config.kwargs)
    if config.noop_max:
        env = NoopReset(env, config.noop_max)
    if config.action_repeat > 1:
        env = ActionRepeat(env, config.action_repeat, config.pool_frames)
    if config.time_limit is not None:
        env = gymnasium.wrappers.TimeLimit(env, config.time_limit)
    return env


def _from_factory(factory: Factory | Env, arguments: Mapping[str, Any]) -> Env:
    env: object = factory if isinstance(factory, gymnasium.Env) else factory(**taken(factory, arguments))
    if isinstance(env, gymnasium.Env):
        return env
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise EnvError(f"the environment factory returned {env}; expected one environment. Ask for many with env.num.")
    raise EnvError(
        f"the environment factory returned a {type(env).__module__}.{type(env).__qualname__}; "
        "expected a gymnasium.Env. One of old Gym's can be wrapped by shimmy.GymV26CompatibilityV0."
    )


def taken(factory: Factory, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """``arguments``, if ``factory`` takes them.

    Raises:
        EnvError: it does not; says which it takes.
    """
    for name in refused(factory, arguments):
        names = names_of(factory) or []
        called = getattr(factory, "__qualname__", type(factory).__qualname__)
        raise EnvError(
            f"env.kwargs: {called} takes no '{name}'.{did_you_mean(name, names)} By name it takes "
            f"{', '.join(names) or 'nothing'}."
        )
    return arguments


def refused(factory: Factory, arguments: Mapping[str, Any]) -> list[str]:
    """Which of ``arguments`` the function or class does not take."""
    names = names_of(factory) if arguments else None
    return [] if names is None else [name for name in arguments if name not in names]


def names_of(factory: Factory) -> list[str] | None:
    """The arguments that it takes by name; None if it takes any."""
    parameters = inspect.signature(factory).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _from_registry(config: EnvConfig, render: bool) -> Env:
    module, _, name = config.id.rpartition(":")
    registered = import_for(module, config.id) if module else frozenset()
    load_suite(name)
    drawing = render or config.pixels != "none"
    if drawing:
        dmc.choose_renderer()
        if not any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")):
            os.environ["SDL_VIDEODRIVER"] = "dummy"  # pygame draws without a screen, and does not complain of it
    given = _make_arguments(config, name)
    try:
        return _make(name, given, drawing and "render_mode" not in given, required=config.pixels != "none")
    except DependencyNotInstalled as error:
        raise EnvError(f"environment '{config.id}' needs a package that is not installed: {error}") from error
    except ReverieError:
        raise
    except Exception as error:
        if isinstance(error, GymError) and name not in gymnasium.registry:
            raise (not_registered(config.id, registered) if module else unknown(config.id)) from error
        shown = ", ".join(f"{key}={brief(value)}" for key, value in given.items())
        raise EnvError(f"environment '{config.id}' cannot be made with ({shown}): {_said(error)}") from error


def _make_arguments(config: EnvConfig, name: str) -> dict[str, Any]:
    given: dict[str, Any] = {"disable_env_checker": True}
    if config.time_limit is not None:
        given["max_episode_steps"] = -1
    if name.startswith("ALE/") and config.action_repeat > 1:
        given["frameskip"] = 1
    return {**given, **config.kwargs}


def _make(name: str, given: dict[str, Any], drawing: bool, required: bool) -> Env:
    if not drawing:
        return gymnasium.make(name, **given)
    try:
        return gymnasium.make(name, **given, render_mode="rgb_array")
    except Exception as error:
        if required or isinstance(error, GymError):
            raise
        return gymnasium.make(name, **given)


def import_for(module: str, env_id: str) -> frozenset[str]:
    """Import ``module`` of ``env_id``; the ids that it registered, now or when it was imported before.

    Raises:
        EnvError: it cannot be imported.
    """
    importable()
    before = set(gymnasium.registry)
    try:
        importlib.import_module(module)
    except Exception as error:
        raise EnvError(
            f"environment '{env_id}': the module '{module}' cannot be imported ({_said(error)}). "
            "It must be installed, or lie in this folder or one of PYTHONPATH."
        ) from error
    own = {name for name, spec in gymnasium.registry.items() if _home(spec.entry_point) == module}
    return frozenset(own | gymnasium.registry.keys() - before)


def _home(entry_point: object) -> str:
    """The module of what Gymnasium calls to make an environment."""
    if isinstance(entry_point, str):
        return entry_point.partition(":")[0]
    return str(getattr(entry_point, "__module__", ""))


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

"""The configuration of environments, and how one is made with the options that concern actions, rewards and time."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import gymnasium
from gymnasium.error import DependencyNotInstalled
from gymnasium.error import Error as GymError

from reverie.core.checks import check_at_least, check_regex
from reverie.core.config import Config
from reverie.core.errors import ConfigError, EnvError, ReverieError, brief, did_you_mean, told
from reverie.core.importing import absent, dotted, importable, is_file
from reverie.envs import dmc
from reverie.envs.episode_info import EpisodeInfo, wanted
from reverie.envs.suites import load_suite, not_registered, unknown
from reverie.envs.wrappers import ActionRepeat, NoopReset

Env = gymnasium.Env[Any, Any]
Factory = Callable[..., Env]
"""Makes an environment; called with ``EnvConfig.kwargs``."""

LONGEST = 1_000_000
"""Longest env.timeout: system calls that wait longer fail."""
OF_ALL = {"num", "vector", "start_method", "restarts", "restart_window", "timeout"}
"""Settings that do not change how a single environment behaves."""


@dataclass(frozen=True, kw_only=True)
class EnvConfig(Config):
    """The environments: which, how many, and how their observations, actions and rewards are changed."""

    id: str = "CartPole-v1"
    """Gymnasium id, or `module:Id` to import the module that registers it first."""

    num: int = 1
    """Number of environments that are stepped together."""

    vector: Literal["serial", "process"] = "serial"
    """`serial` steps them one by one in this process; `process` gives each a worker process with shared memory."""

    start_method: Literal["auto", "forkserver", "spawn", "fork"] = "auto"
    """How workers start. `auto`: forkserver if available, else spawn; scripts need `if __name__ == "__main__":`."""

    restarts: int = 10
    """Restarts of failed environments allowed within `restart_window`, all environments together. 0: none."""

    restart_window: float = 3600.0
    """Seconds after which a failure no longer counts."""

    timeout: float = 600.0
    """Seconds that a step, a reset or making an environment may take; longer is a failure. 0: no limit."""

    action_repeat: int = 1
    """Take each action this many times and sum the rewards. Above 1, `ALE/` ids do not skip frames themselves."""

    pool_frames: int = 1
    """Observe the pixelwise maximum of this many of the last repeated frames (Atari: 2)."""

    noop_max: int = 0
    """Begin each episode with a random number of idle actions, 0 to this many (Atari: 30)."""

    time_limit: int | None = None
    """Truncate episodes after this many decisions of the agent, in place of the registered limit."""

    clip_reward: Literal["none", "sign", "tanh"] = "none"
    """Replace training rewards by their sign or tanh; training scores sum these. Evaluations use the true rewards, and
    estimates do where the data hold them: the data of a run with this setting hold the clipped ones."""

    resize: tuple[int, int] | None = None
    """Resize images to this height and width in pixels. None keeps their size."""

    grayscale: bool = False
    """Convert colour images to greyscale."""

    frame_stack: int = 1
    """Stack this many of the latest observations."""

    pixels: Literal["none", "add", "only"] = "none"
    """Observe what render() draws, as the key `image`: beside the other observations, or in their place."""

    channels: Literal["auto", "first", "last"] = "auto"
    """Axis of image channels. `auto`: the first, if it is small and the other two are larger; otherwise the last."""

    include: str = ".*"
    """Regular expression: only observations whose whole key matches are used. Nested keys read `arm/camera`."""

    exclude: str = ""
    """Regular expression: observations whose whole key matches are left out. Empty: none."""

    mission: bool = False
    """MiniGrid and BabyAI: include the mission in the observation, as text."""

    full_view: bool = False
    """MiniGrid and BabyAI: observe the whole grid as classes, in place of what the agent sees before it."""

    map_view: bool = False
    """MiniGrid and BabyAI: observe what the agent sees as classes, `view`, beside what PyDreamer's map probe needs: the
    whole grid, `map`, and the agent's place and direction, `map_coord`."""

    log_info: tuple[str, ...] = ()
    """Numbers of the info to log of each episode: `KEY`, its value in the last step, or `KEY:HOW`, with `sum`, `mean`,
    `max`, `min` or `last` over the steps."""

    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments for gymnasium.make, or for the class or function that makes the environment, as YAML in one word:
    `'{full_action_space: true, port: 1}'`."""

    def __post_init__(self) -> None:
        for name in ("num", "action_repeat", "pool_frames", "frame_stack"):
            check_at_least(f"env.{name}", getattr(self, name), 1)
        for name in ("noop_max", "restarts", "timeout"):
            check_at_least(f"env.{name}", getattr(self, name), 0)
        if self.timeout > LONGEST:
            raise ConfigError(
                f"env.timeout = {self.timeout:g}: expected at most {LONGEST:,} seconds, or 0 for no limit."
            )
        if not self.restart_window > 0.0:
            raise ConfigError(f"env.restart_window = {self.restart_window}: expected a number of seconds above 0.")
        if self.time_limit is not None:
            check_at_least("env.time_limit", self.time_limit, 1)
        if self.pool_frames > self.action_repeat:
            raise ConfigError(
                f"env.pool_frames = {self.pool_frames}: expected at most env.action_repeat = {self.action_repeat}."
            )
        if self.pool_frames > 1 and self.pixels != "none":
            raise ConfigError(
                f"env.pool_frames = {self.pool_frames} with env.pixels = '{self.pixels}': renderings are drawn after "
                "the last repeat only, so they cannot be pooled. Set env.pool_frames = 1, or env.pixels = 'none'."
            )
        for side in self.resize or ():
            check_at_least("env.resize", side, 1)
        wanted(self.log_info)
        for name in ("include", "exclude"):
            check_regex(f"env.{name}", getattr(self, name))

    def one(self) -> str:
        """Return the settings that determine how a single environment behaves, as text without memory addresses."""
        left_out = OF_ALL if self.log_info else OF_ALL | {"log_info"}  # earlier versions did not have it
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in left_out}
        return re.sub(r" at 0x[0-9a-f]+", "", repr(values))

    def keeps(self, key: str) -> bool:
        """Return whether the observation ``key`` is used."""
        included = re.fullmatch(self.include, key, re.DOTALL)
        return bool(included) and not (self.exclude and re.fullmatch(self.exclude, key, re.DOTALL))


def make_gym(config: EnvConfig, factory: Factory | Env | None, render: bool) -> Env:
    """Make one Gymnasium environment with every option that concerns actions, rewards and time.

    ``factory`` makes the environment in place of ``config.id``; an instance is used as it is. ``render`` asks for a
    render mode; an environment that cannot draw is an error only if ``config.pixels`` needs it.

    Raises:
        EnvError: the environment is unknown, or cannot be made or wrapped.
    """
    env = _from_registry(config, render) if factory is None else _from_factory(factory, config.kwargs)
    for name in ("full_view", "map_view"):
        if getattr(config, name):
            env = _grid_view(env, name)
    if config.noop_max:
        env = NoopReset(env, config.noop_max)
    if config.log_info:
        env = EpisodeInfo(env, config.log_info)
    if config.action_repeat > 1:
        env = ActionRepeat(env, config.action_repeat, config.pool_frames)
    if config.time_limit is not None:
        env = gymnasium.wrappers.TimeLimit(env, config.time_limit)
    return env


def _grid_view(env: Env, name: str) -> Env:
    if "minigrid" in sys.modules:
        from reverie.envs import minigrid  # needs the optional package

        if isinstance(env, minigrid.FullView):
            raise EnvError("env.full_view = True, env.map_view = True: set one of them, or neither.")
        if minigrid.is_minigrid(env):
            return (minigrid.FullView if name == "full_view" else minigrid.MapView)(env)
    raise EnvError(f"env.{name} is for MiniGrid and BabyAI, but the environment is {env}. Leave it out.")


def _from_factory(factory: Factory | Env, arguments: Mapping[str, Any]) -> Env:
    env: object = factory if isinstance(factory, gymnasium.Env) else factory(**taken(factory, arguments))
    if isinstance(env, gymnasium.Env):
        return env
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise EnvError(
            f"the environment factory returned the vector environment {env}: expected a single gymnasium.Env. "
            "Set env.num to run several copies of one."
        )
    raise EnvError(f"the environment factory returned {foreign(env)}")


def foreign(env: object) -> str:
    """Return the end of the error message about an environment of another library."""
    return (
        f"a {type(env).__module__}.{type(env).__qualname__}: expected a gymnasium.Env. Wrap environments of the old "
        "Gym API with shimmy.GymV26CompatibilityV0(env=...)."
    )


def taken(factory: Factory, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``arguments`` if ``factory`` accepts them by name.

    Raises:
        EnvError: it does not accept one of them; lists those that it accepts.
    """
    for name in refused(factory, arguments):
        names = names_of(factory) or []
        called = getattr(factory, "__qualname__", type(factory).__qualname__)
        raise EnvError(
            f"env.kwargs: {called} has no argument '{name}'.{did_you_mean(name, names)} It accepts "
            f"{', '.join(names) or 'no keyword arguments'}."
        )
    return arguments


def refused(factory: Factory, arguments: Mapping[str, Any]) -> list[str]:
    """Return those of ``arguments`` that the function or class does not accept."""
    names = names_of(factory) if arguments else None
    return [] if names is None else [name for name in arguments if name not in names]


def names_of(factory: Factory) -> list[str] | None:
    """Return the names of the arguments that ``factory`` accepts; None if it accepts any (``**kwargs``)."""
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
            os.environ["SDL_VIDEODRIVER"] = "dummy"  # lets pygame draw without a screen
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
        del given["disable_env_checker"]
        shown = ", ".join(f"{key}={brief(value)}" for key, value in given.items())
        with_these = f" with ({shown})" if shown else ""
        raise EnvError(f"environment '{config.id}' could not be created{with_these}: {told(error)}") from error


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
    """Import the ``module`` of ``env_id`` and return the ids that it registers, also if it was imported before.

    Raises:
        EnvError: the module cannot be imported, or is the path of a file.
    """
    if is_file(module):
        raise EnvError(
            f"environment '{env_id}': '{module}' is the path of a file: expected the name of a module, as in "
            f"'{dotted(module)}:{env_id.removeprefix(f'{module}:') or 'Id'}', in the current folder or in one of "
            "PYTHONPATH."
        )
    importable(module)
    before = set(gymnasium.registry)
    try:
        importlib.import_module(module)
    except Exception as error:
        if not absent(module, error):
            raise EnvError(f"environment '{env_id}': importing module '{module}' failed: {told(error)}") from error
        raise EnvError(
            f"environment '{env_id}': the module '{module}' could not be imported ({error}). "
            "Install it, or put it in the current folder or on PYTHONPATH."
        ) from error
    own = {name for name, spec in gymnasium.registry.items() if _home(spec.entry_point) == module}
    return frozenset(own | gymnasium.registry.keys() - before)


def _home(entry_point: object) -> str:
    """Return the name of the module that holds ``entry_point``."""
    if isinstance(entry_point, str):
        return entry_point.partition(":")[0]
    return str(getattr(entry_point, "__module__", ""))


def put_away(env: Env) -> None:
    """Close an environment of the user's whose work is done; what its ``close`` raises spoils nothing."""
    with contextlib.suppress(Exception):
        env.close()

"""Make one Gymnasium environment, from its id or a Python object, with the options of `EnvConfig`.

Also specs of Gymnasium's registry, written so that readers of a dataset can make its environment again.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
import os
import re
import sys
import warnings
from typing import Any, NoReturn, cast

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.error import Error as GymError

from reverie.core.errors import ConfigError, EnvError, ReverieError, format_error, short_repr
from reverie.core.imports import check_module, import_module_of, is_importable
from reverie.core.signals import is_interrupt
from reverie.envs.config import Env, EnvConfig, EnvLike, MakeEnv, Mark, env_name, marked
from reverie.envs.episode_info import EpisodeInfo
from reverie.envs.goal_tasks import with_goal_tasks
from reverie.envs.limits import NO_LIMIT, own_limit
from reverie.envs.suites import (
    ENVPOOL,
    JAX_SUITES,
    choose_renderer,
    dm_control_view,
    is_atari,
    missing_package_hint,
    register_id,
    register_suite,
    registered_spec,
    renderer_hint,
    unknown_env_error,
)
from reverie.envs.wrapper_list import apply_wrappers, check_stateless
from reverie.envs.wrappers import (
    OLD_GYM,
    ActionRepeat,
    LifeLoss,
    NoopReset,
    TruncateAtLimit,
    check_spaces,
    count_frames,
    wrapper_stack,
)


def env_factory(config: EnvConfig, env: EnvLike | None) -> MakeEnv | None:
    """Return a function that makes ``env``; None to make ``config.id``."""
    if env is None or isinstance(env, str):
        return None
    if isinstance(env, gymnasium.Env):
        if config.num != 1 or config.vectorization != "sync" or config.kwargs:
            settings = f"env.num = {config.num}, env.vectorization = '{config.vectorization}'"
            settings += f", env.kwargs = {short_repr(config.kwargs)}"
            expected = "expected 1, 'sync' and no kwargs. Pass its class, or a function that makes it"
            raise ConfigError(f"{settings} with an environment instance: {expected}.")
        return InstanceWrapper(env)
    steps = all(callable(getattr(env, name, None)) for name in ("reset", "step"))
    if (steps and not isinstance(env, type)) or not callable(env):  # can be callable, such as a TorchRL environment
        raise ConfigError(f"env is {_wrong_type_text(env)}")
    return env


class InstanceWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The user's instance as its own factory. It belongs to the user and is never closed."""

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]  # as of Gymnasium's own wrappers
        """The spec of the environment without this wrapper, so that it can be made again."""
        return self.env.spec

    def __call__(self) -> Env:
        """Return the same environment each time."""
        return self

    def close(self) -> None:
        """Do nothing: the user keeps using the environment."""


class NoEnvironmentError(EnvError):
    """There is no environment to play in.

    The message is shown unchanged, since no environment, episode or step has failed.
    """


class ChangedError(EnvError):
    """The environment differs from when it was made, or fails in each episode: a restart would not help."""


class SpacesOnlyEnv(gymnasium.Env[Any, Any]):
    """The spaces of a dataset, for an offline agent, which can act but not play episodes."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any], run: object) -> None:
        """``run``: the run whose dataset has these spaces, for messages."""
        self.observation_space: spaces.Space[Any] = observation
        self.action_space: spaces.Space[Any] = action
        self.run = run

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> NoReturn:
        """Raise NoEnvironmentError: there are no episodes to play."""
        raise NoEnvironmentError(
            f"{self.run} was trained on a dataset alone, so there is no environment to play episodes in. Pass one: "
            "--env ID, or reverie.load(run, env=...). reverie dream can predict recorded episodes instead: --data PATH"
        )


def format_make_error(error: BaseException) -> str:
    """Format the error of a constructor; if arguments are missing, say how to pass them."""
    match = re.search(r"missing \d+ required (?:positional|keyword-only) arguments?: (.*)", str(error))
    if not isinstance(error, TypeError) or match is None:
        return format_error(error)
    names = re.findall(r"'(\w+)'", match[1])
    values = ", ".join(f"{name}: VALUE" for name in names)
    pairs = ", ".join(f"'{name}': ..." for name in names)
    python = f"env_options={{'kwargs': {{{pairs}}}}}"
    return f"{format_error(error)}. Pass them: --env.kwargs '{{{values}}}', in Python {python}"


def make_gym(config: EnvConfig, factory: MakeEnv | None, render: bool, index: int = 0) -> Env:
    """Make environment number ``index`` of ``config.num`` with every option for actions, rewards and time.

    ``factory`` makes the environment instead of ``config.id``. ``render`` requests a render mode; an environment that
    cannot render is an error only if ``config.pixels`` needs it.
    """
    try:
        base_env = make_base(config, factory, render)
    except BaseException as error:
        if isinstance(error, Exception) or is_interrupt(error):
            raise
        raise EnvError(f"the environment could not be created: {format_error(error)}") from error
    if not isinstance(base_env, gymnasium.Env):
        raise EnvError(f"the environment factory returned {_wrong_type_text(base_env)}")
    check_spaces(base_env)
    check_stateless(base_env)
    _check_resets(base_env)
    if config.vectorization == "native":
        return base_env
    env = with_goal_tasks(base_env, config, index)
    env = _grid_view(env, config) if config.full_view or config.map_view else env
    env = apply_wrappers(env, config.wrappers, config.channel_axis)
    check_spaces(env)
    if config.noop_max:
        env = NoopReset(env, config.noop_max)
    if config.log_info:
        env = EpisodeInfo(env, config.log_info)
    if config.action_repeat > 1:
        env = ActionRepeat(env, config.action_repeat, config.pool_frames)
    if config.terminal_on_life_loss or config.fire_on_reset:
        env = LifeLoss(env, config.terminal_on_life_loss, config.fire_on_reset)
    env = _limit_time(env, base_env, config)
    count_frames(env)  # raises an error if frames are skipped twice
    return env


def _check_resets(env: Env) -> None:
    """Raise EnvError if a wrapper resets the environment at the end of an episode, as gym-hil's can."""
    for layer in wrapper_stack(env):
        if vars(layer).get("auto_reset") is True:
            raise EnvError(
                f"{type(layer).__name__}: auto_reset = True. Expected False: otherwise the last observation of each "
                "episode is the first of the next one."
            )


def _limit_time(env: Env, base_env: Env, config: EnvConfig) -> Env:
    if config.truncate_at_limit:
        limit = -(-(own_limit(wrapper_stack(base_env)) or NO_LIMIT) // config.action_repeat)
        env = TruncateAtLimit(env, min(limit, config.max_episode_steps or NO_LIMIT))
    if config.max_episode_steps is not None:
        env = gymnasium.wrappers.TimeLimit(env, config.max_episode_steps)
    return env


def make_base(config: EnvConfig, factory: MakeEnv | None, render: bool) -> object:
    """Make the environment below the wrappers of settings; a native vector of one as a single environment."""
    if factory is None and config.id.startswith(JAX_SUITES):
        from reverie.envs.make_native_vector import make_jax_vector
        from reverie.envs.tensor_vector import VectorOfOne

        return VectorOfOne(make_jax_vector(config, 1, "cpu"), has_tensors=True)
    if config.vectorization == "native" or (factory is None and config.id.startswith(ENVPOOL)):
        from reverie.envs.array_vector import ArrayVector
        from reverie.envs.make_native_vector import make_native_vector
        from reverie.envs.tensor_vector import VectorOfOne
        from reverie.envs.torch_vector import to_tensor_vector

        vector = make_native_vector(config, factory, 1)
        tensors = to_tensor_vector(vector)
        arrays = ArrayVector(cast(Any, vector)) if tensors is None else None
        return VectorOfOne(tensors or arrays, has_tensors=arrays is None)
    factory = _find_game(config.id) if factory is None else factory
    return _from_registry(config, render) if factory is None else _call_factory(factory, config, render)


def _find_game(env_id: str) -> MakeEnv | None:
    """Return what ``module:Class`` or ``module:env`` names, if it makes games in PettingZoo's interface; else None."""
    module, _, name = env_id.rpartition(":")
    maker = getattr(import_module_of(env_id, f"environment '{env_id}'", EnvError), name, None) if module else None
    is_game = name in ("env", "raw_env") or callable(getattr(maker, "observe", None))
    return maker if is_game and callable(maker) else None


def _call_factory(factory: MakeEnv, config: EnvConfig, render: bool) -> object:
    """Call ``factory``, with the requested render mode if it has such a parameter.

    Of a game in PettingZoo's interface, ``agent`` names the seat, unless it is a parameter; default: all seats.
    """
    kwargs, seat, parameters = dict(config.kwargs), dict[str, Any](), list[str]()
    with contextlib.suppress(ValueError):  # some C classes have no signature
        parameters += inspect.signature(factory).parameters
    if render or config.pixels != "none":
        _prepare_drawing()
        kwargs = {"render_mode": "rgb_array", **kwargs} if "render_mode" in parameters else kwargs
    if "agent" in kwargs and not {"agent", "kwargs"} & {*parameters}:
        seat["agent"] = kwargs.pop("agent")
    try:
        env: object = factory(**kwargs)
    except TypeError as error:
        if "argument: 'num_envs'" not in str(error):
            raise
        raise EnvError(f"{error}. To make many environments at once, set env.vectorization = native.") from error
    if hasattr(env, "possible_agents") and callable(getattr(env, "observe", None)):  # PettingZoo's AECEnv
        to_gymnasium: Any = load_env_creator("reverie.envs.turn_based:to_gymnasium")
        return to_gymnasium(env, f"environment '{env_name(factory)}'", **seat)
    if seat:
        raise EnvError(f"env.kwargs = {config.kwargs}: {env_name(factory)} has no parameter 'agent'.")
    return env


def _prepare_drawing() -> None:
    """Choose renderers for MuJoCo and pygame in this process: headless if there is no screen."""
    choose_renderer()
    if not any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")):
        os.environ["SDL_VIDEODRIVER"] = "dummy"


def _grid_view(env: Env, config: EnvConfig) -> Env:
    name = "full_view" if config.full_view else "map_view"
    if "minigrid" in sys.modules:
        from reverie.envs import minigrid  # needs the optional package

        if minigrid.is_minigrid(env):
            return (minigrid.FullView if config.full_view else minigrid.MapView)(env)
    raise EnvError(f"env.{name} is for MiniGrid and BabyAI, but the environment is {env}. Remove this option.")


def to_learnable_obs(env: Env, mission: bool) -> Env:
    """Return ``env`` with observations that learners support: MiniGrid's grids one-hot, and its mission as text."""
    if "minigrid" not in sys.modules:
        return env
    from reverie.envs import minigrid  # needs the optional package

    return minigrid.with_learnable_grid(env, mission) if minigrid.is_minigrid(env) else env


def _wrong_type_text(env: object) -> str:
    """Return the end of the error message about an object that is not a single Gymnasium environment."""
    if hasattr(env, "possible_agents"):
        return (
            f"{short_repr(env)}, an environment of several agents: expected a function that makes a game of two "
            "players in turn (PettingZoo's AECEnv), or a gymnasium.Env inside which all agents but one act."
        )
    return (
        f"{short_repr(env)}, a {type(env).__module__}.{type(env).__qualname__}: expected an id, a single "
        f"gymnasium.Env, or a function that makes one. Set env.num to run several copies. Environments in JAX "
        f"are passed as docs/environments.md says. {OLD_GYM}."
    )


def _from_registry(config: EnvConfig, render: bool) -> Env:
    """Make ``config.id`` as registered, without the wrappers that other settings add."""
    module, _, name = config.id.rpartition(":")
    if module:
        import_module_of(config.id, f"environment '{config.id}'", EnvError)
    register_id(name)
    drawing = render or config.pixels != "none"
    if drawing:
        _prepare_drawing()
    kwargs: dict[str, Any] = {} if config.max_episode_steps is None else {"max_episode_steps": -1}
    if is_atari(name) and config.action_repeat > 1:
        kwargs["frameskip"] = 1
    if drawing and name.startswith("dm_control/"):
        kwargs |= dm_control_view(name, config.resize or config.max_image_size if config.pixels != "none" else None)
    kwargs |= config.kwargs
    try:
        return _make(name, kwargs, drawing and "render_mode" not in kwargs, required=config.pixels != "none")
    except ReverieError:
        raise
    except Exception as error:
        if isinstance(error, GymError) and name not in gymnasium.registry:
            raise unknown_env_error(config.id) from error
        arguments = ", ".join(f"{key}={short_repr(value)}" for key, value in kwargs.items())
        kwargs_text = f" with ({arguments})" if kwargs else ""
        failed = f"environment '{config.id}' could not be created{kwargs_text}: {format_make_error(error)}"
        hint = renderer_hint(error) or missing_package_hint(name)
        raise EnvError(f"{failed}.{hint}" if hint else failed) from error


def _make(name: str, kwargs: dict[str, Any], drawing: bool, required: bool) -> Env:
    plain = functools.partial(gymnasium.make, name, **{"disable_env_checker": True, **kwargs})
    if not drawing:
        return plain()
    try:
        env = plain(render_mode="rgb_array")
    except Exception as error:
        if required or isinstance(error, GymError):
            raise
        return plain()
    if env.render_mode is None and type(env.unwrapped).__module__.startswith("ogbench."):
        env.unwrapped.render_mode = "rgb_array"  # its robots render, but do not store the mode
    return env


def close_quietly(env: Env) -> None:
    """Close the user's environment and ignore any error that its ``close`` raises."""
    with contextlib.suppress(Exception, SystemExit):
        env.close()


# ---------------------------------------------------------------- specs


def find_registered(env_id: str) -> EnvSpec | None:
    """Return the spec of ``env_id``, a name in a dataset, after importing its module or suite.

    None if there is none.
    """
    module, _, name = env_id.rpartition(":")
    with contextlib.suppress(EnvError):  # making the environment will report it
        check_module(env_id, "the dataset")
        if module:
            import_module_of(env_id, "the dataset", EnvError)
        register_suite(name)
    return registered_spec(name)


def spec_to_json(spec: EnvSpec) -> tuple[str, str]:
    """Return ``spec`` as JSON for Gymnasium, and a remark on parts that could not be written; either can be empty.

    A class or function as entry point becomes ``module:name`` if another process can import it by that name.
    """
    plain, remark = copy.copy(spec), ""
    plain.vector_entry_point = entry_point_name(spec.vector_entry_point)
    plain.entry_point = entry_point_name(spec.entry_point)
    plain.disable_env_checker = getattr(gymnasium.registry.get(spec.id), "disable_env_checker", False)  # not ours
    if plain.entry_point is None:
        remark = f"other processes cannot import {spec.entry_point}: register {spec.id} before you use this dataset"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about parts that cannot be written
            return plain.to_json(), remark
    except (TypeError, ValueError) as error:
        why = f"its arguments cannot be written as JSON ({error})"
        return "", f"the dataset does not name its environment {spec.id}: {why}"


def env_settings(env: Env, config: EnvConfig) -> dict[str, Any]:
    """Return the settings to make ``env``, which ``make_gym`` made with ``config``, again from the id in its spec.

    A spec lacks what is ``Mark.SAVED``, and whether the environment's own limit counts frames or decisions.
    """
    inner = _below_limit(env, config).spec
    assert inner is not None
    registered = find_registered(inner.id) if config.max_episode_steps is None else None
    usual = registered.max_episode_steps if registered is not None else None
    limit = {} if inner.max_episode_steps == usual else {"max_episode_steps": inner.max_episode_steps or -1}
    return {"kwargs": inner.kwargs | limit} | {name: getattr(config, name) for name in marked(Mark.SAVED)}


def spec_of(env: Env, config: EnvConfig) -> EnvSpec | None:
    """Return a spec with which ``gymnasium.make`` makes ``env``, a result of ``make_gym`` with ``config``, again.

    Gymnasium applies a spec's time limit before its wrappers, so a limit that counts decisions becomes the last
    wrapper.
    """
    inner = _below_limit(env, config).spec
    if config.max_episode_steps is None or inner is None or not inner.additional_wrappers:
        return env.spec
    limit = gymnasium.wrappers.TimeLimit.wrapper_spec(max_episode_steps=config.max_episode_steps)
    return dataclasses.replace(inner, additional_wrappers=(*inner.additional_wrappers, limit))


def _below_limit(env: Env, config: EnvConfig) -> Env:
    """Return ``env`` without the limit of ``config.max_episode_steps``, its outermost wrapper."""
    return env.env if config.max_episode_steps is not None and isinstance(env, gymnasium.wrappers.TimeLimit) else env


def entry_point_name(maker: object) -> str | None:
    """Return ``module:name`` of an entry point; None if it cannot be imported by that name."""
    if maker is None or isinstance(maker, str):
        return maker
    module, name = str(getattr(maker, "__module__", "")), str(getattr(maker, "__qualname__", ""))
    is_defined = getattr(sys.modules.get(module), name, None) is maker
    return f"{module}:{name}" if is_defined and is_importable(module) else None

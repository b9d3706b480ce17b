"""Make native vector environments: from Gymnasium, EnvPool, a function, or of JAX."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection
from typing import Any, cast

import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from reverie.core.errors import ConfigError, EnvError, ReverieError, format_error, short_repr
from reverie.core.imports import import_module_of
from reverie.core.logger import logger
from reverie.core.signals import is_interrupt
from reverie.envs.config import EnvConfig, Mark, marked, settings_text
from reverie.envs.limits import NO_LIMIT
from reverie.envs.suites import ENVPOOL, RANDOM_START, is_atari, register_id
from reverie.envs.tensor_vector import TensorVector, attribute, is_batched_env, is_tensor_vector
from reverie.envs.vector_steps import Vector
from reverie.envs.wrapper_list import check_stateless
from reverie.envs.wrappers import check_spaces

ENVPOOL_NAMES = {"frameskip": "frame_skip", "grayscale": "gray_scale"}
"""EnvPool's names of ALE's arguments."""


def _check_native_settings(config: EnvConfig, supported: Collection[str] = ()) -> None:
    """Raise ConfigError if settings cannot be applied to a native vector environment, which applies ``supported``."""
    if wrong := config.changed(name for name in marked(Mark.SINGLE) if name not in supported):
        defaults = {name: getattr(EnvConfig(), name) for name in wrong}
        raise ConfigError(
            f"{settings_text(wrong)} with env.vectorization = native: native vector environments are used unchanged. "
            f"Set {settings_text(defaults)}, or use env.vectorization = sync."
        )


def _ale_arguments(config: EnvConfig) -> dict[str, Any]:
    """Return the arguments with which ALE's vector of an Atari game applies the settings; it never clips rewards."""
    height, width = config.resize or (84, 84)
    skip = config.action_repeat if config.action_repeat > 1 else 4
    values = {
        "frameskip": skip, "maxpool": config.pool_frames > 1, "noop_max": config.noop_max,
        "episodic_life": config.terminal_on_life_loss, "use_fire_reset": config.fire_on_reset,
        "stack_num": config.frame_stack, "grayscale": config.grayscale, "img_height": height, "img_width": width,
        "reward_clipping": False,
    }  # fmt: skip
    limit = config.max_episode_steps
    return values if limit is None else {**values, "max_num_frames_per_episode": limit * skip}


def _envpool_arguments(config: EnvConfig) -> dict[str, Any]:
    """Return the arguments for settings that differ from their default: otherwise EnvPool's games are unchanged."""
    usual = _ale_arguments(EnvConfig())
    values = {name: value for name, value in _ale_arguments(config).items() if value != usual.get(name)}
    values |= {"stack_num": config.frame_stack} if config.grayscale else {}  # learners stack gray frames
    if values.pop("max_num_frames_per_episode", None):
        values["max_episode_steps"] = config.max_episode_steps
    values.pop("maxpool", None)  # it always pools two frames
    return {ENVPOOL_NAMES.get(name, name): value for name, value in values.items()}


def _is_atari_vector(config: EnvConfig, factory: Callable[..., Any] | None) -> bool:
    """Return whether the vector is ALE's or EnvPool's of an Atari game, which applies what is ``Mark.ATARI``."""
    if factory is not None:
        return False
    if config.id.startswith(ENVPOOL):
        return hasattr(_import_envpool().make_spec(config.id.removeprefix(ENVPOOL)).config, "reward_clip")
    return is_atari(config.id.rpartition(":")[2])


def _import_envpool() -> Any:
    """Return the module; EnvError if it is not installed."""
    try:
        return importlib.import_module("envpool")
    except ImportError as error:
        raise EnvError(f'envpool/ ids need EnvPool ({error}): pip install "reverie-rl[envpool]"') from error


def _native_arguments(config: EnvConfig, factory: Callable[..., Any] | None) -> dict[str, Any]:
    """Return the arguments of the vector; ConfigError if it cannot apply a setting.

    With ``env.vectorization = sync``, wrappers around a vector of one apply the settings.
    """
    if config.vectorization != "native":
        return config.kwargs
    is_known = _is_atari_vector(config, factory)
    _check_native_settings(config, marked(Mark.ATARI) if is_known else ())
    if not is_known:
        return config.kwargs
    return (_envpool_arguments if config.id.startswith(ENVPOOL) else _ale_arguments)(config) | config.kwargs


def check_device_settings(config: EnvConfig) -> None:
    """Raise ConfigError if ``config`` has settings that environments on a device cannot apply."""
    wrong = config.changed(marked(Mark.SINGLE, Mark.HOST))
    wrong |= {"vectorization": "async"} if config.vectorization == "async" else {}
    if wrong:
        advice = " Frames are stacked by algo.frame_stack." if "frame_stack" in wrong else ""
        text = f"{settings_text(wrong)}: not supported by environments on a device"
        raise ConfigError(f"{text}. Remove {', '.join(wrong)}.{advice}")


def make_jax_vector(config: EnvConfig, num: int, device: str) -> TensorVector:
    """Make ``num`` environments of one of ``suites.JAX_SUITES``."""
    check_device_settings(config)
    from reverie.envs.jax_suites import make_task  # it imports JAX, which is optional
    from reverie.envs.jax_vector import JaxVector

    kwargs = dict(config.kwargs)
    random_start = bool(kwargs.pop(RANDOM_START, False))
    return JaxVector(make_task(config.id, kwargs), num, device, random_start=random_start)


def make_native_vector(config: EnvConfig, factory: Callable[..., Any] | None, num: int) -> Vector | TensorVector:
    """Make ``num`` environments at once: ``factory(num_envs=num)``, EnvPool's, or by Gymnasium's ``make_vec``."""
    try:
        vector = _make(config, factory, num)
    except ReverieError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        source = config.id if factory is None else short_repr(factory)
        failed = f"env.vectorization = native: {source} with num_envs = {num} could not be made"
        advice = ". If it makes single environments, set env.vectorization = sync" * ("'num_envs'" in str(error))
        raise EnvError(f"{failed}: {format_error(error)}{advice}") from error
    is_vector = isinstance(vector, VectorEnv | TensorVector) or is_batched_env(vector)
    is_for_rsl_rl = hasattr(vector, "get_observations") and vector.unwrapped is not vector  # mjlab itself has it, too
    if not is_vector or attribute(vector, "num_envs") != num or is_for_rsl_rl:
        problem = f"env.vectorization = native: the factory returned {short_repr(vector)} for num_envs = {num}"
        raise EnvError(
            f"{problem}: expected a gymnasium.vector.VectorEnv of {num}, a TensorVector, such as a JaxVector of a "
            "JaxTask, or an environment of Isaac Lab or mjlab with as many (as it is: what rsl_rl sees of it lacks the "
            "last observations)."
        )
    if not isinstance(vector, VectorEnv):
        return cast(TensorVector, vector)
    check_spaces(vector, "single_")
    for env in (vector, *getattr(vector.unwrapped, "envs", ())):
        check_stateless(env)
    _check_scores(vector, config)
    if isinstance(vector.unwrapped, SyncVectorEnv):
        vector.unwrapped.autoreset_mode = AutoresetMode.NEXT_STEP  # takes effect at once
    elif vector_mode(vector) == AutoresetMode.DISABLED and not is_tensor_vector(vector):
        vector.close()
        raise EnvError(
            "env.vectorization = native: the vector environment has AutoresetMode.DISABLED: expected NEXT_STEP or "
            "SAME_STEP."
        )
    return vector


def _make(config: EnvConfig, factory: Callable[..., Any] | None, num: int) -> Any:
    if factory is not None:
        return factory(num_envs=num, **_native_arguments(config, factory))
    if config.id.startswith(ENVPOOL):
        package, task = _import_envpool(), config.id.removeprefix(ENVPOOL)
        kwargs = {"env_type": "gymnasium", "num_envs": num, **_native_arguments(config, None)}
        return EnvPoolVector(functools.partial(package.make, task, **kwargs))
    module, _, name = config.id.rpartition(":")
    if module:
        function = getattr(import_module_of(config.id, f"environment '{config.id}'", EnvError), name, None)
        if callable(function):
            return function(num_envs=num, **_native_arguments(config, function))
    register_id(name)
    kwargs = _native_arguments(config, None)
    return gymnasium.make_vec(name, num, vectorization_mode="vector_entry_point", **kwargs)


def vector_mode(vector: Vector, default: AutoresetMode = AutoresetMode.NEXT_STEP) -> AutoresetMode:
    """Return when ``vector``, by its metadata, resets an ended environment."""
    if isinstance(inner := getattr(vector, "unwrapped", vector), SyncVectorEnv):
        return inner.autoreset_mode
    return AutoresetMode(getattr(vector, "metadata", {}).get("autoreset_mode") or default)


def vector_limit(vector: Vector) -> int | None:
    """Return the time limit that ``vector`` declares; EnvPool has its own spec classes."""
    spec: Any = getattr(vector, "spec", None)
    limit = getattr(getattr(spec, "config", spec), "max_episode_steps", None)
    return limit if isinstance(limit, int) and 0 < limit <= NO_LIMIT else None


def vector_frames(vector: Vector) -> int:
    """Return the frames per action of ``vector``: those of an Atari game, else 1."""
    spec: Any = vector.spec
    if hasattr(getattr(spec, "config", None), "reward_clip"):
        return int(spec.config.frame_skip)
    skip = getattr(spec, "kwargs", {}).get("frameskip", 1)
    return skip if isinstance(skip, int) else 1


def _check_scores(vector: Vector, config: EnvConfig) -> None:
    """Raise ConfigError if a vector of Atari games would change scores of evaluations, too."""
    spec: Any = vector.spec
    vector_options: dict[str, Any] = getattr(getattr(spec, "config", None), "_asdict", dict)()  # EnvPool
    if type(vector.unwrapped).__name__ == "AtariVectorEnv":
        vector_options = config.kwargs if spec is None else {"reward_clipping": True} | spec.kwargs
        if spec is None and "reward_clipping" not in config.kwargs:
            logger.warning(
                "env.vectorization = native: an AtariVectorEnv that is made directly does not say whether it clips "
                "rewards, as it does by default, in evaluations, too. Make it by gymnasium.make_vec, or check that it "
                "has reward_clipping = False"
            )
    if vector_options.get("reward_clipping") or vector_options.get("reward_clip"):
        raise ConfigError(
            "env.vectorization = native: the vector clips rewards, in evaluations, too. Make it by gymnasium.make_vec "
            "with reward_clipping = False (EnvPool: reward_clip = False), and set env.clip_reward = sign."
        )
    if vector_options.get("episodic_life") and not config.terminal_on_life_loss:
        raise ConfigError(
            "env.vectorization = native: the vector ends episodes with each life, in evaluations, too. Make it with "
            "episodic_life = False; for ids, set env.terminal_on_life_loss = True."
        )


class EnvPoolVector(VectorWrapper):
    """Environments of EnvPool, which takes a seed only when it is made."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        super().__init__(make(seed=0))

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start all episodes. With a ``seed``, the environments are recreated."""
        if seed is not None:
            self.env.close()
            self.env: VectorEnv[Any, Any, Any] = self._make(seed=int(seed) % 2**31)
        return self.env.reset()

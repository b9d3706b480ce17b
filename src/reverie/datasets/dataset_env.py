"""The environment that a dataset names, and the consequences of its settings for learning from the rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from reverie.core.errors import ConfigError, EnvError
from reverie.core.imports import check_module, names_in
from reverie.core.specs import MASK_KEY, ObsSpec
from reverie.datasets.reader import DatasetInfo
from reverie.envs.config import EnvConfig, Mark, marked
from reverie.envs.make import close_quietly, find_registered, make_gym, spec_to_json, to_learnable_obs
from reverie.envs.masks import with_mask
from reverie.envs.wrapper_list import Grayscale, Resize

Wrapper = Mapping[str, Any]
"""A wrapper's ``name``, ``entry_point`` (``module:Class``), and ``kwargs``, None if they were not recorded."""
NEUTRAL_WRAPPERS = {
    *("OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics", "RecordVideo", "HumanRendering"),
    *("RenderCollection", "DataCollector", "InstanceWrapper", "EpisodeInfo"),
    "TimeLimit",  # also declared elsewhere
}
"""Wrappers without which an environment is still the same task."""
APPLICABLE: dict[str, tuple[str, ...]] = {
    "resize": ("resize", "grayscale", "frame_stack"),
    "grayscale": ("frame_stack",),
    "clip_reward": ("clip_reward",),
}
"""Settings that can be applied to recorded rows, unless one of the listed settings was already applied."""
INAPPLICABLE = {
    "frame_stack": "frames can only be stacked during learning (algo.frame_stack, if the algorithm has it)",
    "action_repeat": "the number of frames per decision cannot be changed afterwards",
    "pool_frames": "the frames between two rows were not recorded",
    "wrappers": "the rows are the output of the wrappers",
    "pixels": "images cannot be rendered from recorded rows",
    **dict.fromkeys(("mission", "full_view", "map_view"), "what was not observed was not recorded"),
}
"""Settings that cannot be applied to recorded rows, and why."""
IGNORED_KWARGS = {"max_episode_steps", "render_mode", "frameskip"}
"""Arguments of environments that other settings decide, or that change nothing learned."""
DEFAULTS = EnvConfig()


def _recorded_env_config(info: DatasetInfo) -> EnvConfig:
    """Return the settings that data declare, or the defaults."""
    return DEFAULTS.merge(dict(info.env_settings))


def settings_to_apply(info: DatasetInfo, env: EnvConfig) -> EnvConfig:
    """Return the settings of ``env`` that still have to be applied to recorded rows.

    If the data declare no settings, the rows are assumed to have the ``action_repeat`` and ``pool_frames`` of ``env``.
    """
    recorded, pending_settings = _recorded_env_config(info), {}
    for name in (*APPLICABLE, *(INAPPLICABLE if info.env_settings else ())):
        value = getattr(env, name)
        if value in (getattr(DEFAULTS, name), getattr(recorded, name)):
            continue
        applied = recorded.changed(APPLICABLE.get(name, (name,)))
        if name in APPLICABLE and not applied:
            pending_settings[name] = value
            continue
        listing = " and ".join(f"env.{setting} = {getattr(recorded, setting)}" for setting in applied or [name])
        reason = INAPPLICABLE.get(name, "this cannot be undone")
        raise ConfigError(f"env.{name} = {value}: the rows were recorded with {listing}; {reason}. Leave it out.")
    return DEFAULTS.merge(pending_settings)


def check_same_meaning(info: DatasetInfo, env: EnvConfig) -> None:
    """Raise ConfigError if recorded rows mean something else than the rows of an environment with the settings ``env``.

    Only what is ``Mark.MEANING`` and what the dataset declares count. ``noop_max`` and ``max_episode_steps`` may
    differ: they determine where episodes begin and are truncated, not the meaning of a row. Shapes are compared
    elsewhere.
    """
    for name in marked(Mark.MEANING) if info.env_settings else ():
        recorded, value = getattr(_recorded_env_config(info), name), getattr(env, name)
        if value != getattr(DEFAULTS, name) and (name in APPLICABLE or name in INAPPLICABLE):
            continue  # applied, or rejected: ``settings_to_apply``
        if recorded != value:
            raise ConfigError(
                f"env.{name} = {value}: the rows were recorded with env.{name} = {recorded}, but the run would train "
                f"on both as if they were the same task. Set env.{name} = {recorded}, or pass data recorded with "
                f"env.{name} = {value}."
            )


def missing_kwargs_and_wrappers(info: DatasetInfo, env_spec: EnvSpec | None) -> list[str]:
    """Return arguments and wrappers that the dataset declares and that ``env_spec``, of the same id, lacks."""
    has = json.loads(spec_to_json(env_spec)[0] or "{}") if env_spec is not None else {}
    if has.get("id") != info.env.rpartition(":")[2]:
        return []
    declared = info.env_settings.get("kwargs", info.env_kwargs)
    kwargs = {name: value for name, value in declared.items() if name not in IGNORED_KWARGS}
    arguments = [f"{name} = {value}" for name, value in kwargs.items() if has["kwargs"].get(name) != value]
    missing = _missing_wrappers(user_wrappers(info), has)
    return arguments + ([_wrapper_names(missing)] if missing else [])


def nondefault_settings(info: DatasetInfo) -> list[str]:
    """Return the declared settings that are not defaults, ``env.resize = (64, 64)``, and the names of wrappers."""
    recorded = _recorded_env_config(info)
    settings = recorded.changed((*APPLICABLE, *INAPPLICABLE, "noop_max"))
    wrappers = [_wrapper_names([wrapper]) for wrapper in user_wrappers(info)]
    return [f"env.{name} = {value}" for name, value in settings.items()] + wrappers


def check_obs_compatible(obs_spec: ObsSpec, env: EnvConfig) -> None:
    """Check that rows without stored settings can come from an environment with the settings ``env``."""
    images = [part for part in obs_spec.values() if part.kind == "image"]
    has, count, wrong = ", ".join(f"{key} {list(part.shape)}" for key, part in obs_spec.items()), env.frame_stack, ""
    parts = obs_spec.values()
    if count > 1 and any(p.shape[-1] % count if p.kind == "image" else p.shape[:1] != (count,) for p in parts):
        wrong = f"env.frame_stack = {count}: the observations are not stacks of {count} frames; "
        wrong += INAPPLICABLE["frame_stack"]
    elif env.pixels != "none" and "image" not in obs_spec:
        wrong = f"env.pixels = '{env.pixels}': {INAPPLICABLE['pixels']}, and these have no 'image'"
    elif (env.resize or env.grayscale) and not images:
        wrong = f"env.{'resize' if env.resize else 'grayscale'} needs image observations, and these have none"
    if wrong:
        raise ConfigError(f"{wrong}. The recorded rows have {has}. Remove this option.")


def dataset_env_config(info: DatasetInfo, env: EnvConfig | None = None) -> EnvConfig:
    """Return the settings of the dataset's environment: as declared, and else the settings of ``env``."""
    env = env or DEFAULTS
    if info.env_settings:  # except the number of copies, and requested settings that can be applied here
        keep = {"num", "vectorization", *env.changed((*APPLICABLE, "kwargs", "max_episode_steps"))}
        return env.merge({name: value for name, value in info.env_settings.items() if name not in keep})
    config = env.merge({"id": info.env, "kwargs": dict(env.kwargs or info.env_kwargs)})
    spec = find_registered(info.env) if env.max_episode_steps is None and info.max_episode_steps is not None else None
    if spec is not None and spec.max_episode_steps != info.max_episode_steps:
        return config.merge({"max_episode_steps": info.max_episode_steps})
    return config


def check_env_code(config: EnvConfig) -> None:
    """Raise UntrustedError if a dataset's environment would import a module that belongs to no installed package."""
    for name in (config.id, *(entry.partition("(")[0] for entry in config.wrappers), *names_in(config.kwargs)):
        check_module(name, "the dataset")


def make_dataset_env(info: DatasetInfo, env: EnvConfig | None = None) -> gymnasium.Env[Any, Any]:
    """Make the environment of ``dataset_env_config``, if the rows were recorded in it."""
    config = dataset_env_config(info, env)
    check_env_code(config)
    base_env = make_gym(config, None, render=False)
    adapted = to_learnable_obs(base_env, config.mission)
    if isinstance(info.observation, spaces.Dict) and MASK_KEY in info.observation.spaces:
        adapted = with_mask(adapted)
    if info.specs is None:  # stores contain what learners see, not the environment's observations
        adapted = Resize(adapted, *config.resize) if config.resize else adapted
        adapted = Grayscale(adapted) if config.grayscale else adapted
    has = json.loads(spec_to_json(base_env.spec)[0] or "{}") if base_env.spec is not None else {}
    if missing := _missing_wrappers(_wrappers_in(info.env_spec), has):
        close_quietly(base_env)
        raise EnvError(
            f"the dataset was recorded in {info.env} with the wrappers {_wrapper_names(missing)}; {info.env} without "
            "them is a different task. To evaluate, register an environment that applies these wrappers and pass its "
            "id with --env."
        )
    return adapted if adapted.observation_space == info.observation else base_env


# ---------------------------------------------------------------- wrappers, as Gymnasium serializes them


def _wrappers_in(spec: Mapping[str, Any]) -> list[Wrapper]:
    """Return the wrappers in an environment's spec that change the task, innermost first."""
    return [wrapper for wrapper in spec.get("additional_wrappers") or () if wrapper.get("name") not in NEUTRAL_WRAPPERS]


def user_wrappers(info: DatasetInfo) -> list[Wrapper]:
    """Return the wrappers that the dataset declares, except those that represent ``env_settings``."""
    has_settings, wrappers = bool(info.env_settings), _wrappers_in(info.env_spec)
    return [w for w in wrappers if not (has_settings and str(w.get("entry_point")).startswith("reverie."))]


def _missing_wrappers(required: list[Wrapper], spec: Mapping[str, Any]) -> list[Wrapper]:
    """Return the ``required`` wrappers that ``spec`` lacks, or has with other arguments if both declare them."""

    def is_like(a: Wrapper, b: Wrapper) -> bool:
        kwargs = a.get("kwargs"), b.get("kwargs")
        return a.get("name") == b.get("name") and (None in kwargs or kwargs[0] == kwargs[1])

    return [wrapper for wrapper in required if not any(is_like(wrapper, candidate) for candidate in _wrappers_in(spec))]


def _wrapper_names(wrappers: list[Wrapper]) -> str:
    """Return the classes of wrappers for messages, ``module:Class``."""
    return ", ".join(str(wrapper.get("entry_point")) for wrapper in wrappers)

"""The environment that recorded data name, and what its settings mean for learning from the rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from reverie.core.errors import ConfigError, EnvError
from reverie.core.importing import check_module, names_in
from reverie.core.specs import MASK, ObsSpec
from reverie.datasets.reader import About
from reverie.envs.config import EnvConfig
from reverie.envs.make import close_quietly, make_gym, registered, to_learnable_obs, written
from reverie.envs.masks import with_mask
from reverie.envs.transforms import Grayscale, Resize

Wrapper = Mapping[str, Any]
"""A wrapper's ``name``, ``entry_point`` (``module:Class``), and ``kwargs``, None if they were not recorded."""
HARMLESS = {
    *("OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics", "RecordVideo", "HumanRendering"),
    *("RenderCollection", "DataCollector", "Single", "EpisodeInfo"),
    "TimeLimit",  # declared elsewhere, too
}
"""Wrappers without which an environment is still the same task."""
LATE: dict[str, tuple[str, ...]] = {
    "resize": ("resize", "grayscale", "frame_stack"),
    "grayscale": ("frame_stack",),
    "clip_reward": ("clip_reward",),
}
"""Settings of environments that can be applied to recorded rows, unless one of those listed was applied before."""
CANNOT = {
    "frame_stack": "frames can only be stacked during learning (algo.frames, if the algorithm has it)",
    "action_repeat": "the number of frames per decision cannot be changed afterwards",
    "pool_frames": "the frames between two rows were not recorded",
    "wrappers": "the rows are what the wrappers showed",
    "pixels": "images cannot be rendered from recorded rows",
}
"""Settings that cannot be applied to recorded rows, and why."""
TOLD_APART = ("action_repeat", "pool_frames", "clip_reward", "life_loss", "wrappers")
"""Settings that change what an action or a reward means, but no shape, so that only what data declare shows them."""
NOT_COMPARED = {"max_episode_steps", "render_mode", "frameskip"}
"""Arguments of environments that other settings decide, or that change nothing learned."""
USUAL = EnvConfig()


def recorded_with(about: About) -> EnvConfig:
    """Return the settings that data declare, or the defaults."""
    return USUAL.merge(dict(about.env_settings))


def to_apply(about: About, env: EnvConfig) -> EnvConfig:
    """Return the settings of ``env`` that still have to be applied to recorded rows: not those that made these.

    Of other data nothing is known, and ``action_repeat`` and ``pool_frames`` are taken to be theirs.
    """
    was, todo = recorded_with(about), {}
    for name in (*LATE, *(CANNOT if about.env_settings else ())):
        asked = getattr(env, name)
        if asked in (getattr(USUAL, name), getattr(was, name)):
            continue
        hinder = [other for other in LATE.get(name, (name,)) if getattr(was, other) != getattr(USUAL, other)]
        if name in LATE and not hinder:
            todo[name] = asked
            continue
        told = " and ".join(f"env.{other} = {getattr(was, other)}" for other in hinder or [name])
        why = CANNOT.get(name, "this cannot be undone")
        raise ConfigError(f"env.{name} = {asked}: the rows were recorded with {told}; {why}. Leave it out.")
    return USUAL.merge(todo)


def clipped(reward: np.ndarray, how: str) -> np.ndarray:
    """Return rewards clipped as ``env.clip_reward`` says."""
    return reward if how == "none" else {"sign": np.sign, "tanh": np.tanh}[how](reward)


def check_mixed(about: About, env: EnvConfig) -> None:
    """Check that recorded rows mean the same as those that an environment with the settings ``env`` gives.

    Only settings that the data declare count. ``noop_max`` and ``time_limit`` may differ: they decide where episodes
    begin and are truncated, not what a row means. Shapes are compared elsewhere.
    """
    for name in TOLD_APART if about.env_settings else ():
        before, now = getattr(recorded_with(about), name), getattr(env, name)
        if before != now == getattr(USUAL, name):  # others are applied to the rows, or refused: ``to_apply``
            raise ConfigError(
                f"env.{name} = {now}: the rows were recorded with env.{name} = {before}, and the run learns from both "
                f"as from one task. Set env.{name} = {before}, or pass data recorded with env.{name} = {now}."
            )


def lacking(about: About, made: EnvSpec | None) -> list[str]:
    """Return arguments and wrappers that the data declare and ``made``, an environment of the same id, lacks."""
    has = json.loads(written(made)[0] or "{}") if made is not None else {}
    if has.get("id") != about.env.rpartition(":")[2]:
        return []
    declared = about.env_settings.get("kwargs", about.env_kwargs)
    given = {name: value for name, value in declared.items() if name not in NOT_COMPARED}
    arguments = [f"{name} = {value}" for name, value in given.items() if has["kwargs"].get(name) != value]
    missing = absent(own_wrappers(about), has)
    return arguments + ([names_of(missing)] if missing else [])


def made_with(about: About) -> list[str]:
    """Return what the id of an environment does not imply of rows: ``env.resize = (64, 64)``, or names of wrappers."""
    was = recorded_with(about)
    names = (name for name in (*LATE, *CANNOT, "noop_max") if getattr(was, name) != getattr(USUAL, name))
    return [f"env.{name} = {getattr(was, name)}" for name in names] + [names_of([w]) for w in own_wrappers(about)]


def check_shown(seen: ObsSpec, env: EnvConfig) -> None:
    """Check that rows without stored settings could come from an environment with the settings ``env``."""
    images = [part for part in seen.values() if part.kind == "image"]
    has, count, wrong = ", ".join(f"{key} {list(part.shape)}" for key, part in seen.items()), env.frame_stack, ""
    if count > 1 and any(p.shape[-1] % count if p.kind == "image" else p.shape[:1] != (count,) for p in seen.values()):
        wrong = f"env.frame_stack = {count}: the observations are not stacks of {count} frames; {CANNOT['frame_stack']}"
    elif env.pixels != "none" and "image" not in seen:
        wrong = f"env.pixels = '{env.pixels}': {CANNOT['pixels']}, and these have no 'image'"
    elif (env.resize or env.grayscale) and not images:
        wrong = f"env.{'resize' if env.resize else 'grayscale'} needs image observations, and these have none"
    if wrong:
        raise ConfigError(f"{wrong}. The recorded rows have {has}. Leave it out.")


def env_of(about: About, env: EnvConfig | None = None) -> EnvConfig:
    """Return the settings of the environment that data name, made as they say, with the other settings of ``env``."""
    env = env or USUAL
    if about.env_settings:  # not the number of copies, nor what is asked for and can be applied here
        own = {name for name in (*LATE, "kwargs", "time_limit") if getattr(env, name) != getattr(USUAL, name)}
        return env.merge({name: v for name, v in about.env_settings.items() if name not in {"num", "vector"} | own})
    found = env.merge({"id": about.env, "kwargs": dict(env.kwargs or about.env_kwargs)})
    spec = registered(about.env) if env.time_limit is None and about.time_limit is not None else None
    if spec is not None and spec.max_episode_steps != about.time_limit:
        return found.merge({"time_limit": about.time_limit})
    return found


def env_as_recorded(about: About, env: EnvConfig | None = None) -> gymnasium.Env[Any, Any]:
    """Make the environment of ``env_of``, if that is what the rows were recorded in."""
    config = env_of(about, env)
    for name in (config.id, *(entry.partition("(")[0] for entry in config.wrappers), *names_in(config.kwargs)):
        check_module(name, "the dataset")
    made = make_gym(config, None, render=False)
    shown = to_learnable_obs(made, config.mission)
    if isinstance(about.observation, spaces.Dict) and MASK in about.observation.spaces:
        shown = with_mask(shown)
    if about.specs is None:  # stores hold what learners see, whatever the environment shows
        shown = Resize(shown, *config.resize) if config.resize else shown
        shown = Grayscale(shown) if config.grayscale else shown
    has = json.loads(written(made.spec)[0] or "{}") if made.spec is not None else {}
    if missing := absent(wrappers_in(about.env_spec), has):
        close_quietly(made)
        raise EnvError(
            f"the data were recorded in {about.env} with {names_of(missing)}, and {about.env} without that is another "
            "task. Register an environment with it under an id of your own, and name that to evaluate in it."
        )
    return shown if shown.observation_space == about.observation else made


# ---------------------------------------------------------------- wrappers, as Gymnasium serialises them


def wrappers_in(spec: Mapping[str, Any]) -> list[Wrapper]:
    """Return the wrappers in an environment's specification that make it another task, innermost first."""
    return [one for one in spec.get("additional_wrappers") or () if one.get("name") not in HARMLESS]


def own_wrappers(about: About) -> list[Wrapper]:
    """Return the wrappers that data declare, without those that stand for ``env_settings``."""
    found = wrappers_in(about.env_spec)
    return [one for one in found if not (about.env_settings and str(one.get("entry_point")).startswith("reverie."))]


def absent(wanted: list[Wrapper], spec: Mapping[str, Any]) -> list[Wrapper]:
    """Return those of the ``wanted`` wrappers that ``spec`` lacks, or has with other arguments if both declare them."""

    def is_like(one: Wrapper, other: Wrapper) -> bool:
        both = one.get("kwargs"), other.get("kwargs")
        return one.get("name") == other.get("name") and (None in both or both[0] == both[1])

    return [one for one in wanted if not any(is_like(one, other) for other in wrappers_in(spec))]


def names_of(wrappers: list[Wrapper]) -> str:
    """Return the classes of wrappers for messages, ``module:Class``."""
    return ", ".join(str(one.get("entry_point")) for one in wrappers)

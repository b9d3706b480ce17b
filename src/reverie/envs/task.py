"""Specs of environments from Gymnasium's registry, written so that readers of recorded data can make them again."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import sys
import warnings
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id

from reverie.core.errors import EnvError
from reverie.core.importing import check_module, findable, module_of
from reverie.envs.config import EnvConfig
from reverie.envs.suites import load_suite

IN_ROWS = ("time_limit", "noop_max", "life_loss", "fire", "action_repeat", "pool_frames", "mission", "wrappers")
"""Settings that decide what recorded rows mean, and which their environment's id does not imply."""


def registered(env_id: str) -> EnvSpec | None:
    """Return the spec of ``env_id``, a name in data, after importing its module or suite; None if there is none."""
    module, _, name = env_id.rpartition(":")
    with contextlib.suppress(EnvError):  # making the environment will report it
        check_module(env_id, "the dataset")
        if module:
            module_of(env_id, "the dataset", EnvError)
        load_suite(name)
    if name not in gymnasium.registry:  # Gymnasium takes a name without a version as that of its newest one
        with contextlib.suppress(gymnasium.error.Error):
            space, bare, _ = parse_env_id(name)
            name = get_env_id(space, bare, find_highest_version(space, bare))
    return gymnasium.registry.get(name)


def written(spec: EnvSpec) -> tuple[str, str]:
    """Return ``spec`` as JSON for Gymnasium, and a remark on what could not be written; either may be empty.

    A class or function as entry point becomes ``module:name`` if another process can import it by that name.
    """
    plain, remark = copy.copy(spec), ""
    plain.vector_entry_point, plain.entry_point = named(spec.vector_entry_point), named(spec.entry_point)
    if plain.entry_point is None:
        remark = (
            f"other processes cannot import the entry point of {spec.id}, {spec.entry_point}: register the environment "
            "before you make it from this dataset"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about parts that cannot be written
            return plain.to_json(), remark
    except (TypeError, ValueError) as error:
        why = f"its arguments cannot be written as JSON ({error})"
        return "", f"the dataset does not name its environment {spec.id}: {why}"


def settings_of(env: gymnasium.Env[Any, Any], config: EnvConfig) -> dict[str, Any]:
    """Return the settings that make ``env``, which ``make_gym`` made with ``config``, again from the id in its spec.

    They hold what a spec does not say: the settings of ``IN_ROWS``, and whether a limit of the environment's own counts
    frames or decisions.
    """
    inner = _below_limit(env, config).spec
    assert inner is not None
    known = registered(inner.id) if config.time_limit is None else None
    usual = known.max_episode_steps if known is not None else None
    limit = {} if inner.max_episode_steps == usual else {"max_episode_steps": inner.max_episode_steps or -1}
    return {"kwargs": inner.kwargs | limit} | {name: getattr(config, name) for name in IN_ROWS}


def spec_of(env: gymnasium.Env[Any, Any], config: EnvConfig) -> EnvSpec | None:
    """Return the spec of ``env``, which ``make_gym`` made with ``config``, so that ``gymnasium.make`` makes it again.

    Gymnasium applies a spec's time limit before its wrappers: one that counts decisions becomes the last wrapper.
    """
    inner = _below_limit(env, config).spec
    if config.time_limit is None or inner is None or not inner.additional_wrappers:
        return env.spec
    limit = gymnasium.wrappers.TimeLimit.wrapper_spec(max_episode_steps=config.time_limit)
    return dataclasses.replace(inner, additional_wrappers=(*inner.additional_wrappers, limit))


def _below_limit(env: gymnasium.Env[Any, Any], config: EnvConfig) -> gymnasium.Env[Any, Any]:
    """Return ``env`` without the limit of ``config.time_limit``, its outermost wrapper."""
    return env.env if config.time_limit is not None and isinstance(env, gymnasium.wrappers.TimeLimit) else env


def named(maker: object) -> str | None:
    """Return ``module:name`` of an entry point; None if it cannot be imported by that name."""
    if maker is None or isinstance(maker, str):
        return maker
    module, name = str(getattr(maker, "__module__", "")), str(getattr(maker, "__qualname__", ""))
    here = getattr(sys.modules.get(module), name, None) is maker
    return f"{module}:{name}" if here and findable(module) else None

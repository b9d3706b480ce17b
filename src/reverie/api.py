"""Training from Python with the same layers of settings as the command line."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from reverie.algos.base import AlgorithmConfig
from reverie.core.discover import algorithm_name
from reverie.core.errors import ConfigError, did_you_mean
from reverie.experiment import EnvLike, ExperimentConfig, env_name
from reverie.presets import layered, overlay, resized
from reverie.training import Result, Say
from reverie.training import train as run_training


def train(
    algorithm: str | AlgorithmConfig | ExperimentConfig = "dreamer_v3",
    env: EnvLike | None = None,
    *,
    size: str | None = None,
    preset: str | None = None,
    config: Sequence[Path | str] = (),
    run: Path | str | None = None,
    keep_newer: bool = False,
    say: Say = print,
    **overrides: Any,
) -> Result:
    """Train an agent.

    Args:
        algorithm: a name such as ``"dreamer_v3"``, the algorithm's configuration, or a whole experiment's.
        env: an id of Gymnasium's registry, a function that makes an environment, or an instance.
        size: a named size of the algorithm, such as ``"12m"``.
        preset: published settings to start from; the environment's id chooses them otherwise.
        config: YAML files with settings, the later ones win.
        run: the run folder, a new one under ``runs/`` unless given; a run found there is continued.
        keep_newer: on continuing, learn also from rows that came after the checkpoint; they are set aside otherwise.
        say: gets a sentence about what is happening now and then.
        **overrides: any field of :class:`ExperimentConfig`, nested as a dictionary (``env_options`` for those of the
            environment) or by dotted path: ``**{"algo.horizon": 20}``. ``envs=8`` is short for ``env.num``, which
            is 1 if ``env`` is an instance.

    Raises:
        ReverieError: settings do not fit together, or the run could not go on.
    """
    check_names(overrides)
    given = None if env is None or isinstance(env, str) else env
    name = None if env is None else env_name(env)
    if isinstance(algorithm, ExperimentConfig):
        settings = algorithm if name is None else algorithm.merge({"env.id": name})
    else:
        word = algorithm if isinstance(algorithm, str) else algorithm_name(type(algorithm))
        settings = layered(word, env=name, preset=preset, size=size, files=config)
        if isinstance(algorithm, AlgorithmConfig):
            settings = settings.merge({"algo": algorithm})
            settings = resized(settings, size) if size is not None else settings
    if "env_options" in overrides:
        overrides["env"] = overrides.pop("env_options")
    if "envs" in overrides:
        overrides["env.num"] = overrides.pop("envs")
    if isinstance(given, gymnasium.Env):
        settings = settings.merge({"env.num": 1, "env.vector": "serial"})  # a preset may have asked for several
        check_instance(overrides)
    return run_training(overlay(settings, overrides), env=given, run=run, say=say, keep_newer=keep_newer)


def check_names(overrides: Mapping[str, Any]) -> None:
    """Every override must be something that :func:`train` takes.

    Raises:
        ConfigError: one is not; names those that are.
    """
    parameters = [name for name in inspect.signature(train).parameters if name != "overrides"]
    fields = [field.name for field in dataclasses.fields(ExperimentConfig) if field.name != "env"]
    known = [*fields, "envs", "env_options"]
    for name in overrides:
        if name.partition(".")[0] not in (*fields, "env", "envs", "env_options"):
            hint = did_you_mean(name, [*known, *parameters])
            raise ConfigError(f"unknown option '{name}'.{hint} Known here: {', '.join(sorted(known))}.")


def check_instance(overrides: Mapping[str, Any]) -> None:
    """An instance is one environment.

    Raises:
        ConfigError: more of it were asked for.
    """
    options = overrides.get("env")
    num = overrides.get("env.num", options.get("num", 1) if isinstance(options, Mapping) else 1)
    if num != 1:
        raise ConfigError(
            f"envs={num} with an environment instance: an instance is one environment. Leave it out or say envs=1, or "
            "give a function that makes environments in place of the instance."
        )

"""Merge the arguments of :func:`reverie.train`, :func:`reverie.tune` and the like with all lower layers of settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from reverie.algos.settings import AlgorithmConfig
from reverie.core.config import flatten
from reverie.core.discover import algorithm_name
from reverie.core.errors import ConfigError, short_repr
from reverie.datasets.dataset import DatasetConfig, dataset_settings
from reverie.datasets.in_memory import data_path
from reverie.envs.config import EnvConfig
from reverie.envs.make import EnvLike, env_name
from reverie.experiment.config import DATASET_ENV, ExperimentConfig
from reverie.experiment.config_layers import merge_layers, missing_input_question, overlay, with_network_size
from reverie.experiment.resolve import complete_settings
from reverie.run.callback import import_callback


def resolve_settings(
    algorithm: str | AlgorithmConfig | ExperimentConfig,
    env: EnvLike | None,
    size: str | None,
    preset: str | None,
    config: Path | str | Sequence[Path | str] | None,
    overrides: Mapping[str, Any],
    run: Path | str | None = None,
) -> ExperimentConfig:
    """Merge the layers of settings of :func:`reverie.train`; ConfigError if they contradict each other."""
    files = [config] if isinstance(config, str | Path) else config or ()
    if objects := [callback for callback in overrides.get("callbacks") or () if not isinstance(callback, str)]:
        raise ConfigError(
            f"callbacks = {short_repr(objects)}: each run has its own process, which cannot receive a Python object. "
            "Name the class: 'module:Class(setting=value)'."
        )
    for text in overrides.get("callbacks") or ():
        import_callback(text)
    values = expand_short_names(overrides)
    settings = base_settings(algorithm, env, size, preset, files, values, run)
    if isinstance(options := values.get("env"), EnvConfig) and options.id == EnvConfig().id:
        values["env"] = options.replace("id", settings.env.id)
    if isinstance(env, gymnasium.Env):
        settings = settings.merge({"env.num": 1, "env.vectorization": "sync"})  # presets may set several
    settings = overlay(settings, values)
    if not isinstance(algorithm, ExperimentConfig):
        named = env is not None or "env.id" in flatten(values) or isinstance(values.get("env"), EnvConfig)
        if ask := missing_input_question(settings.name, settings, env=named, preset=preset, files=files, run=run):
            raise ConfigError(ask)
    if isinstance(env, gymnasium.Env) and settings.env.num != 1:
        raise ConfigError(
            f"envs = {settings.env.num}: an environment instance is a single environment. Remove envs, or pass a "
            "function that creates environments instead of the instance."
        )
    if not isinstance(algorithm, ExperimentConfig):
        return complete_settings(settings, list(flatten(values)))
    unnamed = env is None and settings.offline and settings.env.id == EnvConfig().id
    return settings.merge({"env.id": DATASET_ENV}) if unnamed else settings


def expand_short_names(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``overrides`` with short names replaced by paths of settings."""
    values = {{"envs": "env.num", "env_options": "env"}.get(name, name): value for name, value in overrides.items()}
    if "data" in values and not isinstance(data := values["data"], DatasetConfig):
        values["data"] = dataset_settings(data)
    return values | ({"data.path": data_path(values["data.path"])} if "data.path" in values else {})


def base_settings(
    algorithm: str | AlgorithmConfig | ExperimentConfig,
    env: EnvLike | None,
    size: str | None,
    preset: str | None,
    files: Sequence[Path | str],
    overrides: Mapping[str, Any],
    run: Path | str | None,
) -> ExperimentConfig:
    """Return the settings below ``overrides``: an ``ExperimentConfig``, or else preset, files, size and environment."""
    name = None if env is None else env_name(env)
    if isinstance(algorithm, ExperimentConfig):
        if lower := preset or ", ".join(map(str, files)):
            raise ConfigError(
                f"{lower}: an ExperimentConfig was passed, which already sets all options. Pass the algorithm's name "
                "to use presets and files, or override single options: reverie.train(experiment, steps=1000)."
            )
        settings = algorithm if size is None else with_network_size(algorithm, size)
        return settings if name is None else settings.merge({"env.id": name})
    algo = algorithm if isinstance(algorithm, AlgorithmConfig) else None
    return merge_layers(
        algorithm if isinstance(algorithm, str) else algorithm_name(type(algorithm)),
        env=name,
        preset=preset,
        size=size,
        files=files,
        data={key: value for key, value in overrides.items() if key.partition(".")[0] in ("data", "experience")},
        has_env_object=env is not None and not isinstance(env, str),
        algo=algo,
        device=overrides.get("device"),
        steps=overrides.get("steps"),
        run=run,
    )

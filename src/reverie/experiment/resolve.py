"""Settings in the context of a run: the dataset's environment, an earlier run, a file."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from reverie.core.config import Choice, Config
from reverie.core.errors import ConfigError, EnvError, ReverieError, RunError
from reverie.core.logger import logger
from reverie.datasets.dataset import DatasetConfig, open_recorded
from reverie.datasets.dataset_env import dataset_env_config, make_dataset_env
from reverie.datasets.format_detection import open_reader
from reverie.envs.make import EnvLike, close_quietly, entry_point_name, env_name
from reverie.experiment.config import DATASET_ENV, NO_ENV, ExperimentConfig
from reverie.replay.persistent import absolute_store_path
from reverie.run.folder import SavedConfig, check_module_names


def saved_settings(config: ExperimentConfig, env: EnvLike | None, eval_env: EnvLike | None = None) -> SavedConfig:
    """Return the content of config.yaml, with names (``module:name``) of the objects that a file cannot contain."""
    envs = {"env": env, "eval_env": eval_env}
    objects = {name: value for name, value in envs.items() if not isinstance(value, str | None)}
    custom = {name: entry_point_name(value) or env_name(value) for name, value in objects.items()}
    custom |= dict(_foreign(config.algo, type(config.algo)(), "algo"))
    return SavedConfig(algorithm=config.name, experiment=config.to_dict(), custom=custom)


def _foreign(value: Any, default: Any, key_path: str) -> Mapping[str, str]:
    """Return the paths below ``key_path`` at which ``value`` has another class than ``default``, and that class."""
    if value is None or (isinstance(value, Choice) and value.is_importable()):
        return {}  # a file contains its kind and its values
    if type(value) is not type(default) and (isinstance(default, Config) or isinstance(value, Config)):
        return {key_path: f"{type(value).__module__}:{type(value).__qualname__}"}
    if not isinstance(value, Config):
        return {}
    out: dict[str, str] = {}
    for name in value.__dataclass_fields__:
        out |= _foreign(getattr(value, name), getattr(default, name), f"{key_path}.{name}")
    return out


def resolve_env(
    config: ExperimentConfig, env: EnvLike | None, before: Mapping[str, Any] | None = None
) -> ExperimentConfig:
    """Return ``config`` with its environment filled in: an offline run is evaluated in the dataset's environment.

    ``env``: an environment passed from Python. ``before``: settings of the run to continue, whose environment is kept
    unless another is named.
    """
    config = config.validate()
    if not config.offline or (env is not None and not isinstance(env, str)):
        return config
    if before is not None and config.env.id == DATASET_ENV:
        check_module_names(SavedConfig(algorithm="", experiment={"env": before["env"]}), "the run")
        config = config.merge({"env": dict(before["env"])})
    if config.env.id != DATASET_ENV:
        return config.without_env() if config.env.id == NO_ENV else config
    with contextlib.closing(open_recorded(config.data, config.env)) as recorded:
        info = recorded.about
    if not info.env:
        logger.info("no evaluations: the dataset does not name its environment. Pass --env ID to evaluate in one")
        return config.without_env()
    with_env = config.merge({"env": dataset_env_config(info, config.env).to_dict()})
    try:
        close_quietly(make_dataset_env(info, config.env))
    except EnvError as error:
        logger.info(f"no evaluations: {error}")
        return config.without_env()
    return with_env


def dataset_env_id(data: DatasetConfig) -> str:
    """Return the environment id that a dataset names.

    "" if it names none or cannot be read (reading it reports why).
    """
    try:
        with open_reader(data.path, data) as reader:
            return reader.env_id()
    except ReverieError:
        return ""


def with_initial_settings(config: ExperimentConfig, before: Mapping[str, Any], path: Path) -> ExperimentConfig:
    """Return ``config`` with the initial settings of the run in ``path``.

    RunError if ``config`` differs from them, or has another kind of experience than ``before``, the run's settings so
    far: a checkpoint contains positions in the replay, in the dataset or in both, and cannot switch between these.
    """
    initial = {
        "init_from": before.get("init_from"),
        "replay.init_from": tuple(before.get("replay", {}).get("init_from", ())),
    }
    initial["init_modules"] = before.get("init_modules", ())
    current = {
        "init_from": config.init_from,
        "replay.init_from": config.replay.init_from,
        "init_modules": config.init_modules,
    }
    for name, value in current.items():
        if value and absolute_locations(value) != absolute_locations(initial[name]):
            raise RunError(
                f"{name} = {value!r} applies only to a new run, but {path} started with {name} = {initial[name]!r}. "
                "Remove this option to continue that run, or choose another --run to start a new one."
            )
    learned = {name: before[name] for name in ("experience", "data") if name in before}
    check_module_names(SavedConfig(algorithm="", experiment=learned), f"the run {path}")
    was = config.merge(learned)
    if was.offline != config.offline or (config.offline_fraction and not was.offline_fraction):
        kinds = "a dataset alone" if was.offline else "a dataset and collected rows"
        raise RunError(
            f"{path} was trained on {kinds if was.offline_fraction else 'collected rows'}, which cannot change when it "
            "continues. "
            f"To start a new run with its agent, pass --init-from {path}, in Python init_from='{path}'."
        )
    if bool(config.actors) != bool(before.get("actors", 0)):
        raise RunError(
            f"actors = {config.actors}, but {path} was trained with actors = {before.get('actors', 0)}: a run cannot "
            f"switch between actors and no actors. Or start a new run with its agent: --init-from {path}."
        )
    return config.merge(initial)


def absolute_locations(locations: Any) -> list[str]:
    """Return one or several paths or URLs as absolute locations; [] for None."""
    paths = [locations] if isinstance(locations, str) else locations or ()
    return [absolute_store_path(path) for path in paths]


def complete_settings(config: ExperimentConfig, names: Collection[str]) -> ExperimentConfig:
    """Return ``config``; ConfigError if the settings ``names``, which the user has set, have no effect."""
    other_unit = "steps" if config.offline else "updates"
    if other_unit in names and config.unit not in names:
        kind = "on a dataset alone" if config.offline else "that collects rows"
        raise ConfigError(f"{other_unit} has no effect on a run {kind}. Set its length with {config.unit}.")
    if config.hours is not None and config.learners > 1:
        raise ConfigError(f"hours = {config.hours:g} with learners = {config.learners}: set {config.unit} instead.")
    learns_later = (
        not config.offline and not config.algo.on_policy and 0 not in (config.replay_ratio, config.train_ratio)
    )
    if learns_later and config.learning_starts >= config.steps:
        raise ConfigError(
            f"learning_starts = {config.learning_starts}: the run has only {config.steps:,} env steps, so it would "
            "learn nothing. Lower it, or increase steps."
        )
    return config

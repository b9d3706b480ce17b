"""What a run saves of its settings, and what it keeps of them when it continues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from reverie.core.config import Choice, Config
from reverie.core.errors import RunError
from reverie.envs.config import EnvLike, env_name
from reverie.envs.make import entry_point_name
from reverie.experiment.config import ExperimentConfig
from reverie.replay.config import absolute_store_path
from reverie.run.folder import SavedConfig, check_module_names


def saved_settings(config: ExperimentConfig, env: EnvLike | None, eval_env: EnvLike | None = None) -> SavedConfig:
    """Return the content of config.yaml, with names (``module:name``) of the objects that a file cannot contain."""
    envs = {"env": env, "eval_env": eval_env}
    objects = {name: value for name, value in envs.items() if not isinstance(value, str | None)}
    custom = {name: entry_point_name(value) or env_name(value) for name, value in objects.items()}
    custom |= dict(_custom_classes(config.algo, type(config.algo)(), "algo"))
    return SavedConfig(algorithm=config.name, experiment=config.to_dict(), custom=custom)


def _custom_classes(value: object, default: object, key_path: str) -> Mapping[str, str]:
    """Return the paths below ``key_path`` at which ``value`` has another class than ``default``, and that class."""
    if value is None or (isinstance(value, Choice) and value.is_importable()):
        return {}  # a file contains its kind and its values
    if type(value) is not type(default) and (isinstance(default, Config) or isinstance(value, Config)):
        return {key_path: f"{type(value).__module__}:{type(value).__qualname__}"}
    if not isinstance(value, Config):
        return {}
    out: dict[str, str] = {}
    for name in value.__dataclass_fields__:
        out |= _custom_classes(getattr(value, name), getattr(default, name), f"{key_path}.{name}")
    return out


def initial_settings(config: ExperimentConfig, before: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the settings with which the run in ``path`` has begun, and which stay when it continues with ``config``.

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
        if value and _absolute_locations(value) != _absolute_locations(initial[name]):
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
            f"continues. To start a new run with its agent, pass --init-from {path}, in Python init_from='{path}'."
        )
    if bool(config.actors) != bool(before.get("actors", 0)):
        raise RunError(
            f"actors = {config.actors}, but {path} was trained with actors = {before.get('actors', 0)}: a run cannot "
            f"switch between actors and no actors. Or start a new run with its agent: --init-from {path}."
        )
    (kind, *_), (earlier_kind, *_) = config.reward.split(":"), str(before.get("reward") or "").split(":")
    if kind and kind != earlier_kind:
        taught = f"a reward of {earlier_kind}" if earlier_kind else "the environment's rewards"
        raise RunError(
            f"reward = {config.reward}, but {path} was trained with {taught}, which cannot change when it continues. "
            f"To start a new run with its agent, pass --init-from {path}, in Python init_from='{path}'."
        )
    return initial


def _absolute_locations(locations: str | Iterable[str] | None) -> list[str]:
    """Return one or several paths or URLs as absolute locations; [] for None."""
    paths = [locations] if isinstance(locations, str) else locations or ()
    return [absolute_store_path(path) for path in paths]

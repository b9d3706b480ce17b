"""Training from Python with the same layers of settings as the command line."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from reverie.algos.base import AlgorithmConfig
from reverie.core.config import Config
from reverie.core.discover import algorithm_name
from reverie.core.errors import ConfigError, RunError, brief, did_you_mean
from reverie.core.protocols import Sink
from reverie.core.randomness import left_as_found
from reverie.data.dataset import DatasetConfig, no_path
from reverie.envs.handed import EnvLike, env_name
from reverie.experiment import ExperimentConfig
from reverie.log.console import tell
from reverie.offline import HALF
from reverie.presets import layered, overlay, resized
from reverie.training.judging import Result
from reverie.training.run import train as run_training
from reverie.training.seeds import SeedsResult
from reverie.training.seeds import train_seeds as run_seeds
from reverie.training.telling import Say

_TRAINING = threading.Lock()


def train(
    algorithm: str | AlgorithmConfig | ExperimentConfig = "dreamer_v3",
    env: EnvLike | None = None,
    *,
    size: str | None = None,
    preset: str | None = None,
    config: Path | str | Sequence[Path | str] = (),
    run: Path | str | None = None,
    keep_newer: bool = False,
    say: Say = tell,
    sinks: Sequence[Sink] = (),
    **overrides: Any,
) -> Result:
    """Train an agent.

    Args:
        algorithm: a name such as ``"dreamer_v3"``, the algorithm's configuration, or a whole experiment's.
        env: an id of Gymnasium's registry, a function that makes an environment, or an instance.
        size: a named size of the algorithm, such as ``"12m"``.
        preset: published settings to start from; the environment's id chooses them otherwise.
        config: a YAML file with settings, or several, of which the later ones win.
        run: the run folder, a new one under ``runs/`` unless given; a run found there is continued.
        keep_newer: on continuing, learn also from rows that came after the checkpoint; they are set aside otherwise.
        say: gets a sentence about what is happening now and then.
        sinks: places of yours where measurements go as well, with ``write(values, step)`` and ``close()``.
        **overrides: any field of :class:`ExperimentConfig`, nested as a dictionary (``env_options`` for those of the
            environment) or by dotted path: ``**{"algo.horizon": 20}``. ``envs=8`` is short for ``env.num``, which
            is 1 if ``env`` is an instance; ``data=path`` for ``data.path``, to learn from recorded data: from them
            alone, or with an ``env`` from what is lived there as well.

    Raises:
        ReverieError: settings do not fit together, the run could not go on, or another thread trains.

    All that is random follows from ``seed``. PyTorch's, NumPy's and Python's own generators are seeded meanwhile, and
    are as they were afterwards: another thread that draws from them would disturb the run.
    """
    given = None if env is None or isinstance(env, str) else env
    settings = settings_of(algorithm, env, size, preset, config, overrides)
    with alone(), left_as_found():
        return run_training(settings, env=given, run=run, say=say, keep_newer=keep_newer, sinks=sinks)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """The only training of this process: two would draw from the same generators, and none would follow from its seed.

    Raises:
        RunError: there is another one.
    """
    if not _TRAINING.acquire(blocking=False):
        raise RunError(
            "another training runs in this process, and both would draw from the same random numbers. Train one after "
            "the other, or in processes of their own: reverie.train_seeds, or the command line."
        )
    try:
        yield
    finally:
        _TRAINING.release()


def train_seeds(
    algorithm: str | AlgorithmConfig | ExperimentConfig = "dreamer_v3",
    env: str | None = None,
    *,
    seeds: int | Sequence[int] = 5,
    jobs: int = 0,
    size: str | None = None,
    preset: str | None = None,
    config: Path | str | Sequence[Path | str] = (),
    run: Path | str | None = None,
    keep_newer: bool = False,
    say: Say = tell,
    **overrides: Any,
) -> SeedsResult:
    """Train an agent several times, each time from another seed, and say what they come to.

    Each seed is a run of its own, as :func:`train` would make it, in a process of its own.

    Args:
        algorithm: as for :func:`train`, without objects that a file cannot hold.
        env: an id of Gymnasium's registry or ``module:Id``, since other processes must be able to make it.
        seeds: how many, from ``seed`` on, or which.
        jobs: how many at a time; 0 for as many as there are cores for their threads, and one on a GPU.
        size: as for :func:`train`.
        preset: as for :func:`train`.
        config: as for :func:`train`.
        run: the folder of all of them; seeds found there are gone on with, those that finished left as they are. None:
            the one under ``runs/`` that has the same settings, or else a new one.
        keep_newer: as for :func:`train`.
        say: gets a sentence about what is happening now and then.
        **overrides: as for :func:`train`.

    Raises:
        ReverieError: settings do not fit together, or none of the seeds could begin. One that fails later does not
            take the others with it: the result says so.
    """
    if env is not None and not isinstance(env, str):
        raise ConfigError(
            f"env = {env_name(env)}: seeds run in processes of their own, which cannot be handed an object. Register "
            "the environment with Gymnasium in a module, and give 'module:Id'."
        )
    settings = settings_of(algorithm, env, size, preset, config, overrides)
    chosen = range(settings.seed, settings.seed + seeds) if isinstance(seeds, int) else seeds
    return run_seeds(settings, list(chosen), jobs=jobs, run=run, keep_newer=keep_newer, say=say)


def settings_of(
    algorithm: str | AlgorithmConfig | ExperimentConfig,
    env: EnvLike | None,
    size: str | None,
    preset: str | None,
    config: Path | str | Sequence[Path | str],
    overrides: dict[str, Any],
) -> ExperimentConfig:
    """The layers of settings as one, as :func:`train` describes them.

    Raises:
        ConfigError: they do not fit together.
    """
    check_names(overrides)
    files = [config] if isinstance(config, str | Path) else config
    if isinstance(overrides.get("data"), str | Path):
        overrides["data.path"] = str(overrides.pop("data"))
    check_data(overrides.get("data", {}))
    if isinstance(data := overrides.get("data"), DatasetConfig):  # others may be said of it by dotted paths
        usual = DatasetConfig().to_dict()
        overrides["data"] = {name: value for name, value in data.to_dict().items() if value != usual[name]}
    name = None if env is None else env_name(env)
    given: object = algorithm
    if not isinstance(given, str | Config):
        shown = given.__name__ if isinstance(given, type) else brief(given)
        hint = f" {shown}() is one." if isinstance(given, type) else ""
        raise ConfigError(f"algorithm = {shown}: expected a name such as 'dqn', or a configuration.{hint}")
    if isinstance(algorithm, ExperimentConfig):
        settings = algorithm if name is None else algorithm.merge({"env.id": name})
    else:
        word = algorithm if isinstance(algorithm, str) else algorithm_name(type(algorithm))
        data = {key: value for key, value in overrides.items() if key.partition(".")[0] == "data"}
        handed = env is not None and not isinstance(env, str)
        settings = layered(word, env=name, preset=preset, size=size, files=files, data=data, handed=handed)
        if isinstance(algorithm, AlgorithmConfig):
            settings = settings.merge({"algo": algorithm})
            settings = resized(settings, size) if size is not None else settings
    if "env_options" in overrides:
        overrides["env"] = overrides.pop("env_options")
    if "envs" in overrides:
        overrides["env.num"] = overrides.pop("envs")
    if isinstance(env, gymnasium.Env):
        settings = settings.merge({"env.num": 1, "env.vector": "serial"})  # a preset may have asked for several
        check_instance(overrides)
    settings = overlay(settings, overrides)
    if settings.data.alone and env is not None and not says_fraction(overrides):
        return settings.merge({"data.fraction": HALF})
    return settings.merge({"data.eval_env": name}) if settings.data.alone and isinstance(env, str) else settings


def says_fraction(overrides: Mapping[str, Any]) -> bool:
    """Whether they say which part of a batch is recorded."""
    data = overrides.get("data")
    return "data.fraction" in overrides or (isinstance(data, Mapping) and "fraction" in data)


def check_data(data: object) -> None:
    """``data`` is settings of data, and not the data.

    Raises:
        ConfigError: it is something else.
    """
    known = [field.name for field in dataclasses.fields(DatasetConfig)]
    is_said = isinstance(data, Mapping) and (not data or any(str(key).partition(".")[0] in known for key in data))
    if not isinstance(data, DatasetConfig) and not is_said:
        raise no_path(data)


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

"""Train from Python, with the same layers of settings as the command line."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import gymnasium

from reverie.algos.base import AlgorithmConfig
from reverie.core.config import Config
from reverie.core.discover import algorithm_config, algorithm_name
from reverie.core.errors import ConfigError, RunError, brief
from reverie.core.near_names import near_names
from reverie.core.protocols import Sink
from reverie.core.randomness import left_as_found, threads_kept
from reverie.core.words import Say
from reverie.datasets.dataset import DatasetConfig, dataset_config
from reverie.effect import learning_in_time, remark_on_files, sets, without_effect
from reverie.envs.config import EnvConfig
from reverie.envs.make import EnvLike, env_name
from reverie.experiment import ExperimentConfig
from reverie.log.console import tell
from reverie.offline import DEFAULT_FRACTION
from reverie.presets import SHORT_NAMES, files_say_fraction, layered, overlay, resized, says_fraction
from reverie.training.evaluator import Result
from reverie.training.run import train as run_training
from reverie.training.seeds import SeedsResult
from reverie.training.seeds import train_seeds as run_seeds

_TRAINING = threading.Lock()


def train(
    algorithm: str | AlgorithmConfig | ExperimentConfig = "dreamer_v3",
    env: EnvLike | None = None,
    *,
    steps: int | None = None,
    seed: int | None = None,
    envs: int | None = None,
    size: str | None = None,
    preset: str | None = None,
    config: Path | str | Sequence[Path | str] | None = None,
    run: Path | str | None = None,
    replay_ratio: float | None = None,
    data: str | Path | DatasetConfig | Mapping[str, Any] | None = None,
    eval_env: str | None = None,
    eval_episodes: int | None = None,
    device: str | None = None,
    keep_newer: bool = False,
    say: Say = tell,
    sinks: Sequence[Sink] = (),
    **overrides: Any,
) -> Result:
    """Train an agent, or continue a run.

    Settings come in layers, each overriding those before: the preset, the files of ``config``, ``size``, ``env``, and
    then all others. None leaves a setting as it is below.

    Args:
        algorithm: a name such as ``"dreamer_v3"``; or the algorithm's configuration, in place of the preset's and the
            files' settings of it; or a whole experiment's, in place of preset and files.
        env: an id of Gymnasium's registry, a function that makes an environment, or an instance.
        steps: env steps of the run: decisions of the policy, summed over all environments.
        seed: seed of everything random.
        envs: environments stepped together; 1 if ``env`` is an instance. Short for ``env.num``.
        size: a named size of the algorithm, such as ``"12m"``; ``reverie list`` names them.
        preset: name of a preset to start from. None: the preset of the environment's suite, and without a GPU
            ``"cpu"``: that preset with small networks and a short run. Not beside a whole
            experiment's configuration.
        config: a YAML file with settings, or several, of which later ones override earlier ones. Not beside a whole
            experiment's configuration; without settings of the algorithm beside a configuration of it.
        run: run folder; a run found there is continued. None: a new folder under ``runs/``.
        replay_ratio: gradient updates per env step.
        data: recorded data to learn from, alone, or beside an ``env`` together with what is collected there: a path,
            or settings. Short for ``data.path``.
        eval_env: id of the environment to evaluate in, in a run on recorded data alone. Short for ``data.eval_env``.
        eval_episodes: episodes of each evaluation, during training and at the end; 0: none.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or ``"auto"`` for a GPU if there is one.
        keep_newer: when continuing, learn also from stored rows newer than the checkpoint. False sets them aside.
        say: called with a sentence about what is happening, now and then.
        sinks: further destinations of the measurements, with ``write(values, step)`` and ``close()``.
        **overrides: any other field of :class:`ExperimentConfig`, nested as a dictionary (``env_options`` for those of
            the environment), as an object such as ``Schedule(...)``, or by dotted path: ``**{"algo.horizon": 20}``,
            also beside such an object. ``data_fraction`` is short for ``data.fraction``, the recorded part of a batch.

    Returns:
        How the run ended: steps, updates, final evaluation and files.

    Raises:
        ReverieError: settings do not fit together, the run could not go on, or another thread trains. Its subclasses
            are in :mod:`reverie.core.errors`.

    Everything random follows from ``seed``. The global generators of PyTorch, NumPy and Python are seeded during
    training and restored afterwards; other threads that draw from them meanwhile would disturb the run. PyTorch's
    number of threads, which the setting ``threads`` changes, is restored too.
    """
    common: dict[str, Any] = {
        "steps": steps,
        "seed": seed,
        "envs": envs,
        "replay_ratio": replay_ratio,
        "device": device,
    }
    common |= {"data": data, "eval_env": eval_env, "eval_episodes": eval_episodes, "device": device}
    overrides |= {name: value for name, value in common.items() if value is not None}
    given = None if env is None or isinstance(env, str) else env
    settings = settings_of(algorithm, env, size, preset, config, overrides, run, say)
    with only_training(), left_as_found(), threads_kept():
        return run_training(settings, env=given, run=run, say=say, keep_newer=keep_newer, sinks=sinks)


@contextlib.contextmanager
def only_training() -> Iterator[None]:
    """Hold the lock for training in this process.

    Two trainings would draw from the same random generators, and neither would follow from its seed.

    Raises:
        RunError: another training holds it.
    """
    if not _TRAINING.acquire(blocking=False):
        raise RunError(
            "another training is running in this process, and both would use the same random generators. Train one "
            "after the other, or in separate processes: with reverie.train_seeds or the command line."
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
    config: Path | str | Sequence[Path | str] | None = None,
    run: Path | str | None = None,
    keep_newer: bool = False,
    say: Say = tell,
    **overrides: Any,
) -> SeedsResult:
    """Train an agent several times from different seeds, and aggregate the results.

    Each seed is a run of its own, as :func:`train` would make it, in a process of its own.

    Args:
        algorithm: as for :func:`train`, without objects that a YAML file cannot hold.
        env: an id of Gymnasium's registry or ``module:Id``, since other processes must be able to make it.
        seeds: the number of seeds, counted from ``seed`` on, or a list of different integers >= 0.
        jobs: how many to train at a time. 0: as many as the cores allow with the threads of each; one on a GPU.
        size: as for :func:`train`.
        preset: as for :func:`train`.
        config: as for :func:`train`.
        run: the folder for all of them; unfinished seeds found there are continued. None: the newest folder under
            ``runs/`` with the same settings, or else a new one.
        keep_newer: as for :func:`train`.
        say: called with a sentence about what is happening, now and then.
        **overrides: ``steps``, ``envs``, ``device`` and all others, as for :func:`train`; ``seed`` is the first.

    Returns:
        The state of each seed, and scores and curves with 95 % intervals across the seeds that finished.

    Raises:
        ReverieError: settings do not fit together, or none of the seeds could begin. If one fails later the others go
            on; its state in the result is "failed".
    """
    if env is not None and not isinstance(env, str):
        raise ConfigError(
            f"env = {env_name(env)}: each seed runs in its own process, which cannot receive a Python object. Register "
            "the environment with Gymnasium in a module, and pass 'module:Id'."
        )
    settings = settings_of(algorithm, env, size, preset, config, overrides, run, say)
    if isinstance(seeds, Integral):  # NumPy's too
        seeds = range(settings.seed, settings.seed + int(seeds))
    if not isinstance(seeds, Iterable):
        raise ConfigError(f"seeds = {brief(seeds)}: expected a number of seeds, or a list of different integers.")
    return run_seeds(settings, list(seeds), jobs=jobs, run=run, keep_newer=keep_newer, say=say)


def settings_of(
    algorithm: str | AlgorithmConfig | ExperimentConfig,
    env: EnvLike | None,
    size: str | None,
    preset: str | None,
    config: Path | str | Sequence[Path | str] | None,
    overrides: dict[str, Any],
    run: Path | str | None = None,
    say: Say = tell,
) -> ExperimentConfig:
    """Merge the layers of settings that :func:`train` takes.

    Raises:
        ConfigError: they do not fit together.
    """
    check_names(overrides, algorithm)
    check_twice(env, overrides)
    files = [config] if isinstance(config, str | Path) else config or ()
    short = {path: name for name, path in SHORT_NAMES.items() if name in overrides}
    overrides = spelled_out(overrides)
    settings = base_of(algorithm, env, size, preset, files, overrides, run)
    if "env_options" in overrides:
        options = overrides.pop("env_options")
        unnamed = isinstance(options, EnvConfig) and options.id == EnvConfig().id
        overrides["env"] = options.replace("id", settings.env.id) if unnamed else options
    if isinstance(env, gymnasium.Env):
        settings = settings.merge({"env.num": 1, "env.vector": "serial"})  # presets may ask for several
        check_instance(overrides)
    settings = overlay(settings, overrides)
    said = says_fraction(overrides) or files_say_fraction(files, algorithm_name(type(settings.algo)))
    settings = beside_data(settings, env, said)

    def named(path: str) -> str | None:
        return short.get(path, path) if sets(overrides, path) else None

    if (idle := without_effect(settings, named, str)) is not None:
        raise ConfigError(idle)
    remark_on_files(settings, files, named, str)
    whole = isinstance(algorithm, ExperimentConfig)
    return settings if whole else learning_in_time(settings, named, say)


def spelled_out(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``overrides`` with whole names in place of short ones, and with data and readers as settings.

    Raises:
        ConfigError: ``data`` is neither a path nor settings.
    """
    whole = {name: value for name, value in overrides.items() if name not in SHORT_NAMES}
    data = whole.get("data", {})
    if isinstance(data, str | Path):
        del whole["data"]
        whole["data.path"] = str(data)
    else:
        check_data(data)
    if isinstance(data, DatasetConfig):  # dotted paths may set the rest
        usual = DatasetConfig().to_dict()
        whole["data"] = {name: value for name, value in data.to_dict().items() if value != usual[name]}
    return whole | {path: overrides[name] for name, path in SHORT_NAMES.items() if name in overrides}


def base_of(
    algorithm: str | AlgorithmConfig | ExperimentConfig,
    env: EnvLike | None,
    size: str | None,
    preset: str | None,
    files: Sequence[Path | str],
    overrides: Mapping[str, Any],
    run: Path | str | None,
) -> ExperimentConfig:
    """Return the settings below ``overrides``: a whole experiment's, or else preset, files, size and environment.

    Raises:
        ConfigError: they do not fit together, or ``algorithm`` is neither a name nor a configuration.
    """
    name = None if env is None else env_name(env)
    given: object = algorithm
    if not isinstance(given, str | Config):
        shown = given.__name__ if isinstance(given, type) else brief(given)
        hint = f" {shown}() is one." if isinstance(given, type) else ""
        raise ConfigError(f"algorithm = {shown}: expected a name such as 'dqn', or a configuration.{hint}")
    if isinstance(algorithm, ExperimentConfig):
        check_whole(preset, files)
        settings = algorithm if size is None else resized(algorithm, size)
        return settings if name is None else settings.merge({"env.id": name})
    word = algorithm if isinstance(algorithm, str) else algorithm_name(type(algorithm))
    data = {key: value for key, value in overrides.items() if key.partition(".")[0] == "data"}
    handed = env is not None and not isinstance(env, str)
    algo = algorithm if isinstance(algorithm, AlgorithmConfig) else None
    where: dict[str, Any] = {"device": overrides.get("device"), "run": run}
    return layered(word, env=name, preset=preset, size=size, files=files, data=data, handed=handed, algo=algo, **where)


def beside_data(settings: ExperimentConfig, env: EnvLike | None, said: bool) -> ExperimentConfig:
    """Return ``settings`` with what an ``env`` means beside recorded data: collect in it, or evaluate in it.

    ``said``: the fraction of recorded data was set. If that is 1, the environment is for evaluations.
    """
    if env is None or not settings.data.alone:
        return settings
    if not said:
        return settings.merge({"data.fraction": DEFAULT_FRACTION})
    return settings.merge({"data.eval_env": env_name(env)}) if isinstance(env, str) else settings


def check_data(data: object) -> None:
    """Check that ``data`` holds settings of data, not the data themselves.

    Raises:
        ConfigError: it is something else.
    """
    known = [field.name for field in dataclasses.fields(DatasetConfig)]
    is_said = isinstance(data, Mapping) and (not data or any(str(key).partition(".")[0] in known for key in data))
    if not isinstance(data, DatasetConfig) and not is_said:
        dataset_config(data)  # raises


def check_names(overrides: Mapping[str, Any], algorithm: object) -> None:
    """Check that every override is an option of :func:`train`.

    Raises:
        ConfigError: one is not; the message names those that are, or where ``algorithm``'s or another part has it.
    """
    parameters = [name for name in inspect.signature(train).parameters if name != "overrides"]
    fields = [field.name for field in dataclasses.fields(ExperimentConfig) if field.name != "env"]
    known = [*fields, *SHORT_NAMES, "env_options"]
    for name in overrides:
        if name.partition(".")[0] not in (*known, "env"):
            options = [*known, *parameters, *(path for path in inner_options(algorithm) if "." in path)]
            near = near_names(name.replace("_", "-"), [option.replace("_", "-") for option in dict.fromkeys(options)])
            meant = [option.replace("-", "_") for option in near]
            dotted = next((option for option in meant if "." in option), "")
            hint = f" Did you mean {' or '.join(map(repr, meant))}?" if meant else ""
            how = f" Pass it as **{{'{dotted}': ...}}." if dotted else ""
            raise ConfigError(f"unknown option '{name}'.{hint}{how} Available: {', '.join(sorted(known))}.")


def inner_options(algorithm: object) -> list[str]:
    """Return the options inside parts of the settings, as ``algo.lr``: of ``algorithm``, by name or as an object."""
    whole = algorithm if isinstance(algorithm, ExperimentConfig) else ExperimentConfig()
    parts: dict[str, object] = {field.name: getattr(whole, field.name) for field in dataclasses.fields(whole)}
    if isinstance(algorithm, str):
        parts["algo"] = algorithm_config(algorithm)()
    elif isinstance(algorithm, AlgorithmConfig):
        parts["algo"] = algorithm
    paths: list[str] = []
    while parts:
        inside = [(f"{path}.", part) for path, part in parts.items() if isinstance(part, Config)]
        parts = {at + f.name: getattr(part, f.name) for at, part in inside for f in dataclasses.fields(part)}
        paths += parts
    return paths


def check_whole(preset: str | None, files: Sequence[Path | str]) -> None:
    """Check that no lower layers of settings are given beside a whole experiment's, which would replace them.

    Raises:
        ConfigError: a preset or a file is given.
    """
    for name, value in {"preset": preset, "config": ", ".join(map(str, files))}.items():
        if value:
            raise ConfigError(
                f"{name} = '{value}': an ExperimentConfig was passed, which already sets all options. Pass the "
                f"algorithm's name to use {name}, or override single options: reverie.train(experiment, steps=1000)."
            )


def check_twice(env: EnvLike | None, overrides: Mapping[str, Any]) -> None:
    """Check that no setting is given by two of its names with different values.

    Raises:
        ConfigError: one is.
    """
    parts = {"env": overrides.get("env_options"), "data": overrides.get("data")}
    if isinstance(options := parts["env"], EnvConfig):
        parts["env"] = {} if options.id == EnvConfig().id else {"id": options.id}
    mappings = {part: options for part, options in parts.items() if isinstance(options, Mapping)}
    nested = {f"{part}.{name}": value for part, options in mappings.items() for name, value in options.items()}
    short = {"env": (env, "env.id"), "data": (overrides.get("data"), "data.path")}
    short |= {name: (overrides.get(name), path) for name, path in SHORT_NAMES.items()}
    for name, (value, path) in short.items():
        others = [given[path] for given in (overrides, nested) if path in given]
        if isinstance(value, str | Path | Real) and any(str(other) != str(value) for other in others):
            raise ConfigError(
                f"{name} = {value} and {path} = {others[0]} contradict each other: both set the same option. Set only "
                "one of them."
            )


def check_instance(overrides: Mapping[str, Any]) -> None:
    """Check that no copies of an environment instance are asked for.

    Raises:
        ConfigError: ``env.num`` is not 1.
    """
    options = overrides.get("env")
    num = overrides.get("env.num", options.get("num", 1) if isinstance(options, Mapping) else 1)
    if num != 1:
        raise ConfigError(
            f"envs = {num}: an environment instance is a single environment. Leave out envs, or pass a function that "
            "creates environments instead of the instance."
        )

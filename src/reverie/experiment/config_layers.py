"""The layers of settings: a preset or an existing run, then files, then options."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from reverie.algos.settings import AlgorithmConfig
from reverie.core.config import nest
from reverie.core.discover import algorithm_config, algorithm_name, same_algorithm
from reverie.core.errors import ConfigError, did_you_mean
from reverie.core.hardware import num_gpus
from reverie.envs.config import EnvConfig
from reverie.experiment.config import DATASET_ENV, NO_ENV, ExperimentConfig
from reverie.experiment.preset import Settings
from reverie.experiment.presets import CPU_SUFFIX, check_not_preset, preset_advice
from reverie.experiment.presets import TABLE as TABLE
from reverie.experiment.resolve import dataset_env_id
from reverie.run.folder import SCHEMA, RunFolder, SavedConfig, check_module_names, read_saved_config, read_yaml

SUITES = {
    f"{preset.algorithm}: {start}": name for name, preset in TABLE.items() for start in preset.env_prefixes.split()
}
"""Default preset by ``algorithm: prefix`` of environment ids."""
ON_CPU = {name: preset.cpu_changes for name, preset in TABLE.items() if preset.cpu_changes is not None}
"""Changes of presets for machines without a GPU."""


def make_preset(name: str) -> ExperimentConfig:
    """Return the configuration of a preset."""
    return overlay(default_config(TABLE[name].algorithm), TABLE[name].settings)


PRESETS: dict[str, Callable[[], ExperimentConfig]] = {name: functools.partial(make_preset, name) for name in TABLE}
"""A function for each preset that returns its configuration."""


def preset_name(algorithm: str, env: str) -> str | None:
    """Return the preset's name for an algorithm on an environment; None if the algorithm has no preset."""
    key = f"{algorithm}: {env.rpartition(':')[2]}-"  # "CartPole", which Gymnasium accepts, also has the prefix
    default = algorithm if algorithm in PRESETS else None
    return next((name for start, name in SUITES.items() if key.startswith(start)), default)


def base_config(
    algorithm: str, env: str | None = None, preset: str | None = None, device: str = "auto", steps: int | None = None
) -> ExperimentConfig:
    """Return the lowest layer of settings: the named preset, or the environment's preset.

    Without a GPU, or if ``device`` is cpu, the environment's preset includes its CPU changes. The preset "cpu" does so
    on any machine. ``env``: "" if the environment is unknown. ``steps``: env steps of the run; None: the preset's.
    """
    check_not_preset(algorithm)
    config_class = algorithm_config(algorithm)
    algorithm = algorithm_name(config_class)
    if preset in (None, "cpu"):
        name = preset_name(algorithm, EnvConfig().id if env is None else env)
        small = preset == "cpu" or device == "cpu" or (device == "auto" and not num_gpus())
        name = f"{name}{CPU_SUFFIX}" if small and name in ON_CPU else name
    else:
        name = preset.replace("-", "_")
    if name is None:
        return with_steps(default_config(algorithm), steps)
    plain = name.removesuffix(CPU_SUFFIX)
    if plain not in PRESETS:
        names = ["cpu", *PRESETS]
        raise ConfigError(f"unknown preset '{preset}'.{did_you_mean(plain, names)} Available: {', '.join(names)}.")
    config = PRESETS[plain]().merge({"preset": name})
    if type(config.algo) is not config_class:  # a subclass is another algorithm
        raise ConfigError(f"preset '{name}' is not for {algorithm}. {preset_advice(name)}")
    config = overlay(config, ON_CPU.get(plain, {}) if name != plain else {})
    return with_steps(config, steps, TABLE[plain].from_steps)


def with_steps(
    config: ExperimentConfig, steps: int | None, from_steps: Callable[[int], Settings] | None = None
) -> ExperimentConfig:
    """Return the preset ``config`` with settings that follow the env ``steps`` of the run; None: the preset's.

    Besides the preset's formulas ``from_steps``, learning and random actions end within a quarter of the run.
    """
    config = config if steps is None else config.merge({"steps": steps})
    config = config if from_steps is None else overlay(config, from_steps(config.steps))
    if config.algo.on_policy:
        return config
    limit = max(1, config.steps // 4)
    names = ("learning_starts", "random_steps")
    return config.merge({name: min(getattr(config, name), limit) for name in names})


def merge_layers(
    algorithm: str, *, env: str | None = None, preset: str | None = None, size: str | None = None,
    files: Sequence[Path | str] = (), data: Mapping[str, Any] | None = None, has_env_object: bool = False,
    algo: AlgorithmConfig | None = None, device: str | None = None, run: Path | str | None = None,
    steps: int | None = None,
) -> ExperimentConfig:  # fmt: skip
    """Merge the preset, then the YAML files in order, then the size and the environment's id.

    ``data``: the dataset settings of later layers, as ``{"data.path": ...}``, and ``experience``. If no environment is
    named, the dataset's environment determines the preset, and an offline run is evaluated in it. ``has_env_object``:
    the user's function makes the environment, so a preset's arguments for ``gymnasium.make`` are dropped. ``algo``:
    replaces the preset's ``algo`` settings. ``device``, ``steps``: those of later layers. ``run``: the run folder; its
    settings replace the preset, unless ``preset`` names one.
    """
    settings = [(Path(file), read_settings(Path(file), algorithm)) for file in files]
    named = [name for _, values in settings if (name := env_of_settings(values)) is not None]
    names = {field.name for field in fields(ExperimentConfig)} - {"seed"}
    is_complete = any(names <= values.keys() for _, values in settings)
    is_open = preset is None and not is_complete
    if is_open and (continued := _of_run(run, algorithm, named=bool(env or named))) is not None:
        changes = ({} if algo is None else {"algo": algo}) | ({"env.id": env} if env else {})
        config = _with(settings, continued).merge(changes)
        return config if size is None else with_network_size(config, size)
    for path, values in () if algo is None else settings:
        if any(name.partition(".")[0] == "algo" for name, value in values.items() if value != {}):
            raise ConfigError(
                f"{path} sets options of the algorithm, but algorithm is a configuration, which sets all of them. Pass "
                "the algorithm's name to use the file, or remove them from the file."
            )
    layers = [
        _recorded(run, algorithm),
        *(values for _, values in settings),
        {"preset": preset, "device": device, "steps": steps},
    ]
    chosen_by = {
        name: value for values in layers for name in ("preset", "device", "steps") if (value := values.get(name))
    }
    preset, device, steps = chosen_by.get("preset"), chosen_by.get("device", "auto"), chosen_by.get("steps")
    silent = env == NO_ENV  # the dataset's environment determines the preset, even without evaluations
    chosen = base_config(algorithm, None if silent else env or (named[-1] if named else None), preset, device, steps)
    config = _with(settings, chosen.merge({"env.kwargs": {}}) if has_env_object else chosen)
    recorded = config.merge(data or {})
    if recorded.data.path and not preset and (silent or not (env or named)):
        chosen = base_config(algorithm, dataset_env_id(recorded.data), device=device, steps=steps)
        config = _with(settings, chosen)
    if algo is not None:
        config = config.merge({"algo": algo})
    if size is not None:
        config = with_network_size(config, size)
    env = env or (DATASET_ENV if recorded.data.path and not named else None)
    return config.merge({"preset": chosen.preset} | ({} if env is None else {"env.id": env}))


def _of_run(run: Path | str | None, algorithm: str, *, named: bool) -> ExperimentConfig | None:
    """Return the settings of a run of ``algorithm`` in ``run``; None if there is none, or files do not describe it.

    ``named``: whether the user has named the environment.
    """
    if run is None or not RunFolder.from_path(run).config.is_file():
        return None
    saved = read_saved_config(RunFolder.from_path(run).path)
    if saved.custom.keys() - {"env", "eval_env"} or not same_algorithm(saved.algorithm, algorithm):
        return None
    check_module_names(saved, f"the run {run}", *(["env"] if named else []))
    try:
        return default_config(saved.algorithm).merge(saved.experiment)
    except ConfigError as error:
        raise ConfigError(f"{RunFolder(Path(run)).config}: {error}") from None


def _recorded(run: Path | str | None, algorithm: str) -> dict[str, Any]:
    """Return the preset of the run, or of the seeds, in the folder ``run``; {} if there is no run of ``algorithm``."""
    files = [Path(run, name) for name in ("config.yaml", "settings.yaml") if run and Path(run, name).is_file()]
    values = read_yaml(files[0]) if files else {}
    same = values.get("algorithm") == algorithm.replace("-", "_")
    return {"preset": values["experiment"].get("preset")} if same and values.get("experiment") else {}


def _with(settings: Sequence[tuple[Path, dict[str, Any]]], config: ExperimentConfig) -> ExperimentConfig:
    """Return ``config`` with the settings of files on top."""
    for path, values in settings:
        try:
            config = overlay(config, values)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    return config


def named_sections(names: Sequence[str], files: Sequence[Path]) -> tuple[Path, ...]:
    """Return the named sections of ``files`` as ``FILE#NAME``, in the order of ``names``, then in that of the files.

    Without ``files``, sections of ``config/*.yaml`` in the working directory.
    """
    paths = list(files) or sorted(Path("config").glob("*.y*ml"))
    available = {path: [str(name) for name in read_yaml(path)] for path in paths}
    for name in names:
        if not any(name in inside for inside in available.values()):
            every = list(dict.fromkeys(name for inside in available.values() for name in inside))
            raise ConfigError(
                f"no section '{name}' in {', '.join(map(str, paths)) or 'config/*.yaml'}.{did_you_mean(name, every)} "
                f"Available: {', '.join(every) or 'none'}."
            )
    return tuple(Path(f"{path}#{name}") for name in names for path, inside in available.items() if name in inside)


def read_settings(path: Path, algorithm: str) -> dict[str, Any]:
    """Return the settings in a YAML file, which can be the config.yaml of a run, or a part of one.

    ``FILE#NAME`` is the section below ``NAME`` of a file. ``env: CartPole-v1`` is short for ``env: {id: CartPole-v1}``.
    """
    file, mark, section = str(path).rpartition("#")
    if mark and not path.exists():
        (path,) = named_sections([section], [Path(file)])
        values = read_yaml(Path(file))[section] or {}
    else:
        values = read_yaml(path)
    custom = values.get("custom")
    if "experiment" in values:
        if unexpected := values.keys() - {"schema", "reverie", "algorithm", "custom", "experiment"}:
            raise ConfigError(
                f"{path}: {', '.join(sorted(unexpected))} next to 'experiment:'. Move all options below 'experiment:'."
            )
        saved, schema = str(values.get("algorithm", algorithm)), values.get("schema", SCHEMA)
        if not isinstance(schema, int) or schema > SCHEMA or not same_algorithm(saved, algorithm):
            raise ConfigError(
                f"{path} contains settings of {saved}, schema {schema}: expected {algorithm}, schema <= {SCHEMA}."
            )
        values = values["experiment"]
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path} contains a {type(values).__name__}: expected a mapping from options to values.")
    env = values.get("env")
    values = {**values, "env": {"id": env}} if isinstance(env, str) else dict(values)
    named = {str(key): str(name) for key, name in custom.items()} if isinstance(custom, Mapping) else {}
    check_module_names(SavedConfig(algorithm="", experiment=nest(values), custom=named), path)
    return values


def env_of_settings(values: Mapping[str, Any]) -> str | None:
    """Return the environment id in the settings of a file, in either notation; None if there is none."""
    env = values.get("env")
    return str(env["id"]) if isinstance(env, Mapping) and "id" in env else values.get("env.id")


def missing_input_question(
    algorithm: str, config: ExperimentConfig, *, env: bool, preset: str | None, files: Sequence[Path | str],
    run: Path | str | None,
) -> str:  # fmt: skip
    """Return an error that asks for the environment or the data, if nothing names them; else "".

    ``env``: whether the user has named the environment, or a run to resume. ``config``: the merged settings.
    """
    of_preset = preset and (preset.replace("-", "_") in SUITES.values() or config.env.id != EnvConfig().id)
    continues = run is not None and RunFolder.from_path(run).config.is_file()
    if env or config.data.path or continues or of_preset:
        return ""
    if any(env_of_settings(read_settings(Path(path), algorithm)) for path in files):
        return ""
    ask = f"reverie train {algorithm}"
    if config.algo.needs_data:
        return (
            f"{algorithm} learns from recorded data: which? Try `{ask} --data PATH` or `--data minari:NAME`, in Python "
            f"reverie.train('{algorithm}', data='PATH')."
        )
    kinds = config.algo.action_kinds
    first_env, second_env = ("CartPole-v1", "ALE/Pong-v5") if "discrete" in kinds else ("Pendulum-v1", "HalfCheetah-v5")
    second_env = "Pendulum-v1" if {"discrete", "continuous"} <= kinds else second_env
    return (
        f"in which environment? Try `{ask} --env {first_env}` or `{ask} --env {second_env}`, in Python "
        f"reverie.train('{algorithm}', '{first_env}')."
    )


def default_config(algorithm: str) -> ExperimentConfig:
    """Return the defaults of an algorithm, without a preset."""
    algo = algorithm_config(algorithm)()
    assert isinstance(algo, AlgorithmConfig)
    return ExperimentConfig(algo=algo)


def overlay(config: ExperimentConfig, values: Mapping[str, Any]) -> ExperimentConfig:
    """Return ``config`` with ``values`` applied, ``size`` first. Either update ratio replaces the other."""
    values = dict(values)
    if (size := values.pop("size", None)) is not None:
        config = with_network_size(config, size)
    if any(values.get(name) is not None for name in ("replay_ratio", "train_ratio")):
        config = config.merge({"replay_ratio": None, "train_ratio": None})
    return config.merge(values)


def with_network_size(config: ExperimentConfig, size: str) -> ExperimentConfig:
    """Return ``config`` with the network widths of a named size of its algorithm."""
    module = importlib.import_module(type(config.algo).__module__)
    if not hasattr(module, "with_size"):
        raise ConfigError(f"size = '{size}': {algorithm_name(type(config.algo))} has no named sizes.")
    return config.merge({"algo": module.with_size(size, config.algo)})

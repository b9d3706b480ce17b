"""Resolve the settings of a run: defaults, preset, saved run, files, arguments or flags, the later layer wins."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium

from reverie.algos.settings import AlgorithmConfig
from reverie.algos.table import algorithm_config, algorithm_name, same_algorithm
from reverie.core.config import flatten, list_flags, merge_fields, nest
from reverie.core.errors import ConfigError, did_you_mean, short_repr
from reverie.core.foreign_names import advise, as_argument
from reverie.core.hardware import num_gpus
from reverie.datasets.config import DatasetConfig, dataset_settings
from reverie.datasets.data_path import data_path
from reverie.datasets.ogbench import OGBENCH_PREFIX, parse_name
from reverie.envs.config import EnvConfig, EnvLike, env_name
from reverie.envs.suites import has_goal_tasks, suite_id
from reverie.experiment.config import DATASET_ENV, NO_ENV, ExperimentConfig
from reverie.experiment.offline_presets import ogbench_settings
from reverie.experiment.person import Person
from reverie.experiment.preset import Settings
from reverie.experiment.presets import (
    CPU_SUFFIX,
    ON_CPU,
    SUITES,
    TABLE,
    check_algorithm_name,
    preset_advice,
    preset_name,
)
from reverie.experiment.rules import validate_config
from reverie.replay.config import PERSON_OBJECT
from reverie.run.callback import import_callback
from reverie.run.folder import (
    SCHEMA,
    RunFolder,
    SavedConfig,
    check_locations,
    check_module_names,
    read_saved_config,
    read_yaml,
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asks to train: the arguments of :func:`reverie.train`, or the flags of ``reverie train``."""

    algorithm: str | AlgorithmConfig | ExperimentConfig
    """A name; settings of an algorithm, which replace those of preset and files; or all settings but ``overrides``."""
    env: EnvLike | None = None
    """None: the environment that a layer or the dataset names."""
    size: str | None = None
    preset: str | None = None
    """None: the preset of the environment's suite."""
    files: Sequence[Path | Layer] = ()
    """YAML files with settings, or layers; the later one wins."""
    run: Path | None = None
    """The run folder. A run of this algorithm there gives the settings below the files, unless another preset is named.
    """
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Values by path of a setting, or nested: the highest layer."""

    @property
    def algorithm_name(self) -> str:
        """Name of the algorithm."""
        if isinstance(self.algorithm, str):
            return self.algorithm
        return self.algorithm.name if isinstance(self.algorithm, ExperimentConfig) else self.algorithm.algorithm

    @functools.cached_property
    def values(self) -> dict[str, Any]:
        """``overrides`` with short names replaced by paths of settings."""
        return _expand_short_names(self.overrides)

    @functools.cached_property
    def file_layers(self) -> list[Layer]:
        """The settings in ``files``."""
        return [
            file if isinstance(file, Layer) else Layer(str(file), _read_settings(Path(file), self.algorithm_name))
            for file in self.files
        ]

    @property
    def named_env(self) -> str | None:
        """Id of the environment in the highest layer that names one; None if none does."""
        layers = *(layer.values for layer in self.file_layers), {"env.id": self.env_id}, self.values
        named = [env for values in layers if (env := _env_of_settings(values)) is not None]
        return named[-1] if named else None

    @property
    def setting_names(self) -> set[str]:
        """Paths of the settings that ``overrides`` set."""
        return {*flatten(self.values)}

    @property
    def env_id(self) -> str | None:
        """Id of the environment, or the name of what makes it; None if the arguments name none."""
        return None if self.env is None else env_name(self.env)


class Layer(NamedTuple):
    """Values of settings, and where they come from."""

    source: str
    """Begins the text of errors; "" for arguments and flags, whose errors name the setting alone."""
    values: Mapping[str, Any]


class Draft:
    """The settings of a run while layers are merged, by name; one ``ExperimentConfig`` is made of them at the end."""

    def __init__(self, fields: Mapping[str, Any], kind: type[ExperimentConfig] = ExperimentConfig) -> None:
        self.fields: dict[str, Any] = dict(fields)
        self.sources: dict[str, str] = {}
        """The source of the layer that has set each of them last."""
        self.kind = kind

    def apply(self, values: Mapping[str, Any], source: str = "") -> Draft:
        """Merge a layer, ``size`` first, and return the draft. Either update ratio replaces the other.

        ConfigError names the ``source``.
        """
        values = dict(values)
        try:
            if (size := values.pop("size", None)) is not None:
                self.fields["algo"] = _with_size(self.fields["algo"], size)
            if any(values.get(name) is not None for name in RATIOS):
                self.fields |= dict.fromkeys(RATIOS)
            changes = merge_fields(self.kind, self.fields, values)
        except ConfigError as error:
            raise _with_source(error, source) from None
        self.fields |= changes
        self.sources |= dict.fromkeys(changes, source)
        return self

    def build(self) -> ExperimentConfig:
        """Return the settings; ConfigError if some clash names the layer that has set the first of them."""
        try:
            return self.kind(**self.fields)
        except ConfigError as error:
            name = re.split(r"\W", str(error), maxsplit=1)[0]
            raise _with_source(error, self.sources.get(name, "")) from None


RATIOS = ("replay_ratio", "train_ratio")
"""Two units of the same quantity."""


def _with_source(error: ConfigError, source: str) -> ConfigError:
    return ConfigError(f"{source}: {error}" if source else str(error))


def _with_size(algo: AlgorithmConfig, size: str) -> AlgorithmConfig:
    """Return ``algo`` with the widths of a named size; ConfigError if there is none of this name."""
    module = importlib.import_module(type(algo).__module__)
    if not hasattr(module, "with_size"):
        raise ConfigError(f"size = '{size}': {algorithm_name(type(algo))} has no named sizes.")
    sized: AlgorithmConfig = module.with_size(size, algo)
    return sized


def resolve(request: Request) -> ExperimentConfig:
    """Return the settings of a run: merge all layers, and check. Opens nothing: see ``resolve_with_data``.

    Raises:
        ConfigError: settings contradict each other, or nothing names an environment or data.
    """
    return validate_config(check_request(merge_layers(request), request))


def check_request(config: ExperimentConfig, request: Request) -> ExperimentConfig:
    """Return the merged settings ``config`` of ``request``; ConfigError if they do not fit it, or some are missing."""
    if not isinstance(request.algorithm, ExperimentConfig):
        if question := missing_input_question(request, config):
            raise ConfigError(question)
        _check_length(config, request.setting_names)
    elif config.offline and config.env.id == EnvConfig().id and request.env is None:
        config = config.merge({"env.id": DATASET_ENV})
    if isinstance(request.env, gymnasium.Env) and config.env.num != 1:
        raise ConfigError(
            f"envs = {config.env.num}: an environment instance is a single environment. Remove envs, or pass a "
            "function that creates environments instead of the instance."
        )
    return config


def merge_layers(
    request: Request, find_env: Callable[[DatasetConfig], str | None] = lambda data: None
) -> ExperimentConfig:  # fmt: skip
    """Merge the layers of ``request``, lowest first; ConfigError names the layer. Contradictions stay.

    ``find_env`` returns the id of the environment that a dataset names, whose preset is taken if nothing else
    determines one; "": it names none.
    """
    _check_callback_names(request.overrides.get("callbacks") or ())
    if isinstance(request.algorithm, ExperimentConfig):
        _check_no_lower_layers(request)
    overrides = dict(request.values)
    draft = _draft_below_files(request, find_env)
    preset = draft.fields["preset"]
    for layer in request.file_layers:
        draft.apply(layer.values, layer.source)
    if isinstance(request.algorithm, AlgorithmConfig):
        draft.apply({"algo": request.algorithm})
    if isinstance(options := overrides.get("env"), EnvConfig) and options.id == EnvConfig().id:
        overrides["env"] = options.replace("id", request.env_id or draft.fields["env"].id)
    values: dict[str, Any] = {"size": request.size} | ({} if request.env_id is None else {"env.id": request.env_id})
    if isinstance(request.env, gymnasium.Env):
        values |= {"env.num": 1, "env.vectorization": "sync"}  # presets may set several
    values["preset"] = preset  # its full name; a file may call it cpu
    _check_argument_names(overrides, draft)
    return draft.apply(values).apply(overrides).build()


def _check_length(config: ExperimentConfig, names: Collection[str]) -> None:
    """Raise ConfigError if the run is too short to learn, or if ``names``, which the user has set, have no effect."""
    other_unit = "steps" if config.offline else "updates"
    if other_unit in names and config.unit not in names:
        kind = "on a dataset alone" if config.offline else "that collects rows"
        learn = ", or pass data to learn from a dataset" if config.algo.needs_data and not config.offline else ""
        raise ConfigError(f"{other_unit} has no effect on a run {kind}. Set its length with {config.unit}{learn}.")
    has_replay = not config.offline and not config.algo.on_policy
    if has_replay and config.learning_starts >= config.steps and 0 not in (config.replay_ratio, config.train_ratio):
        raise ConfigError(
            f"learning_starts = {config.learning_starts}: the run has only {config.steps:,} env steps, so it would "
            "learn nothing. Lower it, or increase steps."
        )


def _check_argument_names(overrides: Mapping[str, Any], draft: Draft) -> None:
    """Raise ConfigError if an argument is neither a setting nor the path of one."""
    for name, value in overrides.items():
        if name.partition(".")[0] not in draft.fields:
            choices = [*list_flags(draft.fields), "envs", "size", "run"]
            raise ConfigError(f"unknown argument {name}.{advise(name, choices, as_argument, value)}")


def _check_callback_names(callbacks: Sequence[Any]) -> None:
    """Raise ConfigError unless the callbacks are named as ``module:Class``, and can be imported."""
    if objects := [callback for callback in callbacks if not isinstance(callback, str)]:
        raise ConfigError(
            f"callbacks = {short_repr(objects)}: each run has its own process, which cannot receive a Python object. "
            "Name the class: 'module:Class(setting=value)'."
        )
    for text in callbacks:
        import_callback(text)


def _expand_short_names(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``overrides`` with short names replaced by paths of settings."""
    values = {{"envs": "env.num", "env_options": "env"}.get(name, name): value for name, value in overrides.items()}
    if "data" in values and not isinstance(data := values["data"], DatasetConfig):
        values["data"] = dataset_settings(data)
    if isinstance(human := values.get("human"), str | Person):
        values["human"] = {"person": human if isinstance(human, str) else PERSON_OBJECT}
    return values | ({"data.path": data_path(values["data.path"])} if "data.path" in values else {})


# ---------------------------------------------------------------- the lowest layers: preset, or saved run


def _draft_algorithm(name: str) -> Draft:
    """Return the defaults of an algorithm, without a preset."""
    own = {spec.name: spec for spec in fields(ExperimentConfig) if spec.name != "algo"}
    defaults = {
        name: spec.default if spec.default_factory is MISSING else spec.default_factory() for name, spec in own.items()
    }
    return Draft(defaults | {"algo": algorithm_config(name)()})


def make_preset(name: str) -> ExperimentConfig:
    """Return the settings of a preset, such as ``sac`` or ``sac+cpu``."""
    return _draft_preset(name).build()


def _draft_preset(name: str, length: Mapping[str, Any] | None = None) -> Draft:
    """Return the settings of a preset for a run of this ``length``, its steps or updates.

    Besides the formulas of the preset, learning starts, and random actions end, within a quarter of the run.
    """
    plain = name.removesuffix(CPU_SUFFIX)
    preset = TABLE[plain]
    draft = _draft_algorithm(preset.algorithm).apply(preset.settings | {"preset": name})
    draft.apply(ON_CPU.get(plain, {}) if name != plain else {}).apply(length or {})
    if preset.from_updates is not None:
        draft.apply(preset.from_updates(draft.fields["updates"]))
    return draft.apply(_settings_from_steps(draft, preset.from_steps))


def _settings_from_steps(draft: Draft, from_steps: Callable[[int], Settings] | None = None) -> Settings:
    """Return the settings that follow the env steps of a run with the preset ``draft``, by its own formulas first."""
    steps = draft.fields["steps"]
    limit, names = max(1, steps // 4), ("learning_starts", "random_steps")
    values = {} if from_steps is None else from_steps(steps)
    if draft.fields["algo"].on_policy:
        return values
    return values | {name: min(values.get(name, draft.fields[name]), limit) for name in names}


def _fit_envs(draft: Draft, request: Request, layers: Sequence[Mapping[str, Any]]) -> None:
    """Change the preset ``draft`` for the number of environments that ``layers`` name, unless they size rollouts."""
    values = {name: value for layer in layers for name, value in flatten(_plain_env(layer)).items()}
    before, algo = draft.fields["env"].num, draft.fields["algo"]
    num = 1 if isinstance(request.env, gymnasium.Env) else values.get("env.num", before)
    if isinstance(num, int) and num >= 1 and not {"algo.rollout", "algo.batch_size", "algo.batch_length"} & {*values}:
        draft.fields["algo"] = algo.with_envs(before, num)


def _plain_env(values: Mapping[str, Any]) -> dict[str, Any]:
    env = values.get("env")
    return {**values, "env": env.to_dict()} if isinstance(env, EnvConfig) else dict(values)


def _draft_below_files(request: Request, find_env: Callable[[DatasetConfig], str | None]) -> Draft:
    """Return the layer below the files: a whole configuration, the saved run, or a preset."""
    if isinstance(request.algorithm, ExperimentConfig):
        return Draft(request.algorithm.fields(), type(request.algorithm))
    layers = [*(layer.values for layer in request.file_layers), request.values, {"preset": request.preset}]
    names = ("preset", "device", "steps", "updates")
    chosen = {name: value for layer in layers for name in names if (value := layer.get(name))}
    if (saved := _saved_run_layer(request, chosen.get("preset"))) is not None:
        return _draft_algorithm(request.algorithm_name).apply(saved.values, saved.source)
    if isinstance(request.algorithm, AlgorithmConfig):
        _check_no_algorithm_settings(request.file_layers)
    chosen = _recorded_preset(request) | chosen
    env, data = request.named_env, _data_settings(request)
    env_of_preset = None if env == NO_ENV else env
    if data.path and env_of_preset is None and "preset" not in chosen:
        env_of_preset = find_env(data)
    name = _choose_preset(request.algorithm_name, env_of_preset, chosen.get("preset"), chosen.get("device", "auto"))
    length: dict[str, Any] = {name: chosen[name] for name in ("steps", "updates") if name in chosen}
    if name is not None:
        draft = _draft_preset(name, length)
        if chosen.get("preset") in (None, "cpu"):
            draft.apply(ogbench_settings(draft.fields["algo"].algorithm, _ogbench_name(data, env)))
    else:
        length.pop("updates", None)
        draft = _draft_algorithm(request.algorithm_name).apply(length)
        draft.apply(_settings_from_steps(draft))
    _fit_envs(draft, request, layers)
    if request.env is not None and not isinstance(request.env, str):
        draft.apply({"env.kwargs": {}})  # arguments of gymnasium.make, which the user's function replaces
    return draft.apply({"env.id": DATASET_ENV}) if data.path and env is None else draft


def _choose_preset(algorithm: str, env: str | None, preset: str | None, device: str) -> str | None:
    """Return the name of the preset that the user names, or of the environment's preset; None if there is none.

    Without a GPU, or if ``device`` is cpu, the environment's preset has its CPU changes. The preset "cpu" has them on
    any machine. ``env``: "" if the environment is unknown.
    """
    check_algorithm_name(algorithm, env)
    config_class = algorithm_config(algorithm)
    algorithm = algorithm_name(config_class)
    if preset in (None, "cpu"):
        name = preset_name(algorithm, EnvConfig().id if env is None else suite_id(env))
        small = preset == "cpu" or device == "cpu" or (device == "auto" and not num_gpus())
        return f"{name}{CPU_SUFFIX}" if small and name in ON_CPU else name
    name = str(preset).replace("-", "_")  # a file may have a number
    if (plain := name.removesuffix(CPU_SUFFIX)) not in TABLE:
        names = ["cpu", *(name for name in TABLE if TABLE[name].algorithm == algorithm)]
        raise ConfigError(f"unknown preset '{preset}'.{did_you_mean(plain, names)} Available: {', '.join(names)}.")
    if algorithm_config(TABLE[plain].algorithm) is not config_class:  # a subclass is another algorithm
        raise ConfigError(f"preset '{name}' is not for {algorithm}. {preset_advice(name)}")
    return name


def _check_no_lower_layers(request: Request) -> None:
    """Raise ConfigError if a preset or files would be below a whole configuration, which replaces them."""
    if lower := request.preset or ", ".join(map(str, request.files)):
        raise ConfigError(
            f"{lower}: an ExperimentConfig was passed, which already sets all options. Pass the algorithm's name "
            "to use presets and files, or override single options: reverie.train(experiment, steps=1000)."
        )


def _check_no_algorithm_settings(files: Sequence[Layer]) -> None:
    """Raise ConfigError if a file has settings of the algorithm, which a configuration replaces."""
    for path, values in files:
        if any(name.partition(".")[0] == "algo" for name, value in values.items() if value != {}):
            raise ConfigError(
                f"{path} sets options of the algorithm, but algorithm is a configuration, which sets all of them. Pass "
                "the algorithm's name to use the file, or remove them from the file."
            )


def _saved_run_layer(request: Request, preset: str | None) -> Layer | None:
    """Return what a run of this algorithm, or several seeds, in ``request.run`` have saved; None if there is none.

    Another preset that the user names, ``preset``, replaces it, and so does a file with all settings.
    """
    names = {field.name for field in fields(ExperimentConfig)} - {"seed"}
    if request.run is None or any(names <= layer.values.keys() for layer in request.file_layers):
        return None
    folder = RunFolder.from_path(request.run)
    path = folder.config if folder.config.is_file() else folder.path / "settings.yaml"
    if not path.is_file():
        return None
    saved = read_saved_config(folder.path, path)
    if saved.custom.keys() - {"env", "eval_env"} or not same_algorithm(saved.algorithm, request.algorithm_name):
        return None
    named = request.named_env
    env = str(saved.experiment.get("env", {}).get("id", "")) if named is None else named
    if preset and _choose_preset(request.algorithm_name, env, preset, "auto") != saved.experiment.get("preset"):
        return None
    check_module_names(saved, f"the run {request.run}", *([] if named is None else ["env"]))
    check_locations(saved.experiment, path, folder.path)
    return Layer(str(path), saved.experiment)


def _recorded_preset(request: Request) -> dict[str, Any]:
    """Return the preset of the run, or of the seeds, in the run folder; {} if there is no run of the algorithm."""
    names = ("config.yaml", "settings.yaml")
    files = [path for name in names if request.run is not None and (path := Path(request.run, name)).is_file()]
    saved = read_saved_config(files[0].parent, files[0]) if files else None
    same = saved is not None and saved.algorithm == request.algorithm_name.replace("-", "_")
    return {"preset": saved.experiment.get("preset")} if saved is not None and same else {}


# ---------------------------------------------------------------- files and values


def named_sections(names: Sequence[str], files: Sequence[Path]) -> tuple[Path, ...]:
    """Return the named sections of ``files`` as ``FILE#NAME``, in the order of ``names``, then in that of the files.

    Without ``files``, sections of ``config/*.yaml`` in the working directory.
    """
    paths = list(files) or sorted(Path("config").glob("*.y*ml"))
    available = {path: list(read_yaml(path, 1)) for path in paths}
    for name in names:
        if not any(name in inside for inside in available.values()):
            every = list(dict.fromkeys(name for inside in available.values() for name in inside))
            raise ConfigError(
                f"no section '{name}' in {', '.join(map(str, paths)) or 'config/*.yaml'}.{did_you_mean(name, every)} "
                f"Available: {', '.join(every) or 'none'}."
            )
    return tuple(Path(f"{path}#{name}") for name in names for path, inside in available.items() if name in inside)


def _read_settings(path: Path, algorithm: str) -> dict[str, Any]:
    """Return the settings in a YAML file, which can be the config.yaml of a run, or a part of one.

    ``FILE#NAME`` is the section below ``NAME`` of a file.
    """
    file, mark, section = str(path).rpartition("#")
    if mark and not path.exists():
        (path,) = named_sections([section], [Path(file)])
        values = read_yaml(Path(file), 1)[section] or {}
    else:
        values = read_yaml(path)
    custom = values.get("custom")
    if "experiment" in values:
        if unexpected := values.keys() - {"schema", "reverie", "algorithm", "custom", "packages", "experiment"}:
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
    named = {str(key): str(name) for key, name in custom.items()} if isinstance(custom, Mapping) else {}
    return dict(check_layer(str(path), values, named).values)


def check_layer(source: str, values: Mapping[str, Any], custom: Mapping[str, str] | None = None) -> Layer:
    """Return settings that were read from a file as a layer; UntrustedError if they name what the user does not trust.

    ``env: CartPole-v1`` is short for ``env: {id: CartPole-v1}``.
    """
    if wrong_keys := [key for key in values if not isinstance(key, str)]:
        raise ConfigError(f"{source}: unknown option {short_repr(wrong_keys[0])}: expected the name of a setting.")
    env = values.get("env")
    values = {**values, "env": {"id": env}} if isinstance(env, str) else dict(values)
    check_module_names(SavedConfig(algorithm="", experiment=nest(values), custom=dict(custom or {})), source)
    check_locations(nest(values), source, Path())
    return Layer(source, values)


def _env_of_settings(values: Mapping[str, Any]) -> str | None:
    """Return the environment id in the settings of a layer, in any notation; None if there is none."""
    env = values.get("env")
    if isinstance(env, EnvConfig):
        return None if env.id == EnvConfig().id else env.id
    name = env["id"] if isinstance(env, Mapping) and "id" in env else values.get("env.id")
    return None if name is None else str(name)


def _data_settings(request: Request) -> DatasetConfig:
    """Return the settings of the dataset in the layers above the preset; presets have none."""
    draft = Draft({"data": DatasetConfig()})
    for source, values in (*request.file_layers, Layer("", request.values)):
        draft.apply({name: value for name, value in values.items() if name.partition(".")[0] == "data"}, source)
    data: DatasetConfig = draft.fields["data"]
    return data


def _ogbench_name(data: DatasetConfig, env: str | None) -> str:
    """Return the name of OGBench's dataset, or else its environment; "" if it is neither."""
    name = Path(data.path).stem if isinstance(data.path, str) else ""
    name = name.removeprefix(OGBENCH_PREFIX)
    if parse_name(name)[0]:
        return name
    return env if env is not None and has_goal_tasks(env) else ""


def missing_input_question(request: Request, config: ExperimentConfig) -> str:
    """Return an error that asks for the environment or the data, if nothing names them; else "".

    ``config``: the merged settings.
    """
    algorithm, preset = request.algorithm_name, request.preset
    of_preset = preset and (preset.replace("-", "_") in SUITES.values() or config.env.id != EnvConfig().id)
    is_named = request.named_env or isinstance(request.values.get("env"), EnvConfig)
    continues = request.run is not None and RunFolder.from_path(request.run).config.is_file()
    if is_named or config.data.path or continues or of_preset:
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

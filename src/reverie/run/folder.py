"""The folder of a run: its files, its lock, its settings, and whether a run with given settings can continue there."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from reverie.core import wall_clock
from reverie.core.config import nest
from reverie.core.documents import LIBYAML_LOADER, near, read_json
from reverie.core.documents import read_yaml as read_yaml
from reverie.core.errors import ConfigError, RunError, short_repr
from reverie.core.files import check_links, check_local, read_file, write_atomic, write_json
from reverie.core.imports import check_module, is_module_name, names_in, texts_in, trust_file_of
from reverie.core.locations import check_location, is_plain, trust_locations
from reverie.core.lock import LOCK_FILE_NAME, folder_lock
from reverie.core.logger import logger
from reverie.core.specs import diff_bounds, diff_specs
from reverie.core.version import version

YAML_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""That of libyaml, if it is there: ten times as fast. For our own values alone: deep nesting can crash it."""
SCHEMA = 1
"""Version of config.yaml. A newer version is rejected."""


DELETE = "Delete it: the next evaluation or estimate writes it again."
"""Advice for a damaged results file."""
STEPS = ("updates", "env_steps", "step")
"""Names of the step at which a result was measured; the first one found counts."""


SPEC_ADVICE = "Restore it from a backup, or delete it: continuing the training writes it again."


class RunFolder:
    """Paths inside a run. Reading them creates nothing. ``str`` returns the path that the user passed."""

    def __init__(self, path: Path, user_path: Path | str | None = None) -> None:
        """``user_path``: the path as the user wrote it, if it differs."""
        self.path = path
        self._user_path = path if user_path is None else user_path
        self.config: Path = path / "config.yaml"  # resolved settings
        self.spec: Path = path / "spec.json"  # observations and actions of the networks; spaces of a dataset
        self.provenance: Path = path / "provenance.json"  # versions, machine, command, commit of its processes
        self.code: Path = path / "code"  # copies of the user's modules that it names
        self.metrics: Path = path / "metrics.jsonl"  # all measurements, one JSON object per line
        self.episodes: Path = path / "episodes.jsonl"  # finished training episodes, one JSON object per line
        self.checkpoints: Path = path / "checkpoints"  # one folder per checkpoint
        self.snapshots: Path = path / "dream_snapshots"  # weights at moments spread over the run
        self.replay: Path = path / "replay"  # every collected row
        self.curve: Path = path / "curve.png"  # figure of the learning curve
        self.videos: Path = path / "videos"  # of the agent and of its predictions
        self.evaluation: Path = path / "eval.json"  # newest evaluation
        self.estimate: Path = path / "estimate.json"  # newest estimate from a dataset, without episodes played
        self.live: Path = path / "live.json"  # address of the page of the process that trains, while it does
        self.dream: Path = path / "dream"  # figures and numbers of the newest comparison of dream and truth

    @classmethod
    def from_path(cls, run: Path | str) -> RunFolder:
        """Return the folder at the path ``run``.

        The path is made absolute: an environment can change the working directory.
        """
        check_local(run, "run")
        return cls(Path(os.path.expanduser(run)).absolute(), run)

    def __str__(self) -> str:
        return str(self._user_path)

    def lock(self) -> AbstractContextManager[None]:
        """Return the lock of the only process that writes here; RunError if links lead out of the folder."""
        check_links(self.path)
        return folder_lock(self.path)

    def files(self) -> dict[str, Path]:
        """Return the existing files that people read, by name."""
        files = {"settings": self.config, "metrics": self.metrics, "curve": self.curve}
        files |= {"evaluation": self.evaluation, "estimate": self.estimate}
        return {name: path for name, path in files.items() if path.exists()}


def new_path(env: str, algorithm: str) -> Path:
    """Return a path for a new run that does not exist yet: ``runs/<env>-<algorithm>-<time>``."""
    name = "-".join(map(folder_name, (env, algorithm)))
    stem = Path("runs") / f"{name}-{wall_clock.now():%Y%m%d-%H%M%S}"
    candidates = [stem, *(stem.with_name(f"{stem.name}-{i}") for i in range(2, 1000))]
    return next(path for path in candidates if not path.exists())


def folder_name(name: str) -> str:
    """Return the name of the folder of what is called ``name``, such as ``ALE_Pong-v5``."""
    return re.sub(r"[^\w.-]+|^\.+", "_", name)


SWEEP_FILE = "sweep.yaml"
"""File in the folder of a sweep: its settings and environments. Their runs are in SETTING/ENVIRONMENT/seed-0."""
MAX_RUNS = 10_000
"""Maximum number of runs of a sweep, a search, or seeds: each has a folder and a process."""


def check_num_runs(source: object, *counts: int) -> None:
    """Check the number of runs that ``source`` asks for, the product of ``counts``; ConfigError if it is too large."""
    if (total := math.prod(counts)) > MAX_RUNS:
        raise ConfigError(f"{source}: expected at most {MAX_RUNS:,} runs, but these are {total:,}. Split them.")


def list_sweep(path: Path) -> dict[tuple[str, str], Path]:
    """Return the folders of the sweep in ``path`` by the names of setting and environment; {} if it is none."""
    values = read_yaml(path / SWEEP_FILE) if (path / SWEEP_FILE).is_file() else {}
    sections = [values.get(key) for key in ("settings", "environments")]
    names = [[*map(str, section)] if isinstance(section, Mapping | list) else [] for section in sections]
    check_num_runs(path / SWEEP_FILE, *map(len, names))
    return {(x, y): path / folder_name(x) / folder_name(y) for x in names[0] for y in names[1]}


# ---------------------------------------------------------------- results: eval.json, estimate.json


def write_result(path: Path, values: Mapping[str, Any]) -> None:
    """Write eval.json or estimate.json.

    A result of a ``checkpoint`` keeps the result at the end of training as "final".
    """
    final = read_final_result(path) if "checkpoint" in values else None
    write_json(path, {**values, "final": final} if final else values)


def read_final_result(path: Path) -> dict[str, Any] | None:
    """Return the result at the end of training from eval.json or estimate.json at ``path``; None if it has none."""
    if not path.exists():
        return None
    content = read_json(path, DELETE)
    result: dict[str, Any] | None = content.get("final") if "checkpoint" in content else content
    if result is None:
        return None
    try:
        numbers = [value for name, value in result.items() if name in STEPS]
        float(sum(numbers) + (result["score"]["mean"] if path.name == "eval.json" else 0))
    except (AttributeError, LookupError, TypeError, OverflowError) as error:
        raise RunError(f"{path} is damaged: its score or step is not a number ({error!r}). {DELETE}") from error
    return result


def is_final_result_of_step(path: Path, step: int) -> bool:
    """Return whether the file contains the result at the end of training, at this ``step``."""
    result = read_final_result(path) or {}
    return next((result[name] for name in STEPS if name in result), None) == step


# ---------------------------------------------------------------- spec.json


def read_spec(folder: RunFolder) -> dict[str, Any] | None:
    """Return the content of spec.json: "observation", "action" and perhaps "spaces"; None if there is no such file."""
    if not folder.spec.is_file():
        return None
    spec = read_json(folder.spec, SPEC_ADVICE)
    parts = [spec.get("observation"), spec.get("action")]
    if not all(isinstance(part, Mapping) and all(isinstance(x, Mapping) for x in part.values()) for part in parts):
        raise RunError(f"{folder.spec} is damaged: it does not describe observations and actions. {SPEC_ADVICE}")
    return spec


def check_spec(folder: RunFolder, current: Mapping[str, Any], *, bounds: bool = True) -> None:
    """Check that the environment has the observations and actions that the run's networks were made for.

    ``current``: the environment's signature. ``bounds``: also compare the bounds of vectors. A policy fails on values
    of another scale, but dataset and environment often declare different bounds.
    """
    if changes := spec_changes(folder, current, bounds=bounds):
        raise RunError(
            f"{'; '.join(changes)}: the environment differs from the one that {folder.path} was trained on. Use the "
            "same environment with the same env options, or choose another run folder. If it is the same, "
            f"{folder.spec.name} is damaged. {SPEC_ADVICE}"
        )


def spec_changes(folder: RunFolder, current: Mapping[str, Any], *, bounds: bool = True) -> list[str]:
    """Return the differences between the run's observations and actions and ``current``: see :func:`check_spec`."""
    if (saved := read_spec(folder)) is None:
        return []
    labels = ("the run", "this environment")
    try:
        return diff_specs(saved, current, labels) or (diff_bounds(saved, current, labels) if bounds else [])
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RunError(f"{folder.spec} is damaged ({error!r}). {SPEC_ADVICE}") from error


# ---------------------------------------------------------------- config.yaml


@dataclass(frozen=True, kw_only=True)
class SavedConfig:
    """Content of config.yaml."""

    algorithm: str
    """Name of the algorithm."""
    experiment: dict[str, Any]
    """The resolved ``ExperimentConfig`` as plain values."""
    custom: dict[str, str] = field(default_factory=dict)
    """Objects that were passed from Python and cannot be read from a file, by their key path in the configuration."""
    packages: dict[str, str] = field(default_factory=dict)
    """Versions of the environment's packages, by name."""

    @property
    def env(self) -> str:
        """Id of the environment."""
        return str(self.experiment.get("env", {}).get("id"))


def read_saved_config(path: Path, config: Path | None = None) -> SavedConfig:
    """Read the settings of the run in ``path``, from another file than its config.yaml if ``config`` is one."""
    check_local(path, "run")
    check_links(path)
    config = config or RunFolder(path).config
    if not config.is_file():
        reason = "it has no config.yaml." if path.is_dir() else f"there is no such folder.{near(path)}"
        inside = ", ".join(sorted(p.parent.name for p in path.glob("*/config.yaml")))
        hint = f" There are runs inside: {inside}." if inside else ""
        raise RunError(f"there is no run in {path}: {reason}{hint}")
    return _parse_saved_config(read_yaml(config), config)


def _parse_saved_config(content: Mapping[str, Any], path: Path) -> SavedConfig:
    """Return the ``content`` of the config.yaml of a run, or of the settings.yaml of several seeds, at ``path``."""
    if missing := [key for key in ("schema", "algorithm", "experiment") if key not in content]:  # of another program
        raise RunError(f"{path} is not the config.yaml of a run: it has no {', '.join(missing)}.")
    _check_kinds(content, {"schema": int, "algorithm": str, "experiment": Mapping}, path)
    _check_kinds(content, {"custom": Mapping, "packages": Mapping}, path)
    if content["schema"] > SCHEMA:
        raise RunError(f"{path} has schema {content['schema']}; this version reads up to {SCHEMA}: upgrade reverie.")
    experiment = nest(content["experiment"])  # so that check_module_names sees every name that merge would
    _check_kinds(experiment, dict.fromkeys(("env", "algo", "data", "replay", "schedule"), Mapping), path)
    _check_kinds(experiment, dict.fromkeys(("steps", "updates", "seed", "eval_episodes"), int), path)
    custom = {str(key_path): str(name) for key_path, name in content.get("custom", {}).items()}
    packages = {str(name): str(version) for name, version in content.get("packages", {}).items()}
    return SavedConfig(algorithm=content["algorithm"], experiment=experiment, custom=custom, packages=packages)


def _check_kinds(values: Mapping[str, Any], kinds: Mapping[str, type], path: Path) -> None:
    """Check the types of the ``values`` of a file against ``kinds``; missing values are allowed. RunError otherwise."""
    for key, kind in kinds.items():
        if key in values and not isinstance(values[key], kind):
            expected = {int: "a whole number", str: "text"}.get(kind, "a mapping")
            raise RunError(f"{path}: {key} = {short_repr(values[key])}: expected {expected}. Restore it from a backup.")


def write_saved_config(path: Path, saved: SavedConfig) -> None:
    """Write config.yaml. The locations and the imported modules that the settings name are trusted from now on."""
    head: dict[str, Any] = {"schema": SCHEMA, "reverie": version(), "algorithm": saved.algorithm}
    if saved.custom:
        head["custom"] = saved.custom
    if saved.packages:
        head["packages"] = saved.packages
    content = {**head, "experiment": saved.experiment}
    write_atomic(path, yaml.dump(content, Dumper=YAML_DUMPER, sort_keys=False, allow_unicode=True))
    for module in modules_in(saved) & sys.modules.keys():
        trust_file_of(module)
    trust_locations(text for text, inside in _locations(saved.experiment, path.parent) if not is_plain(text, inside))


def write_shared(path: Path, saved: SavedConfig) -> None:
    """Write settings.yaml.

    Other processes may import the modules that it names: the user named them, or they were checked.
    """
    write_saved_config(path, saved)
    for module in modules_in(saved):
        trust_file_of(module)


def modules_in(saved: SavedConfig) -> set[str]:
    """Return the names of the modules in which the settings name classes."""
    return {name.partition(":")[0] for name in chain(*_module_names(saved).values())}


def update_saved_config(folder: RunFolder, saved: SavedConfig, step: int) -> None:
    """Write config.yaml if it has changed, and keep the previous file as ``config-<step>.yaml``.

    An existing file of the same step is not replaced.
    """
    if folder.config.is_file():
        if read_saved_config(folder.path) == replace(saved, experiment=to_yaml_types(saved.experiment)):
            return
        copy = folder.path / f"config-{step:09d}.yaml"
        if not copy.exists():
            write_atomic(copy, read_file(folder.config))
    write_saved_config(folder.config, saved)


def to_yaml_types(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain settings as they are read from config.yaml: with lists instead of tuples."""
    text = yaml.dump(dict(settings), Dumper=YAML_DUMPER, sort_keys=False)
    plain: dict[str, Any] = yaml.load(text, LIBYAML_LOADER)  # both are safe
    return plain


def settings_changes(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the differences between two settings in plain values, one line each: ``algo.batch_length: 16 -> 32``."""
    lines: list[str] = []
    for key in dict.fromkeys([*before, *after]):
        path, old, new = f"{prefix}{key}", before.get(key, "not set"), after.get(key, "not set")
        if old == new:
            continue
        old_part, new_part = ({} if side in (None, "not set") else side for side in (old, new))
        if isinstance(old_part, Mapping) and isinstance(new_part, Mapping):
            lines += settings_changes(old_part, new_part, f"{path}.")
        else:
            lines.append(f"{path}: {old} -> {new}")
    return lines


def warn_if_packages_changed(saved: SavedConfig, packages: Mapping[str, str]) -> None:
    """Warn if the environment's ``packages`` have other versions than when the run was ``saved``."""
    before = {name: version for name, version in saved.packages.items() if name in packages}
    if changes := settings_changes(before, {name: packages[name] for name in before}):
        logger.warning(
            f"the environment's packages have other versions than in training: {'; '.join(changes)}. It may behave "
            "differently"
        )


LEARNING_SETTINGS = ("experience", "replay_ratio", "train_ratio", "learning_starts", "random_steps",
                "pretrain_updates", "train_freq", "env.", "algo.",
                "replay.", "data.", "reward")  # fmt: skip
NON_LEARNING_SETTINGS = ("data.path", "data.reader", "data.estimate", "replay.store_path")
"""Prefixes of settings that influence learning, and prefixes of the exceptions among them."""


def learning_setting_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the differences in settings that influence learning, one line each as in :func:`settings_changes`."""
    lines = settings_changes(before, after)
    return [line for line in lines if line.startswith(LEARNING_SETTINGS) and not line.startswith(NON_LEARNING_SETTINGS)]


def check_module_names(saved: SavedConfig, source: object, *trusted: str) -> None:
    """Check the module names in the settings of ``source``, except in the ``trusted`` sections: env, algo, ..."""
    names = _module_names(saved)
    for part in names.keys() - set(trusted):
        for name in names[part]:
            check_module(name, source)


def check_locations(settings: Mapping[str, Any], source: object, folder: Path | None = None) -> None:
    """Check the locations of stores and datasets in the settings of ``source``, of the run in ``folder`` if any."""
    for location, inside in _locations(settings, folder):
        check_location(location, source, inside)


def _locations(settings: Mapping[str, Any], folder: Path | None) -> list[tuple[str, Path | None]]:
    """Return the texts in settings that may be locations, each with the folder that must contain it, if any."""
    read = texts_in([settings.get(name) for name in ("data", "heldout_data", "replay")])
    written = str(_section(settings, "replay").get("store_path", "auto"))
    stores = [] if written in ("auto", "none") else [(written, folder)]  # rows are written there
    return [*((text, None) for text in read), *stores]


def _module_names(saved: SavedConfig) -> dict[str, list[str]]:
    """Return the texts in settings that may name classes, ``module:Class``, by their kind."""
    settings, custom = saved.experiment, saved.custom
    env, eval_env = _section(settings, "env"), settings.get("eval_env") or {}
    eval_env = eval_env if isinstance(eval_env, Mapping) else {"id": eval_env}
    return {
        "env": _class_names(env.get("id"), custom.get("env")),
        "wrappers": _class_names(env.get("wrappers")) + names_in(env.get("kwargs")),  # kept if another env is named
        "eval_env": _class_names(eval_env.get("id"), eval_env.get("wrappers"), custom.get("eval_env"))
        + names_in(eval_env.get("kwargs")),
        "algo": _class_names(saved.algorithm) + _words_like_classes(settings.get("algo")),
        "experience": _class_names(settings.get("experience")),
        "data": _class_names(_section(settings, "data").get("reader")),
        "callbacks": _class_names(settings.get("callbacks")),
        "human": _class_names(_section(settings, "human").get("person")),
        "replay": _words_like_classes(settings.get("replay")),
    }


def _section(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of the settings of a file; {} if it is something else, which merging refuses."""
    section = settings.get(name)
    return section if isinstance(section, Mapping) else {}


def _words_like_classes(settings: object) -> list[str]:
    """Return the words like ``module:Class`` in nested settings, also in the parentheses after a class."""
    tokens = [token for text in texts_in(settings) for token in re.split(r"""[\s'"()\[\]{},=]+""", text)]
    parts = {token: token.partition(":") for token in tokens}
    return [token for token, (module, _, name) in parts.items() if is_module_name(module) and name[:1].isidentifier()]


def _class_names(*values: object) -> list[str]:
    """Return the texts in ``values`` that name a class of a module, without the settings in parentheses after it."""
    names = [text.partition("(")[0].strip() for value in values for text in texts_in(value)]
    return [name for name in names if ":" in name]


# ---------------------------------------------------------------- whether a run can begin or resume here


def contains_run(path: Path, settings: Path, algorithm: str, env: str) -> bool:
    """Return whether ``path`` contains a run, or seeds, to continue; False if a new run can start.

    Writes nothing. ``settings``: the settings file of a run (config.yaml) or of several seeds (settings.yaml). RunError
    if the folder belongs to another algorithm, another environment, or anything else.
    """
    check_links(path)
    if not path.exists() or all(_is_leftover(inside) for inside in path.iterdir()):
        return False
    if not settings.is_file():
        content = "the run of a single seed" if RunFolder(path).config.is_file() else "not a run"
        raise RunError(f"{path} is not empty and is {content} (it has no {settings.name}): choose another run folder.")
    saved = _parse_saved_config(read_yaml(settings), settings)
    pairs = {"algorithm": (saved.algorithm, algorithm), "environment": (saved.env, env)}
    for label, (actual, expected) in pairs.items():
        if actual != expected:
            raise RunError(
                f"{path} contains a run with {label} '{actual}', not '{expected}': choose another run folder, or use "
                "the settings of that run to continue it."
            )
    return True


def _is_leftover(path: Path) -> bool:
    """Return whether ``path`` is a file left over from a process that was killed while it created a run."""
    return path.name in (LOCK_FILE_NAME, "spec.json") or (path.name[0] == "." and path.suffix == ".part")

"""The settings of a run in its folder, config.yaml, and whether a run there can be continued with others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from reverie.core.discover import same_algorithm
from reverie.core.errors import ConfigError, RunError, SeveralRunsError, did_you_mean
from reverie.core.files import check_local, write_atomic
from reverie.core.importing import check_module
from reverie.core.renamed import present_names
from reverie.folder import RunFolder
from reverie.run.lock import LOCK

SCHEMA = 1
"""Version of config.yaml. A file of a newer version is refused."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """Content of config.yaml."""

    algorithm: str
    """Name of the algorithm."""
    experiment: dict[str, Any]
    """The resolved ``ExperimentConfig`` as plain values."""
    custom: dict[str, str] = field(default_factory=dict)
    """Objects that were given from Python and cannot be read from a file, by their place in the configuration."""


def settings_changes(before: Mapping[str, Any], after: Mapping[str, Any], where: str = "") -> list[str]:
    """Return the differences of two settings in plain values, one line each: ``algo.batch_length: 16 -> 32``."""
    lines: list[str] = []
    for key in [*before, *(key for key in after if key not in before)]:
        path, old, new = f"{where}{key}", before.get(key, "not set"), after.get(key, "not set")
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += settings_changes(old, new, f"{path}.")
        elif old != new:
            lines.append(f"{path}: {old} -> {new}")
    return lines


LEARNED_WITH = (
    "replay_ratio",
    "train_ratio",
    "learning_starts",
    "random_steps",
    "env.",
    "algo.",
    "replay.",
    "data.",
)
NOT_LEARNED_WITH = ("data.path", "data.reader", "data.eval_env", "data.estimate", "replay.store")
"""Prefixes of settings that influence what a run learns, and of those among them that do not."""


def learned_otherwise(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the differences in settings that influence learning, one line each as in :func:`settings_changes`."""
    lines = settings_changes(before, after)
    return [line for line in lines if line.startswith(LEARNED_WITH) and not line.startswith(NOT_LEARNED_WITH)]


def update_saved(
    folder: RunFolder, saved: Saved, version: str, env_steps: int, learned: Mapping[str, Any] | None = None
) -> list[str]:
    """Write config.yaml if it has changed, keep the former as ``config-<env steps>.yaml``, and return the changes.

    They are those since ``learned``, the settings in the checkpoint: config.yaml may be edited, or damaged. Without a
    checkpoint they are those since the former file. One of the same step is not replaced: it holds the settings that
    the run has used up to that step.
    """
    former = read_saved(folder.path) if folder.config.is_file() else None
    plain = as_read(saved.experiment)
    learned = former.experiment if learned is None and former is not None else learned
    changes = [] if learned is None else settings_changes(learned, plain)
    if former is not None and former == Saved(algorithm=saved.algorithm, experiment=plain, custom=saved.custom):
        return changes
    if former is not None:
        kept = folder.path / f"config-{env_steps:09d}.yaml"
        if not kept.exists():
            write_atomic(kept, folder.config.read_text(encoding="utf-8"))
    write_saved(folder, saved, version)
    return changes


def as_read(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain settings as they are read from config.yaml: with lists in place of tuples."""
    found: dict[str, Any] = yaml.safe_load(yaml.safe_dump(dict(settings)))
    return found


def write_saved(folder: RunFolder, saved: Saved, version: str) -> None:
    """Write config.yaml."""
    head: dict[str, Any] = {"schema": SCHEMA, "reverie": version, "algorithm": saved.algorithm}
    if saved.custom:
        head["custom"] = saved.custom
    text = yaml.safe_dump({**head, "experiment": saved.experiment}, sort_keys=False, allow_unicode=True)
    write_atomic(folder.config, text)


def read_saved(path: Path) -> Saved:
    """Read the settings of the run in ``path``.

    Raises:
        RunError: there is no run, or its config.yaml cannot be used by this version.
        ConfigError: config.yaml is not readable as YAML, or ``path`` is a URL.
    """
    check_local(path, "run")
    config = RunFolder(path).config
    if not config.is_file():
        raise _no_run(path)
    content = read_yaml(config)
    missing = [key for key in ("schema", "algorithm", "experiment") if key not in content]
    if missing:
        raise RunError(f"{config} is not the config.yaml of a run: it has no {', '.join(missing)}.")
    if content["schema"] > SCHEMA:
        raise RunError(f"{config} has schema {content['schema']}; this version reads up to {SCHEMA}: upgrade reverie.")
    algorithm, experiment = present_names(content["algorithm"], content["experiment"])
    return Saved(algorithm=algorithm, experiment=experiment, custom=content.get("custom", {}))


def check_origin(saved: Saved, run: Path, *given: str) -> None:
    """Check the names of modules in the settings of ``run``, except in those that are ``given``: env, algo or data.

    Raises:
        UntrustedError: a module is not installed, and the user has neither imported nor trusted it.
    """
    env, algo, data = (saved.experiment.get(name) or {} for name in ("env", "algo", "data"))
    kinds = [text.partition("(")[0] for text in _texts(algo) if re.match(r"\s*[A-Za-z_][\w.]*:", text)]
    names = {
        "env": [env.get("id", ""), saved.custom.get("env", "")],
        "algo": [saved.algorithm, *kinds],
        "data": [data.get("reader", "").partition("(")[0], data.get("eval_env", "")],
    }
    for part in names.keys() - set(given):
        for name in names[part]:
            check_module(name, f"the run {run}")


def _texts(value: Any) -> list[str]:
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [value] if isinstance(value, str) else [text for one in inside for text in _texts(one)]


class _Unique(yaml.SafeLoader):
    """Refuses a key that is given twice in one mapping; YAML's own loader takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and lines.setdefault(key.value, line) != line:
                raise ConfigError(f"line {line}: '{key.value}' was set in line {lines[key.value]} already. Keep one.")
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the mapping in a YAML file.

    Raises:
        ConfigError: the file is missing, not YAML, not a mapping, or has a key twice.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Unique)
    except ConfigError as error:
        raise ConfigError(f"{path}, {error}") from None
    except FileNotFoundError:
        hint = did_you_mean(path.name, [p.name for p in _siblings(path)])
        raise ConfigError(f"there is no file {path}.{hint}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read as YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path} contains a {type(content).__name__}: expected a mapping from options to values.")
    return content


def check_usable(path: Path, algorithm: str, env: str) -> bool:
    """Return whether ``path`` holds a run to be continued; False if a new one can start there. Writes nothing.

    Raises:
        RunError: the folder belongs to another algorithm, another environment, or is no run at all.
    """
    if path.exists() and not path.is_dir():
        raise RunError(f"{path} is a file: choose another run folder.")
    if not path.exists() or all(is_leftover(inside) for inside in path.iterdir()):
        return False
    if not RunFolder(path).config.is_file():
        raise RunError(f"{path} is not empty and is not a run (it has no config.yaml): choose another run folder.")
    saved = read_saved(path)
    found = {"algorithm": saved.algorithm, "environment": saved.experiment.get("env", {}).get("id")}
    for what, wanted in {"algorithm": algorithm, "environment": env}.items():
        if found[what] != wanted and not (what == "algorithm" and same_algorithm(saved.algorithm, wanted)):
            raise RunError(
                f"{path} contains a run with {what} '{found[what]}', not '{wanted}': "
                "choose another run folder, or use the settings of that run to continue it."
            )
    return True


def is_leftover(path: Path) -> bool:
    """Return whether ``path`` is a file that a process leaves if it is killed while it begins a run."""
    return path.name in (LOCK, RunFolder(path.parent).spec.name) or (path.name[0] == "." and path.suffix == ".part")


def _no_run(path: Path) -> RunError:
    no_run = f"there is no run in {path}"
    if not path.is_dir():
        hint = did_you_mean(path.name, [p.name for p in _siblings(path)])
        return RunError(f"{no_run}: there is no such folder.{hint}")
    whole = path.absolute()  # "." has no parents
    for run in map(RunFolder, whole.parents[:2]):
        if run.config.is_file() and run.checkpoints in (whole, whole.parent):
            return RunError(f"{no_run}: {_inside(run, whole)}")
    inside = sorted((p.parent.name for p in path.glob("*/config.yaml")), key=in_order)
    if not inside:
        return RunError(f"{no_run}: it has no config.yaml.")
    listed = f"{no_run}: it has no config.yaml. There are runs inside: {', '.join(inside)}."
    return SeveralRunsError(listed, str(path), str(path / inside[0]))


def in_order(name: str) -> tuple[str, int]:
    """Return a key that sorts seed-2 before seed-10."""
    stem, _, number = name.rpartition("-")
    return (stem, int(number)) if number.isdecimal() else (name, -1)


def _inside(run: RunFolder, path: Path) -> str:
    """Return what to give in place of ``path``, the folder of checkpoints of ``run`` or one of these."""
    if path == run.checkpoints:
        return f"it holds the checkpoints of the run {run.path}. Give that folder."
    return (
        f"it is a checkpoint of the run {run.path}. Give that folder; to evaluate or load just this checkpoint, add "
        f"--checkpoint {path.name}, in Python checkpoint='{path.name}'. A run is resumed from its newest checkpoint."
    )


def _siblings(path: Path) -> list[Path]:
    return sorted(path.parent.iterdir()) if path.parent.is_dir() else []

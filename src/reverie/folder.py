"""The folder of a run: what lies where, who may write to it, and the settings that say what the run is."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from reverie.core.errors import ConfigError, RunError, did_you_mean

SCHEMA = 1
"""Version of config.yaml. Files of a newer one are refused."""


@dataclass(frozen=True)
class RunFolder:
    """Paths inside a run. Nothing is created by asking for them."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved settings."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """Everything measured, one JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """Event files."""
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """One folder a checkpoint."""
        return self.path / "checkpoints"

    @property
    def curve(self) -> Path:
        """The learning curve."""
        return self.path / "curve.png"

    @property
    def videos(self) -> Path:
        """Videos of the agent and its dreams."""
        return self.path / "videos"

    @property
    def evaluation(self) -> Path:
        """The newest evaluation."""
        return self.path / "eval.json"

    @property
    def dream(self) -> Path:
        """Pictures and numbers of the newest dream."""
        return self.path / "dream"

    def files(self) -> dict[str, Path]:
        """Those of the files for people that exist, by what they are."""
        known = {"settings": self.config, "metrics": self.metrics, "curve": self.curve, "evaluation": self.evaluation}
        return {what: path for what, path in known.items() if path.exists()}


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What config.yaml says."""

    algorithm: str
    """Name of the algorithm."""
    experiment: dict[str, Any]
    """The resolved ``ExperimentConfig`` as plain values."""
    custom: dict[str, str] = field(default_factory=dict)
    """Objects that were handed over in Python, by their place in the configuration; they cannot be read from a file."""


def write_atomic(path: Path, text: str) -> None:
    """Write ``text`` beside ``path`` and put it in its place once it is on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.part")
    with staged.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(staged, path)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write ``values`` as JSON, in one go."""
    write_atomic(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def write_saved(folder: RunFolder, saved: Saved, version: str) -> None:
    """Write config.yaml."""
    head: dict[str, Any] = {"schema": SCHEMA, "reverie": version, "algorithm": saved.algorithm}
    if saved.custom:
        head["custom"] = saved.custom
    text = yaml.safe_dump({**head, "experiment": saved.experiment}, sort_keys=False, allow_unicode=True)
    write_atomic(folder.config, text)


def read_saved(path: Path) -> Saved:
    """The settings of the run in ``path``.

    Raises:
        RunError: there is no run there, or its config.yaml cannot be read by this version.
    """
    config = RunFolder(path).config
    if not config.is_file():
        raise RunError(f"no run in {path}: {_why_no_run(path)}")
    content = read_yaml(config)
    missing = [key for key in ("schema", "algorithm", "experiment") if key not in content]
    if missing:
        raise RunError(f"{config} lacks {', '.join(missing)}: it is not the config.yaml of a run.")
    if content["schema"] > SCHEMA:
        raise RunError(f"{config} has schema {content['schema']}; this version reads up to {SCHEMA}: upgrade reverie.")
    return Saved(algorithm=content["algorithm"], experiment=content["experiment"], custom=content.get("custom", {}))


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: the file is missing, not YAML, or not a mapping.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = did_you_mean(path.name, [p.name for p in _siblings(path)])
        raise ConfigError(f"there is no file {path}.{hint}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read as YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds a {type(content).__name__}: expected a mapping from options to values.")
    return content


def new_path(root: Path, env: str, algorithm: str) -> Path:
    """A folder for a new run that does not exist yet: ``<root>/<env>-<algorithm>-<time>``."""
    name = "-".join(re.sub(r"[^\w.-]+", "_", part) for part in (env, algorithm))
    stem = root / f"{name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    candidates = [stem, *(stem.with_name(f"{stem.name}-{i}") for i in range(2, 1000))]
    return next(path for path in candidates if not path.exists())


def check_usable(path: Path, algorithm: str, env: str) -> bool:
    """Whether ``path`` holds a run to be continued; False if a new one can start there. Writes nothing.

    Raises:
        RunError: the folder belongs to another algorithm, another environment, or is no run at all.
    """
    if path.exists() and not path.is_dir():
        raise RunError(f"{path} is a file: choose another run folder.")
    if not path.exists() or not any(path.iterdir()):
        return False
    if not RunFolder(path).config.is_file():
        raise RunError(f"{path} is not empty and not a run (it has no config.yaml): choose another run folder.")
    saved = read_saved(path)
    found = {"algorithm": saved.algorithm, "environment": saved.experiment.get("env", {}).get("id")}
    for what, wanted in {"algorithm": algorithm, "environment": env}.items():
        if found[what] != wanted:
            raise RunError(
                f"{path} holds a run of {what} '{found[what]}', not '{wanted}': "
                "choose another run folder, or repeat the settings of that run to continue it."
            )
    return True


def _why_no_run(path: Path) -> str:
    if path.is_dir():
        inside = sorted(p.parent.name for p in path.glob("*/config.yaml"))
        return "it has no config.yaml." + (f" There are runs inside: {', '.join(inside)}." if inside else "")
    return "there is no such folder." + did_you_mean(path.name, [p.name for p in _siblings(path)])


def _siblings(path: Path) -> list[Path]:
    return sorted(path.parent.iterdir()) if path.parent.is_dir() else []

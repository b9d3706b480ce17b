"""The folder of several seeds: its files, the settings that the seeds share, and whether they can be continued."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from reverie.core.discover import algorithm_name, found_elsewhere, same_algorithm, version
from reverie.core.errors import ConfigError, RunError, brief
from reverie.core.files import write_atomic
from reverie.core.words import Say
from reverie.experiment import ExperimentConfig
from reverie.folder import RunFolder, new_path
from reverie.saved import SCHEMA, is_leftover, learned_otherwise, read_yaml
from reverie.training.run import ROOT, custom_objects


@dataclass(frozen=True)
class SeedsFolder:
    """Paths in the folder of several seeds. Reading them creates nothing."""

    path: Path

    @property
    def settings(self) -> Path:
        """The settings that all seeds share: as the config.yaml of a run, but without a seed."""
        return self.path / "settings.yaml"

    @property
    def aggregate(self) -> Path:
        """The state of each seed, and the aggregate of those that finished."""
        return self.path / "aggregate.json"

    @property
    def curve(self) -> Path:
        """The figure of the learning curves."""
        return self.path / "curve.png"

    def run(self, seed: int) -> RunFolder:
        """Return the run folder of a seed."""
        return RunFolder(self.path / f"seed-{seed}")

    def log(self, seed: int) -> Path:
        """Return the file with the output of a seed's process."""
        return self.path / f"seed-{seed}.log"

    def states(self) -> dict[int, str]:
        """Return the state of each seed when aggregate.json was written; empty if that cannot be read."""
        try:
            runs = json.loads(self.aggregate.read_text(encoding="utf-8"))["runs"]
            return {int(run["seed"]): str(run["state"]) for run in runs}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def files(self) -> dict[str, Path]:
        """Return the existing files that people read, by name."""
        known = {"settings": self.settings, "aggregate": self.aggregate, "curve": self.curve}
        return {what: path for what, path in known.items() if path.exists()}


def check_seeds(config: ExperimentConfig, seeds: Sequence[int], jobs: int) -> None:
    """Raise ConfigError unless the seeds can be trained by other processes without disturbing each other.

    Raises:
        ConfigError: seeds are not different integers >= 0, ``jobs`` is negative, another process could not import the
            algorithm or read a setting from a file, or all seeds would write to one store.
    """
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds = {brief(list(seeds))}: expected different whole numbers, 0 or more.")
    if jobs < 0:
        raise ConfigError(f"jobs = {jobs}: expected at least 1, or 0 for as many as the CPU cores allow.")
    if not found_elsewhere(type(config.algo)):
        raise ConfigError(
            f"algorithm = {algorithm_name(type(config.algo))}: each seed runs in its own process, which must import "
            "the algorithm by name, and this one cannot be imported. Define the class at the top level of a module in "
            "this folder or on PYTHONPATH, or train the seeds one by one: reverie.train(..., seed=...)."
        )
    if custom := custom_objects(config, None):
        listed = ", ".join(f"{place} = {what}" for place, what in custom.items())
        raise ConfigError(
            f"{listed}: each seed runs in its own process, which reads the settings from a file, and a file cannot "
            "hold this Python object. Train the seeds one by one: reverie.train(..., seed=...)."
        )
    if config.replay.store not in ("auto", "none"):
        raise ConfigError(
            f"replay.store = '{config.replay.store}': several seeds cannot write to one store. Use auto, a store in "
            "the folder of each run, or none."
        )


def plain_settings(config: ExperimentConfig) -> dict[str, Any]:
    """Return ``config`` as it will be read from a file, without its seed."""
    plain = yaml.safe_load(yaml.safe_dump(config.to_dict(), sort_keys=False))
    return {name: value for name, value in plain.items() if name != "seed"}


def write_settings(folder: SeedsFolder, algorithm: str, plain: dict[str, Any]) -> None:
    """Write settings.yaml."""
    head = {"schema": SCHEMA, "reverie": version(), "algorithm": algorithm, "experiment": plain}
    write_atomic(folder.settings, yaml.safe_dump(head, sort_keys=False, allow_unicode=True))


def choose_folder(subject: str, algorithm: str, plain: dict[str, Any], say: Say) -> Path:
    """Return the newest folder under ``runs/`` with exactly these settings, to be continued, or a new one."""
    new = new_path(ROOT, subject, f"{algorithm}-seeds")
    stem = new.name[: new.name.index("-seeds") + len("-seeds")]
    for path in sorted(ROOT.glob(f"{stem}-*"), reverse=True):
        with contextlib.suppress(ConfigError):
            found = read_yaml(path / SeedsFolder(path).settings.name)
            if found.get("experiment") == plain and same_algorithm(str(found.get("algorithm")), algorithm):
                say(f"continuing {path}, which has the same settings; choose another run folder to start over")
                return path
    return new


def check_folder(folder: SeedsFolder, algorithm: str, env: str) -> dict[str, Any] | None:
    """Return the settings of the seeds in ``folder``; None if it is empty or missing. Writes nothing.

    Raises:
        RunError: it holds something else, or seeds of another algorithm or environment.
    """
    path = folder.path
    if path.exists() and not path.is_dir():
        raise RunError(f"{path} is a file: choose another folder.")
    if not path.exists() or all(is_leftover(inside) for inside in path.iterdir()):
        return None
    if RunFolder(path).config.is_file():
        raise RunError(f"{path} is the run of a single seed: choose another folder for several seeds.")
    if not folder.settings.is_file():
        raise RunError(f"{path} is not empty, but holds no seeds (it has no settings.yaml): choose another folder.")
    content = read_yaml(folder.settings)
    settings = content.get("experiment", {})
    found = {"algorithm": content.get("algorithm"), "environment": settings.get("env", {}).get("id")}
    for what, wanted in {"algorithm": algorithm, "environment": env}.items():
        if found[what] != wanted and not (what == "algorithm" and same_algorithm(str(found[what]), wanted)):
            raise RunError(
                f"{path} holds seeds of {what} '{found[what]}', not '{wanted}'. Choose another folder, or use the "
                "settings of those seeds to continue them."
            )
    return dict(settings)


def check_finished(
    folder: SeedsFolder, seeds: Sequence[int], before: dict[str, Any], now: dict[str, Any], total: str
) -> None:
    """Check that no finished seed would keep a result that comes from other settings.

    ``total``: the setting, "steps" or "updates", that a user raises to let finished seeds go on.

    Raises:
        RunError: such seeds exist.
    """
    lines, states = learned_otherwise(before, now), folder.states()
    done = [seed for seed in seeds if states.get(seed) == "finished" and folder.run(seed).config.is_file()]
    if lines and done and now[total] <= before.get(total, 0):
        raise RunError(
            f"{folder.path}: {'seed' if len(done) == 1 else 'seeds'} {', '.join(map(str, done))} finished with other "
            f"settings ({'; '.join(lines)}), so their results would not match. Choose another --run, or increase "
            f"--{total} to continue them with the new settings."
        )


def make_folder(path: Path) -> list[Path]:
    """Make ``path``; return the folders that were made, the innermost first."""
    made = [folder for folder in (path, *path.absolute().parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return made


def sweep(folder: SeedsFolder, seeds: Sequence[int]) -> None:
    """Delete the files that were written for seeds of which none could begin."""
    for path in (folder.settings, folder.aggregate, *(folder.log(seed) for seed in seeds)):
        path.unlink(missing_ok=True)

"""Settings that have no effect on the kind of run that is configured: with recorded data, on these alone, or without.

What somebody has set for this run is an error. A file may be shared by several kinds of runs, so it gets a remark.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from reverie.core.config import Config
from reverie.core.errors import ConfigError, warn
from reverie.core.words import Say
from reverie.datasets.dataset import DatasetConfig
from reverie.experiment import ExperimentConfig
from reverie.saved import read_yaml

Named = Callable[[str], str | None]
"""Returns the name by which the setting at a dotted path was set; None if it was not set."""

Spelled = Callable[[str], str]
"""Returns an option's name as it is written where the options are given: in Python, or as a flag."""

OF_COLLECTING = (
    "steps", "replay_ratio", "train_ratio", "learning_starts", "random_steps", "env.num", "replay.capacity",
    "replay.init",
)  # fmt: skip
"""Settings that concern collecting, or what is kept of it."""


def without_effect(config: ExperimentConfig, named: Named, spelled: Spelled) -> str | None:
    """Return the error message if settings that are ``named`` have no effect in ``config``; None otherwise.

    None, and the defaults of settings of data, count as not set.
    """
    for paths, why in _idle(config, spelled):
        names = [name for path in paths if attrgetter(path)(config) is not None and (name := named(path)) is not None]
        if names:
            return f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect {why}"
    return None


def remark_on_files(config: ExperimentConfig, files: Sequence[Path | str], named: Named, spelled: Spelled) -> None:
    """Print a warning for each of the YAML ``files`` with settings that have no effect in ``config``.

    ``named``: what overrides the files, which may switch their data off. The config.yaml of a run has every setting, so
    none was chosen for this run.
    """
    for file in files:
        values = read_yaml(Path(file))

        def own(path: str, values: Mapping[str, Any] = values) -> str | None:
            off = path.startswith("data.") and named("data.path") is not None
            return path if sets(values, path) and not off else None

        if "experiment" not in values and (idle := without_effect(config, own, spelled)) is not None:
            warn(f"{file}: {idle}")


def learning_in_time(config: ExperimentConfig, named: Named, say: Say) -> ExperimentConfig:
    """Return ``config`` with learning that starts after a quarter of a run of which it would leave less than half.

    Raises:
        ConfigError: a start that is ``named`` leaves nothing to learn in.
    """
    starts, steps = config.learning_starts, config.steps
    if config.data.alone or 2 * starts <= steps or 0 in (config.replay_ratio, config.train_ratio):
        return config
    if (name := named("learning_starts")) is not None:
        if starts < steps:
            return config
        raise ConfigError(
            f"{name} = {starts}: the run has only {steps:,} env steps, so it would learn nothing. Lower it, or take "
            "more steps."
        )
    soon = max(1, steps // 4)
    say(f"learning starts after {soon:,} env steps, not {starts:,}: the run has only {steps:,}")
    random = config.random_steps if named("random_steps") else min(config.random_steps, soon)
    return config.merge({"learning_starts": soon, "random_steps": random})


def sets(values: Mapping[str, Any], path: str) -> bool:
    """Return whether ``values`` set the option at ``path``: dotted, nested, or in an object other than by default."""
    part, _, name = path.partition(".")
    inner = values.get(part)
    if name and isinstance(inner, Config):
        return bool(getattr(inner, name) != getattr(type(inner)(), name)) or path in values
    return path in values or (isinstance(inner, Mapping) and name in inner)


def _idle(config: ExperimentConfig, spelled: Spelled) -> Iterator[tuple[Sequence[str], str]]:
    """Yield the paths of settings without effect, and why they have none."""
    data, usual = config.data, DatasetConfig()
    if not data.path:
        names = [field.name for field in dataclasses.fields(usual)]
        changed = [f"data.{name}" for name in names if getattr(data, name) != getattr(usual, name)]
        yield changed, f"without {spelled('data')}, the path of recorded data."
    if not data.alone:
        yield ["updates"], f"on a run that collects rows. Set its length in env steps with {spelled('steps')}."
    else:
        length = f"Set its length with {spelled('updates')}"
        more = f"to collect rows as well, pass {spelled('env')} and a {spelled('data_fraction')} below 1"
        yield OF_COLLECTING, f"on a run on recorded data alone. {length}; {more}."

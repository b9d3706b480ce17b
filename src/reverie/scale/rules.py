"""RLlib's rules for more learners: its tuned DreamerV3 examples scale batches, environments and learning rates so."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from reverie.core.config import Choice, Config
from reverie.core.logger import logger
from reverie.core.ramp import Ramp, Rate
from reverie.core.words import plural
from reverie.experiment.config import ExperimentConfig
from reverie.run.folder import settings_changes

WARM_UP = 0.1
"""Part of a run in which learning rates rise from 0."""


def scaled(config: ExperimentConfig, count: int) -> ExperimentConfig:
    """Return the settings by which ``count`` learners train: those changed by ``scale_rules``, if it is set.

    Batch sizes and environments are multiplied by n, learning rates by the square root of n. They rise from 0 over the
    first 10 % of the run, but those that are ramps already.
    """
    if not config.scale_rules:
        return config
    whole = config.algo.on_policy and config.algo.batch_size == 1  # all rows of all environments
    changes = {} if whole else {"algo.batch_size": config.algo.batch_size * count}
    if not config.offline:
        changes["env.num"] = config.env.num * count
    rates = {path: warmed_up(rate, count**0.5, config.length) for path, rate in rates_of(config.algo, "algo")}
    return config.merge({**changes, **rates})


def log_rules(config: ExperimentConfig, count: int) -> None:
    """Log what ``scale_rules`` changes, if it is set."""
    if config.scale_rules:
        lines = settings_changes(config.to_dict(), scaled(config, count).to_dict())
        logger.info(f"scale_rules for {plural(count, 'learner')}: {'; '.join(lines)}")


def rates_of(config: Config, path: str) -> Iterator[tuple[str, Rate]]:
    """Yield the learning rates above 0 of a configuration at ``path``, each with its own path."""
    for field in dataclasses.fields(config):
        value, where = getattr(config, field.name), f"{path}.{field.name}"
        if isinstance(value, Config) and not isinstance(value, Choice):
            yield from rates_of(value, where)
        elif (field.name == "lr" or field.name.endswith("_lr")) and value:
            yield where, value


def warmed_up(rate: Rate, factor: float, length: int) -> list[list[float]]:
    """Return the points of a learning rate times ``factor`` in a run of ``length``."""
    if isinstance(rate, Ramp):
        return [[step, value * factor] for step, value in rate.points]
    return [[0.0, 0.0], [WARM_UP * length, rate * factor]]

"""Presets by name, as functions that return a configuration; the values of one laid over another."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from reverie.algos.base import AlgorithmConfig
from reverie.core.discover import algorithm_config, algorithm_name
from reverie.core.errors import ConfigError
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.presets import TABLE as TABLE

SUITES = {f"{one.algorithm}: {start}": name for name, one in TABLE.items() for start in one.envs.split()}
"""Preset by ``algorithm: prefix`` of the id of the environments that get it, unless another is asked for."""
ON_CPU = {name: one.cpu for name, one in TABLE.items() if one.cpu is not None}
"""Changes of presets without a GPU."""


def made(name: str) -> ExperimentConfig:
    """Return the configuration of a preset."""
    return overlay(bare(TABLE[name].algorithm), TABLE[name].settings)


PRESETS: dict[str, Callable[[], ExperimentConfig]] = {name: functools.partial(made, name) for name in TABLE}
"""A function for each preset that returns its configuration."""


def bare(algorithm: str) -> ExperimentConfig:
    """Return the defaults of an algorithm, without a preset."""
    algo = algorithm_config(algorithm)()
    assert isinstance(algo, AlgorithmConfig)
    return ExperimentConfig(algo=algo)


def overlay(config: ExperimentConfig, values: Mapping[str, Any]) -> ExperimentConfig:
    """Return ``config`` with ``values`` on top, first ``size``. The two ratios of updates replace each other."""
    values = dict(values)
    if (size := values.pop("size", None)) is not None:
        config = resized(config, size)
    if any(values.get(name) is not None for name in ("replay_ratio", "train_ratio")):
        config = config.merge({"replay_ratio": None, "train_ratio": None})
    return config.merge(values)


def resized(config: ExperimentConfig, size: str) -> ExperimentConfig:
    """Return ``config`` with the network widths of a named size of its algorithm."""
    module = importlib.import_module(type(config.algo).__module__)
    if not hasattr(module, "sized"):
        raise ConfigError(f"size = '{size}': {algorithm_name(type(config.algo))} has no named sizes.")
    return config.merge({"algo": module.sized(size, config.algo)})

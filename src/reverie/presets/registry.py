"""Presets by name: functions that return settings, registered with the algorithm, the environments and the hardware."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from reverie.algos.base import AlgorithmConfig
from reverie.core.discover import algorithm_config, algorithm_name
from reverie.core.errors import ConfigError
from reverie.experiment import ExperimentConfig

Settings = dict[str, Any]
"""Values by dotted path; ``size`` is a named size of the algorithm."""

PRESETS: dict[str, Callable[[], ExperimentConfig]] = {}
"""All presets by name."""
SUITES: dict[str, str] = {}
"""Preset by ``algorithm: prefix`` of the id of the environments that get it, unless another is asked for."""
ON_CPU: dict[str, Settings] = {}
"""Changes of presets without a GPU: smaller networks, shorter runs. Presets that need none are left out."""


def preset(
    algorithm: str, *prefixes: str, cpu: Settings | None = None
) -> Callable[[Callable[[], Settings]], Callable[[], ExperimentConfig]]:
    """Register the decorated function, which returns settings of ``algorithm``, as the preset of its name.

    Args:
        algorithm: name of the algorithm.
        *prefixes: beginnings of the ids of environments for which it is the default.
        cpu: changes for a machine without a GPU.
    """

    def register(settings: Callable[[], Settings]) -> Callable[[], ExperimentConfig]:
        @functools.wraps(settings)
        def make() -> ExperimentConfig:
            return overlay(bare(algorithm), settings())

        name = settings.__name__
        PRESETS[name] = make
        SUITES.update({f"{algorithm}: {prefix}": name for prefix in prefixes})
        if cpu is not None:
            ON_CPU[name] = cpu
        return make

    return register


def bare(algorithm: str) -> ExperimentConfig:
    """Return the defaults of an algorithm, without a preset."""
    algo = algorithm_config(algorithm)()
    assert isinstance(algo, AlgorithmConfig)
    return ExperimentConfig(algo=algo)


def overlay(config: ExperimentConfig, values: Mapping[str, Any]) -> ExperimentConfig:
    """Return ``config`` with ``values`` on top, of which ``size`` comes first.

    ``replay_ratio`` and ``train_ratio`` replace each other.

    Raises:
        ConfigError: a key is unknown or a value does not fit.
    """
    values = dict(values)
    if (size := values.pop("size", None)) is not None:
        config = resized(config, size)
    if any(values.get(name) is not None for name in ("replay_ratio", "train_ratio")):
        config = config.merge({"replay_ratio": None, "train_ratio": None})
    return config.merge(values)


def resized(config: ExperimentConfig, size: str) -> ExperimentConfig:
    """Return ``config`` with the network widths of a named size of its algorithm.

    Raises:
        ConfigError: the algorithm has no sizes, or none of that name.
    """
    module = importlib.import_module(type(config.algo).__module__)
    if not hasattr(module, "sized"):
        raise ConfigError(f"size = '{size}': {algorithm_name(type(config.algo))} has no named sizes.")
    return config.merge({"algo": module.sized(size, config.algo)})

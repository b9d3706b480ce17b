"""The space of a search: the possible values of each setting."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from reverie.core.config import nest
from reverie.core.errors import ConfigError, short_repr
from reverie.experiment.config import ExperimentConfig
from reverie.run.folder import SavedConfig, check_locations, check_module_names, read_yaml


class Dimension(NamedTuple):
    """The possible values of one setting: a range, or choices."""

    distribution: Any
    """Optuna's."""
    choices: tuple[Any, ...] = ()

    def value(self, drawn: object) -> Any:
        """Convert Optuna's sample to the value of the setting."""
        return next(choice for choice in self.choices if _to_optuna_choice(choice) == drawn) if self.choices else drawn

    @property
    def size(self) -> int | None:
        """Number of values; None if they are continuous."""
        of = self.distribution
        if self.choices or of.single():
            return len(self.choices) or 1
        return None if of.step is None else round((of.high - of.low) / of.step) + 1

    def drawn(self, number: int) -> Any:
        """Return Optuna's sample for the value of this index."""
        of = self.distribution
        return of.choices[number] if self.choices else min(of.low + number * (of.step or 0), of.high)


def _to_optuna_choice(choice: object) -> Any:
    """Convert a choice to a type that Optuna can store: lists and mappings become text."""
    plain = choice is None or isinstance(choice, bool | int | float | str)
    return choice if plain else yaml.safe_dump(choice, default_flow_style=True).strip()


def read_space_file(path: Path) -> dict[str, Any]:
    """Read a search space file; UntrustedError if it names modules that the user does not trust."""
    values = read_yaml(path)
    check_module_names(SavedConfig(algorithm="", experiment=nest(values)), path)
    check_locations(nest(values), path)
    return values


def read_space(values: Mapping[str, Any], config: ExperimentConfig, space_name: str) -> dict[str, Dimension]:
    """Parse the dimensions of a search space, in order: ``algo.lr: {low: 1e-5, high: 1e-2, log: true}``."""
    dimensions: dict[str, Dimension] = {}
    for name, description in values.items():
        try:
            dimensions[name] = dimension(name, description, config)
        except (ConfigError, TypeError, ValueError) as error:  # from reverie, Python, and Optuna
            message = error if isinstance(error, ConfigError) else f"{name} = {short_repr(description)}: {error}"
            raise ConfigError(f"{space_name}: {message}") from error
    return dimensions


def dimension(name: str, description: object, config: ExperimentConfig) -> Dimension:
    """Parse one dimension. ``step``: the distance between neighboring values."""
    from optuna import distributions as of  # optional

    options = description if isinstance(description, Mapping) else {}
    keys = {*options}
    choices = options["choices"] if keys == {"choices"} else description
    choices = list(choices) if isinstance(choices, list | tuple) else []
    if not choices and not {"low", "high"} <= keys <= {"low", "high", "log", "step"}:
        raise ValueError("expected a list of values, or {low: 1, high: 9}, with log: true or step: 2.")
    tried = choices or [float(options["low"]), float(options["high"])]  # YAML reads 1e-5 as text
    values: list[Any] = [functools.reduce(getattr, name.split("."), config.merge({name: value})) for value in tried]
    if choices:
        read = [x if isinstance(x, bool | int | float) else choice for x, choice in zip(values, choices, strict=True)]
        words = {_to_optuna_choice(choice): choice for choice in read}
        return Dimension(of.CategoricalDistribution([*words]), (*words.values(),))
    low, high = tried
    log = bool(options.get("log", False))
    step = float(options["step"]) if "step" in options else None
    if all(type(value) is int for value in values):
        return Dimension(of.IntDistribution(int(low), int(high), log=log, step=int(step or 1)))
    return Dimension(of.FloatDistribution(low, high, log=log, step=step))

"""Checks of values and of a configuration's fields: bounds, numbers, regular expressions. Errors name the field."""

from __future__ import annotations

import math
import re
from numbers import Real

from reverie.core.config import Config
from reverie.core.errors import ConfigError, brief


def at_least(config: object, **bounds: float) -> None:
    """Raise ConfigError unless every named field is None, or finite and at least its bound; see ``check_at_least``.

    ``config`` may be any dataclass.

    Raises:
        ConfigError: a field is out of range.
    """
    for name, bound in bounds.items():
        if (value := getattr(config, name)) is not None:
            _check_number(name, value)
            check_at_least(name, value, bound)


def check_at_least(name: str, value: float, bound: float) -> None:
    """Raise ConfigError unless ``value`` is finite and at least ``bound``, and below 2^63 if it is an integer.

    Raises:
        ConfigError: ``value`` is out of range. The message calls it ``name``.
    """
    whole = isinstance(value, int)
    if not bound <= value < (2**63 if whole else math.inf):
        expected = f"at least {bound:g}" if whole else f"a finite number, {bound:g} or more"
        raise ConfigError(f"{name} = {value}: expected {expected}{', below 2^63' if whole and value >= bound else ''}.")


def above(config: Config, **bounds: float) -> None:
    """Raise ConfigError unless every named field is finite and above its bound.

    Raises:
        ConfigError: a field is out of range.
    """
    for name, bound in bounds.items():
        value = getattr(config, name)
        _check_number(name, value)
        if not bound < value < math.inf:
            raise ConfigError(f"{name} = {value}: expected a finite number above {bound:g}.")


def _check_number(name: str, value: object) -> None:
    """Raise ConfigError if ``value`` is no number: an object made in Python has whatever it was given."""
    if not isinstance(value, Real):
        raise ConfigError(f"{name} = {brief(value)}: expected a number.")


def finite(config: Config, *names: str) -> None:
    """Raise ConfigError unless every named field is finite or None.

    Raises:
        ConfigError: a field is NaN or infinite.
    """
    for name in names:
        value = getattr(config, name)
        if value is not None:
            _check_number(name, value)
        if value is not None and not math.isfinite(value):
            raise ConfigError(f"{name} = {value}: expected a finite number.")


def check_pattern(config: Config, name: str) -> None:
    """Raise ConfigError unless the named field is a valid regular expression.

    Raises:
        ConfigError: it is not.
    """
    check_regex(name, getattr(config, name))


def check_regex(name: str, text: str) -> None:
    """Raise ConfigError unless ``text`` is a valid regular expression.

    Raises:
        ConfigError: it is not. The message calls it ``name``.
    """
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"{name} = {brief(text)}: expected a valid regular expression ({error}).") from None

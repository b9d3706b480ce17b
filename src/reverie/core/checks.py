"""Checks of values and of a configuration's fields: bounds, numbers, regular expressions. Errors name the field."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np

from reverie.core.config import Choice, Config, coerce, is_builder
from reverie.core.errors import ConfigError, brief

SMALLEST, LARGEST = float(np.finfo(np.float32).smallest_subnormal), float(np.finfo(np.float32).max)
"""The least magnitude that float32 holds besides 0, and the largest."""


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


def check_kinds(config: Config, path: str = "") -> None:
    """Raise ConfigError unless the fields of a learner hold what their types say, here and in those inside.

    Checked are fields for numbers, bool, ``Literal`` and ``Choice``: what is made in Python holds whatever it was
    given, and code that asks which kind a setting is would ignore another value without a word. Integers may be
    NumPy's. Learners compute in float32: a number that is infinite or 0 there and not here would fail in an update.
    ``path`` is that of ``config``, for messages.

    Raises:
        ConfigError: a field holds something else.
    """
    for name, hint in _hints(type(config)).items():  # type: ignore[arg-type]  # mypy: classes are hashable
        value, where = getattr(config, name), f"{path}.{name}" if path else name
        if isinstance(value, Config):
            check_kinds(value, where)
        if _is_checked(hint) and not is_builder(value):
            meant = coerce(value, hint, where)
            if isinstance(value, str) and not isinstance(meant, str):
                raise ConfigError(f"{where} = {brief(value)}: expected {_kind_wanted(hint)}, such as {meant!r}.")
            if isinstance(meant, int) and not isinstance(value, Integral):
                raise ConfigError(f"{where} = {brief(value)} ({type(value).__name__}): expected int, such as {meant}.")
            if isinstance(meant, int) and not -(2**63) <= meant < 2**63:
                raise ConfigError(f"{where} = {meant}: expected an integer below 2^63.")
            if isinstance(meant, float) and meant and not SMALLEST <= abs(meant) <= LARGEST and math.isfinite(meant):
                raise ConfigError(
                    f"{where} = {meant}: expected a number that float32 holds: 0, or {SMALLEST:.2g} to {LARGEST:.2g} "
                    "in magnitude."
                )


@functools.cache
def _hints(kind: type[Config]) -> dict[str, Any]:
    """Return the types of the fields of a dataclass."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _is_checked(hint: Any) -> bool:
    """Return whether ``hint`` is that of a number, a bool, a ``Literal`` or a ``Choice``, or of one of them or None."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return all(
        option in (int, float, bool, types.NoneType)
        or typing.get_origin(option) is Literal
        or (isinstance(option, type) and issubclass(option, Choice))
        for option in options
    )


def _kind_wanted(hint: Any) -> str:
    """Return what messages call a type: ``a number``, or the name of its first kind with an article."""
    options = [option for option in typing.get_args(hint) or (hint,) if option is not types.NoneType]
    return "a number" if options[0] in (int, float) else f"a {options[0].__name__}"


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

"""Bounds of values, declared with a setting: ``steps: Annotated[int, AtLeast(1)] = 1_000_000``.

``Config`` checks every field when it is made; ``AtLeast(1).check("copies", copies)`` checks an argument. Also
schedules: ``[[0, 0], [1e4, 3e-4]]`` increases from 0 to 3e-4 over the first 10,000 env steps.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeGuard

from reverie.core.errors import ConfigError, short_repr

MAX_INTEGER = 2**63
"""Files may have larger integers, with which NumPy and PyTorch do not compute."""


@dataclass(frozen=True)
class Bound:
    """Base class of bounds declared with a field.

    Each item of a tuple, each value of a mapping, and the maximum of a schedule is checked; None is not.
    """

    def check(self, name: str, value: object) -> None:
        """Raise ConfigError about ``name`` if ``value`` violates the bound."""
        value = value.max_value if isinstance(value, PiecewiseLinear) else value
        items = value if isinstance(value, tuple) else (value,)
        for item in value.values() if isinstance(value, Mapping) else items:
            is_large = isinstance(item, int) and not -MAX_INTEGER <= item < MAX_INTEGER
            expected = "a number of at most 64 bits" if is_large else "" if item is None else self.expectation(item)
            if expected:
                raise ConfigError(
                    f"{name} = {short_repr(item) if isinstance(item, str) else item}: expected {expected}."
                )

    def expectation(self, value: object) -> str:
        """Return the expectation that ``value`` violates; "" if it is valid."""
        return ""


@dataclass(frozen=True)
class AtLeast(Bound):
    """A finite number, ``low`` or more."""

    low: float

    def expectation(self, value: object) -> str:
        """See ``Bound``."""
        if isinstance(value, int):
            return f"at least {self.low:g}" if value < self.low else ""
        return "" if _is_finite(value) and value >= self.low else f"a finite number, {self.low:g} or more"


@dataclass(frozen=True)
class Above(Bound):
    """A finite number above ``low``."""

    low: float

    def expectation(self, value: object) -> str:
        """See ``Bound``."""
        return "" if _is_finite(value) and value > self.low else f"a finite number above {self.low:g}"


@dataclass(frozen=True)
class Within(Bound):
    """A number in an interval, such as ``Within("[0, 1)")``: a square bracket includes that end."""

    interval: str

    def expectation(self, value: object) -> str:
        """See ``Bound``."""
        low, high = (float(end) for end in self.interval[1:-1].split(","))
        fits = isinstance(value, Real) and low <= float(value) <= high
        fits = fits and (value != low or self.interval[0] == "[") and (value != high or self.interval[-1] == "]")
        return "" if fits else f"a number in {self.interval}"


@dataclass(frozen=True)
class Finite(Bound):
    """A number that is neither NaN nor infinite."""

    def expectation(self, value: object) -> str:
        """See ``Bound``."""
        return "" if _is_finite(value) else "a finite number"


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and math.isfinite(value)


@dataclass(frozen=True)
class Regex(Bound):
    """A regular expression."""

    def expectation(self, value: Any) -> str:
        """See ``Bound``."""
        try:
            re.compile(value)
        except re.error as error:
            return f"a valid regular expression ({error})"
        return ""


WeightByPattern = float | dict[str, float]
"""A number, or several numbers by regular expression."""


# ---------------------------------------------------------------- settings that change during a run


@dataclass(frozen=True, repr=False)
class PiecewiseLinear:
    """A number by env steps (or updates, without any): linear between points, constant before and after them."""

    points: tuple[tuple[float, float], ...]
    """``(env step, value)``, env steps ascending."""

    @classmethod
    def from_points(cls, points: Sequence[Sequence[float]], setting_name: str) -> PiecewiseLinear:
        """Return the schedule through ``points``. Error messages name the setting ``setting_name``."""
        try:
            pairs = tuple((float(step), float(value)) for step, value in points)
        except (TypeError, ValueError):
            pairs = ()
        steps = [step for step, _ in pairs]
        is_nonnegative = all(math.isfinite(number) and number >= 0 for pair in pairs for number in pair)
        if not (pairs and is_nonnegative and all(a < b for a, b in itertools.pairwise(steps))):
            raise ConfigError(
                f"{setting_name} = {short_repr(points)}: expected a number, or pairs [env step, value] of numbers of "
                "0 or more, steps ascending, such as [[0, 0], [1e4, 3e-4]]."
            )
        return cls(pairs)

    def __repr__(self) -> str:
        return repr(self.to_list())

    def to_list(self) -> list[list[float]]:
        """Return lists, as in a file."""
        return [list(pair) for pair in self.points]

    def value_at(self, step: float) -> float:
        """Return the value at an env step."""
        after = bisect.bisect_right(self.points, (step, math.inf))  # a twentieth of NumPy's time
        if after in (0, len(self.points)):
            return float(self.points[max(0, after - 1)][1])
        (x, y), (next_x, next_y) = self.points[after - 1 : after + 1]
        return (next_y - y) / (next_x - x) * (step - x) + y

    @property
    def max_value(self) -> float:
        """The largest value."""
        return max(value for _, value in self.points)


ScheduledFloat = float | PiecewiseLinear
"""A number, or a schedule over env steps."""


def largest_value(rate: ScheduledFloat) -> float:
    """Return the largest value during a run."""
    return rate.max_value if isinstance(rate, PiecewiseLinear) else rate


def initial_value(rate: ScheduledFloat) -> float:
    """Return the value at the start of a run."""
    return rate.value_at(0) if isinstance(rate, PiecewiseLinear) else rate

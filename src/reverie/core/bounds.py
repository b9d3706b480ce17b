"""What a value must satisfy, declared with a setting: ``steps: Annotated[int, AtLeast(1)] = 1_000_000``.

``Config`` checks every field when it is made; ``AtLeast(1).check("copies", copies)`` checks an argument.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from numbers import Real
from typing import Any

from reverie.core.errors import ConfigError, brief
from reverie.core.ramp import Ramp


@dataclass(frozen=True)
class Bound:
    """Base class: what is declared with a field. Each item of a tuple is checked, the top of a ramp, and None never."""

    def check(self, name: str, value: Any) -> None:
        """Raise ConfigError, which calls the value ``name``, if it does not satisfy this."""
        items = (value.most,) if isinstance(value, Ramp) else value if isinstance(value, tuple) else (value,)
        for item in items:
            if item is not None and (expected := self.refusal(item)):
                raise ConfigError(f"{name} = {brief(item) if isinstance(item, str) else item}: expected {expected}.")

    def refusal(self, value: Any) -> str:
        """Return what is expected instead of ``value``, or an empty string."""
        return ""


@dataclass(frozen=True)
class AtLeast(Bound):
    """A finite number, ``low`` or more."""

    low: float

    def refusal(self, value: Any) -> str:
        """See ``Bound``."""
        if isinstance(value, int):
            return f"at least {self.low:g}" if value < self.low else ""
        return "" if _is_finite(value) and value >= self.low else f"a finite number, {self.low:g} or more"


@dataclass(frozen=True)
class Above(Bound):
    """A finite number above ``low``."""

    low: float

    def refusal(self, value: Any) -> str:
        """See ``Bound``."""
        return "" if _is_finite(value) and value > self.low else f"a finite number above {self.low:g}"


@dataclass(frozen=True)
class Within(Bound):
    """A number in an interval, such as ``Within("[0, 1)")``: a square bracket includes that end."""

    interval: str

    def refusal(self, value: Any) -> str:
        """See ``Bound``."""
        low, high = (float(end) for end in self.interval[1:-1].split(","))
        fits = isinstance(value, Real) and low <= float(value) <= high
        fits = fits and (value != low or self.interval[0] == "[") and (value != high or self.interval[-1] == "]")
        return "" if fits else f"a number in {self.interval}"


@dataclass(frozen=True)
class Finite(Bound):
    """A number that is neither NaN nor infinite."""

    def refusal(self, value: Any) -> str:
        """See ``Bound``."""
        return "" if _is_finite(value) else "a finite number"


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


@dataclass(frozen=True)
class Regex(Bound):
    """A regular expression."""

    def refusal(self, value: Any) -> str:
        """See ``Bound``."""
        try:
            re.compile(value)
        except re.error as error:
            return f"a valid regular expression ({error})"
        return ""

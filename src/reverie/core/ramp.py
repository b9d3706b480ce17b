"""Settings that change during a run: ``[[0, 0], [1e4, 3e-4]]`` rises from 0 to 3e-4 over the first 10,000 env steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from reverie.core.errors import ConfigError, brief


@dataclass(frozen=True, repr=False)
class Ramp:
    """A number as a function of env steps: linear between given points, constant before the first and after the last.

    A run on recorded data alone, which has no env steps, counts updates.
    """

    points: tuple[tuple[float, float], ...]
    """``(env step, value)``, env steps ascending."""

    @classmethod
    def of(cls, points: Sequence[Sequence[float]], where: str) -> Ramp:
        """Return the ramp through ``points``. Errors name the setting ``where``.

        Raises:
            ConfigError: they are no pairs of numbers, steps do not ascend, or a value is negative.
        """
        try:
            pairs = tuple((float(step), float(value)) for step, value in points)
        except (TypeError, ValueError):
            pairs = ()
        steps = [step for step, _ in pairs]
        whole = all(math.isfinite(number) and number >= 0 for pair in pairs for number in pair)
        if not (pairs and whole and all(a < b for a, b in itertools.pairwise(steps))):
            raise ConfigError(
                f"{where} = {brief(points)}: expected a number, or pairs [env step, value] of numbers of 0 or more, "
                "steps ascending, such as [[0, 0], [1e4, 3e-4]]."
            )
        return cls(pairs)

    def __repr__(self) -> str:
        return repr(self.plain())

    def plain(self) -> list[list[float]]:
        """Return lists, as a file holds them."""
        return [list(pair) for pair in self.points]

    def at(self, step: float) -> float:
        """Return the value at an env step."""
        import numpy as np  # the start of a command does not wait for it

        steps, values = zip(*self.points, strict=True)
        return float(np.interp(step, steps, values))

    @property
    def most(self) -> float:
        """The largest value."""
        return max(value for _, value in self.points)


Rate = float | Ramp
"""A number, or one that changes with env steps."""


def first(rate: Rate) -> float:
    """Return the value at the beginning of a run."""
    return rate.at(0) if isinstance(rate, Ramp) else rate

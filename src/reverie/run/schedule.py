"""Periods at which a run logs, evaluates, saves and reports, in env steps (or updates) or in seconds."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated

from reverie.core.bounds import AtLeast
from reverie.core.clock import Clock
from reverie.core.config import Config
from reverie.core.errors import ConfigError

UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class Schedule(Config):
    """Periods of logs, evaluations, checkpoints and reports.

    A number counts env steps; 30s, 5m, 2h are times. Offline runs count updates instead of env steps.
    """

    log_every: int | str = "5s"
    """Write metrics this often, and check losses for NaN and infinity. 0: only at the end."""
    eval_every: int | str = 0
    """Interval of evaluations, in env steps or such as 5m. 0: never during training."""
    save_every: int | str = "5m"
    """Write a checkpoint this often. 0: only at the end."""
    report_every: int | str = "5m"
    """Write the learner's expensive reports, such as videos of predictions, this often. 0: never."""

    dream_snapshots: Annotated[int | None, AtLeast(0)] = None
    """Snapshots of the weights of an agent with a world model, for the film of its training in the viewer. None: 12, if
    they take less than 100 MB together and there are at least 100 updates between two of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("log_every", "eval_every", "save_every", "report_every"):
            parse_period(getattr(self, name), name)


def parse_period(value: int | str, name: str = "period") -> tuple[float, bool]:
    """Return ``(amount, is_seconds)``: ``1000`` and ``1e3`` are env steps, ``30s``, ``5m`` and ``2h`` are seconds."""
    match = re.fullmatch(r"\s*((?:\d+\.?\d*|\.\d+)(?:[eE]\+?\d+)?)\s*([smh]?)\s*", str(value))
    if match is None or not math.isfinite(amount := float(match[1])):
        raise ConfigError(
            f"{name} = {value!r}: expected a number of env steps such as 10000 or 5e6, or a time such as 30s, 5m or "
            "2h (units in lower case; write millions of steps as 5e6, not 5M)."
        )
    return amount * UNIT_SECONDS.get(match[2], 1.0), bool(match[2])


class Periodic:
    """A callable that returns True once per period of a run; never if the period is 0.

    Periods in env steps are counted from step 0 without gaps, even in a resumed run: it evaluates, and perhaps ends, at
    the same steps as without the interruption. The clock stores the last time under ``name``.
    """

    def __init__(self, period: int | str, clock: Clock, name: str) -> None:
        self.amount: float
        self.is_seconds: bool
        self.amount, self.is_seconds = parse_period(period)
        self.clock = clock
        self.name = name
        self.last: float = self.position()
        if self.amount and not self.is_seconds:
            self.last = clock.last_events.get(name, self.last) // self.amount * self.amount
        self.before: float = self.last
        self._mark()

    def position(self) -> float:
        """Return the position of the run in the units of the period."""
        return self.clock.seconds if self.is_seconds else self.clock.position

    @property
    def is_due(self) -> bool:
        """Whether the next call will return True."""
        return 0 < self.amount <= self.position() - self.last

    def __call__(self) -> bool:
        """Return whether a period has passed since the last call that returned True."""
        if not self.is_due:
            return False
        self.before = self.last
        self.last += (self.position() - self.last) // self.amount * self.amount
        self._mark()
        return True

    def undo(self) -> None:
        """Undo the last True, because the work failed: it is due again.

        In a run resumed from a checkpoint saved now, a period in env steps is also due again; a period in seconds
        restarts.
        """
        self.last = self.before
        self._mark()

    def _mark(self) -> None:
        if self.amount and not self.is_seconds:
            self.clock.last_events[self.name] = self.last

"""Whether a period of a run has passed: when it logs, evaluates, saves and reports."""

from __future__ import annotations

from reverie.core.clock import Clock
from reverie.run.config import parse_period


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
        if not self.amount or self.position() - self.last < self.amount:
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

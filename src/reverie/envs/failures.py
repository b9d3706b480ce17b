"""How many failures of environments are tolerated, and how long to wait before an environment is started again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from reverie.core.errors import EnvError, ReverieError
from reverie.envs.slot import Failed

LONGEST_WAIT = 60.0


class Failures:
    """Counts the failures of all environments of a vector within a time window.

    At most ``most`` failures within ``window`` seconds are tolerated; ``clock`` returns the time in seconds.
    """

    def __init__(self, most: int, window: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._window, self._clock = most, window, clock
        self._past: deque[tuple[float, int]] = deque()  # time and environment number

    def add(self, number: int, failed: Failed) -> float:
        """Count a failure of environment ``number``; return the seconds to wait before it is started again.

        The first failure of an environment in the window needs no wait, the next ones 1, 2, 4, ... up to 60 seconds.

        Raises:
            EnvError, DataError: there were more failures than are tolerated.
        """
        now = self._clock()
        while self._past and now - self._past[0][0] >= self._window:
            self._past.popleft()
        before = sum(1 for _, who in self._past if who == number)
        self._past.append((now, number))
        if len(self._past) > self._most:
            raise self._too_many(failed) from failed
        return min(2.0 ** (before - 1), LONGEST_WAIT) if before else 0.0

    def _too_many(self, failed: Failed) -> ReverieError:
        if not self._most:
            return type(failed.error)(_with_trace(failed))
        return EnvError(
            f"{len(self._past)} environment failures within {_duration(self._past[-1][0] - self._past[0][0])}: at most "
            f"env.restarts = {self._most} are allowed within env.restart_window = {self._window:g} seconds. Mend the "
            f"environment, or allow more with --env.restarts. The last failure: {_with_trace(failed)}"
        )


def _with_trace(failed: Failed) -> str:
    return f"{failed.error}\n{failed.trace}" if failed.trace else str(failed.error)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"

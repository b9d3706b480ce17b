"""A time limit on environments that run in this thread: one that hangs is interrupted.

Only Python code in the main thread can be interrupted, between two instructions or while it sleeps. Code that hangs
inside a compiled library cannot be interrupted; in a worker process it can be killed. Under a debugger, or another
program that traces Python such as coverage, nothing is interrupted: somebody may be reading at a breakpoint.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from types import FrameType

MAIN = threading.main_thread().ident
SHORTEST = 0.001


class Overdue(BaseException):
    """A call exceeded its time limit. Not an ``Exception``, so that environments that catch those do not catch it."""


class Alarm:
    """The system timer (SIGALRM) that all time limits of this process share.

    It is not set for each call, which would cost more than a step of a small environment. It rings at most once in
    ``limit`` seconds, and only then checks how long the running call has taken. If somebody else handles SIGALRM, that
    handler is left alone and there is no limit.
    """

    def __init__(self) -> None:
        self._since: float | None = None  # when the running call began; None if none is running
        self._limit = 0.0
        self._rings = -1.0  # when the timer rings; it is not set if that time has passed
        self._mine = False  # whether SIGALRM is handled here

    def begin(self, limit: float) -> tuple[float | None, float]:
        """Limit the call that begins now to ``limit`` seconds (0: no limit); return what ``end`` needs. Calls nest."""
        before = self._since, self._limit
        if limit and threading.get_ident() == MAIN:
            now = time.monotonic()
            self._since, self._limit = now, limit
            if not now <= self._rings <= now + limit:
                self._set(now, limit)
        return before

    def end(self, before: tuple[float | None, float]) -> None:
        """End the limit of a call, and go on with that of the call around it; ``before`` is what ``begin`` returned."""
        self._since, self._limit = before
        if self._since is not None and self._rings < 0.0:  # the timer rang for an inner call, and the outer one goes on
            now = time.monotonic()
            self._set(now, max(self._since + self._limit - now, SHORTEST))

    def release(self) -> None:
        """Stop handling SIGALRM. The next ``begin`` handles it again."""
        if self._mine and threading.get_ident() == MAIN:
            if signal.getsignal(signal.SIGALRM) == self._ring:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
            self._mine, self._rings = False, -1.0

    def _set(self, now: float, seconds: float) -> None:
        if not hasattr(signal, "setitimer"):  # Windows
            return
        handler = signal.getsignal(signal.SIGALRM)
        if handler != signal.SIG_DFL and handler != self._ring:
            return
        if handler == signal.SIG_DFL:
            signal.signal(signal.SIGALRM, self._ring)
        self._mine, self._rings = True, now + seconds
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        self._rings = -1.0
        if self._since is None:
            return
        left = self._since + self._limit - now
        if left <= 0.0 and not traced():
            self._since = None
            raise Overdue(f"no response within env.timeout = {self._limit:g} seconds")
        self._set(now, left if left > 0.0 else self._limit)


def traced() -> bool:
    """Return whether a debugger or another tracer of Python code runs in this thread.

    Since Python 3.12 a debugger may use ``sys.monitoring`` in place of a trace function.
    """
    monitoring = getattr(sys, "monitoring", None)
    return sys.gettrace() is not None or (
        monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None
    )


ALARM = Alarm()

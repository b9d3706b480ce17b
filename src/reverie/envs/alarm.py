"""A limit on the time that code of others may take in this thread: an environment that hangs is interrupted.

Only Python code in the main thread can be interrupted, between two of its instructions or where it sleeps. What hangs
inside a compiled library cannot; in a worker process it can be killed.
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
    """Code took longer than it may. No ``Exception``, so that an environment that catches those cannot catch it."""


class Alarm:
    """One timer of the system for all that is limited in this process.

    It is not set for each call, which would cost more than a step of a small environment: it rings at most once in
    ``limit`` seconds, and only then looks how long the running call has been at it. A signal handler of somebody else
    is left alone; there is no limit then.
    """

    def __init__(self) -> None:
        self._since: float | None = None  # when the running call began
        self._limit = 0.0
        self._rings = -1.0  # when the timer rings; it does not if that is over
        self._mine = False  # whether the signal is handled here

    def begin(self, limit: float) -> tuple[float | None, float]:
        """A call begins that may take ``limit`` seconds (0: any time); what to ``end`` it with. Calls may be nested."""
        before = self._since, self._limit
        if limit and threading.get_ident() == MAIN:
            now = time.monotonic()
            self._since, self._limit = now, limit
            if not now <= self._rings <= now + limit:
                self._set(now, limit)
        return before

    def end(self, before: tuple[float | None, float]) -> None:
        """The call is over."""
        self._since, self._limit = before
        if self._since is not None and self._rings < 0.0:  # the timer rang for a call inside of one that goes on
            now = time.monotonic()
            self._set(now, max(self._since + self._limit - now, SHORTEST))

    def release(self) -> None:
        """Give the signal back. The next ``begin`` takes it again."""
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
        if left <= 0.0 and sys.gettrace() is None:
            self._since = None
            raise Overdue(f"no answer within {self._limit:g} seconds")
        self._set(now, left if left > 0.0 else self._limit)  # somebody steps through it with a debugger


ALARM = Alarm()

"""Retries of writes to an unreliable location, and small jobs on daemon threads."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import TypeVar

from reverie.core.logger import logger

T = TypeVar("T")
PERMANENT = (FileExistsError, NotADirectoryError, IsADirectoryError)
"""Errors that a retry cannot fix, such as a file where the store's folder was."""


class StoreClosed(Exception):
    """The store was closed before a write succeeded."""


class Retrier:
    """Retries an action until it succeeds or ``stop`` is set. Logs when failures start, persist and end."""

    first_delay: float = 0.1
    longest_delay: float = 10.0  # seconds between attempts: doubled after each, up to the longest
    silence: float = 30.0  # seconds without an answer that count as a failure
    repeat: float = 60.0  # seconds before the second message about the same failure; doubled for each further one

    def __init__(self, location: str, failures: tuple[type[Exception], ...], waiting: Callable[[], str]) -> None:
        """Retry after ``failures``.

        ``waiting`` returns a description of the pending rows, such as "200 rows (12 MB)".
        """
        self.location = location
        self.failures = failures
        self.waiting = waiting
        self.stop: threading.Event = threading.Event()
        self.lock: threading.Lock = threading.Lock()
        self.last_sign: float | None = None  # time of the last sign of life of the current write; None between writes
        self.since: float | None = None  # time of the first message about the current failure
        self.next_report: float = 0.0
        self.pause: float = self.repeat

    def run(self, action: Callable[[], None]) -> None:
        """Call ``action`` until it succeeds, or fails permanently."""
        for tries in itertools.count():
            try:
                action()
                break
            except PERMANENT:
                raise
            except self.failures as error:
                if tries:  # a single failure is not worth a message
                    self.report_failure(short_error(error))
                if self.stop.wait(min(self.first_delay * 2 ** min(tries, 20), self.longest_delay)):
                    raise StoreClosed(short_error(error)) from error
        self.last_sign = time.monotonic()

    def report_failure(self, reason: str) -> None:
        """Log that nothing can be written and the ``reason``, unless a recent message says so."""
        now = time.monotonic()
        with self.lock:
            if now < self.next_report:
                return
            lasts, self.since = self.since is not None, now if self.since is None else self.since
            self.next_report, self.pause = now + self.pause, self.pause * 2
        logger.warning(
            f"still cannot write to the store {self.location} after {now - self.since:.0f} s ({reason}): "
            f"{self.waiting()} are waiting in memory"
            if lasts
            else f"cannot write to the store {self.location} ({reason}): the run continues, rows wait in memory, and "
            "writing is retried until it succeeds"
        )

    def report_hang(self) -> None:
        """Log that the current write hangs, if it has shown no sign of life for ``silence`` seconds."""
        last_sign = self.last_sign
        if last_sign is not None and time.monotonic() - last_sign > self.silence:
            self.report_failure(f"no answer for {time.monotonic() - last_sign:.0f} s")

    def begin(self) -> None:
        """Record that a write begins."""
        self.last_sign = time.monotonic()

    def end(self) -> None:
        """Record that the write has succeeded; log the recovery if a failure was reported."""
        self.last_sign = None
        with self.lock:
            since, self.since, self.pause = self.since, None, self.repeat
        if since is not None:
            took = time.monotonic() - since
            logger.warning(f"can write to the store {self.location} again after {took:.0f} s: no rows were lost")


def short_error(error: Exception) -> str:
    """Return the text of an error in at most 200 characters."""
    text = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    return str(text)[:200].rstrip(".")


def for_each(function: Callable[[T], None], items: Iterable[T], threads: int) -> None:
    """Call ``function(item)`` for every item, on up to ``threads`` threads; return when all have ended.

    Pools of the standard library are joined at exit, which would hang if a server does not respond.
    """
    jobs: SimpleQueue[T] = SimpleQueue()
    for item in items:
        jobs.put(item)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while True:
                function(jobs.get_nowait())
        except Empty:
            pass
        except BaseException as error:
            errors.append(error)

    helpers = [threading.Thread(target=work, daemon=True) for _ in range(min(threads, jobs.qsize()) - 1)]
    for thread in helpers:
        thread.start()
    work()
    for thread in helpers:
        thread.join()
    if errors:
        raise errors[0]

"""Retries of writes to a place that fails now and then, and small jobs on daemon threads."""

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
"""Errors of a place that no waiting mends: somebody has put a file where the folder was."""


class Stopped(Exception):
    """The store was closed before a write succeeded."""


class Patience:
    """Repeats an action until it works or ``stop`` is set; says when trouble starts, when it lasts and when it ends."""

    first_delay: float = 0.1
    longest_delay: float = 10.0  # seconds between attempts: doubled after each, up to the longest
    silence: float = 30.0  # seconds without an answer that count as trouble
    repeat: float = 60.0  # seconds before the second message about the same trouble; doubled for each further one

    def __init__(self, where: str, failures: tuple[type[Exception], ...], waiting: Callable[[], str]) -> None:
        """Repeat actions after ``failures``; ``waiting`` returns how much is held back, such as "200 rows (12 MB)"."""
        self.where = where
        self.failures = failures
        self.waiting = waiting
        self.stop: threading.Event = threading.Event()
        self.lock: threading.Lock = threading.Lock()
        self.busy: float | None = None  # time of the last sign of life of the write in progress; None between writes
        self.since: float | None = None  # time of the first message about the present trouble
        self.next_word: float = 0.0
        self.pause: float = self.repeat

    def insist(self, action: Callable[[], None]) -> None:
        """Call ``action`` until it succeeds, or fails for good."""
        for tries in itertools.count():
            try:
                action()
                break
            except PERMANENT:
                raise
            except self.failures as error:
                if tries:  # a single failure is not worth a message
                    self.trouble(reason(error))
                if self.stop.wait(min(self.first_delay * 2 ** min(tries, 20), self.longest_delay)):
                    raise Stopped(reason(error)) from error
        self.busy = time.monotonic()

    def trouble(self, why: str) -> None:
        """Say that nothing can be written and ``why``, unless that was said lately."""
        now = time.monotonic()
        with self.lock:
            if now < self.next_word:
                return
            lasts, self.since = self.since is not None, now if self.since is None else self.since
            self.next_word, self.pause = now + self.pause, self.pause * 2
        logger.warning(
            f"still cannot write to the store {self.where} after {now - self.since:.0f} s ({why}): {self.waiting()} "
            "are waiting in memory"
            if lasts
            else f"cannot write to the store {self.where} ({why}): the run continues, rows wait in memory, and writing "
            "is retried until it succeeds"
        )

    def look(self) -> None:
        """Say that the write in progress hangs, if it has shown no sign of life for ``silence`` seconds."""
        busy = self.busy
        if busy is not None and time.monotonic() - busy > self.silence:
            self.trouble(f"no answer for {time.monotonic() - busy:.0f} s")

    def begin(self) -> None:
        """Note that a write begins."""
        self.busy = time.monotonic()

    def end(self) -> None:
        """Note that the write has succeeded; say that trouble is over if any was reported."""
        self.busy = None
        with self.lock:
            since, self.since, self.pause = self.since, None, self.repeat
        if since is not None:
            took = time.monotonic() - since
            logger.warning(f"can write to the store {self.where} again after {took:.0f} s: no rows were lost")


def reason(error: Exception) -> str:
    """Return an error in at most 200 characters."""
    text = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    return str(text)[:200].rstrip(".")


def for_each(function: Callable[[T], None], items: Iterable[T], threads: int) -> None:
    """Call ``function(item)`` for every item, on up to ``threads`` threads; return when all have ended.

    The standard library's pools are joined at exit, which would hang if a server does not answer.
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

    others = [threading.Thread(target=work, daemon=True) for _ in range(min(threads, jobs.qsize()) - 1)]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]

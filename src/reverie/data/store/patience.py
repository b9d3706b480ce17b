"""Writing to a place that fails now and then: try again until it works, and say so without a flood of words."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from reverie.core.errors import ReverieError

T = TypeVar("T")


class Stopped(Exception):
    """The store was closed before a write got through."""


class Patience:
    """Repeats what fails until it works or ``stop`` is set; says when trouble starts, when it lasts, when it ends."""

    first_delay, longest_delay = 0.1, 10.0
    silence = 30.0
    """Seconds without an answer that count as trouble."""
    repeat = 60.0
    """Seconds before trouble is spoken of again, doubled each time."""

    def __init__(
        self,
        where: str,
        failures: tuple[type[Exception], ...],
        say: Callable[[str], None],
        waiting: Callable[[], str],
        lasts: bool = True,
    ) -> None:
        """``waiting`` says how much is held back, such as "12 MB of rows"; without ``lasts`` nothing is repeated."""
        self.where, self.failures, self.say, self.waiting = where, failures if lasts else (), say, waiting
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.busy: float | None = None  # when the write in progress was last heard of
        self.since: float | None = None  # when trouble was first spoken of
        self.next_word = 0.0
        self.pause = self.repeat

    def insist(self, action: Callable[[], T]) -> T:
        """The result of ``action``, which may be repeated.

        Raises:
            Stopped: the store is being closed, and it had not worked until then.
            Exception: what ``action`` raised, if that is not to be repeated.
        """
        delay, tries = self.first_delay, 0
        while True:
            try:
                result = action()
            except ReverieError:
                raise
            except self.failures as error:
                tries += 1
                if tries > 1:  # one slip is not worth a word
                    self.trouble(reason(error))
                if self.stop.wait(delay):
                    raise Stopped(reason(error)) from error
                delay = min(delay * 2, self.longest_delay)
            else:
                self.busy = time.monotonic()
                return result

    def trouble(self, why: str) -> None:
        """Say that nothing can be written, if it has not been said lately."""
        now = time.monotonic()
        with self.lock:
            lasting = self.since is not None
            if now < self.next_word:
                return
            self.since = self.since if self.since is not None else now
            self.next_word, self.pause = now + self.pause, self.pause * 2
            seconds = now - self.since
        if lasting:
            self.say(f"the store {self.where} still cannot be written after {seconds:.0f} s ({why}): "
                     f"{self.waiting()} wait in memory")  # fmt: skip
        else:
            self.say(f"the store {self.where} cannot be written now ({why}): the run goes on, rows wait in memory, "
                     "and it is tried again until it works")  # fmt: skip

    def look(self) -> None:
        """Say that a write hangs, if it does."""
        busy = self.busy
        if busy is not None and time.monotonic() - busy > self.silence:
            self.trouble(f"no answer for {time.monotonic() - busy:.0f} s")

    def begin(self) -> None:
        """A write begins."""
        self.busy = time.monotonic()

    def end(self) -> None:
        """It has worked."""
        self.busy = None
        with self.lock:
            since, self.since, self.pause = self.since, None, self.repeat
        if since is not None:
            self.say(f"the store {self.where} can be written again, {time.monotonic() - since:.0f} s later: "
                     "no row was lost")  # fmt: skip


def reason(error: Exception) -> str:
    """An error in a few words."""
    text = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    return str(text)[:200].rstrip(".")

"""Signals that end a run: after the first, the loop finishes its iteration and saves; the second stops at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Self

from reverie.core.clock import Clock
from reverie.core.logger import print_line
from reverie.core.signals import PARENT_PID, PENDING_EXCEPTIONS, SIGNALS

HANGUP = getattr(signal, "SIGHUP", None)
SAME_SIGNAL_SECONDS = 1.0
"""Seconds within which two signals to a child process count as one: a scheduler, which signals every process, may send
the same to its parent, which passes it on."""


def _handled_signals() -> list[signal.Signals]:
    """Return ``SIGNALS``, without SIGHUP if it is ignored (``nohup``)."""
    return [number for number in SIGNALS if number != HANGUP or signal.getsignal(number) is not signal.SIG_IGN]


@contextlib.contextmanager
def handle_signals(
    handle: Callable[[int, FrameType | None], object], numbers: Iterable[int] | None = None
) -> Iterator[None]:
    """Handle the signals ``numbers`` with ``handle`` inside the context.

    Default: :func:`_handled_signals`. Only works in the main thread; in other threads this does nothing.
    """
    main = threading.current_thread() is threading.main_thread()
    handled_signals = (_handled_signals() if numbers is None else numbers) if main else ()
    before = {number: signal.signal(number, handle) for number in handled_signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def collect_signals() -> Iterator[list[int]]:
    """Collect signals received inside the context.

    A hangup of the terminal, which may arrive twice, is recorded once.
    """
    got: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if number != HANGUP or number not in got:
            got.append(number)

    with handle_signals(handle):
        yield got


class SignalStop(BaseException):
    """A signal ended the work at once; everything worth keeping was saved before. Not an ``Exception``."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


@contextlib.contextmanager
def explain_interrupt(text: str) -> Iterator[None]:
    """Add ``text`` to a KeyboardInterrupt from inside, unless it has been explained."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if not hasattr(interrupt, "__notes__"):
            interrupt.add_note(text)
        raise


@contextlib.contextmanager
def raise_on_signal() -> Iterator[None]:
    """Raise :class:`SignalStop` inside when one of ``SIGNALS`` arrives."""

    def stop(number: int, frame: FrameType | None) -> None:
        PENDING_EXCEPTIONS.append(SignalStop(signal.Signals(number)))
        raise PENDING_EXCEPTIONS[-1]

    before = len(PENDING_EXCEPTIONS)
    try:
        with handle_signals(stop):
            yield
    finally:
        del PENDING_EXCEPTIONS[before:]


class Interrupt(contextlib.ExitStack):
    """A context in which one of ``SIGNALS`` sets ``clock.stop``. A second one raises KeyboardInterrupt with its number.

    A closed terminal sends SIGHUP twice, from the system and from the shell: it never counts as a second signal. If it
    was ignored before, as ``nohup`` does, it stays ignored.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.received: signal.Signals | None = None
        self.since: float = 0.0

    def __enter__(self) -> Self:
        self.enter_context(handle_signals(self.handle))
        return self

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Ask the loop to stop; raise KeyboardInterrupt if it was asked before."""
        if self.received is not None and (
            number == HANGUP or (PARENT_PID and time.monotonic() - self.since < SAME_SIGNAL_SECONDS)
        ):
            return
        if self.received is not None:
            raise KeyboardInterrupt(number)
        self.received, self.since = signal.Signals(number), time.monotonic()
        self.clock.stop = True
        self.tell_stop(
            f"{self.received.name}: finishing this iteration, then saving. "
            "Interrupt again to stop at once without saving."
        )

    def tell_stop(self, text: str) -> None:
        """Show the notice ``text`` in the panel, or print it to stderr if there is no panel.

        Unbuffered: the signal may have interrupted a write to a buffered stream.
        """
        watch = self.clock.watch
        watch.notice = text
        if watch.is_main and not watch.has_panel:
            with contextlib.suppress(OSError):  # the reader may be gone, perhaps because of the same signal
                os.write(2, f"\n{text}\n".encode())

    def print_line(self, text: str) -> None:
        """Print one line to stderr, above the panel."""
        if self.clock.watch.is_main:
            print_line(text, sys.stderr)

"""Signals that end a run kindly: once to finish the turn and save, twice to stop at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import ClassVar, Self

from reverie.core.clock import Clock
from reverie.core.signals import PENDING

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name))
"""Ctrl-C; what a scheduler sends at the end, and what Slurm sends before it when asked to (``--signal=B:USR1@60``); and
what comes when a terminal is closed or its connection breaks."""
HANGUP = getattr(signal, "SIGHUP", None)


def heeded() -> list[signal.Signals]:
    """``SIGNALS``, without a hangup that is to be ignored."""
    return [number for number in SIGNALS if number != HANGUP or signal.getsignal(number) is not signal.SIG_IGN]


@contextlib.contextmanager
def listening(
    handle: Callable[[int, FrameType | None], object], numbers: Iterable[int] | None = None
) -> Iterator[None]:
    """While entered, ``handle`` gets signals: ``numbers``, or else those that are :func:`heeded`.

    Only the main thread can listen for signals; in any other this does nothing.
    """
    main = threading.current_thread() is threading.main_thread()
    wanted = (heeded() if numbers is None else numbers) if main else ()
    before = {number: signal.signal(number, handle) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


class Stopped(BaseException):
    """A signal ended what was going on; what is worth keeping has been saved before."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """While entered, ``SIGNALS`` end what goes on at once.

    Raises:
        Stopped: one came.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        PENDING.append(Stopped(signal.Signals(number)))
        raise PENDING[-1]

    before = len(PENDING)
    try:
        with listening(stop):
            yield
    finally:
        del PENDING[before:]


class Interrupt(contextlib.ExitStack):
    """While entered, ``SIGNALS`` set ``clock.stop``. A second signal raises KeyboardInterrupt.

    The end of a terminal is told by the system and by the shell: it counts once. Where it was to be ignored, as
    ``nohup`` wants, it is.
    """

    together: ClassVar[float] = 0.0
    """Seconds within which further signals are the first one: in a child, which a scheduler that signals every process
    and a parent that passes on what it got both tell."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.received: signal.Signals | None = None
        self.since = 0.0

    def __enter__(self) -> Self:
        self.enter_context(listening(self.handle))
        return self

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Ask the loop to end, or end at once if it was asked before."""
        if self.received is not None and (number == HANGUP or time.monotonic() - self.since < self.together):
            return
        if self.received is not None:
            raise KeyboardInterrupt
        self.received, self.since = signal.Signals(number), time.monotonic()
        self.clock.stop = True
        self.say(f"{self.received.name}: finishing this turn, then saving. Once more to stop at once without saving.")

    def say(self, text: str) -> None:
        """One line on stderr, unbuffered: inside a signal handler buffered streams may be half-way through a write."""
        with contextlib.suppress(OSError):  # whoever read it has gone, perhaps for the same signal
            os.write(2, f"\n{text}\n".encode())

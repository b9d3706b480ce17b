"""Signals around worker processes: deferred in the parent while one is forked, left to the parent in a worker.

This file must not import torch; see ``envs/worker.py``.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Handle signals that arrive inside afterwards: Python ignores what handlers raise in callbacks of ``os.fork``."""
    arrived: list[int] = []
    main = threading.current_thread() is threading.main_thread()  # no other thread runs handlers
    handlers = {number: signal.getsignal(number) for number in _signals()} if main else {}
    for number, handler in handlers.items():
        if callable(handler):
            signal.signal(number, lambda number, _: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if callable(handler):
                signal.signal(number, handler)
        for late in arrived:
            signal.raise_signal(late)


def leave_signals_to_the_parent() -> None:
    """Do nothing on Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP, which whole jobs get: the parent decides when workers end.

    Only Ctrl-C is ignored (SIG_IGN). The others get an empty handler, as programs that an environment starts would
    inherit SIG_IGN and could not be ended.
    """
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    for number in _signals():
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_IGN)
        elif signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, nothing)


def _signals() -> list[signal.Signals]:
    """Return the signals that are meant for the parent, as far as this system has them."""
    names = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")
    return [getattr(signal, name) for name in names if hasattr(signal, name)]

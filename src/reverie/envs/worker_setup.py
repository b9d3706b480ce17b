"""What surrounds the start of a worker process: environment variables, signals, and a hint if it fails.

This file must not import torch; see ``envs/worker.py``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping


@contextlib.contextmanager
def environment_variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes that are started inside; afterwards they are as before."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Handle signals that arrive inside afterwards: Python ignores what handlers raise in callbacks of ``os.fork``."""
    arrived: list[int] = []
    main = threading.current_thread() is threading.main_thread()  # no other thread runs handlers
    handlers = {number: signal.getsignal(number) for number in _signals()} if main else {}
    for number, handler in handlers.items():
        if callable(handler):
            signal.signal(number, lambda late, _: arrived.append(late))
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


def why_at_start() -> str:
    """Return a hint for a worker that died before it had made its environment."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is not None and not os.path.exists(script):
        return f" It could not import '{script}'. Save the script as a file, or use env.start_method = 'fork'."
    return (
        " It died during start-up: a script that starts worker processes must do so under "
        "`if __name__ == \"__main__\":`, or use env.start_method = 'fork'."
    )

"""Signals that end a run, and pending interrupts: Python drops what a handler raises inside a library's callback."""

from __future__ import annotations

import signal

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name))
"""Ctrl-C; the signal of schedulers at the end of a job, and Slurm's optional one before it (``--signal=B:USR1@60``);
and the signal that a closed terminal or a lost connection sends."""
PENDING: list[BaseException] = []
"""Exceptions that signal handlers raised and that have not ended the program yet."""


def check_signals() -> None:
    """Raise the newest pending exception, if there is one.

    Raises:
        BaseException: the one that the signal handler raised.
    """
    if PENDING:
        raise PENDING[-1]

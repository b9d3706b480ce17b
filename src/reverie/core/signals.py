"""Signals that end a run, and pending interrupts: Python drops exceptions of a handler inside a library's callback."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time

PARENT_PID_VAR = "REVERIE_PARENT_PID"
"""Environment variable with the id of the parent process, which passes on its signals."""
PARENT_PID: list[int] = []
"""The parent's id, in a process that :func:`die_with_parent` recognized as a child."""

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name))
"""Ctrl-C; the signal of schedulers at the end of a job, and Slurm's optional one before it (``--signal=B:USR1@60``);
and the signal that a closed terminal or a lost connection sends."""
SAVE_SECONDS = 60.0
"""Seconds in which a child process can save after its parent has ended."""
PENDING_EXCEPTIONS: list[BaseException] = []
"""Exceptions that signal handlers raised and that have not ended the program yet."""


def check_signals() -> None:
    """Raise the newest pending exception, if there is one."""
    if PENDING_EXCEPTIONS:
        raise PENDING_EXCEPTIONS[-1]


def is_interrupt(error: BaseException) -> bool:
    """Return whether a signal raised ``error``; called user code raises all other errors, including SystemExit.

    While reverie handles SIGINT, a KeyboardInterrupt from a signal is pending or contains its number.
    """
    if not isinstance(error, KeyboardInterrupt):
        return error in PENDING_EXCEPTIONS
    numbered = any(isinstance(value, int) for value in error.args)
    return numbered or error in PENDING_EXCEPTIONS or signal.getsignal(signal.SIGINT) is signal.default_int_handler


def die_with_parent() -> None:
    """In a child process, ask the system to send SIGTERM when the parent ends for any reason. Linux only.

    A child that is still there after ``SAVE_SECONDS`` exits: its environment hangs.
    """
    if (parent_pid := os.environ.pop(PARENT_PID_VAR, None)) is None:  # not for the child's own children
        return
    PARENT_PID.append(int(parent_pid))
    if sys.platform.startswith("linux"):
        set_signal = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(set_signal, signal.SIGTERM)
        if os.getppid() != PARENT_PID[0]:  # the parent ended before the request
            raise SystemExit(128 + signal.SIGTERM)
        threading.Thread(target=_exit_after_parent, name="parent", daemon=True).start()


def _exit_after_parent() -> None:
    while os.getppid() == PARENT_PID[0]:
        time.sleep(1.0)
    time.sleep(SAVE_SECONDS)
    os._exit(128 + signal.SIGTERM)

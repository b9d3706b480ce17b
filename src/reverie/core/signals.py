"""Pending interrupts: Python drops an exception that a signal handler raises inside a library's callback."""

from __future__ import annotations

PENDING: list[BaseException] = []
"""Exceptions that signal handlers raised and that have not ended the program yet."""


def check_signals() -> None:
    """Raise the newest pending exception, if there is one.

    Raises:
        BaseException: the one that the signal handler raised.
    """
    if PENDING:
        raise PENDING[-1]

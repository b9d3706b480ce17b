"""Signals that were to end what goes on, for where Python swallows what a handler raises: in callbacks of libraries."""

from __future__ import annotations

PENDING: list[BaseException] = []
"""What was raised, until whoever listens has ended."""


def check_signals() -> None:
    """End here if that was asked for.

    Raises:
        BaseException: what the handler raised.
    """
    if PENDING:
        raise PENDING[-1]

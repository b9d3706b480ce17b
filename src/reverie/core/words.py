"""Words of messages."""

from __future__ import annotations


def plural(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def repeated(what: str, times: int) -> str:
    """Return a remark with how often it applies, if more than once."""
    return f"{what} ({times:,} times)" if times > 1 else what

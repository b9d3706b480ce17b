"""What all tables share: numbers, times and Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def digits(value: float | None, unit: str = "") -> str:
    """Two or three digits, or a dash."""
    if value is None:
        return "-"
    places = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{places}f}{unit}"


def time(value: float | None, unit: float = 1.0) -> str:
    """``value`` in units of so many seconds, in s or ms."""
    if value is None:
        return "-"
    seconds = value * unit
    return digits(seconds, " s") if seconds >= 0.1 else digits(seconds * 1e3, " ms")


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table of Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return [lines[0], "|---" * len(head) + "|", *lines[1:]]


def spread(scores: Sequence[float]) -> str:
    """The mean, and in parentheses the lowest and the highest of several scores."""
    text = digits(sum(scores) / len(scores))
    return f"{text} ({digits(min(scores))} to {digits(max(scores))})" if len(scores) > 1 else text

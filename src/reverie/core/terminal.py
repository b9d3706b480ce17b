"""Text on its way to a terminal or a log: names in the files of strangers can contain commands for the terminal."""

from __future__ import annotations

import re
from typing import TextIO

_COMMANDS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters except tabs and line ends, marks that turn the direction of text, and halves of characters.

The last ones stand for bytes of file names that are not UTF-8.
"""


def printable(text: str) -> str:
    r"""Return ``text`` with characters that command a terminal, or cannot be written, as in ``\x1b`` and ``\u202e``."""
    return text if text.isprintable() else _COMMANDS.sub(lambda match: ascii(match[0])[1:-1], text)


def show(text: object = "", stream: TextIO | None = None, *, flush: bool = False) -> None:
    """Print a text to ``stream`` (default: standard output), with characters that command a terminal made visible."""
    print(printable(str(text)), file=stream, flush=flush)


def formula_free(cell: object) -> object:
    """Return a cell for a CSV file: a spreadsheet computes texts that begin like a formula, and shows others.

    They begin with an apostrophe then (OWASP, "CSV injection").
    """
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell

"""Imported first: Ctrl-C while the command ``reverie`` imports its modules is one line, not a traceback."""

from __future__ import annotations

import sys
from types import TracebackType


def _print_interrupt(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report an exception that ends the program, as ``sys.excepthook`` does."""
    if issubclass(kind, KeyboardInterrupt):
        print("reverie: interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


if sys.argv[:1] and (sys.argv[0].endswith(("/reverie", "\\reverie.exe")) or sys.orig_argv[1:3] == ["-m", "reverie"]):
    sys.excepthook = _print_interrupt

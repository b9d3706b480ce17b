"""The logger ``"reverie"``, which reports to users.

Progress has level INFO and goes to standard output; problems have level WARNING and go to standard error. A program
with its own logging takes over with ``logger.handlers.clear()`` and ``logger.propagate = True``.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import TextIO

from reverie.core.terminal import printable

NO_READER_ERRORS = (errno.EPIPE, errno.EIO)
"""Write errors when there is no reader any more: a closed pipe, a closed terminal."""


def print_line(text: str, stream: TextIO | None = None) -> None:
    """Print a line to ``stream`` (default: standard output). Without a reader, output is discarded from then on."""
    stream = sys.stdout if stream is None else stream
    with survive_broken_pipe(stream):
        print(wrap_words(printable(text), stream), file=stream, flush=True)


def wrap_words(text: str, stream: TextIO | None = None) -> str:
    """Break lines between words where ``stream`` (default: standard output) is a terminal that would break them inside.

    Continued lines are indented by two columns more. Elsewhere the text is unchanged: programs read whole lines.
    """
    stream = sys.stdout if stream is None else stream
    if not stream.isatty():
        return text
    columns = shutil.get_terminal_size().columns
    lines: list[str] = []
    for line in text.split("\n"):
        margin = line[: len(line) - len(line.lstrip())]
        wrapped = textwrap.wrap(
            line, columns, subsequent_indent=f"{margin}  ", break_long_words=False, break_on_hyphens=False
        )
        lines += wrapped if len(line) > columns else [line]
    return "\n".join(lines)


@contextlib.contextmanager
def survive_broken_pipe(stream: TextIO) -> Iterator[None]:
    """Ignore that ``stream`` has lost its reader: redirect it to the null device, so that the run continues."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_READER_ERRORS:
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class PrintHandler(logging.Handler):
    """Prints the logger's records, each on a line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print ``record``."""
        trouble = record.levelno >= logging.WARNING
        print_line("warning: " * trouble + self.format(record), sys.stderr if trouble else sys.stdout)


logger: logging.Logger = logging.getLogger("reverie")
logger.setLevel(logging.INFO)
logger.propagate = False
PRINT_HANDLER: PrintHandler = PrintHandler()
logger.addHandler(PRINT_HANDLER)


def log_warnings_as(prefix: str) -> None:
    """Log only warnings from now on, after ``prefix``. Use it in all learner processes but the first."""
    logger.setLevel(logging.WARNING)
    PRINT_HANDLER.setFormatter(logging.Formatter(f"{prefix}: %(message)s"))


@contextlib.contextmanager
def silence_logger(when: bool = True) -> Iterator[None]:
    """Disable the logger inside the context if ``when`` is true."""
    logger.disabled = when
    try:
        yield
    finally:
        logger.disabled = False

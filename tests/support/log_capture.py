"""What is logged, as a list."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from reverie.core.logger import logger


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """Collect what is logged, line by line."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)

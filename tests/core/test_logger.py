"""What the library tells its users goes through Python's logging."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import TextIO, cast

import pytest

from reverie.core.logger import logger, silence_logger, wrap_words


def test_trouble_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    logger.info("100 % done")
    logger.warning("it broke")
    with silence_logger():
        logger.warning("nobody hears")
    with silence_logger(when=False):
        logger.info("heard")
    assert capsys.readouterr() == ("100 % done\nheard\n", "warning: it broke\n")


def test_a_terminal_gets_whole_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    text = "  the observation-space is unbounded\nshort"
    screen = cast(TextIO, SimpleNamespace(isatty=lambda: True))
    assert wrap_words(text, screen).splitlines() == ["  the observation-space is", "    unbounded", "short"]
    assert wrap_words(text, cast(TextIO, SimpleNamespace(isatty=lambda: False))) == text


def test_a_learner_or_an_actor_names_itself() -> None:
    code = "from reverie.core.logger import *; log_warnings_as('actor 3'); logger.info('a'); logger.warning('b')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "warning: actor 3: b\n")


def test_a_program_takes_the_lines_over() -> None:
    code = """
import logging, reverie
logging.basicConfig(format="mine: %(message)s")
logging.getLogger("reverie").handlers.clear()
logging.getLogger("reverie").propagate = True
reverie.train  # the rest of the library is imported now
from reverie.core.logger import logger
logger.info("a")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "mine: a\n")

"""A stand-in for child processes that really trains."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from reverie.cli import main


class InProcess:
    """Plays ``run_processes.py: Child``: the command runs in this process, to its end."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        with log.open("a") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            self.code = main(command)

    def poll(self) -> int:
        return self.code

    def last_line(self) -> str:
        return ""

    def tell(self, number: int) -> None:
        pass

    def wait(self) -> None:
        pass

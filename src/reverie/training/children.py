"""Commands of reverie in processes of their own: started, watched and told to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Self

from reverie.log.board import State
from reverie.run.interrupt import HANGUP, SIGNALS, listening

PROGRAM = "reverie.child"
"""The module that runs a command and ends with us."""


class Child:
    """A command of reverie in a process of its own, whose output goes to the end of a file.

    It has a session of its own, so that Ctrl-C reaches it through us alone, who tell it once.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        """Start it. ``command`` is what would follow ``reverie`` on the command line."""
        self.log, self.begin = log, log.stat().st_size if log.exists() else 0
        program = [sys.executable, "-u", "-m", PROGRAM, str(os.getpid())]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [*program, *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(own_paths())},
                start_new_session=True,
            )

    def code(self) -> int | None:
        """Its exit code, 128 + n if signal n killed it; None while it runs."""
        code = self.process.poll()
        return 128 - code if code is not None and code < 0 else code

    def tell(self, number: int) -> None:
        """Send it a signal."""
        with contextlib.suppress(OSError):  # it has just ended
            self.process.send_signal(number)

    def last_words(self) -> str:
        """The last line that it wrote; nothing if it wrote none."""
        with self.log.open("rb") as file:
            file.seek(self.begin)
            lines = file.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


class Signals(contextlib.ExitStack):
    """While entered, signals are written down in ``got``, for children to be told."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__()
        self.numbers = numbers
        self.got: list[int] = []

    def __enter__(self) -> Self:
        self.enter_context(listening(self.handle, self.numbers))
        return self

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Write it down; the end of a terminal, which may be told twice, once."""
        if number != HANGUP or number not in self.got:
            self.got.append(number)


def verdict(code: int, words: str) -> tuple[State, str]:
    """How a process ended, by its exit code and the last line that it wrote."""
    if code == 0:
        return "finished", "finished"
    if code in [128 + number for number in SIGNALS]:
        return "stopped", f"stopped by {signal.Signals(code - 128).name}"
    if code > 128:
        lack = ", perhaps for want of memory" if code - 128 == signal.SIGKILL else ""
        return "failed", f"failed: killed by {signal.Signals(code - 128).name}{lack}"
    return "failed", f"failed: {words.removeprefix('reverie: ') or f'exit code {code}'}"


def own_paths() -> list[str]:
    """Where this process finds modules, but for those that come with this Python: a script's folder is among them."""
    homes = tuple(os.path.join(prefix, "") for prefix in {sys.prefix, sys.base_prefix})
    return [path for path in map(os.path.abspath, sys.path) if not path.startswith(homes)]

"""Run commands of reverie as child processes: start them, watch them, send them signals."""

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

from reverie.core.signals import SIGNALS
from reverie.log.board import LaneState
from reverie.run.interrupt import HANGUP, listening

PROGRAM = "reverie.child"
"""The module that runs a command, and ends when its parent process ends."""


class Child:
    """A command of reverie in a child process, whose output is appended to a file.

    The child has a session of its own, so Ctrl-C in the terminal does not reach it directly: the parent passes each
    signal on, once.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        """Start the process. ``command``: the words that would follow ``reverie`` on the command line."""
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
        """Return the exit code, 128 + n if signal n killed the process, or None while it runs."""
        code = self.process.poll()
        return 128 - code if code is not None and code < 0 else code

    def tell(self, number: int) -> None:
        """Send a signal to the process."""
        with contextlib.suppress(OSError):  # the process has just ended
            self.process.send_signal(number)

    def last_words(self) -> str:
        """Return the last line that the process wrote, or "" if it wrote none."""
        with self.log.open("rb") as file:
            file.seek(self.begin)
            lines = file.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


class Signals(contextlib.ExitStack):
    """While entered, collects received signals in ``got``, to be passed on to the children."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__()
        self.numbers = numbers
        self.got: list[int] = []

    def __enter__(self) -> Self:
        self.enter_context(listening(self.handle, self.numbers))
        return self

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Record a signal. A hangup of the terminal, which may arrive twice, is recorded once."""
        if number != HANGUP or number not in self.got:
            self.got.append(number)


def verdict(code: int, words: str) -> tuple[LaneState, str]:
    """Return how a process ended, from its exit code and the last line that it wrote."""
    if code == 0:
        return "finished", "finished"
    if code in [128 + number for number in SIGNALS]:
        return "stopped", f"stopped by {signal.Signals(code - 128).name}"
    if code > 128 and code - 128 in list(signal.Signals):
        lack = ", possibly out of memory" if code - 128 == signal.SIGKILL else ""
        return "failed", f"failed: killed by {signal.Signals(code - 128).name}{lack}"
    return "failed", f"failed: {words.removeprefix('reverie: ') or f'exit code {code}'}"


def own_paths() -> list[str]:
    """Return the import paths of this process, such as a script's folder, without those that belong to this Python."""
    homes = tuple(os.path.join(prefix, "") for prefix in {sys.prefix, sys.base_prefix})
    return [path for path in map(os.path.abspath, sys.path) if not path.startswith(homes)]

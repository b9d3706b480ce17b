"""Several seeds of one experiment, each trained by a process of its own; their folder, and how they end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

from reverie.core.errors import RunError
from reverie.core.files import writing
from reverie.core.signals import PARENT, SIGNALS
from reverie.core.words import Say
from reverie.run.folder import RunFolder
from reverie.run.signals import HANGUP, heeded, listening

State = Literal["waiting", "running", "finished", "stopped", "failed"]

POLL = 0.2
"""Seconds between two polls of the child processes."""


@dataclass(kw_only=True)
class SeedRun:
    """State of the run of one seed."""

    seed: int
    run: Path
    """Run folder of this seed."""
    log: Path
    """File with the output of its process."""
    state: State = "waiting"
    """One of "waiting", "running", "finished", "stopped" and "failed"."""
    note: str = ""
    """A few words on the state, such as the score of a finished seed or the error of a failed one."""

    @property
    def begun(self) -> bool:
        """Whether there is a run of this seed."""
        return RunFolder(self.run).config.is_file()


class SeedsFolder:
    """Paths in the folder of several seeds. Reading them creates nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / "settings.yaml"  # shared by all seeds: as the config.yaml of a run, without a seed
        self.aggregate = path / "aggregate.json"  # the state of each seed, and the aggregate of those that finished
        self.curve = path / "curve.png"  # the learning curves

    def run(self, seed: int) -> SeedRun:
        """Return the run of a seed, which waits."""
        return SeedRun(seed=seed, run=self.path / f"seed-{seed}", log=self.path / f"seed-{seed}.log")

    def finished(self) -> list[int]:
        """Return the seeds that had finished when aggregate.json was written; none if that cannot be read."""
        try:
            runs = json.loads(self.aggregate.read_text(encoding="utf-8"))["runs"]
            return [int(run["seed"]) for run in runs if run["state"] == "finished"]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def files(self) -> dict[str, Path]:
        """Return the existing files that people read, by name."""
        known = {"settings": self.settings, "aggregate": self.aggregate, "curve": self.curve}
        return {what: path for what, path in known.items() if path.exists()}


class Child:
    """A command of reverie in a child process, whose output is appended to a file.

    The child has a session of its own, so Ctrl-C in the terminal does not reach it directly: the parent passes each
    signal on, once. On Linux it ends with the parent.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        """Start the process. ``command``: the words that would follow ``reverie`` on the command line."""
        self.log, self.begin = log, log.stat().st_size if log.exists() else 0
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-m", "reverie", *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(own_paths()), PARENT: str(os.getpid())},
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


def own_paths() -> list[str]:
    """Return the import paths of this process, such as a script's folder, without those that belong to this Python."""
    homes = tuple(os.path.join(prefix, "") for prefix in {sys.prefix, sys.base_prefix})
    return [path for path in map(os.path.abspath, sys.path) if not path.startswith(homes)]


def verdict(code: int, words: str) -> tuple[State, str]:
    """Return how a process ended, from its exit code and the last line that it wrote."""
    if code == 0:
        return "finished", "finished"
    if code in [128 + number for number in SIGNALS]:
        return "stopped", f"stopped by {signal.Signals(code - 128).name}"
    if code > 128 and code - 128 in list(signal.Signals):
        lack = ", possibly out of memory" if code - 128 == signal.SIGKILL else ""
        return "failed", f"failed: killed by {signal.Signals(code - 128).name}{lack}"
    return "failed", f"failed: {words.removeprefix('reverie: ') or f'exit code {code}'}"


def train_runs(
    runs: Sequence[SeedRun],
    command: Callable[[SeedRun], Sequence[str]],
    jobs: int,
    show: Callable[[SeedRun | None], None],
    say: Say,
) -> int | None:
    """Train each of ``runs`` that waits, ``jobs`` at a time; return the number of the signal that ended it, if any.

    Args:
        runs: their states are kept up to date.
        command: returns the words that train one, after ``reverie``.
        jobs: most processes at a time.
        show: called with each run whose state has changed, and often with None.
        say: called with a sentence about a signal.
    """
    running: dict[int, Child] = {}
    refused: list[str] = []

    def hopeless() -> bool:
        return bool(refused) and not any(run.begun for run in runs)

    with collected_signals() as got, ending(running):
        told = 0
        while running or (not got and not hopeless() and any(run.state == "waiting" for run in runs)):
            told = pass_on(got, told, list(running.values()), say)
            for run in runs:
                if run.state == "waiting" and len(running) < jobs and not got and not hopeless():
                    with writing(run.log.parent):
                        running[run.seed] = Child(command(run), run.log)
                    run.state = "running"
                    show(run)
                elif run.seed in running and (code := running[run.seed].code()) is not None:
                    words = running.pop(run.seed).last_words()
                    run.state, run.note = verdict(code, words)
                    if run.state == "failed" and words.startswith("reverie: ") and not run.begun:
                        refused.append(words.removeprefix("reverie: "))
                    show(run)
            show(None)
            time.sleep(POLL)
    if hopeless():
        raise RunError(refused[0])
    return got[0] if got else None


def pass_on(got: Sequence[int], told: int, children: Sequence[Child], say: Say) -> int:
    """Pass received signals on, from number ``told`` on; return how many there are now.

    After the second the children stop at once; the third kills them.
    """
    for number in got[told:]:
        told += 1
        if told == 1:
            say(
                f"{signal.Signals(number).name}: the running seeds finish their iteration, then save. Interrupt again "
                "to stop them at once without saving."
            )
        for child in children:
            child.tell(number if told < 3 else signal.SIGKILL)
    return told


@contextlib.contextmanager
def collected_signals() -> Iterator[list[int]]:
    """Collect received signals meanwhile. A hangup of the terminal, which may arrive twice, is recorded once."""
    got: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if number != HANGUP or number not in got:
            got.append(number)

    with listening(handle, heeded()):
        yield got


@contextlib.contextmanager
def ending(running: dict[int, Child]) -> Iterator[None]:
    """At the end ask the children that still run, as an error has occurred here, to save and end, and wait."""
    try:
        yield
    finally:
        for child in running.values():
            child.tell(signal.SIGTERM)
        for child in running.values():
            child.process.wait()

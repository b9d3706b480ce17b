"""Train several seeds of one experiment, each as a run in a process of its own, and aggregate their results."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from reverie.core.compiler import trouble
from reverie.core.discover import algorithm_name
from reverie.core.errors import RunError
from reverie.core.files import check_local
from reverie.core.importing import trusts
from reverie.core.machine import choose_device
from reverie.core.words import Say, plural
from reverie.experiment import ExperimentConfig
from reverie.folder import check_writable, writing
from reverie.log.board import Board, Lane, LaneState, NoBoard, board_of
from reverie.log.console import tell
from reverie.offline import resolved, subject
from reverie.run.interrupt import heeded
from reverie.run.lock import RunLock
from reverie.saved import SCHEMA, settings_changes
from reverie.training.aggregate import Aggregate, aggregate, unit_of, write_aggregate
from reverie.training.children import Child, Signals, verdict
from reverie.training.initial import with_beginning
from reverie.training.seeds_folder import (
    SeedsFolder,
    check_finished,
    check_folder,
    check_seeds,
    choose_folder,
    make_folder,
    plain_settings,
    sweep,
    write_settings,
)
from reverie.training.sinks import at_the_end

POLL = 0.2
"""Seconds between two polls of the child processes."""


@dataclass(frozen=True, kw_only=True)
class SeedRun:
    """State of the run of one seed."""

    seed: int
    """The seed."""
    run: Path
    """Run folder of this seed."""
    log: Path
    """File with the output of its process."""
    state: LaneState
    """One of "waiting", "running", "finished", "stopped" and "failed"."""
    note: str
    """A few words on the state, such as the score of a finished seed or the error of a failed one."""


@dataclass(frozen=True, kw_only=True)
class SeedsResult:
    """How several seeds ended, and the files that they left."""

    run: Path
    """Folder that holds the run folders of all seeds."""
    seeds: list[SeedRun]
    """State of each seed, in the order given."""
    signal: int | None
    """Number of the signal that interrupted the training; None if none did."""
    aggregate: Aggregate | None
    """Scores and curves of the seeds that finished; None if none has."""
    files: dict[str, Path] = field(default_factory=dict)
    """Existing files of the folder by name: "settings", "aggregate" and "curve"."""


def train_seeds(
    config: ExperimentConfig,
    seeds: Sequence[int],
    *,
    jobs: int = 0,
    run: Path | str | None = None,
    keep_newer: bool = False,
    say: Say = tell,
) -> SeedsResult:
    """Train each of ``seeds`` as ``reverie train --seed`` would, several at a time; continue seeds that have begun.

    Args:
        config: the settings; ``config.seed`` is ignored.
        seeds: the seeds, different integers >= 0.
        jobs: how many to train at a time. 0: as many as the cores allow with the threads of each; one on a GPU.
        run: the folder for all of them; seeds found there are continued. None: the newest folder under ``runs/`` with
            the same settings, or else a new one.
        keep_newer: as in :func:`reverie.training.run.train`.
        say: called with a sentence about what is happening, now and then.

    Raises:
        ReverieError: the settings cannot be passed to another process, none of the seeds could begin, or the folder
            holds something else or is being written.
    """
    check_seeds(config, seeds, jobs)
    check_local(run or "", "run")
    config = resolved(config, None, say)
    plain, name = plain_settings(config), algorithm_name(type(config.algo))
    folder = SeedsFolder(
        Path(os.path.expanduser(run)) if run is not None else choose_folder(subject(config), name, plain, say)
    )
    check_writable(folder.path)
    before = check_folder(folder, name, config.env.id)
    if before is not None:
        config = with_beginning(config, before, folder.path)
        plain = plain_settings(config)
        check_finished(folder, seeds, before, plain, "updates" if config.data.alone else "steps")
    more = ["--keep-newer"] * keep_newer + ["--trust"] * trusts()
    crew = Crew(config, folder, seeds, jobs or default_jobs(config), more, say)
    with writing(folder.path):
        made = make_folder(folder.path)
    try:
        with RunLock(folder.path):
            changes = settings_changes(before, plain) if before is not None else []
            for text in changes:
                say(text)
            if before is None or changes:
                with writing(folder.path):
                    write_settings(folder, name, plain)
            crew.skip_finished(again=bool(changes))
            return crew.work()
    finally:
        with contextlib.suppress(OSError):  # only empty folders are removed, which is so if no seed could begin
            for path in made:
                path.rmdir()


def default_jobs(config: ExperimentConfig) -> int:
    """Return how many seeds fit the CPU cores, given the threads of each; 1 on a GPU, which they would share."""
    if choose_device(config.device) != "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // (config.threads or torch.get_num_threads()))


class Crew:
    """The child processes of all seeds."""

    def __init__(
        self, config: ExperimentConfig, folder: SeedsFolder, seeds: Sequence[int], jobs: int, more: list[str], say: Say
    ) -> None:
        """``more``: further words for the command of each seed."""
        self.config, self.folder, self.jobs, self.more, self.say = config, folder, jobs, more, say
        self.name = algorithm_name(type(config.algo))
        width = max(len(str(seed)) for seed in seeds)
        total, unit = config.updates if config.data.alone else config.steps, unit_of(config).removeprefix("env ")
        self.lanes = {seed: Lane(f"seed {seed:<{width}}", folder.run(seed).metrics, total, unit) for seed in seeds}
        self.running: dict[int, Child] = {}
        self.refused: list[str] = []
        self.told = 0
        self.board: Board = NoBoard()

    def skip_finished(self, *, again: bool) -> None:
        """Skip the seeds that have finished with these settings. ``again``: check all of them anew."""
        states = {} if again else self.folder.states()
        for seed, lane in self.lanes.items():
            if states.get(seed) == "finished" and self.begun(seed):
                lane.state, lane.note = "finished", "already finished"

    def begun(self, seed: int) -> bool:
        """Return whether there is a run of this seed."""
        return self.folder.run(seed).config.is_file()

    def work(self) -> SeedsResult:
        """Run the seeds that have not finished.

        Raises:
            RunError: no seed could begin. What was written for them is deleted.
        """
        left = sum(lane.state == "waiting" for lane in self.lanes.values())
        title = f"{self.name} on {subject(self.config)}"
        with Signals(heeded()) as signals, contextlib.ExitStack() as stack:
            if left:
                together = f"{min(self.jobs, left)} at a time" if min(self.jobs, left) > 1 else "one at a time"
                seeds = f"{plural(left, 'seed')}, {together}"
                self.say(f"{title}: {seeds}, in {self.folder.path}; their output is in seed-*.log")
                on_cpu = choose_device(self.config.device) == "cpu"
                if on_cpu and trouble():
                    self.say(trouble())
                if on_cpu and self.jobs > 1 and not self.config.threads:
                    self.say("each seed uses all CPU cores: for small networks, --threads 1 is faster")
                self.board = board_of(list(self.lanes.values()), title) if self.config.console else NoBoard()
            stack.callback(self.board.close)
            stack.callback(self.end)
            while self.running or (self.waiting() and not signals.got):
                self.pass_on(signals)
                if not signals.got:
                    self.start()
                self.look()
                self.board.update()
                time.sleep(POLL)
        if self.hopeless:
            sweep(self.folder, list(self.lanes))
            raise RunError(self.refused[0])
        return self.result(title, signals.got[0] if signals.got else None)

    @property
    def hopeless(self) -> bool:
        """Whether a seed was refused and none has begun: the others, with the same settings, would be refused too."""
        return bool(self.refused) and not any(map(self.begun, self.lanes))

    def waiting(self) -> list[int]:
        """Return the seeds that have not been started."""
        if self.hopeless:
            return []
        return [seed for seed, lane in self.lanes.items() if lane.state == "waiting"]

    def start(self) -> None:
        """Start as many seeds as may run now."""
        for seed in self.waiting()[: max(0, self.jobs - len(self.running))]:
            words = ["train", self.name, "--config", str(self.folder.settings), "--seed", str(seed)]
            with writing(self.folder.path):
                command = [*words, "--run", str(self.folder.run(seed).path), *self.more]
                self.running[seed] = Child(command, self.folder.log(seed))
            self.lanes[seed].begin()
            self.board.changed(self.lanes[seed])

    def look(self) -> None:
        """Collect the processes that have ended, and write the aggregate so far."""
        for seed, child in list(self.running.items()):
            code = child.code()
            if code is None:
                continue
            del self.running[seed]
            lane, words = self.lanes[seed], child.last_words()
            lane.read()
            lane.state, lane.note = verdict(code, words)
            if lane.state == "finished" and "eval/score" in lane.values:
                lane.note += f" at {lane.env_steps:,} {lane.unit}, score {lane.values['eval/score']:.2f}"
            if lane.state == "failed" and words.startswith("reverie: ") and not self.begun(seed):
                self.refused.append(words.removeprefix("reverie: "))
            if self.hopeless:
                continue  # the error raised by ``work`` says it
            at_the_end(self.say, self.write)
            self.board.changed(lane)

    def pass_on(self, signals: Signals) -> None:
        """Pass received signals on. After the second the children stop at once; the third kills them."""
        for number in signals.got[self.told :]:
            self.told += 1
            if self.told == 1:
                self.say(
                    f"{signal.Signals(number).name}: the running seeds finish their iteration, then save. Interrupt "
                    "again to stop them at once without saving."
                )
            for child in self.running.values():
                child.tell(number if self.told < 3 else signal.SIGKILL)

    def end(self) -> None:
        """Ask the children that still run to save and end, and wait: an error has occurred here."""
        for child in self.running.values():
            child.tell(signal.SIGTERM)
        for child in self.running.values():
            child.process.wait()

    def write(self) -> Aggregate | None:
        """Write aggregate.json: the state of all seeds, and the aggregate of those that finished."""
        done = [seed for seed, lane in self.lanes.items() if lane.state == "finished"]
        found = aggregate({seed: self.folder.run(seed) for seed in done}, self.config) if done else None
        scores = dict(zip(done, found.scores, strict=True)) if found is not None else {}
        runs = [
            {"seed": seed, "run": self.folder.run(seed).path.name, "state": lane.state, "steps": lane.env_steps}
            | {"score": scores.get(seed)}
            for seed, lane in self.lanes.items()
        ]
        where = {"env": self.config.env.id, "data": self.config.data.path or None}
        head = {"schema": SCHEMA, "algorithm": self.name, **where, "runs": runs}
        write_aggregate(self.folder.aggregate, found, head)
        return found

    def result(self, title: str, number: int | None) -> SeedsResult:
        """Write and draw the final aggregate, and return the result."""
        folder = self.folder
        with writing(folder.path):
            found = self.write()
        if found is not None:
            at_the_end(self.say, draw, found, folder.curve, f"{title}, {plural(len(found.seeds), 'seed')}")
        return SeedsResult(
            run=folder.path,
            seeds=[
                SeedRun(seed=seed, run=folder.run(seed).path, log=folder.log(seed), state=lane.state, note=lane.note)
                for seed, lane in self.lanes.items()
            ],
            signal=number,
            aggregate=found,
            files=folder.files(),
        )


def draw(found: Aggregate, png: Path, title: str) -> None:
    """Draw the learning curves of all seeds."""
    from reverie.log.plot import seeds_curve  # matplotlib takes a fifth of the time of all imports

    seeds_curve(
        png,
        found.curve.measured,
        found.curve.interval(),
        found.final(),
        title=title,
        what=found.curve.what,
        unit=found.unit,
    )

"""Several seeds of one experiment: each a run of its own in a process of its own, and what they come to together."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from reverie.core.discover import algorithm_name
from reverie.core.errors import RunError
from reverie.core.machine import choose_device
from reverie.experiment import ExperimentConfig
from reverie.folder import SCHEMA, check_writable, settings_changes, writing
from reverie.log.board import Board, Lane, NoBoard, State, board_of
from reverie.log.console import tell
from reverie.offline import resolved, subject
from reverie.run.interrupt import heeded
from reverie.run.lock import RunLock
from reverie.training.aggregate import Aggregate, aggregate, unit_of, write_aggregate
from reverie.training.children import Child, Signals, verdict
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
from reverie.training.telling import Say

POLL = 0.2
"""Seconds between two looks at the processes."""


@dataclass(frozen=True, kw_only=True)
class SeedRun:
    """How the run of one seed stands."""

    seed: int
    """Which."""
    run: Path
    """Its folder."""
    log: Path
    """What its process said."""
    state: State
    """Whether it has finished."""
    note: str
    """In a few words why, if it has not."""


@dataclass(frozen=True, kw_only=True)
class SeedsResult:
    """How several seeds ended and what they left."""

    run: Path
    """The folder of all."""
    seeds: list[SeedRun]
    """How each stands."""
    signal: int | None
    """The number of the signal that interrupted them."""
    aggregate: Aggregate | None
    """What those that finished come to; None if none has."""
    files: dict[str, Path] = field(default_factory=dict)
    """What was left, by what it is."""


def train_seeds(
    config: ExperimentConfig,
    seeds: Sequence[int],
    *,
    jobs: int = 0,
    run: Path | str | None = None,
    keep_newer: bool = False,
    say: Say = tell,
) -> SeedsResult:
    """Train each of ``seeds`` as ``reverie train --seed`` would, several at a time, or go on with those that are there.

    Args:
        config: the settings; its own seed is of no matter.
        seeds: which.
        jobs: how many at a time; 0 for as many as there are cores for their threads, and one on a GPU.
        run: the folder of all of them; seeds found there are gone on with. None: the one under ``runs/`` that has the
            same settings, or else a new one.
        keep_newer: as in :func:`reverie.training.run.train`.
        say: gets a sentence about what is happening now and then.

    Raises:
        ReverieError: the settings cannot be told to another process, none of the seeds could begin, or the folder is
            something else or being written.
    """
    check_seeds(config, seeds, jobs)
    config = resolved(config, None, say)
    plain, name = plain_settings(config), algorithm_name(type(config.algo))
    folder = SeedsFolder(Path(run) if run is not None else choose_folder(subject(config), name, plain, say))
    check_writable(folder.path)
    before = check_folder(folder, name, config.env.id)
    if before is not None:
        check_finished(folder, seeds, before, plain, "updates" if config.data.alone else "steps")
    crew = Crew(config, folder, seeds, jobs or default_jobs(config), ["--keep-newer"] if keep_newer else [], say)
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
        with contextlib.suppress(OSError):  # only those that are empty, as nothing could begin
            for path in made:
                path.rmdir()


def default_jobs(config: ExperimentConfig) -> int:
    """How many seeds there are cores for, by the threads that each takes; on a GPU they would share it."""
    if choose_device(config.device) != "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // (config.threads or torch.get_num_threads()))


class Crew:
    """The seeds at work."""

    def __init__(
        self, config: ExperimentConfig, folder: SeedsFolder, seeds: Sequence[int], jobs: int, more: list[str], say: Say
    ) -> None:
        """``more`` are further words for the command of each seed."""
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
        """Leave out seeds that have finished with these settings; none if they are to look ``again``."""
        states = {} if again else self.folder.states()
        for seed, lane in self.lanes.items():
            if states.get(seed) == "finished" and self.begun(seed):
                lane.state, lane.note = "finished", "finished already"

    def begun(self, seed: int) -> bool:
        """Whether there is a run of this seed."""
        return self.folder.run(seed).config.is_file()

    def work(self) -> SeedsResult:
        """Run what is left to be run.

        Raises:
            RunError: no seed could begin; nothing is left then.
        """
        left = sum(lane.state == "waiting" for lane in self.lanes.values())
        title = f"{self.name} on {subject(self.config)}"
        with Signals(heeded()) as signals, contextlib.ExitStack() as stack:
            if left:
                together = f"{min(self.jobs, left)} at a time" if min(self.jobs, left) > 1 else "one at a time"
                self.say(f"{title}: {left} seeds, {together}, in {self.folder.path}; what each says is in seed-*.log")
                if self.jobs > 1 and not self.config.threads and choose_device(self.config.device) == "cpu":
                    self.say("each of them takes all cores: --threads 1 is faster for small networks")
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
        """Whether a seed was refused and none has begun: the others have the same settings."""
        return bool(self.refused) and not any(map(self.begun, self.lanes))

    def waiting(self) -> list[int]:
        """Seeds whose turn is to come."""
        if self.hopeless:
            return []
        return [seed for seed, lane in self.lanes.items() if lane.state == "waiting"]

    def start(self) -> None:
        """Start as many as may run."""
        for seed in self.waiting()[: max(0, self.jobs - len(self.running))]:
            words = ["train", self.name, "--config", str(self.folder.settings), "--seed", str(seed)]
            with writing(self.folder.path):
                command = [*words, "--run", str(self.folder.run(seed).path), *self.more]
                self.running[seed] = Child(command, self.folder.log(seed))
            self.lanes[seed].begin()
            self.board.changed(self.lanes[seed])

    def look(self) -> None:
        """See who has ended, and write down what the seeds come to so far."""
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
                continue  # the error says it all
            at_the_end(self.say, self.write)
            self.board.changed(lane)

    def pass_on(self, signals: Signals) -> None:
        """Tell the children what we were told: at the second time they stop at once, at the third they are killed."""
        for number in signals.got[self.told :]:
            self.told += 1
            if self.told == 1:
                self.say(
                    f"{signal.Signals(number).name}: the running seeds finish their turn and save. Once more to stop "
                    "them at once without saving."
                )
            for child in self.running.values():
                child.tell(number if self.told < 3 else signal.SIGKILL)

    def end(self) -> None:
        """Let children that still run, as something failed here, save and end."""
        for child in self.running.values():
            child.tell(signal.SIGTERM)
        for child in self.running.values():
            child.process.wait()

    def write(self) -> Aggregate | None:
        """Write aggregate.json: how all seeds stand, and what those that finished come to."""
        done = [seed for seed, lane in self.lanes.items() if lane.state == "finished"]
        found = aggregate({seed: self.folder.run(seed) for seed in done}, self.config) if done else None
        scores = dict(zip(done, found.scores, strict=True)) if found is not None else {}
        runs = [
            {"seed": seed, "run": self.folder.run(seed).path.name, "state": lane.state, "steps": lane.env_steps}
            | {"score": scores.get(seed)}
            for seed, lane in self.lanes.items()
        ]
        head = {"schema": SCHEMA, "algorithm": self.name, "env": subject(self.config), "runs": runs}
        write_aggregate(self.folder.aggregate, found, head)
        return found

    def result(self, title: str, number: int | None) -> SeedsResult:
        """What came of it, written down and drawn."""
        folder = self.folder
        with writing(folder.path):
            found = self.write()
        if found is not None:
            at_the_end(self.say, draw, found, folder.curve, f"{title}, {len(found.seeds)} seeds")
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
    """Draw the curves of all seeds."""
    from reverie.log.plot import seeds_curve  # a fifth of all imports

    seeds_curve(
        png,
        found.curve.measured,
        found.curve.interval(),
        found.final(),
        title=title,
        what=found.curve.what,
        unit=found.unit,
    )

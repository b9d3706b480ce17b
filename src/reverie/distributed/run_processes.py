"""A queue of runs, and the child processes, or tasks of a Ray cluster, that train them."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

import torch

from reverie.core.errors import RunError
from reverie.core.files import check_local, check_writable, disk_errors_as_run_error
from reverie.core.hardware import choose_device, num_cores
from reverie.core.kernel_dispatch import kernel_problem
from reverie.core.lock import folder_lock
from reverie.core.logger import logger
from reverie.core.signals import PARENT_PID_VAR, SIGNALS
from reverie.distributed.ray_learners import (
    MAX_RESTARTS,
    ClusterRequest,
    RayLearner,
    cluster,
    learner_resources,
    missing_resources,
    ray_options,
    watch_head,
)
from reverie.experiment.config import ExperimentConfig
from reverie.log.console import RunProgress, RunsDisplay, RunState
from reverie.run.checkpoint import checkpoint_name
from reverie.run.folder import RunFolder, contains_run, is_final_result_of_step, new_path, read_saved_config, read_yaml
from reverie.run.signal_handling import collect_signals

POLL = 0.2
"""Seconds between two polls of the child processes."""

STUDY = "study.db"
"""Optuna's file in the folder of a search."""


class ChildRun(RunProgress):
    """State of the run of one seed, perhaps in a trial of a search.

    Attributes:
        seed: the seed.
        trial: number of the trial, 0 outside of a search.
        run: its run folder.
        log: file with the output of its process.
        state: "waiting", "running", "finished", "stopped" or "failed".
        note: a short description of the state, such as the score of a finished seed or the error of a failed seed.
    """

    def __init__(self, folder: Path, subfolder: str, seed: int, config: ExperimentConfig, trial: int = 0) -> None:
        """``folder``: the folder of all runs.

        ``subfolder``: of this run in it, such as "seed-3" or "trial-0/seed-3".
        """
        self.seed = seed
        self.trial = trial
        self.run: Path = folder / subfolder
        name = subfolder.replace("/", "-")
        self.log: Path = folder / f"{name}.log"
        super().__init__(name.replace("-", " "), RunFolder(self.run).metrics, config.length, config.unit)

    @property
    def has_begun(self) -> bool:
        """Whether the run of this seed exists."""
        return RunFolder(self.run).config.is_file()

    @property
    def has_finished(self) -> bool:
        """Whether the run of this seed has reached its end with the same length, and was evaluated there if it is."""
        folder = RunFolder(self.run)
        if not (folder.checkpoints / checkpoint_name(self.position)).is_dir():
            return False
        saved = read_saved_config(self.run).experiment
        is_measured = any(is_final_result_of_step(file, self.position) for file in (folder.evaluation, folder.estimate))
        is_over = is_measured or (self.position >= self.length and not saved.get("eval_episodes"))
        return is_over and saved.get(self.unit) == self.length


class Child:
    """A command of reverie in a child process, whose output is appended to a file.

    The child has its own session, so Ctrl-C in the terminal does not reach it directly: the parent passes on each
    signal once. On Linux the child ends with the parent.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        """Start the process. ``command``: the words that would follow ``reverie`` on the command line."""
        self.command = command
        self.log = log
        self.begin: int = log.stat().st_size if log.exists() else 0
        self.start()

    def start(self) -> None:
        """Start the process."""
        with self.log.open("ab") as out:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-P", "-u", "-m", "reverie", *self.command], stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(_extra_import_paths()), PARENT_PID_VAR:
                str(os.getpid())},
            )  # fmt: skip

    def tell(self, number: int) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)

    def poll(self) -> int | None:
        """Return the exit code, 128 + n if signal n killed the process, or None while it runs."""
        code = self.process.poll()
        return 128 - code if code is not None and code < 0 else code

    def last_line(self) -> str:
        """Return the last line that the process wrote, or "" if it wrote none."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(self.begin)
            lines = file.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


class RayChild(Child):
    """The same on a node of a Ray cluster. If the node is lost, the command starts again on another one."""

    def __init__(
        self, command: Sequence[str], log: Path, run: Path, ray: ModuleType, resources: Mapping[str, float]
    ) -> None:
        """``run``: folder of the run. ``resources``: of the process, which waits until a node has them."""
        self.run = run
        self.ray = ray
        self.actor: Any = ray.remote(**ray_options(resources), max_concurrency=2)(RayLearner)
        self.losses: int = 0
        self.number: int | None = None
        """The first signal to the process."""
        super().__init__(command, log)

    def start(self) -> None:
        self.has_begun: bool = False
        self.learner: Any = self.actor.remote()
        self.answer: Any = self.learner.start.remote(self.command, {}, os.getcwd(), self.run)

    def tell(self, number: int) -> None:
        self.number = self.number or number
        if self.has_begun:
            self.learner.tell.remote(int(number))
        else:  # it may wait for resources
            self.ray.kill(self.learner)

    def poll(self) -> int | None:
        """Return the exit code as of any child; also append what the process wrote to its file."""
        if not self.ray.wait([self.answer], timeout=0)[0]:
            return None
        try:
            output, code = self.ray.get(self.answer) or (b"", None)
        except self.ray.exceptions.RayActorError:
            return self._start_again()
        with self.log.open("ab") as log:
            log.write(output)
        self.has_begun, self.answer = True, self.learner.poll.remote()
        return 128 - code if code is not None and code < 0 else code

    def _start_again(self) -> int | None:
        """Start again after a loss; return the code of a process that was stopped, or was lost too often."""
        self.losses += 1
        if self.number is not None or self.losses > MAX_RESTARTS:
            return 128 + (self.number or signal.SIGKILL)
        logger.warning(f"{self.log.stem}: its node, or the Ray process on it, has ended; it starts on another node")
        self.start()
        return None


class Trainer(NamedTuple):
    """What trains runs."""

    start: Callable[[Sequence[str], ChildRun], Child]
    """Starts the process of a run."""
    max_parallel: int
    """Number of runs at a time."""
    watch: Callable[[list[int]], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    """Adds a signal to those that were received if no more run can be trained."""


def _num_parallel_runs(config: ExperimentConfig) -> int:
    """Return how many runs train on this machine at a time."""
    if choose_device(config.device) != "cpu":
        return 1
    return max(1, num_cores() // (config.threads or torch.get_num_threads()))


def find_runs_folder(
    config: ExperimentConfig, run: Path | str | None, kind: Literal["seeds", "tune"], request: ClusterRequest | None
) -> tuple[Path, dict[str, Any] | None]:
    """Return the folder of seeds or of a search, and the settings of its runs; None if it is new, as ``run`` None is.

    Writes nothing. RunError if it contains something else or cannot be written.
    """
    check_local(run or "", "run")
    path = Path(os.path.expanduser(run)) if run is not None else new_path(config.task_label, f"{config.name}-{kind}")
    path = path if request is None else path.absolute()  # the working directory of a node can differ
    check_writable(path)
    settings, is_search = path / "settings.yaml", (path / STUDY).exists()
    if not contains_run(path, settings, config.name, config.env.id):
        return path, None
    if is_search != (kind == "tune"):
        content = "a search, not several seeds" if is_search else "several seeds, not a search"
        raise RunError(f"{path} contains {content}: choose another --run.")
    return path, dict(read_yaml(settings)["experiment"])


@contextlib.contextmanager
def open_runs_folder(
    path: Path, config: ExperimentConfig, request: ClusterRequest | None, *, is_new: bool
) -> Iterator[Trainer]:
    """Create and lock the folder of all runs; yield what trains them, here or on the Ray cluster of ``request``.

    An error before any run has begun deletes a new folder.
    """
    with disk_errors_as_run_error(path):
        path.mkdir(parents=True, exist_ok=True)
    with folder_lock(path):
        try:
            with _make_trainer(config, request) as trainer:
                yield trainer
        except RunError:  # no run can start with these settings
            if is_new and not any(path.rglob(RunFolder(path).config.name)):
                shutil.rmtree(path, ignore_errors=True)
            raise


@contextlib.contextmanager
def _make_trainer(config: ExperimentConfig, request: ClusterRequest | None) -> Iterator[Trainer]:
    """Yield what trains runs, here or on the Ray cluster of ``request``."""
    if choose_device(config.device) == "cpu" and kernel_problem():
        logger.warning(kernel_problem())
    if request is None:
        yield Trainer(lambda words, run: Child(words, run.log), _num_parallel_runs(config))
        return
    with cluster(request.address) as ray:
        resources = learner_resources(config, request.learner, ray.cluster_resources().get("GPU", 0.0))
        requested = {name: amount for name, amount in resources.items() if amount}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = sum(int(min((node.get(name, 0.0) / requested[name] for name in requested), default=1)) for node in nodes)
        if not room:
            raise RunError(missing_resources(ray, [resources], 1, "PACK"))
        yield Trainer(
            lambda words, run: RayChild(words, run.log, run.run, ray, requested), room,
            functools.partial(watch_head, ray),
        )  # fmt: skip


def _extra_import_paths() -> list[str]:
    """Return the import paths of this process, such as a script's folder, without the default paths of this Python."""
    homes = tuple(os.path.join(prefix, "") for prefix in {sys.prefix, sys.base_prefix})
    return [path for path in map(os.path.abspath, sys.path) if not path.startswith(homes)]


def exit_state(code: int, words: str) -> tuple[RunState, str]:
    """Return how a process ended, from its exit code and its last line."""
    if code == 0:
        return "finished", "finished"
    if code in [128 + number for number in SIGNALS]:
        return "stopped", f"stopped by {signal.Signals(code - 128).name}"
    if code > 128 and code - 128 in list(signal.Signals):
        lack = ", possibly out of memory" if code - 128 == signal.SIGKILL else ""
        return "failed", f"failed: killed by {signal.Signals(code - 128).name}{lack}"
    return "failed", f"failed: {words.removeprefix('reverie: ') or f'exit code {code}'}"


@dataclass
class RunQueue:
    """A queue of runs and their states."""

    runs: Sequence[ChildRun]
    """All runs; their states are kept up to date."""
    command: Callable[[ChildRun], Sequence[str]]
    """Returns the command line arguments, after ``reverie``, that train a run."""
    board: RunsDisplay
    """Shows them."""
    ended: Callable[[ChildRun], None]
    """Called with each run that has ended."""
    should_stop: Callable[[ChildRun], bool] = lambda run: False
    """Called often for each active run, until it returns that the run has to save and end."""
    refused: list[str] = field(default_factory=list)
    """Errors of runs that have not begun."""

    @property
    def are_all_refused(self) -> bool:
        """Whether runs were refused, and none has begun: no other can begin."""
        return bool(self.refused) and not any(run.has_begun for run in self.runs)

    def next(self) -> ChildRun | None:
        """Return the next run to start; None if there is none."""
        return None if self.are_all_refused else next((run for run in self.runs if run.state == "waiting"), None)

    def begin(self, run: ChildRun, trainer: Trainer) -> Child:
        """Start the process of ``run``."""
        words = list(self.command(run))
        run.begin()
        self.board.show_state(run)
        with disk_errors_as_run_error(run.log.parent):
            return trainer.start(words, run)

    def end(self, run: ChildRun, code: int, words: str) -> None:
        """Record that the process of ``run`` has ended. ``words``: its last line."""
        run.state, run.note = exit_state(code, words)
        if run.state == "failed" and words.startswith("reverie: ") and not run.has_begun:
            self.refused.append(run.note.removeprefix("failed: "))
        run.read()
        self.ended(run)
        self.board.show_state(run)


def train_runs(queue: RunQueue, trainer: Trainer, jobs: int) -> int | None:
    """Train the waiting runs, ``jobs`` at a time; return the number of the signal that ended it, if any.

    Signals are passed on to the processes: after the second they stop at once, and the third kills them.
    """
    running: dict[ChildRun, Child] = {}
    stopped, num_forwarded = set[ChildRun](), 0
    with collect_signals() as received, trainer.watch(received):
        try:
            while running or (queue.next() and not received):
                num_forwarded = _forward_signals(received, num_forwarded, running.values())
                while not received and len(running) < jobs and (run := queue.next()):
                    running[run] = queue.begin(run, trainer)
                for run, child in list(running.items()):
                    if (code := child.poll()) is not None:
                        del running[run]
                        queue.end(run, code, child.last_line())
                    elif run not in stopped and queue.should_stop(run):
                        stopped.add(run)
                        child.tell(signal.SIGTERM)
                queue.board.update()
                time.sleep(POLL)
        finally:  # after an error here, active runs save and end
            for child in running.values():
                child.tell(signal.SIGTERM)
            while any(child.poll() is None for child in running.values()):
                time.sleep(POLL)
    if queue.are_all_refused:
        raise RunError(queue.refused[0])
    return received[0] if received else None


def _forward_signals(received_signals: Sequence[int], num_forwarded: int, children: Iterable[Child]) -> int:
    """Forward received signals, starting at index ``num_forwarded``; return their current number."""
    for number in received_signals[num_forwarded:]:
        num_forwarded += 1
        if num_forwarded == 1:
            logger.info(
                f"{signal.Signals(number).name}: the running seeds finish their iteration, then save. Interrupt again "
                "to stop them at once without saving."
            )
        for child in children:
            child.tell(number if num_forwarded < 3 else signal.SIGKILL)
    return num_forwarded

"""Several seeds of one experiment, each trained by its own process; their folder, how they end, and comparison."""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reverie.core.accelerate import trouble
from reverie.core.discover import found_elsewhere
from reverie.core.documents import read_json
from reverie.core.errors import ConfigError, RunError, brief, plural
from reverie.core.files import check_local, check_writable, writing
from reverie.core.importing import trusts
from reverie.core.lock import folder_lock
from reverie.core.logger import logger
from reverie.core.machine import choose_device, cores
from reverie.core.signals import PARENT, SIGNALS
from reverie.datasets.memory import OBJECT, paths_in
from reverie.distributed.ray import ClusterRequest, cluster, missing, needs
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.resolve import resolve_env, saved_settings, with_initial_settings
from reverie.log.aggregate import (
    Aggregate,
    ComparedSetting,
    Comparison,
    MeasurementSettings,
    SeedSummary,
    aggregate,
    improvements,
    seeds_curve_data,
    summarize_seed,
    write_aggregate,
)
from reverie.log.console import RunProgress, RunsDisplay, RunState
from reverie.run.folder import (
    SCHEMA,
    RunFolder,
    Saved,
    found_at_end,
    holds_run,
    is_of,
    learned_otherwise,
    new_path,
    read_saved,
    read_yaml,
    settings_changes,
    to_yaml_types,
    write_shared,
)
from reverie.run.schedule import parse_period
from reverie.run.signals import collected

POLL = 0.2
"""Seconds between two polls of the child processes."""


class SeedRun(RunProgress):
    """State of the run of one seed, perhaps in a trial of a search.

    Attributes:
        seed: the seed.
        trial: number of the trial, 0 outside of a search.
        run: its run folder.
        log: file with the output of its process.
        state: "waiting", "running", "finished", "stopped" or "failed".
        note: a few words on the state, such as the score of a finished seed or the error of a failed one.
    """

    def __init__(self, folder: Path, subfolder: str, seed: int, config: ExperimentConfig, trial: int = 0) -> None:
        """``folder``: that of all runs; ``subfolder``: of this one in it, such as "seed-3" or "trial-0/seed-3"."""
        self.seed = seed
        self.trial = trial
        self.run: Path = folder / subfolder
        name = subfolder.replace("/", "-")
        self.log: Path = folder / f"{name}.log"
        super().__init__(name.replace("-", " "), RunFolder(self.run).metrics, config.length, config.unit)

    @property
    def begun(self) -> bool:
        """Whether there is a run of this seed."""
        return RunFolder(self.run).config.is_file()


def files_of(path: Path) -> dict[str, Path]:
    """Return the files in the folder of several seeds: their settings, states and scores, and curves."""
    return {"settings": path / "settings.yaml", "aggregate": path / "aggregate.json", "curve": path / "curve.png"}


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


def train_seeds_of(
    config: ExperimentConfig,
    seeds: Sequence[int],
    *,
    jobs: int = 0,
    run: Path | str | None = None,
    on: ClusterRequest | None = None,
) -> SeedsResult:
    """Train each of ``seeds`` as ``reverie train --seed`` would; see :func:`reverie.train_seeds`.

    ``config.seed`` is ignored. ``on``: a Ray cluster, which must see the folder at the same path; None: this machine.
    """
    check_seeds(config, seeds, jobs)
    check_local(run or "", "run")
    config = resolve_env(config, None)
    path = Path(os.path.expanduser(run)) if run is not None else new_path(config.task_label, f"{config.name}-seeds")
    path = path if on is None else path.absolute()  # the working directory of a node may be another
    shared, before = files_of(path)["settings"], None
    check_writable(path)
    if holds_run(path, shared, config.name, config.env.id):
        before = dict(read_yaml(shared)["experiment"])
        config = with_initial_settings(config, before, path)
    plain = {name: value for name, value in to_yaml_types(config.to_dict()).items() if name != "seed"}
    runs = [SeedRun(path, f"seed-{seed}", seed, config) for seed in seeds]
    over = read_finished(files_of(path)["aggregate"])
    finished = [seed_run for seed_run in runs if seed_run.seed in over and seed_run.begun]
    changes = [] if before is None else settings_changes(before, plain)
    wrong = (
        [] if before is None or plain[config.unit] > before.get(config.unit, 0) else learned_otherwise(before, plain)
    )
    if finished and wrong:
        raise RunError(
            f"{path}: seeds {', '.join(str(seed_run.seed) for seed_run in finished)} finished with other settings "
            f"({'; '.join(wrong)}), so their results would not match. Choose another --run, or increase "
            f"--{config.unit} to continue them with the new ones."
        )
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    with folder_lock(path):
        for text in changes:
            logger.info(text)
        if before is None or changes:
            with writing(path):
                write_shared(shared, Saved(algorithm=config.name, experiment=plain))
        for seed_run in () if changes else finished:
            seed_run.state, seed_run.note = "finished", "already finished"
        try:
            with trainer(config, on) as (train, max_parallel):
                return _train_seeds(config, path, runs, jobs or max_parallel, train)
        except RunError:
            if before is None and not any(seed_run.begun for seed_run in runs):  # no run can begin with these settings
                shutil.rmtree(path, ignore_errors=True)  # it was empty before
            raise


def read_finished(path: Path) -> set[int]:
    """Return the seeds that have finished, from the aggregate.json at ``path``; none if it does not exist."""
    if not path.exists():
        return set()
    advice = "Delete it: training that goes on writes it anew."
    try:
        return {entry["seed"] for entry in read_json(path, advice)["runs"] if entry["state"] == "finished"}
    except (LookupError, TypeError) as error:
        raise RunError(f"{path} is damaged: it does not list runs ({error!r}). {advice}") from error


def _train_seeds(config: ExperimentConfig, path: Path, runs: list[SeedRun], jobs: int, train: Train) -> SeedsResult:
    files, title = files_of(path), f"{config.name} on {config.task_label}"
    num_waiting = sum(run.state == "waiting" for run in runs)
    if num_waiting:
        parallel_text = f"{min(jobs, num_waiting)} at a time" if min(jobs, num_waiting) > 1 else "one at a time"
        logger.info(
            f"{title}: {plural(num_waiting, 'seed')}, {parallel_text}, in {path}; their output is in seed-*.log"
        )
        if choose_device(config.device) == "cpu" and trouble():
            logger.warning(trouble())

    def command(run: SeedRun) -> list[str]:
        settings = ["--config", str(files["settings"]), "--seed", str(run.seed), "--run", str(run.run)]
        return ["train", config.name, *settings, *["--trust"] * trusts()]

    def on_end(run: SeedRun) -> None:
        if run.state == "finished" and "eval/score" in run.values:
            run.note += f" at {run.position:,} {run.unit}, score {run.values['eval/score']:.2f}"
        write_seeds(config, path, runs)

    with contextlib.closing(RunsDisplay(runs if num_waiting and config.console else [], title)) as board:
        number = train_runs(Turns(runs, command, board, on_end), train, jobs)
    if (summary := write_seeds(config, path, runs)) is not None:
        from reverie.log.plot import plot_seeds_curve  # matplotlib takes a fifth of the time of all imports

        with writing(path):
            plot_seeds_curve(files["curve"], summary, title=f"{title}, {plural(len(summary.seeds), 'seed')}")
    existing = {name: file for name, file in files.items() if file.exists()}
    return SeedsResult(run=path, seeds=runs, signal=number, aggregate=summary, files=existing)


def write_seeds(config: ExperimentConfig, path: Path, runs: Sequence[SeedRun]) -> Aggregate | None:
    """Write aggregate.json: the state of all seeds, and the aggregate of those that finished, which is returned."""
    how = measured_as(to_yaml_types(config.to_dict()))
    ended: dict[int, SeedSummary] = {}
    for run in runs:
        if run.state == "finished":
            files = RunFolder(run.run)
            ended[run.seed] = summarize_seed(files.metrics, found_at_end(files.evaluation) or {}, how)
    summary = aggregate(ended, how) if ended else None
    listed = [
        {"seed": run.seed, "run": run.run.name, "state": run.state}
        | {name: getattr(ended.get(run.seed), name, None) for name in ("steps", "score")}
        for run in runs
    ]
    subject = {"env": config.env.id, "data": config.data.label or None}
    head = {"schema": SCHEMA, "algorithm": config.name, **subject, "runs": listed}
    with writing(path):
        write_aggregate(files_of(path)["aggregate"], summary, head)
    return summary


MEASURED_BY = ("schedule", "experience", "eval_episodes", "stop_score", "patience", "callbacks", "steps", "updates",
               "data", "seed")  # fmt: skip
"""Settings that say how a run is measured and compared."""


def measured_as(settings: Mapping[str, Any]) -> MeasurementSettings:
    """Return how runs with these settings, in plain values, are measured."""
    if missing := [name for name in MEASURED_BY if name not in settings]:
        raise RunError(f"the settings of {settings.get('algorithm', 'a run')} lack {', '.join(missing)}: restore them.")
    period, is_seconds = parse_period(settings["schedule"].get("eval_every", 0))
    return MeasurementSettings(
        unit="updates" if settings["experience"] == "recorded" else "env steps",
        evaluates=period > 0 and settings["eval_episodes"] > 0,
        period=None if is_seconds else period,
        early=any(settings[name] not in (None, (), []) for name in ("stop_score", "patience", "callbacks")),
    )


def check_seeds(config: ExperimentConfig, seeds: Sequence[int], jobs: int) -> None:
    """Raise ConfigError unless the seeds can be trained by other processes without disturbing each other."""
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds = {brief(list(seeds))}: expected different whole numbers, 0 or more.")
    if jobs < 0:
        raise ConfigError(f"jobs = {jobs}: expected at least 1, or 0 for as many as the CPU cores allow.")
    custom = saved_settings(config, None).custom
    if not found_elsewhere(type(config.algo)):
        custom["algorithm"] = config.name
    if any(path.startswith(OBJECT) for path in paths_in(config.data.path)):
        custom["data"] = config.data.label
    if custom:
        listed = ", ".join(f"{setting} = {value}" for setting, value in custom.items())
        raise ConfigError(
            f"{listed}: each seed runs in its own process, which must read this from a file or import it by name. "
            "Define classes at the top level of a module in this folder or on PYTHONPATH, or train the seeds one by "
            "one: reverie.train(..., seed=...)."
        )
    if config.replay.store not in ("auto", "none"):
        raise ConfigError(
            f"replay.store = '{config.replay.store}': several seeds cannot write to one store. Use auto, a store in "
            "the folder of each run, or none."
        )


# ---------------------------------------------------------------- comparison of seeds, wherever they were trained


def compare(*runs: Path | str, figure: Path | str | None = None) -> Comparison:
    """Compare settings by the scores of their seeds, which may have been trained by separate jobs.

    The score of a seed is the mean return of its final evaluation, or else the return that was estimated for it. Runs
    without are left out; if no run of a setting has any, the last points that their learning curves have in common are
    compared. The log names them, and settings in which the runs differ besides the seed.

    Args:
        *runs: for each setting a folder that holds the runs of its seeds, or a single run, or a pattern such as
            ``"runs/sac-*"``: the runs that match it are seeds of one setting, each folder of runs is another.
        figure: draw the learning curves, with intervals, to this PNG file.

    Raises:
        ReverieError: there is no run at one of these places, or none with a score.
    """
    png = None if figure is None else Path(figure)
    if png is not None and png.suffix != ".png":
        raise ConfigError(f"figure = {png}: expected a file name ending in .png.")
    groups = [group for location in runs for group in groups_at(os.fspath(location)).items()]
    contenders = [contender(name, paths) for name, paths in groups]
    if png is not None:
        from reverie.log.plot import plot_comparison  # matplotlib takes a fifth of the time of all imports

        with writing(png):
            png = plot_comparison(png, contenders)
    return Comparison(settings=contenders, probability_of_improvement=improvements(contenders), figure=png)


def groups_at(location: str) -> dict[str, list[Path]]:
    """Return the runs at a path, or at those that match a pattern, by the names of the settings that they belong to."""
    path = Path(os.path.expanduser(location))
    groups: dict[str, list[Path]] = {}
    for folder in [path] if path.exists() else map(Path, sorted(glob.glob(str(path)))):
        if RunFolder(folder).config.is_file():
            groups.setdefault(str(path), []).append(folder)
        elif inside := [config.parent for config in sorted(folder.glob("*/config.yaml"))]:
            groups[str(folder)] = inside
    if not groups and any(path.glob("*/*/config.yaml")):
        raise RunError(f"there are no runs in {location}, but in its folders. To compare these, pass {path}/*/")
    return groups or {location: [path]}  # reading it says what is wrong


def contender(name: str, paths: Sequence[Path]) -> ComparedSetting:
    """Read the runs of one setting; RunError if none has a score."""
    saved = {path: read_saved(path) for path in paths}
    settings = [{"algorithm": config.algorithm, **config.experiment} for config in saved.values()]
    first, how = settings[0], measured_as(settings[0])
    check_alike(name, settings)
    results, final = {}, {}
    for path, folder in zip(paths, map(RunFolder, paths), strict=True):
        results[path] = summarize_seed(folder.metrics, found_at_end(folder.evaluation) or {}, how)
        if is_of(folder.evaluation, results[path].steps) or is_of(folder.estimate, results[path].steps):
            final[path] = results[path]
    nothing = RunError(f"{name} holds no scores: nothing was evaluated, and no training episode has ended.")
    if not (compared := final or {path: result for path, result in results.items() if len(result.points[0])}):
        raise nothing
    of_length = f"of {first['updates' if how.unit == 'updates' else 'steps']:,} {how.unit}"
    if excluded := [f"{path.name} at {result.steps:,}" for path, result in results.items() if path not in compared]:
        logger.warning(f"{name}: without a final evaluation, so left out: {', '.join(excluded)} {of_length}")
    curve, measured = (
        seeds_curve_data([result.points for result in compared.values()], how),
        next(iter(saved.values())).env,
    )
    scores = [result.score for result in final.values() if result.score is not None]
    if not scores and (estimated := [result for result in final.values() if result.estimate is not None]):
        scores = [result.estimate for result in estimated if result.estimate is not None]
        of = first["data"].get("path") or measured
        measured = f"{of}: returns estimated by FQE, discount {estimated[0].discount:g}"
    if not final and len(curve.steps):
        scores = curve.scores[:, -1].tolist()
        measure = "evaluations during training" if how.evaluates else "training episodes"
        logger.warning(f"{name}: no final evaluation: compared by {measure}, at {int(curve.steps[-1]):,} {of_length}")
    if not scores:
        raise nothing
    return ComparedSetting(name, measured, np.array(scores), curve.interval())


def check_alike(name: str, settings: Sequence[Mapping[str, Any]]) -> None:
    """Warn if the runs of one setting differ in more than the seed, or do not differ in the seed."""
    plain = [{key: value for key, value in run.items() if key not in ("seed", "threads")} for run in settings]
    changes = list(dict.fromkeys(line for run in plain[1:] for line in settings_changes(plain[0], run)))
    seeds = [run["seed"] for run in settings]
    if changes:
        more_text = f"; and {len(changes) - 5} more" if len(changes) > 5 else ""
        logger.warning(f"{name}: its runs differ in more than the seed: {'; '.join(changes[:5])}{more_text}")
    elif twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
        logger.warning(
            f"{name}: several runs have the same seed, {', '.join(map(str, twice))}: they are no more than one"
        )


# ---------------------------------------------------------------- the processes


class Child:
    """A command of reverie in a child process, whose output is appended to a file.

    The child has its own session, so Ctrl-C in the terminal does not reach it directly: the parent passes each
    signal on, once. On Linux it ends with the parent.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        """Start the process. ``command``: the words that would follow ``reverie`` on the command line."""
        self.log = log
        self.begin: int = log.stat().st_size if log.exists() else 0
        with log.open("ab") as out:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-u", "-m", "reverie", *command], stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(own_paths()), PARENT: str(os.getpid())},
            )  # fmt: skip
        self.tell: Callable[[int], None] = self.process.send_signal
        self.wait: Callable[[], object] = self.process.wait

    def code(self) -> int | None:
        """Return the exit code, 128 + n if signal n killed the process, or None while it runs."""
        code = self.process.poll()
        return 128 - code if code is not None and code < 0 else code

    def last_words(self) -> str:
        """Return the last line that the process wrote, or "" if it wrote none."""
        with self.log.open("rb") as file:
            file.seek(self.begin)
            lines = file.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


@contextlib.contextmanager
def trainer(config: ExperimentConfig, on: ClusterRequest | None) -> Iterator[tuple[Train, int]]:
    """Yield what trains runs, here or on the Ray cluster of ``on``, and how many may run at a time."""
    if on is None:
        fit = 1 if choose_device(config.device) != "cpu" else cores() // (config.threads or torch.get_num_threads())
        yield train_here, max(1, fit)
        return
    with cluster(on.address) as ray:
        resources = needs(config, on.learner, ray.cluster_resources().get("GPU", 0.0))
        requested = {name: amount for name, amount in resources.items() if amount}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = sum(int(min((node.get(name, 0.0) / requested[name] for name in requested), default=1)) for node in nodes)
        if not room:
            raise RunError(missing(ray, [resources], 1, "PACK"))
        from reverie.distributed.ray_tune import train_placed  # imports Ray, which cluster() has prepared

        yield functools.partial(train_placed, resources=requested), room


def own_paths() -> list[str]:
    """Return the import paths of this process, such as a script's folder, without those that belong to this Python."""
    homes = tuple(os.path.join(prefix, "") for prefix in {sys.prefix, sys.base_prefix})
    return [path for path in map(os.path.abspath, sys.path) if not path.startswith(homes)]


def verdict(code: int, words: str) -> tuple[RunState, str]:
    """Return how a process ended, from its exit code and the last line that it wrote."""
    if code == 0:
        return "finished", "finished"
    if code in [128 + number for number in SIGNALS]:
        return "stopped", f"stopped by {signal.Signals(code - 128).name}"
    if code > 128 and code - 128 in list(signal.Signals):
        lack = ", possibly out of memory" if code - 128 == signal.SIGKILL else ""
        return "failed", f"failed: killed by {signal.Signals(code - 128).name}{lack}"
    return "failed", f"failed: {words.removeprefix('reverie: ') or f'exit code {code}'}"


@dataclass
class Turns:
    """Runs of which each waits for its turn, and how they end; asked by what trains them."""

    runs: Sequence[SeedRun]
    """Their states are kept up to date."""
    command: Callable[[SeedRun], Sequence[str]]
    """Returns the words that train one, after ``reverie``."""
    board: RunsDisplay
    """Shows them."""
    ended: Callable[[SeedRun], None]
    """Called with each run that has ended."""
    unpromising: Callable[[SeedRun], bool] = lambda run: False
    """Asked often of each run that runs, until it says that the run is to save and end."""
    got: Sequence[int] = ()
    """Signals that this process has received; after the first no run begins."""
    dropped: set[SeedRun] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)

    def next(self) -> SeedRun | None:
        """Return the run that begins next; None if none is left, or none is to begin any more."""
        over = self.got or (self.refused and not any(run.begun for run in self.runs))
        return None if over else next((run for run in self.runs if run.state == "waiting"), None)

    def begin(self, run: SeedRun) -> list[str]:
        """Return the words that train ``run``, which begins."""
        words = list(self.command(run))
        run.begin()
        self.board.show_state(run)
        return words

    def drop(self, run: SeedRun) -> bool:
        """Return True, once, if a run that is being trained is to save and end."""
        if run in self.dropped or not self.unpromising(run):
            return False
        self.dropped.add(run)
        return True

    def end(self, run: SeedRun, code: int, words: str) -> None:
        """Take note that the process of ``run`` has ended. ``words``: the last line that it wrote."""
        run.state, run.note = verdict(code, words)
        if run.state == "failed" and words.startswith("reverie: ") and not run.begun:
            self.refused.append(run.note.removeprefix("failed: "))
        run.read()
        self.ended(run)
        self.board.show_state(run)


Train = Callable[[Turns, int], None]
"""Trains runs, so many at a time."""


def train_runs(turns: Turns, train: Train, jobs: int) -> int | None:
    """Have ``train`` train what waits, ``jobs`` at a time; return the number of the signal that ended it, if any."""
    with collected() as turns.got:
        train(turns, jobs)
    if turns.refused and not any(run.begun for run in turns.runs):
        raise RunError(turns.refused[0])
    return turns.got[0] if turns.got else None


def train_here(turns: Turns, jobs: int) -> None:
    """Train runs in child processes.

    Signals are passed on to the processes: after the second they stop at once, and the third kills them.
    """
    running: dict[SeedRun, Child] = {}
    num_forwarded = 0
    try:
        while running or turns.next():
            num_forwarded = pass_on(turns.got, num_forwarded, running.values())
            while len(running) < jobs and (run := turns.next()):
                with writing(run.log.parent):
                    running[run] = Child(turns.begin(run), run.log)
            for run, child in list(running.items()):
                if (code := child.code()) is not None:
                    del running[run]
                    turns.end(run, code, child.last_words())
                elif turns.drop(run):
                    child.tell(signal.SIGTERM)
            turns.board.update()
            time.sleep(POLL)
    finally:  # after an error here, those that run save and end
        for child in running.values():
            child.tell(signal.SIGTERM)
        for child in running.values():
            child.wait()


def pass_on(got: Sequence[int], num_forwarded: int, children: Iterable[Child]) -> int:
    """Pass received signals on, from number ``num_forwarded`` on; return how many there are now."""
    for number in got[num_forwarded:]:
        num_forwarded += 1
        if num_forwarded == 1:
            logger.info(
                f"{signal.Signals(number).name}: the running seeds finish their iteration, then save. Interrupt again "
                "to stop them at once without saving."
            )
        for child in children:
            child.tell(number if num_forwarded < 3 else signal.SIGKILL)
    return num_forwarded

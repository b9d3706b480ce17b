"""Several seeds of one experiment, each trained in its own process: their folder and results."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reverie.algos.table import is_importable_algorithm
from reverie.core.documents import read_json
from reverie.core.errors import ConfigError, RunError, count_noun, short_repr
from reverie.core.files import disk_errors_as_run_error
from reverie.core.imports import is_trusting
from reverie.core.logger import logger
from reverie.datasets.data_path import OBJECT, split_paths
from reverie.distributed.compare import measurement_settings
from reverie.distributed.ray_learners import ClusterRequest
from reverie.distributed.run_processes import (
    ChildRun,
    RunQueue,
    Trainer,
    find_runs_folder,
    open_runs_folder,
    train_runs,
)
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.saved_settings import initial_settings, saved_settings
from reverie.log.aggregate import Aggregate, SeedSummary, aggregate, summarize_seed, write_aggregate
from reverie.log.console import RunsDisplay
from reverie.run.folder import (
    SCHEMA,
    RunFolder,
    SavedConfig,
    check_num_runs,
    learning_setting_changes,
    read_final_result,
    settings_changes,
    to_yaml_types,
    write_shared,
)


def _seeds_files(path: Path) -> dict[str, Path]:
    """Return the files in the folder of several seeds: their settings, states and scores, and curves."""
    return {"settings": path / "settings.yaml", "aggregate": path / "aggregate.json", "curve": path / "curve.png"}


@dataclass(frozen=True, kw_only=True)
class SeedsResult:
    """How several seeds ended, and the files that they left."""

    run: Path
    """Folder with the run folders of all seeds."""
    seeds: list[ChildRun]
    """State of each seed, in the order given."""
    signal: int | None
    """Number of the signal that interrupted the training; None if none did."""
    aggregate: Aggregate | None
    """Scores and curves of the seeds that finished; None if none has."""
    files: dict[str, Path] = field(default_factory=dict)
    """Existing files of the folder by name: "settings", "aggregate" and "curve"."""


def run_seeds(
    config: ExperimentConfig,
    seeds: Sequence[int],
    *,
    jobs: int = 0,
    run: Path | str | None = None,
    request: ClusterRequest | None = None,
) -> SeedsResult:
    """Train each of ``seeds`` like ``reverie train --seed``; see :func:`reverie.train_seeds`.

    ``config.seed`` is ignored. ``request``: a Ray cluster with the folder at the same path. None: this machine.
    """
    check_seeds(config, seeds, jobs)
    path, before = find_runs_folder(config, run, "seeds", request)
    folder = SeedsFolder(config, path, before, seeds)
    with open_runs_folder(path, config, request, is_new=before is None) as trainer:
        (result,) = train_folders([folder], folder.title, jobs or trainer.max_parallel, trainer)
        return result


class SeedsFolder:
    """The runs of several seeds of one experiment, in one folder."""

    def __init__(
        self, config: ExperimentConfig, path: Path, before: dict[str, Any] | None, seeds: Sequence[int], label: str = ""
    ) -> None:
        """``before``: the settings of the runs in ``path``; None if there are none. ``label``: names the experiment.

        Writes nothing. RunError if seeds have finished with other settings.
        """
        if before is not None:
            config = config.merge(initial_settings(config, before, path))
        plain = {name: value for name, value in to_yaml_types(config.to_dict()).items() if name != "seed"}
        self.config: ExperimentConfig = config
        self.path: Path = path
        self.before: dict[str, Any] | None = before
        self.plain: dict[str, Any] = plain
        self.files: dict[str, Path] = _seeds_files(path)
        self.title: str = f"{config.name} on {config.task_label}"
        self.runs: list[ChildRun] = [ChildRun(path, f"seed-{seed}", seed, config) for seed in seeds]
        self.changes: list[str] = [] if before is None else settings_changes(before, plain)
        for run in self.runs if label else ():
            run.name = f"{label} {run.name}"
        over = _read_finished(self.files["aggregate"])
        finished = [run for run in self.runs if run.has_begun and (run.seed in over or run.has_finished)]
        is_longer = before is not None and plain[config.unit] > before.get(config.unit, 0)
        wrong = [] if before is None or is_longer else learning_setting_changes(before, plain)
        if finished and wrong:
            raise RunError(
                f"{path}: seeds {', '.join(str(run.seed) for run in finished)} finished with other settings "
                f"({'; '.join(wrong)}), so their results would not be comparable. Choose another --run, or increase "
                f"--{config.unit} to continue them with the new settings."
            )
        for run in () if self.changes else finished:
            run.state, run.note = "finished", "already finished"

    def write_settings(self) -> None:
        """Write settings.yaml, if it is new or has changed, and log the changes."""
        for text in self.changes:
            logger.info(text)
        if self.before is None or self.changes:
            saved = SavedConfig(algorithm=self.config.name, experiment=self.plain)
            with disk_errors_as_run_error(self.path):
                write_shared(self.files["settings"], saved)

    def command(self, run: ChildRun) -> list[str]:
        """Return the command line of one of the runs."""
        settings = ["--config", str(self.files["settings"]), "--seed", str(run.seed), "--run", str(run.run)]
        return ["train", self.config.name, *settings, *["--trust-code"] * is_trusting()]

    def on_end(self, run: ChildRun) -> None:
        """Write the states of all runs, after one of them has ended."""
        if run.state == "finished" and "eval/score" in run.values:
            run.note += f" at {run.position:,} {run.unit}, score {run.values['eval/score']:.2f}"
        write_seeds(self.config, self.path, self.runs)

    def result(self, signal: int | None) -> SeedsResult:
        """Write the aggregate and the figure of the runs, and return them."""
        if (summary := write_seeds(self.config, self.path, self.runs)) is not None:
            from reverie.log.plot import plot_seeds_curve  # matplotlib takes a fifth of the time of all imports

            title = f"{self.title}, {count_noun(len(summary.seeds), 'seed')}"
            with disk_errors_as_run_error(self.path):
                plot_seeds_curve(self.files["curve"], summary, title=title)
        existing = {name: file for name, file in self.files.items() if file.exists()}
        return SeedsResult(run=self.path, seeds=self.runs, signal=signal, aggregate=summary, files=existing)


def train_folders(folders: Sequence[SeedsFolder], title: str, jobs: int, trainer: Trainer) -> list[SeedsResult]:
    """Train the unfinished runs of ``folders``, ``jobs`` at a time, in one queue; return the result of each folder."""
    homes = {run: folder for folder in folders for run in folder.runs}
    for folder in folders:
        folder.write_settings()
    if num_waiting := sum(run.state == "waiting" for run in homes):
        parallel_text = f"{min(jobs, num_waiting)} at a time" if min(jobs, num_waiting) > 1 else "one at a time"
        path, noun = folders[0].path, "seed"
        if len(folders) > 1:
            path, noun = Path(os.path.commonpath([folder.path for folder in folders])), "run"
        logger.info(
            f"{title}: {count_noun(num_waiting, noun)}, {parallel_text}, in {path}; their output is in seed-*.log"
        )
    displayed = list(homes) if num_waiting and folders[0].config.console else []
    with contextlib.closing(RunsDisplay(displayed, title)) as board:
        queue = RunQueue(list(homes), lambda run: homes[run].command(run), board, lambda run: homes[run].on_end(run))
        number = train_runs(queue, trainer, jobs)
    return [folder.result(number) for folder in folders]


def _read_finished(path: Path) -> set[int]:
    """Return the seeds that have finished, from the aggregate.json at ``path``; none if it does not exist."""
    if not path.exists():
        return set()
    advice = "Delete it: continuing the training writes it again."
    try:
        return {entry["seed"] for entry in read_json(path, advice)["runs"] if entry["state"] == "finished"}
    except (LookupError, TypeError) as error:
        raise RunError(f"{path} is damaged: it does not list runs ({error!r}). {advice}") from error


def write_seeds(config: ExperimentConfig, path: Path, runs: Sequence[ChildRun]) -> Aggregate | None:
    """Write aggregate.json: the state of all seeds, and the aggregate of those that finished, which is returned."""
    how = measurement_settings(to_yaml_types(config.to_dict()))
    ended: dict[int, SeedSummary] = {}
    for run in runs:
        if run.state == "finished":
            files = RunFolder(run.run)
            ended[run.seed] = summarize_seed(files.metrics, read_final_result(files.evaluation) or {}, how)
    summary = aggregate(ended, how) if ended else None
    listed = [
        {"seed": run.seed, "run": run.run.name, "state": run.state}
        | {name: getattr(ended.get(run.seed), name, None) for name in ("steps", "score")}
        for run in runs
    ]
    subject = {"env": config.env.id, "data": config.data.label or None}
    head = {"schema": SCHEMA, "algorithm": config.name, **subject, "runs": listed}
    with disk_errors_as_run_error(path):
        write_aggregate(_seeds_files(path)["aggregate"], summary, head)
    return summary


def check_seeds(config: ExperimentConfig, seeds: Sequence[int], jobs: int) -> None:
    """Raise ConfigError unless the seeds can be trained by other processes without interfering with each other."""
    check_num_runs("seeds", len(seeds))
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds = {short_repr(list(seeds))}: expected different whole numbers, 0 or more.")
    if jobs < 0:
        raise ConfigError(f"jobs = {jobs}: expected at least 1, or 0 for as many as the CPU cores allow.")
    custom = saved_settings(config, None).custom
    if not is_importable_algorithm(type(config.algo)):
        custom["algorithm"] = config.name
    if any(path.startswith(OBJECT) for path in split_paths(config.data.path)):
        custom["data"] = config.data.label
    if custom:
        listed = ", ".join(f"{setting} = {value}" for setting, value in custom.items())
        raise ConfigError(
            f"{listed}: each seed runs in its own process, which must be able to read this from a file or import it "
            "by name. Define classes at the top level of a module in this folder or on PYTHONPATH, or train the "
            "seeds one by one: reverie.train(..., seed=...)."
        )
    if config.replay.store_path not in ("auto", "none"):
        raise ConfigError(
            f"replay.store_path = '{config.replay.store_path}': several seeds cannot write to one store. Use auto, a "
            "store in the folder of each run, or none."
        )

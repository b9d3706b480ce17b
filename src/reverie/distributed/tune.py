"""A search for good settings: trials proposed and pruned by Optuna, or a grid; each run has its own process."""

from __future__ import annotations

import contextlib
import csv
import io
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import yaml

from reverie.core.errors import ConfigError, RunError, count_noun, short_repr
from reverie.core.files import disk_errors_as_run_error, write_atomic
from reverie.core.imports import is_trusting
from reverie.core.logger import logger
from reverie.core.terminal import formula_free
from reverie.distributed.ray_learners import ClusterRequest
from reverie.distributed.run_processes import (
    STUDY,
    ChildRun,
    RunQueue,
    Trainer,
    find_runs_folder,
    open_runs_folder,
    train_runs,
)
from reverie.distributed.search_space import Dimension, read_space
from reverie.distributed.seeds import check_seeds
from reverie.experiment.config import NO_ENV, ExperimentConfig
from reverie.log.console import JsonlTail, RunsDisplay
from reverie.log.jsonl import FINAL
from reverie.run.config import ScoreMetric
from reverie.run.folder import (
    RunFolder,
    SavedConfig,
    check_num_runs,
    read_yaml,
    settings_changes,
    to_yaml_types,
    write_shared,
)

if TYPE_CHECKING:
    from optuna import Study

NUM_RUNGS = 3
"""Each rung of successive halving keeps the best third of the trials, at 1/9 and 1/3 of a run's length."""
MAX_PROPOSALS = 20
"""Number of repeated proposals by Optuna after which a search takes the next untried settings."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One attempt of a search."""

    number: int
    state: Literal["finished", "pruned", "failed", "unfinished"]
    score: float | None
    """The ``score_metric`` of its final evaluation, or of its last one if it was pruned; None if it had none. The mean
    over several seeds."""
    settings: dict[str, Any]
    """The settings that were tried, by their dotted names."""
    run: Path
    """Run folder; for several seeds, the folder with their runs."""


@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """How a search ended."""

    run: Path
    """Folder of the search."""
    trials: list[Trial]
    """All trials, the best first."""
    signal: int | None
    """Number of the signal that interrupted it; None if none did."""
    files: dict[str, Path] = field(default_factory=dict)
    """Existing files: "trials" (CSV) and "figure"."""

    @property
    def best(self) -> Trial | None:
        """The finished trial with the best score."""
        return next((trial for trial in self.trials if trial.state == "finished"), None)


def run_tuning(
    config: ExperimentConfig, space: Mapping[str, Any], *, trials: int, grid: bool = False,
    seeds: Sequence[int] | None = None, jobs: int = 0, prune: bool = True, run: Path | str | None = None,
    space_name: str = "space", request: ClusterRequest | None = None,
) -> TuneResult:  # fmt: skip
    """Search for the settings with the best final evaluation, or continue an existing search.

    Trees of Parzen estimators propose settings (Bergstra et al. 2011), successive halving prunes the worse trials by
    their evaluations during training (Li et al. 2020, ASHA). No combination is tried twice. ``grid``: try the whole
    space instead, without pruning. ``seeds``: seeds of each trial, whose scores are averaged; None: one run per trial,
    with ``config.seed``. ``space_name``: for errors. ``request``: a Ray cluster with the folder at the same path; None:
    this machine. For the other arguments see
    :func:`reverie.tune`.
    """
    try:
        import optuna  # optional
    except ImportError as error:
        raise ConfigError("The package optuna is not installed. Install it: pip install 'reverie-rl[tune]'.") from error
    check_seeds(config, [config.seed] if seeds is None else seeds, jobs)
    dimensions = read_space(space, config, space_name)
    if seeds is not None and "seed" in dimensions:
        raise ConfigError(
            f"{space_name}: seed = {short_repr(space['seed'])}: each trial already has the seeds {list(seeds)}."
        )
    endless = [name for name, dim in dimensions.items() if dim.size is None]
    if grid and endless:
        raise ConfigError(
            f"{space_name}: {endless[0]} = {short_repr(space[endless[0]])}: a grid cannot contain infinitely many "
            "values. Pass a list of values, or a step between low and high."
        )
    check_num_runs(space_name, _num_trials(dimensions, trials, grid), len(seeds or [0]))
    prune = prune and not grid
    if not config.eval_episodes or config.env.id == NO_ENV:
        raise ConfigError("A search compares evaluations: it needs --eval-episodes above 0, and an environment.")
    path, saved = find_runs_folder(config, run, "tune", request)
    if prune and not config.evaluates_during_training:
        config = config.merge({"schedule.eval_every": max(1, math.ceil(config.length / NUM_RUNGS**2))})
        logger.info(
            f"trials are evaluated every {config.schedule.eval_every} {config.unit}, so that bad trials end early"
        )
    _check_same_search(path, saved, config, space)
    with open_runs_folder(path, config, request, is_new=not saved) as trainer:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            study = optuna.create_study(
                storage=f"sqlite:///{path / STUDY}", study_name="reverie", load_if_exists=True,
                direction="minimize" if config.score.minimize else "maximize",
                pruner=optuna.pruners.SuccessiveHalvingPruner(max(1, config.length // NUM_RUNGS**2), NUM_RUNGS),
            )  # fmt: skip
        except Exception as error:  # errors of SQLite, SQLAlchemy or Optuna
            reason = str(error).partition("\n")[0]
            raise RunError(f"{path / STUDY} is damaged ({reason}). Choose another --run.") from error
        requested, before = seeds and list(seeds), study.user_attrs.get("seeds")
        if study.trials and before != requested:
            raise RunError(
                f"{path} contains a search with other seeds ({before} -> {requested}). Choose another --run."
            )
        study.set_user_attr("seeds", requested)
        write_atomic(path / "space.yaml", yaml.safe_dump(dict(space), sort_keys=False))
        write_shared(path / "settings.yaml", SavedConfig(algorithm=config.name, experiment=config.to_dict()))
        search = Search(study, dimensions, config, path, prune, grid, seeds)
        return search.run(trials, jobs or trainer.max_parallel, trainer)


def _num_trials(dimensions: Mapping[str, Dimension], count: int, grid: bool) -> int:
    """Return the number of trials of a search for ``count``: all combinations in a grid, and never more."""
    sizes = [dim.size for dim in dimensions.values()]
    size = math.inf if None in sizes else math.prod(filter(None, sizes))
    return int(size) if size < count or grid else count


def _check_same_search(
    path: Path, saved: Mapping[str, Any] | None, config: ExperimentConfig, space: Mapping[str, Any]
) -> None:
    """Check that the search in ``path``, if there is one, with the settings ``saved``, is this search."""
    if not saved or not (path / "space.yaml").exists():
        return
    changes = settings_changes(saved, to_yaml_types(config.to_dict()))
    changes += settings_changes(read_yaml(path / "space.yaml"), to_yaml_types(space))
    if changes := [line for line in changes if not line.startswith("console:")]:
        raise RunError(f"{path} contains a search with other settings ({'; '.join(changes)}). Choose another --run.")


class Search:
    """An Optuna study and the runs of its trials: ``trial-0``, or with several seeds ``trial-0/seed-0``."""

    def __init__(
        self, study: Study, dimensions: Mapping[str, Dimension], config: ExperimentConfig, path: Path, prune: bool,
        grid: bool, seeds: Sequence[int] | None,
    ) -> None:  # fmt: skip
        self.study = study
        self.dimensions = dimensions
        self.config = config
        self.path = path
        self.score: ScoreMetric = config.score
        self.prune = prune
        self.grid = grid
        self.seeds = seeds
        self.trials: dict[int, Any] = {}  # trials of this process
        self.runs: dict[int, list[ChildRun]] = {}  # their runs
        self.reported: dict[int, int] = {}  # number of evaluations reported to Optuna
        self.pruned: set[int] = set()
        self.failed: set[int] = set()
        self.tails: dict[ChildRun, JsonlTail] = {}
        # scores of evaluations during training, by step
        self.scores: dict[ChildRun, dict[int, float]] = defaultdict(dict)
        self.final: dict[ChildRun, float] = {}

    def run(self, count: int, jobs: int, trainer: Trainer) -> TuneResult:
        """Train the missing runs of ``count`` trials; of all combinations in a grid, and never more."""
        count = _num_trials(self.dimensions, count, self.grid)
        is_whole = _num_trials(self.dimensions, count + 1, self.grid) == count
        finished = [trial.state.is_finished() for trial in self.study.trials]
        self.runs = {i: self.trial_runs(i) for i in range(count) if i >= len(finished) or not finished[i]}
        runs = [seed_run for group in self.runs.values() for seed_run in group]
        title = f"{self.config.name} on {self.config.task_label}"
        if runs:
            seeds_text = "" if self.seeds is None else f" of {count_noun(len(self.seeds), 'seed')}"
            seeds_text += ", all combinations" if is_whole else ""
            parallel_text = f"up to {count_noun(jobs, 'run')} at a time"
            logger.info(f"{title}: {count_noun(len(self.runs), 'trial')}{seeds_text}, {parallel_text}, in {self.path}")
        with contextlib.closing(RunsDisplay(runs if self.config.console else [], title)) as board:
            signal = train_runs(RunQueue(runs, self.command, board, self.tell_optuna, self.should_prune), trainer, jobs)
        return self.result(signal)

    def trial_runs(self, number: int) -> list[ChildRun]:
        """Return the waiting runs of a trial."""
        name = f"trial-{number}"
        if self.seeds is None:
            return [ChildRun(self.path, name, self.config.seed, self.config, number)]
        return [ChildRun(self.path, f"{name}/seed-{seed}", seed, self.config, number) for seed in self.seeds]

    def command(self, seed_run: ChildRun) -> list[str]:
        """Choose the settings of a trial, unless it has started, and return the command line of one of its runs."""
        import optuna

        settings_path = self.path / f"trial-{seed_run.trial}.yaml"
        if seed_run.trial not in self.trials:
            if seed_run.trial == len(self.study.trials):
                kinds = {name: d.distribution for name, d in self.dimensions.items()}
                running = optuna.trial.TrialState.RUNNING
                self.study.add_trial(
                    optuna.create_trial(state=running, params=self.propose(kinds), distributions=kinds)
                )
            begun = self.study.trials[seed_run.trial]
            self.trials[seed_run.trial] = optuna.trial.Trial(self.study, begun._trial_id)
            self.reported[seed_run.trial] = len(begun.intermediate_values)
            with disk_errors_as_run_error(settings_path):
                write_atomic(settings_path, yaml.safe_dump(self.settings(begun.params), sort_keys=False))
        seed = [] if self.seeds is None else ["--seed", str(seed_run.seed)]
        files = ["--config", str(self.path / "settings.yaml"), str(settings_path)]
        return ["train", self.config.name, *files, *seed, "--run", str(seed_run.run), *["--trust-code"] * is_trusting()]

    def propose(self, kinds: Mapping[str, Any]) -> dict[str, Any]:
        """Return Optuna's sample for the next trial, different from all previous ones; in a grid, the next in order."""
        import optuna

        tried = [trial.params for trial in self.study.trials]
        counts = [dim.size for dim in self.dimensions.values()]
        if not self.grid:
            # a seed for each trial: a resumed search goes on as it would have
            sampler = optuna.samplers.TPESampler(seed=self.config.seed + len(tried), constant_liar=True)
            draft = optuna.create_study(direction=self.study.direction, sampler=sampler)  # in memory
            draft.add_trials(self.study.trials)
            for _ in range(MAX_PROPOSALS):
                params: dict[str, Any] = draft.ask(dict(kinds)).params
                if params not in tried:
                    return params
        every = np.ndindex(*(size or 1 for size in counts))
        named = ({name: d.drawn(i) for (name, d), i in zip(self.dimensions.items(), at, strict=True)} for at in every)
        return next(params for params in named if params not in tried)

    def settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a trial from Optuna's sample."""
        return {name: d.value(params[name]) for name, d in self.dimensions.items() if name in params}

    def read(self, seed_run: ChildRun) -> None:
        """Read the scores of new evaluations of a run."""
        for row in self.tails.setdefault(seed_run, JsonlTail(RunFolder(seed_run.run).metrics)).read():
            score = row.get(self.score.name)
            if score is not None and math.isfinite(score):
                if row.get(FINAL):
                    self.final[seed_run] = score
                else:
                    self.scores[seed_run][int(row["step"])] = score

    def should_prune(self, seed_run: ChildRun) -> bool:
        """Report new evaluations of a run's trial, averaged over its seeds; return whether to prune it."""
        self.read(seed_run)
        number, trial = seed_run.trial, self.trials[seed_run.trial]
        begun = [sorted(self.scores[run].items()) for run in self.runs[number] if run.state != "waiting"]
        for same in list(zip(*begun, strict=False))[self.reported[number] :]:
            steps, scores = zip(*same, strict=True)
            self.reported[number] += 1
            trial.report(float(np.mean(scores)), max(steps))
            if self.prune and trial.should_prune():
                self.drop_trial(number, self.pruned)
        return number in self.pruned | self.failed

    def drop_trial(self, number: int, why: set[int]) -> None:
        """Record that no more runs of a trial start, since it was pruned or has failed."""
        why.add(number)
        for run in self.runs[number]:
            if run.state == "waiting":
                run.state, run.note = "stopped", "left out"

    def tell_optuna(self, seed_run: ChildRun) -> None:
        """Report the result of a trial to Optuna after its last run.

        A trial stopped by a signal stays open, to continue later.
        """
        from optuna.trial import TrialState

        self.read(seed_run)
        number, group = seed_run.trial, self.runs[seed_run.trial]
        if seed_run.state == "finished" and seed_run in self.final:
            seed_run.note = f"score {self.final[seed_run]:.2f}"
        elif seed_run.state in ("failed", "finished"):
            self.drop_trial(number, self.failed)
        elif number in self.pruned:
            seed_run.note = "pruned"
        if any(run.state in ("waiting", "running") for run in group):
            return
        if all(run.state == "finished" and run in self.final for run in group):
            self.study.tell(self.trials[number], float(np.mean([self.final[run] for run in group])))
        elif number in self.pruned | self.failed:
            state = TrialState.FAIL if number in self.failed else TrialState.PRUNED
            self.study.tell(self.trials[number], state=state)

    def result(self, signal: int | None) -> TuneResult:
        """Write the table and the figure of all trials, and return them."""
        states = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}
        trials = [
            Trial(
                number=trial.number,
                state=states.get(trial.state.name, "unfinished"),  # type: ignore[arg-type]
                score=trial.value if trial.value is not None else trial.intermediate_values.get(trial.last_step),  # type: ignore[arg-type]
                settings=self.settings(trial.params),
                run=self.path / f"trial-{trial.number}",
            )
            for trial in self.study.trials
        ]
        sign = 1 if self.score.minimize else -1
        trials.sort(
            key=lambda trial: (trial.state != "finished", -math.inf if trial.score is None else sign * trial.score)
        )
        files = {"trials": self.path / "trials.csv"}
        with disk_errors_as_run_error(self.path):
            write_atomic(files["trials"], _as_csv(trials, list(self.dimensions)))
            logs = {name: bool(getattr(d.distribution, "log", False)) for name, d in self.dimensions.items()}
            title = f"{self.config.name} on {self.config.task_label}"
            points, pruned = (
                [(trial.score, trial.settings) for trial in trials if trial.state == state and trial.score is not None]
                for state in ("finished", "pruned")
            )
            from reverie.log.plot import plot_trials  # matplotlib takes a third of the time of all imports

            if drawn := plot_trials(self.path / "tune.png", logs, points, pruned, title):
                files["figure"] = drawn
        return TuneResult(run=self.path, trials=trials, signal=signal, files=files)


def _as_csv(trials: Sequence[Trial], names: Sequence[str]) -> str:
    """Return the table of trials as CSV."""
    out = io.StringIO()
    table = csv.writer(out)
    table.writerow(["trial", "state", "score", *map(formula_free, names)])
    for trial in trials:
        score = "" if trial.score is None else f"{trial.score:.6g}"
        values = (formula_free(trial.settings.get(name, "")) for name in names)
        table.writerow([trial.number, trial.state, score, *values])
    return out.getvalue()

"""A search for good settings: trials that Optuna proposes and prunes, each trained by a process of its own."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from reverie.core.errors import ConfigError, RunError, brief, plural
from reverie.core.files import check_local, check_writable, write_atomic, writing
from reverie.core.importing import trusts
from reverie.core.lock import folder_lock
from reverie.core.logger import logger
from reverie.experiment.config import NO_ENV, ExperimentConfig, resolved
from reverie.log.console import Board, Tail
from reverie.log.metrics import FINAL
from reverie.run.evaluate import Score, read_evaluation
from reverie.run.folder import (
    RunFolder,
    Saved,
    as_read,
    holds_run,
    new_path,
    read_yaml,
    settings_changes,
    write_saved,
)
from reverie.scale.ray import ClusterRequest
from reverie.scale.seeds import SeedRun, Train, Turns, check_seeds, train_runs, trainer

RUNGS = 3
"""Each rung of successive halving keeps the best third of the trials, at 1/9 and 1/3 of a run's length."""


class Dimension(NamedTuple):
    """The values that a search may give one setting: a range, or choices."""

    distribution: Any
    """Optuna's."""
    choices: tuple[Any, ...] = ()

    def value(self, drawn: Any) -> Any:
        """Return the setting for what Optuna drew."""
        return next(one for one in self.choices if as_word(one) == drawn) if self.choices else drawn


def as_word(choice: Any) -> Any:
    """Return a choice as Optuna can store it: lists and mappings are text there."""
    plain = choice is None or isinstance(choice, bool | int | float | str)
    return choice if plain else yaml.safe_dump(choice, default_flow_style=True).strip()


def read_space(values: Mapping[str, Any], config: ExperimentConfig, where: str) -> dict[str, Dimension]:
    """Return the dimensions that a file describes, in its order: ``algo.lr: {low: 1e-5, high: 1e-2, log: true}``."""
    found: dict[str, Dimension] = {}
    for name, about in values.items():
        try:
            found[name] = dimension(name, about, config)
        except (ConfigError, TypeError, ValueError) as error:  # ours, Python's, and Optuna's
            what = error if isinstance(error, ConfigError) else f"{name} = {brief(about)}: {error}"
            raise ConfigError(f"{where}: {what}") from error
    return found


def dimension(name: str, about: Any, config: ExperimentConfig) -> Dimension:
    """Return one dimension. ``step``: the distance of neighbouring values."""
    from optuna import distributions as of  # optional

    keys = {*about} if isinstance(about, Mapping) else set()
    choices = about["choices"] if keys == {"choices"} and isinstance(about["choices"], list) else []
    if not choices and not {"low", "high"} <= keys <= {"low", "high", "log", "step"}:
        raise ValueError("expected {choices: [a, b]}, or {low: 1, high: 9}, with log: true or step: 2.")
    tried = choices or [float(about["low"]), float(about["high"])]  # YAML reads 1e-5 as text
    held: list[Any] = [functools.reduce(getattr, name.split("."), config.merge({name: value})) for value in tried]
    if choices:
        return Dimension(of.CategoricalDistribution([as_word(choice) for choice in choices]), tuple(choices))
    low, high = tried
    log = bool(about.get("log", False))
    step = float(about["step"]) if "step" in about else None
    if all(type(value) is int for value in held):
        return Dimension(of.IntDistribution(int(low), int(high), log=log, step=int(step or 1)))
    return Dimension(of.FloatDistribution(low, high, log=log, step=step))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One attempt of a search."""

    number: int
    state: Literal["finished", "pruned", "failed", "unfinished"]
    score: float | None
    """The setting ``score`` of its final evaluation, or of its last one if it was pruned; None if it had none."""
    settings: dict[str, Any]
    """The settings that were tried, by their dotted names."""
    run: Path
    """Run folder."""


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


def tune_of(
    config: ExperimentConfig, space: Mapping[str, Any], *, trials: int, jobs: int = 0, prune: bool = True,
    run: Path | str | None = None, where: str = "space", on: ClusterRequest | None = None,
) -> TuneResult:  # fmt: skip
    """Search for the settings with the best final evaluation; continue a search that has begun.

    Trees of Parzen estimators propose settings (Bergstra et al. 2011), successive halving prunes trials whose
    evaluations during training are among the worse (Li et al. 2020, ASHA).

    ``where`` names the space in errors. ``on``: a Ray cluster, which must see the folder at the same path; None: this
    machine. For all else see :func:`reverie.tune`.
    """
    try:
        import optuna  # optional
    except ImportError as error:
        raise ConfigError("The package optuna is not installed. Install it: pip install 'reverie-rl[tune]'.") from error
    check_local(run or "", "run")
    check_seeds(config, [config.seed], jobs)
    dimensions = read_space(space, config, where)
    config = resolved(config, None)
    if not config.eval_episodes or config.env.id == NO_ENV:
        raise ConfigError("A search compares evaluations: it needs --eval-episodes above 0, and an environment.")
    if prune and not config.evaluates_on_the_way:
        config = config.merge({"schedule.eval_every": max(1, math.ceil(config.length / RUNGS**2))})
        logger.info(
            f"trials are evaluated every {config.schedule.eval_every} {config.unit}, so that bad ones end early"
        )
    path = Path(os.path.expanduser(run)) if run is not None else new_path(config.subject, f"{config.name}-tune")
    path = path if on is None else path.absolute()  # the working directory of a node may be another
    check_writable(path)
    check_same(path, config, space)
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    with folder_lock(path):
        write_saved(path / "settings.yaml", Saved(algorithm=config.name, experiment=config.to_dict()))
        write_atomic(path / "space.yaml", yaml.safe_dump(dict(space), sort_keys=False))
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            storage=f"sqlite:///{path / 'study.db'}", study_name="reverie", load_if_exists=True,
            direction="minimize" if Score.parse(config.score).lowest else "maximize",
            pruner=optuna.pruners.SuccessiveHalvingPruner(max(1, config.length // RUNGS**2), RUNGS),
        )  # fmt: skip
        study.sampler = optuna.samplers.TPESampler(seed=config.seed + len(study.trials), constant_liar=True)
        search = Search(study, dimensions, config, path, prune)
        with trainer(config, on) as (train, most):
            return search.run(trials, jobs or most, train)


def check_same(path: Path, config: ExperimentConfig, space: Mapping[str, Any]) -> None:
    """Check that what is in the folder ``path``, if anything, is this search."""
    if not holds_run(path, path / "settings.yaml", config.name, config.env.id) or not (path / "space.yaml").exists():
        return
    before = read_yaml(path / "settings.yaml")["experiment"]
    changes = settings_changes(before, as_read(config.to_dict()))
    changes += settings_changes(read_yaml(path / "space.yaml"), as_read(space))
    if changes := [line for line in changes if not line.startswith("console:")]:
        raise RunError(f"{path} holds a search with other settings ({'; '.join(changes)}). Choose another --run.")


class Search:
    """A study of Optuna and the runs of its trials, one folder for each: ``trial-0``."""

    def __init__(
        self, study: Any, dimensions: Mapping[str, Dimension], config: ExperimentConfig, path: Path, prune: bool
    ) -> None:
        self.study = study
        self.dimensions = dimensions
        self.config = config
        self.path = path
        self.score: Score = Score.parse(config.score)
        self.prune = prune
        self.trials: dict[int, Any] = {}  # trials of this process
        self.reported: dict[int, set[int]] = {}  # steps of which Optuna knows the score
        self.pruned: set[int] = set()
        self.tails: dict[int, Tail] = {}

    def run(self, count: int, jobs: int, train: Train) -> TuneResult:
        """Have what is missing of ``count`` trials trained by ``train``."""
        known = [trial.state.is_finished() for trial in self.study.trials]
        runs = [self.place(i) for i in range(count) if i >= len(known) or not known[i]]
        title = f"{self.config.name} on {self.config.subject}"
        if runs:
            logger.info(f"{title}: {plural(len(runs), 'trial')}, up to {jobs} at a time, in {self.path}")
        with contextlib.closing(Board(runs if self.config.console else [], title)) as board:
            signal = train_runs(Turns(runs, self.command, board, self.tell, self.unpromising), train, jobs)
        return self.result(signal)

    def place(self, number: int) -> SeedRun:
        """Return the run of a trial, which waits."""
        return SeedRun(self.path, "trial", number, self.config)

    def command(self, one: SeedRun) -> list[str]:
        """Ask for the settings of a trial, unless it has begun, and return the words that train it."""
        import optuna

        begun = self.study.trials
        if one.seed < len(begun):
            self.trials[one.seed] = optuna.trial.Trial(self.study, begun[one.seed]._trial_id)
            self.reported[one.seed] = {*begun[one.seed].intermediate_values}
        else:
            self.trials[one.seed] = self.study.ask({name: d.distribution for name, d in self.dimensions.items()})
        own = self.path / f"trial-{one.seed}.yaml"
        with writing(own):
            write_atomic(own, yaml.safe_dump(self.settings(self.trials[one.seed].params), sort_keys=False))
        files = [str(self.path / "settings.yaml"), str(own)]
        return ["train", self.config.name, "--config", *files, "--run", str(one.run), *["--trust"] * trusts()]

    def settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a trial from what Optuna drew."""
        return {name: d.value(params[name]) for name, d in self.dimensions.items() if name in params}

    def unpromising(self, one: SeedRun) -> bool:
        """Report new evaluations of a running trial, and return whether it is to end."""
        trial, known = self.trials[one.seed], self.reported.setdefault(one.seed, set())
        tail = self.tails.setdefault(one.seed, Tail(RunFolder(one.run).metrics))
        for row in tail.read():
            score, step = row.get(self.score.name), int(row["step"])
            if score is not None and math.isfinite(score) and not row.get(FINAL) and step not in known:
                known.add(step)
                trial.report(score, step)
                if self.prune and trial.should_prune():
                    self.pruned.add(one.seed)
        return one.seed in self.pruned

    def tell(self, one: SeedRun) -> None:
        """Tell Optuna how a trial ended. One that a signal stopped stays open, and goes on the next time."""
        from optuna.trial import TrialState

        found = read_evaluation(RunFolder(one.run))
        score = None if found is None else found.metrics().get(self.score.name)
        trial = self.trials[one.seed]
        if one.state == "finished" and score is not None:
            self.study.tell(trial, score)
            one.note = f"score {score:.2f}"
        elif one.state == "stopped" and one.seed in self.pruned:
            self.study.tell(trial, state=TrialState.PRUNED)
            one.note = "pruned"
        elif one.state in ("failed", "finished"):
            self.study.tell(trial, state=TrialState.FAIL)

    def result(self, signal: int | None) -> TuneResult:
        """Write the table and the figure of all trials, and return them."""
        states = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}
        found = [
            Trial(
                number=one.number,
                state=states.get(one.state.name, "unfinished"),  # type: ignore[arg-type]
                score=one.value if one.value is not None else one.intermediate_values.get(one.last_step),
                settings=self.settings(one.params),
                run=self.place(one.number).run,
            )
            for one in self.study.trials
        ]
        sign = 1 if self.score.lowest else -1
        found.sort(key=lambda one: (one.state != "finished", -math.inf if one.score is None else sign * one.score))
        files = {"trials": self.path / "trials.csv"}
        with writing(self.path):
            write_atomic(files["trials"], as_csv(found, list(self.dimensions)))
            logs = {name: bool(getattr(d.distribution, "log", False)) for name, d in self.dimensions.items()}
            title = f"{self.config.name} on {self.config.subject}"
            points, pruned = (
                [(one.score, one.settings) for one in found if one.state == state and one.score is not None]
                for state in ("finished", "pruned")
            )
            from reverie.log.plot import tuned_figure  # matplotlib takes a third of the time of all imports

            if drawn := tuned_figure(self.path / "tune.png", logs, points, pruned, title):
                files["figure"] = drawn
        return TuneResult(run=self.path, trials=found, signal=signal, files=files)


def as_csv(trials: Sequence[Trial], names: Sequence[str]) -> str:
    """Return the table of trials as CSV."""
    out = io.StringIO()
    table = csv.writer(out)
    table.writerow(["trial", "state", "score", *names])
    for one in trials:
        score = "" if one.score is None else f"{one.score:.6g}"
        table.writerow([one.number, one.state, score, *(one.settings.get(name, "") for name in names)])
    return out.getvalue()

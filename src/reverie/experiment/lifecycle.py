"""A run: one folder, one writer. The same call starts a run, continues it, or finishes it.

=============================================  =========================================================================
In the folder                                  What ``run_experiment`` does
=============================================  =========================================================================
nothing                                        builds, writes the settings, trains
a run without a checkpoint (killed early)      the same; rows that this run has stored already stay in the store, unused
a whole checkpoint, and steps are left         builds, loads every part of it, trains the rest
a whole checkpoint, and the run is over        loads the learner, and makes up for a final evaluation that is missing
damaged checkpoints                            the newest that is whole counts (``run/checkpoint.py``)
=============================================  =========================================================================
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reverie.core.clock import Clock
from reverie.core.errors import ConfigError, ReverieError, RunError, count_noun
from reverie.core.files import check_writable, disk_errors_as_run_error, write_json
from reverie.core.kernel_dispatch import kernel_problem
from reverie.core.logger import logger
from reverie.core.protocols import Sink, Stateful
from reverie.core.types import State
from reverie.experiment.build import Experiment, RowStore
from reverie.experiment.config import ExperimentConfig
from reverie.run import loop as training
from reverie.run.callback import Callback, CallbackList, TrainingRun
from reverie.run.checkpoint import Checkpoints, MismatchError, checkpoint_name, read_checkpoint
from reverie.run.dream_snapshots import DreamSnapshots
from reverie.run.evaluate import Evaluation, MeasurementResult, read_evaluation, scalars_of_result
from reverie.run.folder import (
    RunFolder,
    SavedConfig,
    check_spec,
    contains_run,
    is_final_result_of_step,
    read_saved_config,
    settings_changes,
    to_yaml_types,
    update_saved_config,
    write_result,
)
from reverie.run.manifest import checkpoint_problem, checkpoint_step, encode_state, read_manifest
from reverie.run.provenance import record_process
from reverie.run.result import TrainResult
from reverie.run.schedule import Periodic
from reverie.run.signal_handling import SignalStop, explain_interrupt, raise_on_signal

LOADED_FIRST = ("algo", "clock", "run")
"""Parts of a checkpoint that are loaded first, to decide whether there is anything left to do."""
HAND_BACK_SECONDS = 60.0
"""Seconds since the newest checkpoint after which the end of a takeover is saved: a person's work is not repeated."""
LOG_INFO_ADVICE = "; env.log_info adds values of the environment's info"
OpenSinks = Callable[[Experiment, Mapping[str, float] | None], contextlib.AbstractContextManager[Sequence[Sink]]]
"""Opens the metric sinks; the mapping marks logged entries of the current step that will be written again. On exit, the
learning curve is plotted."""


def run_experiment(
    build: Callable[[int | None], Experiment], folder: RunFolder, saved: SavedConfig, open_sinks: OpenSinks,
    callbacks: Sequence[Callback] = (),
) -> TrainResult:  # fmt: skip
    """Start, continue or finish the run in ``folder``.

    Nothing is created before everything has been built and checked. One process at a time writes to a run. ``build``
    builds the experiment with the ``saved`` settings, to continue from a step; None: start a new run.

    Raises:
        ReverieError: settings contradict each other, the folder belongs to another run or another process writes to it,
            all of its checkpoints are damaged, or a loss, a weight or an action was not finite.
    """
    with contextlib.ExitStack() as stack:
        check_writable(folder.path)
        begun = contains_run(folder.path, folder.config, saved.algorithm, saved.env)
        checkpoints, newest = Checkpoints(folder.checkpoints, saved.experiment["keep_checkpoints"]), None
        if begun:
            stack.enter_context(folder.lock())
            with disk_errors_as_run_error(folder.path):
                checkpoints.recover()
            newest = checkpoints.latest()
            if newest is None:
                logger.info(
                    f"{folder} has no checkpoint: the run starts over, and keeps the rows and logs stored there"
                )
        with explain_interrupt("The run was being built and has made no steps; nothing is lost"):
            kernel_problem()  # compiles missing kernels now, so that this time is no part of the run
            experiment = build(None if newest is None else checkpoint_step(newest))
        stack.push(lambda kind, *_: experiment.close(failed=kind is not None))
        encode_state(experiment.algo.state_dict(), "algo", {})  # else the first checkpoint would fail, an hour later
        life = RunLifecycle(experiment, folder, checkpoints, callbacks)
        encode_state(life.callbacks.state_dict(), "callbacks", {})
        if newest is not None:
            check_spec(folder, experiment.spec)
            life.load(newest, LOADED_FIRST)
            if done := life.finished_reason():
                life.restore_best(newest)
                logger.info(f"{folder} {done}")
                return life.result_of_finished(newest, open_sinks)
            life.resume(newest)
        else:
            if experiment.store is not None:
                experiment.store.check_writable()  # a run that is rejected here leaves no files behind
            experiment.load_initial()
        experiment.describe(folder.path)
        if not begun:
            _create_run_folder(folder, stack)
        life.write_settings(is_new=newest is None)
        if newest is None:
            experiment.begin()
        elif experiment.store is not None and experiment.store.is_copied:
            life.save()  # without a checkpoint, each attempt that is killed would copy these rows again
        return life.train(open_sinks)


def _create_run_folder(folder: RunFolder, stack: contextlib.ExitStack) -> None:
    """Create the folder and acquire its lock; RunError if another process has started a run there since the check."""
    with disk_errors_as_run_error(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
    stack.enter_context(folder.lock())
    if folder.config.exists():
        raise RunError(f"another process has just created a run in {folder}. Choose another run folder.")


class RunLifecycle:
    """Saves checkpoints of a run: periodically, at the end, on errors, and whenever the score improves.

    Its own state is part of the checkpoint.
    """

    def __init__(
        self, experiment: Experiment, folder: RunFolder, checkpoints: Checkpoints, callbacks: Sequence[Callback]
    ) -> None:
        self.experiment = experiment
        self.config: ExperimentConfig = experiment.config
        self.folder = folder
        self.checkpoints = checkpoints
        self.clock: Clock = experiment.clock
        self.takeovers: Any = getattr(experiment.collector, "takeovers", None)
        """Counts what a person does; None: nobody can take over."""
        self.heldout: Callable[[], Mapping[str, float]] = experiment.heldout or dict
        self.final_heldout: Mapping[str, float] = {}
        self.saved_seconds: float = self.clock.seconds
        """When the newest checkpoint of this process was written, in seconds of the run."""
        self.goal: float | None = self.config.stop_score if self.config.scores_during_training else None
        self.best: float | None = None
        self.best_step: int = 0
        self.evals_since_best: int = 0
        self.has_warned: bool = False
        # numbers of the newest evaluation, until the callbacks have received them
        self.pending_evaluation: dict[str, float] | None = None
        self.run: TrainingRun = TrainingRun(folder.path, experiment.algo, self.clock, experiment.callback_env)
        self.callbacks: CallbackList = CallbackList(callbacks, self.run)
        self.settings: dict[str, Any] = to_yaml_types(experiment.saved.experiment)
        self.checkpoint_settings: dict[str, Any] | None = None  # settings of the checkpoint that was loaded
        # in the logs: 1 at the end of training, 0 during it
        self.final_metric = f"{experiment.measurement or 'eval'}/final"
        self.file: Path = folder.estimate if experiment.measurement == "estimate" else folder.evaluation

    def state_dict(self) -> State:
        """Return the best score, its step, the evaluations since then, and the settings."""
        state = {
            name: getattr(self, name)
            for name in ("best", "best_step", "evals_since_best", "pending_evaluation", "settings")
        }
        return {**state, "stopped": self.run.stopped}

    def load_state_dict(self, state: State) -> None:
        """Restore score and step, unless the score metric has changed; keep the settings for comparison."""
        self.best, self.best_step = state["best"], int(state["best_step"])
        self.checkpoint_settings = dict(state["settings"])
        self.evals_since_best, self.pending_evaluation = int(state["evals_since_best"]), state["pending_evaluation"]
        if self.checkpoint_settings["score_metric"] != self.settings["score_metric"]:
            self.best, self.evals_since_best = None, 0
        if self.clock.length <= self.checkpoint_settings[self.clock.unit]:  # a longer run continues
            self.run.stopped = state["stopped"]

    def parts(self) -> dict[str, Stateful]:
        """Return the parts of a checkpoint in the order in which they are loaded."""
        parts: dict[str, Stateful] = {"algo": self.experiment.algo, "clock": self.clock, "run": self}
        return {**parts, "callbacks": self.callbacks, **self.experiment.parts()}

    def load(self, path: Path, names: Sequence[str]) -> None:
        """Load these parts of the checkpoint; an error names the settings of the algorithm that differ."""
        parts = self.parts()
        try:
            self.checkpoints.load(path, {name: parts[name] for name in names})
        except ReverieError as error:
            before = read_saved_config(self.folder.path).experiment.get("algo", {})
            if lines := settings_changes(before, self.settings["algo"], "algo."):
                advice = f"The checkpoint {path} does not fit them: restore these settings, or start another run."
                rest = advice if isinstance(error, MismatchError) else error  # which lists PyTorch's tensors
                error.args = (f"the run was started with different settings: {'; '.join(lines)}. {rest}",)
            raise

    def resume(self, path: Path) -> None:
        """Load the parts that are not in ``LOADED_FIRST``, and resume storing rows."""
        if self.experiment.store is not None:
            self.experiment.store.check()
        logger.info(f"continuing {self.folder} from {self.clock.position_text}")
        self.load(path, [name for name in self.parts() if name not in LOADED_FIRST])
        self.restore_best(path)

    def write_settings(self, *, is_new: bool) -> None:
        """Write config.yaml and spec.json, and report the settings that differ from the checkpoint's or the folder's.

        ``is_new``: there is no checkpoint, so the observations may have changed.
        """
        experiment, folder = self.experiment, self.folder
        before = self.checkpoint_settings
        if folder.config.is_file():
            before = read_saved_config(folder.path).experiment if before is None else before
        with disk_errors_as_run_error(folder.path):
            if is_new or not folder.spec.is_file():
                write_json(folder.spec, experiment.spec)
            update_saved_config(folder, experiment.saved, self.clock.position)
            record_process(folder, experiment.saved, self.clock.position, self.callbacks.modules)
        for line in [] if before is None else settings_changes(before, self.settings):
            logger.info(line)

    def save(self, *, diverged: bool = False) -> Path:
        """Write a checkpoint of the whole run. If that fails, this raises RunError and earlier checkpoints are kept."""
        self.check_folder()
        path = self.checkpoints.save(self.clock.position, self.parts(), diverged=diverged)
        self.saved_seconds = self.clock.seconds
        if not diverged and self.experiment.store is not None:
            self.experiment.store.on_checkpoint(
                path.name, [checkpoint.name for checkpoint in self.checkpoints.kept_paths()]
            )
        return path

    def check_folder(self) -> None:
        """If the run's folder was deleted or moved, save the agent in a new folder and raise RunError."""
        if self.folder.config.is_file():
            return
        self.write_settings(is_new=True)
        self.save()
        raise RunError(
            f"{self.folder} was deleted or moved while the run was writing to it: the run ends. Its logs and "
            "checkpoints are gone; the agent and the settings are saved in a new folder of the same name"
        )

    def save_if_best(self, score: float) -> None:
        """Save the agent and mark it as best, if its ``score`` is better than all earlier scores."""
        if math.isfinite(score) and (self.best is None or not self.config.score.is_at_least_as_good(self.best, score)):
            self.best, self.best_step = score, self.clock.position
            self.checkpoints.mark_best(self.save())

    def restore_best(self, path: Path) -> None:
        """Mark the best checkpoint again, since a process may have ended before marking it.

        If it is damaged, mark ``path``.
        """
        if self.best is None:
            return
        best = self.checkpoints.folder / checkpoint_name(self.best_step)
        if why := "" if best == path else checkpoint_problem(best):
            logger.warning(f"the best checkpoint {best.name} is damaged ({why}): {path.name} is marked as best instead")
            best = path
        if self.checkpoints.best() != best:
            self.checkpoints.mark_best(best)

    @property
    def pending(self) -> bool:
        """Whether the loaded run was stopped before an evaluation that was due, perhaps after its last iteration."""
        return self.evaluates and Periodic(self.config.schedule.eval_every, self.clock, "eval").is_due

    @property
    def evaluates(self) -> bool:
        """Whether an evaluation, an estimate or held-out data can rank the agent during training."""
        return bool(self.experiment.measurement) or self.experiment.heldout is not None

    def finished_reason(self) -> str:
        """Return why the loaded run is over and how to continue it, as a predicate; "" if it is not over."""
        clock = self.clock
        if why := self.early_stop_reason():
            change = f"increase {clock.unit}" if self.run.stopped else f"set another {why.split()[0]}, or None,"
            return f"was ended early by {why}: {change} to continue"
        if clock.done and not self.pending:
            progress_text = f"{clock.position:,} {'env steps' if clock.unit == 'steps' else 'updates'}"
            return (
                f"has already made {progress_text} ({clock.unit} = {clock.length}): increase {clock.unit} to continue"
            )
        return ""

    def early_stop_reason(self) -> str:
        """Return why the run ends before its last step; "" if it does not."""
        goal, patience, score = self.goal, self.config.patience, self.config.score
        if self.run.stopped:
            return f"a callback: {self.run.stopped}"
        if self.clock.out_of_time and self.clock.position < self.clock.length:
            return f"hours = {self.settings['hours']:g}"
        if goal is not None and self.best is not None and score.is_at_least_as_good(self.best, goal):
            return f"stop_score = {goal:g} (best {score.name} {self.best:g})"
        if patience is not None and self.evals_since_best >= patience:
            best = "finite" if self.best is None else f"better than {self.best:g}"
            evaluations = count_noun(self.evals_since_best, "evaluation")
            return f"patience = {patience} (no {score.name} was {best} in {evaluations})"
        return ""

    def best_text(self) -> str:
        """Return the best score and its position, after a run that its ``hours`` ended; else ""."""
        if not self.clock.out_of_time or self.best is None:
            return ""
        return f"; the best {self.config.score.name} is {self.best:.2f}, at {self.clock.unit[:-1]} {self.best_step}"

    def train(self, open_sinks: OpenSinks) -> TrainResult:
        """Train, and evaluate at the end."""
        experiment = self.experiment
        # The evaluation may have been logged, but the best agent not saved.
        is_repeated = self.pending and bool(experiment.measurement)
        snapshots = DreamSnapshots(
            self.folder.snapshots, experiment.algo, self.clock, self.config.schedule.dream_snapshots
        )

        was_open = False

        def end_turn() -> bool:
            """Save a snapshot if one is due; return whether a person has given back, and nothing was saved for long."""
            nonlocal was_open
            if snapshots.is_due:
                self.check_folder()
                snapshots.save()
            was_held, was_open = was_open, self.takeovers is not None and self.takeovers.is_open
            has_given_back = was_held and not was_open
            return has_given_back and self.clock.seconds - self.saved_seconds >= HAND_BACK_SECONDS

        with open_sinks(experiment, {self.final_metric: 0.0} if is_repeated else None) as sinks:
            self.run.sinks = sinks
            self.callbacks.call("on_start")
            self.finish_evaluation()
            ending = training.train_loop(
                experiment.algo, experiment.source, self.clock, experiment.meter, sinks=sinks,
                collector=experiment.collector, evaluator=self.evaluate if self.evaluates else None,
                checkpoint=self.save, schedule=self.config.schedule, heldout=self.heldout, on_turn=end_turn,
                on_log=self.on_log, log_episodes=self.config.log_episodes,
            )  # fmt: skip
            measurement, number = None, ending.signal
            if number is None:
                if why := experiment.no_update_reason():
                    logger.warning(why)
                if why := self.early_stop_reason():
                    logger.info(f"the run ends at {self.clock.position_text}, by {why}{self.best_text()}")
                measurement, number = self.finish(sinks)
            self.callbacks.call("on_end", self.result(ending.checkpoint, measurement, number))
        return self.result(ending.checkpoint, measurement, number)  # with the curve, which is drawn now

    def evaluate(self, write: training.WriteFn) -> None:
        """Evaluate during training, keep the best agent, and stop training if ``stop_score`` was reached and confirmed.

        The metrics are written first: a run killed before the best agent is saved resumes earlier, and evaluates again.
        """
        begin = self.clock.seconds
        measurement = self.experiment.measure("evaluation") if self.experiment.measurement else None
        heldout = self.heldout()
        # for the next evaluation and the last one, which may also play sampled actions
        self.clock.reserved_seconds = max(self.clock.reserved_seconds, 3 * (self.clock.seconds - begin))
        if isinstance(measurement, Evaluation) and self.reaches_stop_score(scalars_of_result(measurement)):
            confirmation = self.experiment.measure("confirmation")  # confirm that it was not chance
            assert isinstance(confirmation, Evaluation)
            measurement = measurement.merge(confirmation)
        values: dict[str, float] = {} if measurement is None else scalars_of_result(measurement)
        write({**({} if measurement is None else {**measurement.metrics(), self.final_metric: 0.0}), **heldout})
        values, name = {**values, **heldout}, self.config.score.name
        has_env, is_chosen = isinstance(measurement, Evaluation), name != "eval/score"
        if name not in values and self.best is None and (has_env or is_chosen or self.config.patience is not None):
            raise ConfigError(
                f"score_metric = {self.settings['score_metric']}: evaluations do not log '{name}'. Choose one of "
                f"{', '.join(values)}{LOG_INFO_ADVICE if has_env else ''}."
            )
        self.pending_evaluation = values
        self.experiment.keep_evaluated(values)
        if self.reaches_stop_score(values):
            self.clock.stop = True
        if name in values:
            self.save_if_best(values[name])
        self.finish_evaluation()
        if self.takeovers is not None:
            self.takeovers.skip(self.clock.seconds - begin)

    def reaches_stop_score(self, values: Mapping[str, float]) -> bool:
        """Return whether an evaluation that logs ``values`` reaches ``stop_score``."""
        goal, score = self.goal, self.config.score
        return goal is not None and score.name in values and score.is_at_least_as_good(values[score.name], goal)

    def finish_evaluation(self) -> None:
        """Call the callbacks with the latest evaluation, and stop training once ``patience`` is exhausted.

        The best agent has been saved before, since callbacks can change it. That checkpoint records that this call is
        still due.
        """
        values, self.pending_evaluation = self.pending_evaluation, None
        if values is None:
            return
        self.callbacks.call("on_evaluation", values)
        waits = not self.clock.updates  # before learning starts, the agent does not change
        self.evals_since_best = 0 if waits or self.best_step == self.clock.position else self.evals_since_best + 1
        if self.config.patience is not None and self.evals_since_best >= self.config.patience:
            self.clock.stop = True

    def on_log(self, entry: Mapping[str, float]) -> None:
        """Call the callbacks with a log entry, unless it is empty. Log the learner's first warning about an entry."""
        warn = getattr(self.experiment.algo, "metrics_warning", None)
        if warn is not None and not self.has_warned and (warning := warn(entry, self.experiment.largest_reward)):
            logger.warning(warning)
            self.has_warned = True
        if entry:
            self.callbacks.call("on_log", entry)

    def finish(self, sinks: Sequence[Sink]) -> tuple[MeasurementResult | None, int | None]:
        """Make the final evaluation, or an estimate if there is no environment; return it, or a signal's number.

        A signal ends the evaluation at once: the run is complete without it, and the same command repeats it. This is
        the case until eval.json or estimate.json exists, so these are written after the log entries.
        """
        heldout = self.final_heldout = self.heldout()
        if not self.experiment.measurement:
            for sink in sinks if heldout else ():
                sink.write(heldout, self.clock.position)
            return None, None
        try:
            with raise_on_signal():
                measurement = self.experiment.measure("test")
            self.check_folder()
        except SignalStop as stopped:
            logger.info(
                f"{stopped}: the run is saved without its final evaluation. To evaluate it, continue the run: --resume "
                f"{self.folder}, in Python run='{self.folder}'"
            )
            return None, stopped.number.value
        for sink in sinks:
            sink.write({**measurement.metrics(), **heldout, self.final_metric: 1.0}, self.clock.position)
        unit = "updates" if self.clock.unit == "updates" else "env_steps"
        unit = unit if isinstance(measurement, Evaluation) else "step"
        try:
            write_result(self.file, {unit: self.clock.position, **measurement.to_dict()})
        except OSError as error:  # must not fail a completed training run
            logger.warning(f"cannot write: {error}")
        return measurement, None

    def result_of_finished(self, newest: Path, open_sinks: OpenSinks) -> TrainResult:
        """Return the result of a run that has no steps left.

        Make up for what is missing if its process was killed after its last checkpoint: newest rows in the store, and
        the final evaluation.
        """
        complete_store(self.experiment.store, newest)
        if not self.experiment.measurement or is_final_result_of_step(self.file, self.clock.position):
            return self.result(newest, read_evaluation(self.folder) if self.experiment.measurement else None)
        # the estimator resumes from earlier estimates
        measured_by = "data" if self.experiment.measurement == "estimate" else "rating"
        self.load(newest, [name for name in self.parts() if name == measured_by])
        self.write_settings(is_new=False)
        with open_sinks(self.experiment, {self.final_metric: 1.0}) as sinks:
            measurement, number = self.finish(sinks)
        return self.result(newest, measurement, number)

    def result(
        self, checkpoint: Path | None, measurement: MeasurementResult | None = None, number: int | None = None
    ) -> TrainResult:
        """Return the result of the run.

        ``measurement``: an evaluation or estimate. ``number``: the signal that ended the run.
        """
        finished, best = number is None, self.checkpoints.best()
        checkpoints = {"checkpoint": checkpoint, "best checkpoint": None if best == checkpoint else best}
        return TrainResult(
            run=self.folder.path, env_steps=self.clock.env_steps, updates=self.clock.updates, signal=number,
            reason="finished" if finished else "interrupted", stop_reason=self.early_stop_reason() if finished else "",
            evaluation=measurement if isinstance(measurement, Evaluation) else None,
            estimate=None if isinstance(measurement, Evaluation) else measurement, heldout=self.final_heldout,
            files=self.folder.files() | {name: path for name, path in checkpoints.items() if path},
        )  # fmt: skip


def complete_store(store: RowStore | None, checkpoint: Path) -> None:
    """Store the rows of a finished run that only its verified ``checkpoint`` has. ``store``: None if there is none."""
    if store is not None and checkpoint.is_dir() and "replay" in read_manifest(checkpoint)["parts"]:
        store.complete(read_checkpoint(checkpoint, ["replay"], verified=True)["replay"])

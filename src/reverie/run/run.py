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
from collections.abc import Callable, Sequence

from reverie.core.errors import RunError
from reverie.core.files import check_writable, disk_errors_as_run_error
from reverie.core.kernel_dispatch import kernel_problem
from reverie.core.logger import logger
from reverie.run.callback import Callback
from reverie.run.checkpoint import Checkpoints
from reverie.run.folder import RunFolder, SavedConfig, check_spec, contains_run
from reverie.run.lifecycle import LOADED_FIRST, OpenSinks, RunLifecycle
from reverie.run.manifest import checkpoint_step, encode_state
from reverie.run.result import TrainResult
from reverie.run.signal_handling import explain_interrupt
from reverie.run.trainable import Trainable


def run_experiment(
    build: Callable[[int | None], Trainable], folder: RunFolder, saved: SavedConfig, open_sinks: OpenSinks,
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

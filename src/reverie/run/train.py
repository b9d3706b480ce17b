"""The training loop: collect, sample, update, and periodically evaluate, log, save and report."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from reverie.core.clock import Clock
from reverie.core.errors import ActionError, ReverieError, RunError
from reverie.core.protocols import Algorithm, Sink, Source
from reverie.core.types import Batch
from reverie.run.collect import Collector
from reverie.run.guard import LossGuard
from reverie.run.interrupt import Interrupt
from reverie.run.journal import Journal, Meter, check_names
from reverie.run.schedule import Due, Schedule

Write = Callable[[Mapping[str, "float | np.ndarray"]], None]
"""Writes measured values to the logs."""

Evaluator = Callable[[Write], None]
"""Evaluates the current policy and writes the results, e.g. ``{"eval/score": 475.0}``."""


class Save(Protocol):
    """Writes a checkpoint of the whole run."""

    def __call__(self, *, diverged: bool = False) -> Path:
        """Return the folder written. ``diverged``: it is for inspection only, never to continue from."""
        ...


class Diverged(RunError):
    """A loss, a weight or an action was NaN or infinite."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a run ended."""

    reason: Literal["finished", "interrupted"]
    checkpoint: Path | None
    signal: int | None = None
    """Number of the signal that interrupted the run; None if none did."""


def train(
    algo: Algorithm,
    source: Source,
    clock: Clock,
    meter: Meter,
    *,
    sinks: Sequence[Sink] = (),
    collector: Collector | None = None,
    evaluator: Evaluator | None = None,
    checkpoint: Save | None = None,
    schedule: Schedule | None = None,
    precision: str = "float32",
) -> Ending:
    """Run until the clock is done or a signal asks to stop. In both cases log and save at the end.

    Errors on the way, such as an environment's, are followed by a log and a checkpoint too; their message then names
    the checkpoint. A NaN or infinite loss is detected at the next log or save, so that no update waits for the device.
    ``precision`` is that of the networks: after a divergence in another one, the message advises float32.

    Raises:
        RunError: a loss, a weight or an action was NaN or infinite; the message names the first such term and its
            update, or else the parameter.
        KeyboardInterrupt: a second signal came before the first one had ended the turn.
    """
    periods = schedule or Schedule()
    log_due, eval_due = Due(periods.log_every, clock, "log"), Due(periods.eval_every, clock, "eval")
    save_due, report_due = Due(periods.save_every, clock, "save"), Due(periods.report_every, clock, "report")
    journal = Journal(clock, meter, source, sinks, finished=None if collector is None else collector.unlogged)
    guard = LossGuard(algo, precision)
    batch: Batch | None = None
    with Interrupt(clock) as interrupt, saved_on_error(journal, guard, checkpoint):
        if not clock.stop and eval_due():  # the earlier process was stopped before it, or it failed
            evaluate(evaluator, eval_due, journal, guard, checkpoint)
        while not clock.done:
            if collector is not None:  # recorded experience: there is none
                clock.env_steps += collector.collect()
                journal.episodes(collector.drain(at_the_end=clock.done), collector.restarts)
            for _ in range(clock.updates_due(len(source))):
                batch = source.sample()
                update = algo.update(batch)
                source.feedback(batch.index, update)  # priorities, latents
                clock.updates += 1
                guard.add(update.metrics, clock.updates)
                meter.add(update.metrics)
            if clock.stop:
                break
            if log_due():
                journal.log()
                stop_if_diverged(guard, checkpoint)
            if eval_due():
                evaluate(evaluator, eval_due, journal, guard, checkpoint)
            if report_due() and batch is not None:  # on the last batch: sampling another would change training
                report(algo, batch, journal)
            if save_due() and checkpoint is not None:
                save(guard, clock, checkpoint)
        try:  # first: the checkpoint keeps the averages since the last entry, and a resumed run goes on with them
            path = save(guard, clock, checkpoint)
        finally:
            journal.log()
    return ended(interrupt, clock, path)


def report(algo: Algorithm, batch: Batch, journal: Journal) -> None:
    """Write the algorithm's report on ``batch``.

    Raises:
        DataError: it holds a name of the loop's own.
    """
    found = algo.report(batch)
    check_names(found, "a report")
    journal.write(found)


def ended(interrupt: Interrupt, clock: Clock, path: Path | None) -> Ending:
    """Return how the run ended; print a sentence if a signal ended it."""
    if interrupt.received is None:
        return Ending(reason="finished", checkpoint=path)
    interrupt.say(f"stopped at {clock.place}; " + (f"saved {path}" if path else "nothing was saved"))
    return Ending(reason="interrupted", checkpoint=path, signal=interrupt.received.value)


def evaluate(
    evaluator: Evaluator | None, due: Due, journal: Journal, guard: LossGuard, checkpoint: Save | None
) -> None:
    """Evaluate if losses and weights are finite, as the best agent is saved. A failed evaluation stays ``due``.

    Raises:
        RunError: a loss or a weight was NaN or infinite.
    """
    if evaluator is None:
        return
    stop_if_unfit(guard, journal.clock, checkpoint)
    try:
        evaluator(journal.write)
    except BaseException:
        due.take_back()
        raise


def save(guard: LossGuard, clock: Clock, checkpoint: Save | None) -> Path | None:
    """Write a checkpoint if losses and weights are finite; return its path.

    Raises:
        RunError: they are not finite, or the checkpoint cannot be written.
    """
    stop_if_unfit(guard, clock, checkpoint)
    return checkpoint() if checkpoint is not None else None


@contextlib.contextmanager
def saved_on_error(journal: Journal, guard: LossGuard, checkpoint: Save | None) -> Iterator[None]:
    """Log and save before an error ends the run, if it has made any progress, and add the checkpoint to the message.

    A KeyboardInterrupt without a signal comes from an environment and is treated as any error. A policy whose action is
    not finite has diverged: resumed from a regular checkpoint it would choose the same action for ever.
    """
    clock = journal.clock
    begun = (clock.env_steps, clock.updates)
    try:
        yield
    except Diverged:
        raise
    except (Exception, KeyboardInterrupt) as error:
        impatient = isinstance(error, KeyboardInterrupt) and clock.stop
        if checkpoint is None or impatient or (clock.env_steps, clock.updates) == begun:
            raise
        with contextlib.suppress(Exception):  # the first error is the one to report
            journal.log()
        if isinstance(error, ActionError):
            stop_if_unfit(guard, clock, checkpoint)
            raise diverged(str(error).rstrip("."), checkpoint, guard.precision) from error
        try:
            note = f"The run stopped at {clock.place} and was saved as {save(guard, clock, checkpoint)}"
        except Exception as another:
            if str(another) == str(error):  # writing the checkpoint was the first error
                raise error from error.__cause__
            note = f"The run stopped at {clock.place} and could not be saved: {another}"
        add_to(error, note)
        raise


def add_to(error: BaseException, note: str) -> None:
    """Append ``note`` to the message of a ``ReverieError``; to other errors as a note below the traceback."""
    if isinstance(error, ReverieError):
        said = str(error)
        error.args = (f"{said}{'' if said.endswith(('.', '!', '?')) else '.'} {note}",)
    else:
        error.add_note(note)


def stop_if_diverged(guard: LossGuard, checkpoint: Save | None) -> None:
    """End the run with a checkpoint for inspection if any loss term was NaN or infinite.

    Raises:
        Diverged: one was; names the term, the update and the checkpoint.
    """
    if (bad := guard.first_bad()) is not None:
        what = f"{bad.term} became {bad.value} at update {bad.update}"
        raise diverged(what, checkpoint, guard.precision, learned=bad.update > 1)


def stop_if_unfit(guard: LossGuard, clock: Clock, checkpoint: Save | None) -> None:
    """End the run as ``stop_if_diverged`` does, also if a weight or its moments are NaN or infinite. Reads all of them.

    Raises:
        Diverged: a loss was, or a weight or its moments are; names it, the update and the checkpoint.
    """
    stop_if_diverged(guard, checkpoint)
    if (name := guard.bad_parameter()) is not None:
        raise diverged(f"weights in {name} are not finite after update {clock.updates}", checkpoint, guard.precision)
    if (name := guard.bad_moment()) is not None:
        what = f"the optimiser's moments of {name} are not finite after update {clock.updates}"
        raise diverged(what, checkpoint, guard.precision)


def diverged(what: str, checkpoint: Save | None, precision: str, *, learned: bool = True) -> Diverged:
    """Write a checkpoint for inspection and return the error that ends the run; ``what`` says what happened.

    ``precision``: that of the networks. ``learned``: an update came before, so that the learning rate may be the cause.
    """
    path = checkpoint(diverged=True) if checkpoint is not None else None
    saved = f" Its state is saved as {path}." if path is not None else ""
    earlier = path is not None and any(path.parent.glob("step-*"))
    if not learned:
        advice = "No update came before, so the learning rate is not the cause: check the loss, and inputs and rewards."
    else:
        begin = "Continue from an earlier checkpoint" if earlier else "Start again"
        exactly = "" if precision == "float32" else " or with algo.precision = float32"
        advice = f"{begin} with a lower learning rate{exactly}, or check for extreme rewards."
    return Diverged(f"{what}: the run was stopped.{saved} {advice}")

"""The loop, all of it: collect, sample, update, and now and then evaluate, log, save and report."""

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
from reverie.run.journal import Journal, Meter
from reverie.run.schedule import Due, Schedule

Write = Callable[[Mapping[str, "float | np.ndarray"]], None]
"""Takes measured values to where they go."""

Evaluator = Callable[[Write], None]
"""Evaluates the newest policy and writes how it went, e.g. ``{"eval/score": 475.0}``."""


class Save(Protocol):
    """Writes a checkpoint of everything that the run is."""

    def __call__(self, *, diverged: bool = False) -> Path:
        """The folder written. ``diverged``: to be looked at, never to be continued from."""
        ...


class Diverged(RunError):
    """A loss, a weight or an action was NaN or infinite."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a run ended."""

    reason: Literal["finished", "interrupted"]
    checkpoint: Path | None
    signal: int | None = None
    """The number of the signal that interrupted it."""


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
) -> Ending:
    """Run until the clock is done or a signal asks to stop. Either way everything is logged and saved at the end.

    So it is when something fails on the way, such as the environment: the error then ends with where the checkpoint is.
    A NaN or infinite loss is noticed at the next log or save, so that no update has to wait for the device.

    Raises:
        RunError: a loss, a weight or an action was NaN or infinite; the message names the first such term and its
            update, or else the parameter.
        KeyboardInterrupt: a second signal came before the turn that the first one ended was over.
    """
    periods = schedule or Schedule()
    log_due, eval_due = Due(periods.log_every, clock, "log"), Due(periods.eval_every, clock, "eval")
    save_due, report_due = Due(periods.save_every, clock, "save"), Due(periods.report_every, clock, "report")
    journal = Journal(clock, meter, source, sinks, finished=None if collector is None else collector.unlogged)
    guard = LossGuard(algo)
    batch: Batch | None = None
    with Interrupt(clock) as interrupt, saved_on_error(journal, guard, checkpoint):
        if not clock.done and eval_due():  # a signal came before it, or it failed
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
                meter.add(update.metrics)
                guard.add(update.metrics, clock.updates)
            if clock.stop:
                break
            if log_due():
                journal.log()
                stop_if_diverged(guard, checkpoint)
            if eval_due():
                evaluate(evaluator, eval_due, journal, guard, checkpoint)
            if report_due() and batch is not None:  # on the last batch: nothing is sampled, training is not disturbed
                journal.write(algo.report(batch))
            if save_due() and checkpoint is not None:
                save(guard, clock, checkpoint)
        journal.log()
        path = save(guard, clock, checkpoint)
    return ended(interrupt, clock, path)


def ended(interrupt: Interrupt, clock: Clock, path: Path | None) -> Ending:
    """How it ended, and a sentence if that was by a signal."""
    if interrupt.received is None:
        return Ending(reason="finished", checkpoint=path)
    interrupt.say(f"stopped at {clock.place}; " + (f"saved {path}" if path else "nothing was saved"))
    return Ending(reason="interrupted", checkpoint=path, signal=interrupt.received.value)


def evaluate(
    evaluator: Evaluator | None, due: Due, journal: Journal, guard: LossGuard, checkpoint: Save | None
) -> None:
    """Evaluate an agent that is good, as the best one is saved. An evaluation that fails stays ``due``.

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
    """Write a checkpoint of a state that is good.

    Raises:
        RunError: it is not, or it cannot be written.
    """
    stop_if_unfit(guard, clock, checkpoint)
    return checkpoint() if checkpoint is not None else None


@contextlib.contextmanager
def saved_on_error(journal: Journal, guard: LossGuard, checkpoint: Save | None) -> Iterator[None]:
    """Log and save before an error ends the run, if it has moved at all, and let the error say where.

    A KeyboardInterrupt that no signal has announced is an error like others: environments raise what they like. What
    chose an action that is not finite has diverged: saved as good, it would choose the same for ever.
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
        with contextlib.suppress(Exception):  # the first error is the one to tell
            journal.log()
        if isinstance(error, ActionError):
            stop_if_unfit(guard, clock, checkpoint)
            raise diverged(str(error).rstrip("."), checkpoint) from error
        try:
            note = f"The run was stopped at {clock.place}; its checkpoint is {save(guard, clock, checkpoint)}"
        except Exception as another:
            if str(another) == str(error):  # it was the checkpoint that could not be written
                raise error from error.__cause__
            note = f"The run was stopped at {clock.place}. It could not be saved: {another}"
        add_to(error, note)
        raise


def add_to(error: BaseException, note: str) -> None:
    """Let ``error`` end with ``note``: in its message if it is ours, below the traceback otherwise."""
    if isinstance(error, ReverieError):
        said = str(error)
        error.args = (f"{said}{'' if said.endswith(('.', '!', '?')) else '.'} {note}",)
    else:
        error.add_note(note)


def stop_if_diverged(guard: LossGuard, checkpoint: Save | None) -> None:
    """End the run, leaving a checkpoint to look at, if any loss term has been NaN or infinite.

    Raises:
        RunError: it has; names the term, the update and the checkpoint.
    """
    if (bad := guard.first_bad()) is not None:
        raise diverged(f"{bad.term} became {bad.value} at update {bad.update}", checkpoint)


def stop_if_unfit(guard: LossGuard, clock: Clock, checkpoint: Save | None) -> None:
    """End the run as ``stop_if_diverged`` does, also if a weight is NaN or infinite: every one is looked at.

    Raises:
        RunError: a loss was, or a weight is; names which, the update and the checkpoint.
    """
    stop_if_diverged(guard, checkpoint)
    if (name := guard.bad_parameter()) is not None:
        raise diverged(f"weights in {name} are not finite after update {clock.updates}", checkpoint)


def diverged(what: str, checkpoint: Save | None) -> Diverged:
    """The error that ends a run for ``what`` happened, once a checkpoint to look at is written."""
    saved = f" The state is in {checkpoint(diverged=True)}." if checkpoint is not None else ""
    return Diverged(
        f"{what}: the run was stopped.{saved} "
        "Continue from an earlier checkpoint with a lower learning rate or float32, or look for extreme rewards."
    )

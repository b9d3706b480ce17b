"""The training loop: collect, sample, update, and periodically evaluate, log, save and report."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.torch import save_file

from reverie.core.clock import Clock
from reverie.core.errors import ActionError, ReverieError, RunError
from reverie.core.protocols import BatchSource, Learner, MeterLike, Sink
from reverie.core.tree import flatten_named
from reverie.core.types import Batch
from reverie.run.config import Schedule
from reverie.run.episodes import CollectorProtocol
from reverie.run.metrics_log import FiniteCheck, MetricsLog, check_metric_names
from reverie.run.schedule import Periodic
from reverie.run.signal_handling import Interrupt

WriteFn = Callable[[Mapping[str, "float | np.ndarray"]], None]
"""Writes measured values to the logs."""

EvaluateFn = Callable[[WriteFn], None]
"""Evaluates the current policy and writes the results, e.g. ``{"eval/score": 475.0}``."""

SaveFn = Callable[..., Path]
"""Writes a checkpoint of the whole run and returns its folder. ``diverged=True``: never to continue from."""

BATCH = "batch.safetensors"
"""File with the batch of the first loss that was not finite, in the checkpoint of a diverged state."""
ADVICE = (
    "Continue from an earlier checkpoint, or start over, with a lower learning rate or with algo.precision = "
    "float32; or check the loss for extreme inputs and rewards."
)


class DivergedError(RunError):
    """A loss, a weight or an action was NaN or infinite."""


@dataclass(frozen=True, kw_only=True)
class LoopResult:
    """How a run ended."""

    checkpoint: Path | None
    signal: int | None = None
    """Number of the signal that interrupted the run; None if none did."""


def train_loop(
    algo: Learner, source: BatchSource, clock: Clock, meter: MeterLike, *, sinks: Sequence[Sink] = (),
    collector: CollectorProtocol | None = None, evaluator: EvaluateFn | None = None, checkpoint: SaveFn | None = None,
    schedule: Schedule | None = None, heldout: Callable[[], Mapping[str, float]] = dict,
    on_turn: Callable[[], bool] = lambda: False,
    on_log: Callable[[Mapping[str, float]], None] = lambda entry: None, log_episodes: bool = False,
) -> LoopResult:  # fmt: skip
    """Run until the clock is done or a signal asks to stop.

    Log and save at the end. After an error it also saves, and the message names the checkpoint. A NaN or infinite loss
    is detected at the next log or save, so that no update waits for the device. ``on_log`` is called with each log
    entry, ``{}`` if there was nothing to log; ``on_turn`` before the first turn and after each: whether to save now.

    ``heldout`` evaluates the learner on held-out rows at each report. ``log_episodes``: log a line for each finished
    episode.

    Raises:
        RunError: a loss, a weight or an action was NaN or infinite; the message names the first such term and its
            update, or else the parameter.
        KeyboardInterrupt: a second signal arrived before the loop had stopped after the first.
    """
    periods = schedule or Schedule()
    log_due, eval_due = Periodic(periods.log_every, clock, "log"), Periodic(periods.eval_every, clock, "eval")
    save_due, report_due = Periodic(periods.save_every, clock, "save"), Periodic(periods.report_every, clock, "report")
    log = MetricsLog(clock, meter, source, sinks, collector, algo.exploration, log_episodes)
    keep = _Keep(clock, log, FiniteCheck(algo), checkpoint)
    batch: Batch | None = None
    with Interrupt(clock) as interrupt, keep.saved_on_error():
        keep.evaluate(evaluator, eval_due)  # the earlier process stopped before it, or it failed
        on_turn()
        while not clock.done:
            if collector is not None:  # offline: there is no collector
                clock.env_steps += collector.collect()
                log.add_episodes(collector.pop_episodes(at_the_end=clock.done))
            for _ in log.timed(clock.updates_due(len(source))):
                batch = source.sample()
                update = algo.update(batch)
                source.feedback(batch.index, update)  # priorities, latents, the end of a rollout
                clock.updates += 1
                keep.check.add(update.metrics, clock.updates, batch)
                meter.add(update.metrics)
                if update.rollout_done is not None and bool(update.rollout_done):  # the rollout is no longer needed
                    break
            must_save = on_turn()
            if clock.stop:
                break
            if log_due():
                entry = log.log()
                keep.stop_if_bad_loss()
                on_log(entry)
            keep.evaluate(evaluator, eval_due)
            if report_due() and batch is not None:  # on the last batch: sampling another would change training
                report = algo.report(batch)
                check_metric_names(report)
                log.write({**report, **heldout()})
            if save_due() or must_save:
                keep.save()
        try:  # first: the checkpoint keeps the averages since the last entry, which a resumed run continues
            path = keep.save()
        finally:
            entry = log.log()
        on_log(entry)
    if interrupt.received is None:
        return LoopResult(checkpoint=path)
    interrupt.print_line(f"stopped at {clock.position_text}; " + (f"saved {path}" if path else "nothing was saved"))
    return LoopResult(checkpoint=path, signal=interrupt.received.value)


class _Keep:
    """Saves and evaluates only finite states."""

    def __init__(self, clock: Clock, log: MetricsLog, check: FiniteCheck, checkpoint: SaveFn | None) -> None:
        self.clock, self.log, self.check, self.checkpoint = clock, log, check, checkpoint

    def stop_if_bad_loss(self) -> None:
        """Raise DivergedError if a loss since the run's start was not finite."""
        if self.check.bad_loss() is not None:
            self.stop_if(self.check.describe_problem(self.clock.updates))

    def stop_if(self, problem: str | None) -> None:
        """If there is a ``problem`` (not finite), save a checkpoint for inspection and raise DivergedError."""
        if problem is not None:
            saved = ""
            if self.checkpoint is not None:
                path = self.checkpoint(diverged=True)
                saved = f" Its state is saved as {path}{self._save_batch(path)}."
            raise DivergedError(f"{problem}: the run was stopped.{saved} {ADVICE}")

    def _save_batch(self, path: Path) -> str:
        """Save the batch of the first loss that was not finite next to the checkpoint ``path``; return a remark."""
        if self.check.batch is None or not path.is_dir():
            return ""
        save_file({name: x.contiguous() for name, x in flatten_named(self.check.batch).items()}, path / BATCH)
        return f", with the batch of that update in {BATCH}"

    def save(self) -> Path | None:
        """Write a checkpoint and return its path; raise DivergedError if a loss, a weight or a moment is not finite."""
        self.stop_if(self.check.describe_problem(self.clock.updates))
        self.log.write_episodes()
        return self.checkpoint() if self.checkpoint is not None else None

    def evaluate(self, evaluator: EvaluateFn | None, due: Periodic) -> None:
        """Evaluate if it is ``due``, and only if all is finite, since the best agent is saved.

        If it fails it stays due.
        """
        if self.clock.stop or not due() or evaluator is None:
            return
        self.stop_if(self.check.describe_problem(self.clock.updates))
        try:
            evaluator(self.log.write)
        except BaseException:
            due.undo()
            raise

    @contextlib.contextmanager
    def saved_on_error(self) -> Iterator[None]:
        """Log and save before an error ends the run, if there is any progress, and add the path to the message.

        A KeyboardInterrupt without a signal comes from an environment and is treated like any error. A policy whose
        action is not finite has diverged: resumed from a regular checkpoint, it would fail in the same way.
        """
        clock = self.clock
        begun = (clock.env_steps, clock.updates)
        try:
            yield
        except DivergedError:
            raise
        except (Exception, KeyboardInterrupt) as error:
            impatient = isinstance(error, KeyboardInterrupt) and clock.stop
            if self.checkpoint is None or impatient or (clock.env_steps, clock.updates) == begun:
                raise
            with contextlib.suppress(Exception):  # the first error is the one to report
                self.log.log()
            if isinstance(error, ActionError):
                self.stop_if(self.check.describe_problem(clock.updates) or str(error).rstrip("."))
            try:
                note = f"The run stopped at {clock.position_text} and was saved as {self.save()}"
            except Exception as another:
                note = f"The run stopped at {clock.position_text} and could not be saved: {another}"
            if isinstance(error, ReverieError):
                error.args = (f"{error}{'' if str(error).endswith(('.', '!', '?')) else '.'} {note}",)
            else:
                error.add_note(note)  # below the traceback
            raise

"""Evaluate the agent of a run: now and then during training, and once more at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from reverie.agent.evaluation import write_evaluation
from reverie.core.protocols import Sink
from reverie.core.words import Say, plural
from reverie.estimating import PolicyEstimate, write_estimate
from reverie.experiment import Experiment
from reverie.folder import RunFolder, found_at_end
from reverie.log.console import span
from reverie.log.sinks import FINAL, FINAL_ESTIMATE
from reverie.run import train as loop
from reverie.run.evaluate import Evaluation
from reverie.run.interrupt import Stopped, stopping
from reverie.run.schedule import position
from reverie.training.checkpointing import Keeper
from reverie.training.sinks import at_the_end

REPORT_EVERY = 30.0
"""Seconds between two lines on the progress of an estimate."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended, and the files that it left."""

    run: Path
    """Run folder."""
    reason: Literal["finished", "interrupted"]
    """Either "finished" (all steps were made, or ``stop_score`` was reached), or "interrupted" by a signal: the same
    call then continues the run."""
    signal: int | None = None
    """Number of the signal that interrupted the run; None if it finished."""
    env_steps: int
    """Env steps since the run began, earlier processes included: decisions of the policy summed over all environments,
    action repeat not counted. 0 in a run on recorded data alone."""
    updates: int
    """Gradient updates since the run began, earlier processes included."""
    evaluation: Evaluation | None
    """The final evaluation, on the environment's true rewards; None if there was none."""
    estimate: PolicyEstimate | None = None
    """FQE's estimate of the policy's return, in a run on recorded data that has no environment to evaluate in."""
    files: dict[str, Path] = field(default_factory=dict)
    """Existing files by name: "settings", "metrics", "curve", "evaluation", "estimate" and "checkpoint"."""


def result_of(experiment: Experiment, folder: RunFolder, checkpoint: Path | None) -> Result:
    """Return the result of a run that has made all its steps, before its final evaluation, with the folder's files."""
    return Result(
        run=folder.path,
        reason="finished",
        env_steps=experiment.clock.env_steps,
        updates=experiment.clock.updates,
        evaluation=None,
        files=folder.files() | ({"checkpoint": checkpoint} if checkpoint else {}),
    )


def judged(result: Result, experiment: Experiment, folder: RunFolder, sinks: Sequence[Sink], say: Say) -> Result:
    """Return ``result`` with the final evaluation of a saved run, or an estimate where no environment is there.

    A signal ends the evaluation at once: the run is complete without it, and the same command makes up for it. It does
    so until eval.json or estimate.json is there, so these are written after the entries of the logs.
    """
    evaluation: Evaluation | None = None
    estimate: PolicyEstimate | None = None
    config, step = experiment.config, position(experiment.clock)
    try:
        with stopping():
            if config.eval_episodes:
                evaluation = final_evaluation(experiment, say)
            if experiment.estimator is not None:
                say(f"estimating the policy's return: {plural(config.data.estimate_updates, 'update')} of FQE")
                estimate = experiment.estimate(Reported(say))
    except Stopped as stopped:
        say(
            f"{stopped}: the run is saved without its final evaluation. To evaluate it, continue the run: --resume "
            f"{folder.path}, in Python run='{folder.path}'"
        )
        return replace(result, reason="interrupted", signal=stopped.number.value)
    written = [] if evaluation is None else [evaluation.metrics() | {FINAL: 1.0}]
    written += [] if estimate is None else [estimate.metrics() | {FINAL_ESTIMATE: 1.0}]
    for metrics in written:
        for sink in sinks:
            at_the_end(say, sink.write, metrics, step)
    if evaluation is not None:
        at_the_end(say, write_evaluation, folder, evaluation, config, step)
    if estimate is not None:
        at_the_end(say, write_estimate, folder, estimate, step)
    return replace(result, evaluation=evaluation, estimate=estimate)


def mark_of(experiment: Experiment) -> str:
    """Return the name in the logs that says whether an evaluation, or an estimate, was made at the end of training."""
    return FINAL if experiment.estimator is None else FINAL_ESTIMATE


def is_of(file: Path, step: int) -> bool:
    """Return whether ``file`` holds the result at the end of training, written at this ``step`` and not before."""
    own = found_at_end(file) or {}
    return next((own[name] for name in ("updates", "env_steps", "step") if name in own), None) == step


def final_evaluation(experiment: Experiment, say: Say) -> Evaluation:
    """Evaluate the final agent of the run."""
    say(f"evaluating: {plural(experiment.config.eval_episodes, 'episode')}")
    return experiment.evaluate(experiment.config.eval_episodes, which="test")


def evaluator_of(experiment: Experiment, keeper: Keeper) -> loop.Evaluator | None:
    """Return what evaluates the policy during training: in environments, or on recorded data in their place."""
    if experiment.estimator is not None:
        wanted = experiment.config.estimates_on_the_way
        return (lambda write: estimate_on_the_way(experiment, keeper, write)) if wanted else None
    wanted = experiment.config.evaluates_on_the_way
    return (lambda write: evaluate_on_the_way(experiment, keeper, write)) if wanted else None


class Reported:
    """Reports the progress of an estimate in a line now and then, if it takes long."""

    def __init__(self, say: Say, now: Callable[[], float] = time.monotonic) -> None:
        self.say, self.now = say, now
        self.since = self.latest = now()

    def __call__(self, made: int, updates: int) -> bool:
        """See ``estimating.py: Watch``. Goes on to the end."""
        now = self.now()
        if now - self.latest >= REPORT_EVERY and made < updates:
            self.latest = now
            left = span((now - self.since) / made * (updates - made))
            self.say(f"estimating the policy's return: {made:,} of {plural(updates, 'update')} of FQE, {left} left")
        return True


def estimate_on_the_way(experiment: Experiment, keeper: Keeper, write: loop.Write) -> None:
    """Estimate the policy's return during training."""
    write(experiment.estimate(Reported(keeper.say)).metrics() | {FINAL_ESTIMATE: 0.0})


def evaluate_on_the_way(experiment: Experiment, keeper: Keeper, write: loop.Write) -> None:
    """Evaluate during training, keep the best agent, and stop training if ``stop_score`` was reached and confirmed.

    The metrics are written first: a run killed before the best is saved resumes from before, and evaluates again.
    """
    config, goal = experiment.config, experiment.config.stop_score
    found = experiment.evaluate(config.eval_episodes)
    if goal is not None and found.score >= goal:
        found = found.and_also(experiment.evaluate(config.eval_episodes, which="confirmation"))  # or was it luck?
    write(found.metrics() | {FINAL: 0.0})
    if goal is not None and found.score >= goal:
        experiment.clock.stop = True
    keeper.scored(found.score)

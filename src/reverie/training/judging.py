"""How good the agent of a run is: looked at during training, judged at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from reverie.agent.evaluation import write_evaluation
from reverie.core.protocols import Sink
from reverie.estimating import PolicyEstimate, write_estimate
from reverie.experiment import Experiment
from reverie.folder import RunFolder, found_at_end
from reverie.run import train as loop
from reverie.run.evaluate import Evaluation
from reverie.run.interrupt import Stopped, stopping
from reverie.run.schedule import position
from reverie.training.keeping import Keeper
from reverie.training.sinks import at_the_end
from reverie.training.telling import Say


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended and what it left."""

    run: Path
    """Its folder."""
    reason: Literal["finished", "interrupted"]
    """Whether it had all its steps."""
    signal: int | None = None
    """The number of the signal that interrupted it."""
    env_steps: int
    """How far it came."""
    updates: int
    """Gradient updates it made."""
    evaluation: Evaluation | None
    """The evaluation at the end, unless there was none."""
    estimate: PolicyEstimate | None = None
    """What stands in for it in a run on recorded data alone that has no environment to evaluate in."""
    files: dict[str, Path] = field(default_factory=dict)
    """What it left, by what it is."""


def result_of(
    experiment: Experiment,
    folder: RunFolder,
    checkpoint: Path | None,
    evaluation: Evaluation | None = None,
) -> Result:
    """How a run that had all its steps stands, and what lies in its folder."""
    return Result(
        run=folder.path,
        reason="finished",
        env_steps=experiment.clock.env_steps,
        updates=experiment.clock.updates,
        evaluation=evaluation,
        files=folder.files() | ({"checkpoint": checkpoint} if checkpoint else {}),
    )


def judged(result: Result, experiment: Experiment, folder: RunFolder, sinks: Sequence[Sink], say: Say) -> Result:
    """``result`` with what came out of a run that is saved: its evaluation, or an estimate where there can be none.

    A signal ends it at once: the run is whole without, and the same command makes up for it.
    """
    evaluation: Evaluation | None = None
    estimate: PolicyEstimate | None = None
    try:
        with stopping():
            if experiment.config.eval_episodes:
                evaluation = final_evaluation(experiment, folder, say)
            estimate = final_estimate(experiment, folder, say)
    except Stopped as stopped:
        say(f"{stopped}: the run is saved, its final evaluation is left out. The same command makes it")
        return replace(result, reason="interrupted", signal=stopped.number.value)
    for metrics in [found.metrics() for found in (evaluation, estimate) if found is not None]:
        for sink in sinks:
            at_the_end(say, sink.write, metrics, position(experiment.clock))
    return replace(result, evaluation=evaluation, estimate=estimate)


def is_of(file: Path, step: int) -> bool:
    """Whether what a run came to is in ``file``, and was written at its end: not before it went on to this ``step``."""
    own = found_at_end(file) or {}
    return next((own[name] for name in ("updates", "env_steps", "step") if name in own), None) == step


def final_evaluation(experiment: Experiment, folder: RunFolder, say: Say) -> Evaluation:
    """Judge what came out of the run."""
    say(f"evaluating: {experiment.config.eval_episodes} episodes")
    evaluation = experiment.evaluate(experiment.config.eval_episodes, which="test")
    at_the_end(say, write_evaluation, folder, evaluation, experiment.config, position(experiment.clock))
    return evaluation


def final_estimate(experiment: Experiment, folder: RunFolder, say: Say) -> PolicyEstimate | None:
    """What would be earned by what came out of a run that cannot be evaluated; None for any other."""
    if experiment.estimator is None:
        return None
    found = experiment.estimate()
    at_the_end(say, write_estimate, folder, found, position(experiment.clock))
    return found


def evaluator_of(experiment: Experiment, keeper: Keeper) -> loop.Evaluator | None:
    """What is asked now and then how the policy does: environments, or recorded data in their place."""
    if experiment.estimator is not None:
        wanted = experiment.config.estimates_on_the_way
        return (lambda write: write(experiment.estimate().metrics())) if wanted else None
    wanted = experiment.config.evaluates_on_the_way
    return (lambda write: evaluate_on_the_way(experiment, keeper, write)) if wanted else None


def evaluate_on_the_way(experiment: Experiment, keeper: Keeper, write: loop.Write) -> None:
    """Evaluate during training, keep the best, and end training if that was good enough.

    It is written first: a run that is killed before the best is saved goes on from before, and evaluates again.
    """
    config, goal = experiment.config, experiment.config.stop_score
    found = experiment.evaluate(config.eval_episodes)
    if goal is not None and found.score >= goal:
        found = found.and_also(experiment.evaluate(config.eval_episodes, which="confirmation"))  # it may have been luck
    write(found.metrics())
    if goal is not None and found.score >= goal:
        experiment.clock.stop = True
    keeper.scored(found.score)

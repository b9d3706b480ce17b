"""A run from beginning to end: check everything, open its folder, train, evaluate, leave the files."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import gymnasium

from reverie.agent.evaluation import write_evaluation
from reverie.core.compiler import trouble
from reverie.core.config import Choice, Config
from reverie.core.discover import algorithm_name, version
from reverie.core.errors import RunError
from reverie.core.machine import available_memory
from reverie.core.protocols import Sink
from reverie.estimating import PolicyEstimate, write_estimate
from reverie.experiment import EnvLike, Experiment, ExperimentConfig, env_name, replay_bytes
from reverie.folder import (
    RunFolder,
    Saved,
    check_spec,
    check_usable,
    check_writable,
    new_path,
    read_saved,
    update_saved,
    write_spec,
    writing,
)
from reverie.log.console import console_sink, tell
from reverie.log.meter import Meter
from reverie.log.sinks import JsonlSink, TensorBoardSink, VideoSink
from reverie.offline import Updates, build, described, resolved, subject
from reverie.run import train as loop
from reverie.run.checkpoint import Checkpoints
from reverie.run.evaluate import Evaluation
from reverie.run.interrupt import Stopped, stopping
from reverie.run.lock import RunLock
from reverie.run.schedule import position
from reverie.run.verify import step_of
from reverie.training.keeping import Keeper

ROOT = Path("runs")

Say = Callable[[str], None]


def say_nothing(text: str) -> None:
    """For callers who want no sentences."""


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


def train(
    config: ExperimentConfig,
    env: EnvLike | None = None,
    run: Path | str | None = None,
    say: Say = tell,
    *,
    keep_newer: bool = False,
) -> Result:
    """Train as ``config`` says, in a new run folder or going on in an existing one.

    Nothing is created before everything was built and checked. One process writes into a run at a time.

    Args:
        config: the settings.
        env: a function that makes the environment, or an instance, if it is not made by ``config.env.id``.
        run: the folder; a new one under ``runs/`` unless given. A run of the same algorithm on the same environment
            is continued from its newest checkpoint.
        say: gets a sentence about what is happening now and then.
        keep_newer: on continuing, learn also from rows that came after the checkpoint; they are set aside otherwise.

    Raises:
        ReverieError: settings do not fit together, the folder is another run's or being written, all of its
            checkpoints are damaged, or a loss was not finite.
    """
    name = algorithm_name(type(config.algo))
    if isinstance(env, gymnasium.Env) and config.evaluates_on_the_way:
        say("no evaluations during training: the environment is one instance, which cannot be made a second time")
        config = config.merge({"schedule.eval_every": 0})
    config = resolved(config, env, say, None if run is None else env_before(RunFolder(Path(run))))
    folder = RunFolder(Path(run) if run is not None else new_path(ROOT, subject(config), name))
    checkpoints = Checkpoints(folder.checkpoints, config.keep_checkpoints, say)
    with contextlib.ExitStack() as stack:
        newest = None
        check_writable(folder.path)
        continues = check_usable(folder.path, name, config.env.id)
        if continues:
            stack.enter_context(RunLock(folder.path))
            newest = newest_of(checkpoints)
        experiment = build(config, env, start=step_of(newest) if newest else 0, scratch=folder.path)
        stack.callback(experiment.close)
        if newest is not None:
            check_spec(folder, experiment.obs_spec, experiment.action_spec)
        keeper = Keeper(experiment, folder, checkpoints, say, anew=newest is None, keep_newer=keep_newer)
        if newest is not None:
            keeper.load_learner(newest)
            if done := keeper.why_done():
                say(f"{folder.path} has {done} let it go on")
                return _judged_late(experiment, folder, newest, f"{name} on {subject(config)}", say)
            stack.push(keeper.close)
            keeper.load(newest)
        describe(experiment, say)
        if not continues:
            begin(folder, stack)
        saved = Saved(algorithm=name, experiment=config.to_dict(), custom=custom_objects(config, env))
        write_settings(folder, saved, experiment, say, anew=newest is None)
        if newest is None:
            stack.push(keeper.close)
            keeper.begin()
        elif keeper.replay.laid_out:
            keeper.save()  # or each attempt that is killed would lay out the rows again
        return _run(experiment, folder, keeper, f"{name} on {subject(config)}", say)


def env_before(folder: RunFolder) -> dict[str, Any] | None:
    """Settings of the environment of the run in ``folder``, if there is one."""
    found: dict[str, Any] | None = read_saved(folder.path).experiment.get("env") if folder.config.is_file() else None
    return found


def newest_of(checkpoints: Checkpoints) -> Path | None:
    """Where to go on; first puts in order what a crash left, which is for the process that has the lock.

    Raises:
        RunError: all checkpoints are damaged.
    """
    with writing(checkpoints.folder):
        checkpoints.recover()
    return checkpoints.latest()


def begin(folder: RunFolder, stack: contextlib.ExitStack) -> None:
    """Make the folder and take its lock.

    Raises:
        RunError: it cannot be written, or another process has begun a run there since it was found empty.
    """
    with writing(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
    stack.enter_context(RunLock(folder.path))
    if folder.config.exists():
        raise RunError(f"another process has just made a run in {folder.path}: choose another run folder.")


def write_settings(folder: RunFolder, saved: Saved, experiment: Experiment, say: Say, *, anew: bool) -> None:
    """Write config.yaml and spec.json, and say what has changed since the last time."""
    with writing(folder.path):
        if anew:
            folder.spec.unlink(missing_ok=True)  # nothing was learned from those spaces
        write_spec(folder, experiment.obs_spec, experiment.action_spec)
        for line in update_saved(folder, saved, version(), position(experiment.clock)):
            say(line)


def _run(experiment: Experiment, folder: RunFolder, keeper: Keeper, title: str, say: Say) -> Result:
    with sinks_of(experiment, folder, title, say) as sinks:
        ending = loop.train(
            experiment.algo,
            experiment.source,
            experiment.clock,
            Meter(),
            sinks=sinks,
            collector=experiment.collector,
            evaluator=evaluator_of(experiment, keeper),
            checkpoint=keeper.save,
            schedule=experiment.config.schedule,
        )
        result = result_of(experiment, folder, ending.checkpoint)
        if ending.reason == "interrupted":
            result = replace(result, reason=ending.reason, signal=ending.signal)
        else:
            if why := why_idle(experiment):
                say(why)
            result = judged(result, experiment, folder, sinks, say)
    return replace(result, files=folder.files() | result.files)  # the curve is there now


def _judged_late(experiment: Experiment, folder: RunFolder, newest: Path, title: str, say: Say) -> Result:
    """What is known of a run that had all its steps; its final evaluation, if it was stopped in the middle of that."""
    result, config = result_of(experiment, folder, newest), experiment.config
    lacks_score = config.eval_episodes > 0 and not is_of(folder.evaluation, position(experiment.clock))
    lacks_estimate = experiment.estimator is not None and not is_of(folder.estimate, position(experiment.clock))
    if not lacks_score and not lacks_estimate:
        return result
    saved = Saved(algorithm=algorithm_name(type(config.algo)), experiment=config.to_dict(),
                  custom=read_saved(folder.path).custom)  # fmt: skip
    write_settings(folder, saved, experiment, say, anew=False)
    with sinks_of(experiment, folder, title, say) as sinks:
        result = judged(result, experiment, folder, sinks, say)
    return replace(result, files=folder.files() | result.files)


@contextlib.contextmanager
def sinks_of(experiment: Experiment, folder: RunFolder, title: str, say: Say) -> Iterator[list[Sink]]:
    """Everywhere that measurements go. At the end all are closed, and the curve is drawn."""
    with contextlib.ExitStack() as stack:
        stack.callback(at_the_end, say, learning_curve, folder.metrics, folder.curve, title)
        with writing(folder.path):
            sinks = open_sinks(experiment, folder, title)
        for sink in sinks:
            stack.callback(at_the_end, say, sink.close)
        yield sinks


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
    try:
        own = json.loads(file.read_text(encoding="utf-8"))
        found = next((own[name] for name in ("updates", "env_steps", "step") if name in own), None)
        return "checkpoint" not in own and found == step
    except (OSError, ValueError, TypeError, AttributeError):
        return False


def why_idle(experiment: Experiment) -> str:
    """Why a run that is over has learned nothing, if that was not to be expected from its settings."""
    config, window, offered = experiment.config, experiment.algo.window, len(experiment.replay)
    expected = config.data.alone or config.ratio(window) == 0 or config.steps < config.learning_starts
    if experiment.clock.updates or expected or offered >= config.learning_starts:
        return ""
    within = "" if window.crosses_episodes else f", of {window.rows - window.free} rows of one episode each"
    return (
        f"no updates were made: learning waits for {config.learning_starts} windows{within}, and there are {offered}. "
        "Lower learning_starts, or take shorter windows (algo.batch_length)"
    )


def final_evaluation(experiment: Experiment, folder: RunFolder, say: Say) -> Evaluation:
    """Judge what came out of the run."""
    say(f"evaluating: {experiment.config.eval_episodes} episodes")
    evaluation = experiment.evaluate(experiment.config.eval_episodes, final=True)
    at_the_end(say, write_evaluation, folder, evaluation, experiment.config, position(experiment.clock))
    return evaluation


def final_estimate(experiment: Experiment, folder: RunFolder, say: Say) -> PolicyEstimate | None:
    """What would be earned by what came out of a run that cannot be evaluated; None for any other."""
    if experiment.estimator is None:
        return None
    found = experiment.estimate()
    at_the_end(say, write_estimate, folder, found, position(experiment.clock))
    return found


def learning_curve(metrics: Path, png: Path, title: str) -> Path | None:
    """Draw what :func:`reverie.log.plot.learning_curve` does."""
    from reverie.log.plot import learning_curve as draw  # a fifth of all imports, which training can start without

    return draw(metrics, png, title)


def at_the_end(say: Say, write: Callable[..., Any], *args: Any) -> None:
    """Call ``write``; a disk that fails now is told of, but takes nothing away from what was reached."""
    try:
        write(*args)
    except OSError as error:
        say(f"not written: {error}")


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


def evaluator_of(experiment: Experiment, keeper: Keeper) -> loop.Evaluator | None:
    """What is asked now and then how the policy does: environments, or recorded data in their place."""
    if experiment.estimator is not None:
        return (lambda: experiment.estimate().metrics()) if experiment.config.estimates_on_the_way else None
    wanted = experiment.config.evaluates_on_the_way
    return (lambda: evaluate_on_the_way(experiment, keeper)) if wanted else None


def evaluate_on_the_way(experiment: Experiment, keeper: Keeper) -> dict[str, float]:
    """Evaluate during training, keep the best, and end training if that was good enough."""
    config = experiment.config
    metrics = experiment.evaluate(config.eval_episodes).metrics()
    keeper.scored(metrics["eval/score"])
    if config.stop_score is not None and metrics["eval/score"] >= config.stop_score:
        experiment.clock.stop = True
    return metrics


def open_sinks(experiment: Experiment, folder: RunFolder, title: str) -> list[Sink]:
    """Everywhere that measurements go."""
    config, clock = experiment.config, experiment.clock
    sinks: list[Sink] = [JsonlSink(folder.metrics), VideoSink(folder.videos)]
    if config.tensorboard:
        sinks.append(TensorBoardSink(folder.tensorboard, purge_step=position(clock) + 1 if position(clock) else None))
    if config.console:
        alone = config.data.alone
        shown, total = (Updates(clock), config.updates) if alone else (clock, config.steps)
        sinks.append(console_sink(shown, total, title, sys.stdout))
    return sinks


def describe(experiment: Experiment, say: Say) -> None:
    """Say what is about to be trained, and what it takes."""
    config, window = experiment.config, experiment.algo.window
    count = sum(p.numel() for p in experiment.algo.parameters() if p.requires_grad)
    needed, free = replay_bytes(config, experiment.replay), available_memory()
    room = "" if free is None else f" of {free / 1e9:.1f} GB available"
    if config.replay.device != "cpu" or config.replay.storage != "ram":
        room = f" on {config.replay.device}" if config.replay.device != "cpu" else " in mapped files"
    ratio = config.ratio(window)
    if config.stop_score is not None and not config.evaluates_on_the_way:
        say(f"stop_score = {config.stop_score:g} has no effect without evaluations during training")
    if experiment.algo.device.type == "cpu" and trouble():
        say(trouble())
    if experiment.algo.device.type == "cpu" and count > 5e6:
        say(f"{count / 1e6:.0f}M parameters are slow on a CPU: --preset cpu or --size nano is the small model")
    describe_data(experiment, say)
    if config.data.alone:
        say(
            f"{algorithm_name(type(config.algo))} from recorded data alone: {count / 1e6:.2f}M parameters on "
            f"{experiment.algo.device}, {config.updates:,} updates, {needed / 1e9:.2f} GB of rows"
        )
        return
    if config.steps < config.learning_starts:
        say(f"no updates will be made: learning starts after {config.learning_starts} windows of {config.steps} steps")
    say(
        f"{algorithm_name(type(config.algo))} on {config.env.id}: {count / 1e6:.2f}M parameters on "
        f"{experiment.algo.device}, {config.env.num} envs, {ratio:g} updates per env step "
        f"(train ratio {ratio * window.batch * window.length:g}), replay up to {needed / 1e9:.2f} GB{room}"
    )


def describe_data(experiment: Experiment, say: Say) -> None:
    """Say what is recorded of what is learned from, and what had to be assumed of it."""
    config = experiment.config
    for remark in experiment.remarks:
        say(f"{config.data.path}: {remark}")
    if experiment.dataset is not None:
        say(described(experiment))
    elif config.algo.needs_data:
        say(
            f"{algorithm_name(type(config.algo))} was made for recorded data, and none are given: it learns from what "
            "it lives itself. --data PATH gives it some"
        )
    if experiment.estimator is not None:
        say(
            f"what the policy would earn will be estimated from the data by FQE ({config.data.estimate_updates:,} "
            "updates at a time); data.estimate_updates = 0 leaves that away"
        )


def custom_objects(config: ExperimentConfig, env: EnvLike | None) -> dict[str, str]:
    """What a file cannot hold: an environment that was handed over, configurations of other classes."""
    found = {} if env is None or isinstance(env, str) else {"env": env_name(env)}
    return found | dict(_foreign(config.algo, type(config.algo)(), "algo"))


def _foreign(value: Any, default: Any, where: str) -> Mapping[str, str]:
    """Places where ``value`` holds an object of another class than the default configuration."""
    if value is None or (isinstance(value, Choice) and type(value).__module__.startswith("reverie.")):
        return {}  # a file says which of our kinds it is
    if type(value) is not type(default) and (isinstance(default, Config) or isinstance(value, Config)):
        return {where: f"{type(value).__module__}:{type(value).__qualname__}"}
    if not isinstance(value, Config):
        return {}
    out: dict[str, str] = {}
    for name in value.__dataclass_fields__:
        out |= _foreign(getattr(value, name), getattr(default, name), f"{where}.{name}")
    return out

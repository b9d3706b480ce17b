"""Run a training from beginning to end: check everything, open the run folder, train, evaluate, write the files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import torch

from reverie.agent.evaluation import final_evaluation_in
from reverie.core.config import Choice, Config
from reverie.core.discover import algorithm_name, version
from reverie.core.errors import ReverieError, RunError
from reverie.core.protocols import Sink
from reverie.core.words import Say, plural
from reverie.envs.make import EnvLike, env_name
from reverie.envs.task import named
from reverie.experiment import Experiment, ExperimentConfig
from reverie.folder import RunFolder, check_spec, check_writable, new_path, write_spaces, write_spec, writing
from reverie.log.console import tell
from reverie.log.trackers import check_installed, check_reachable
from reverie.noise import Pace, pace
from reverie.offline import build, resolved, subject
from reverie.run import train as loop
from reverie.run.checkpoint import Checkpoints
from reverie.run.encode import check_savable
from reverie.run.evaluate import Evaluation
from reverie.run.lock import RunLock
from reverie.run.schedule import position
from reverie.run.verify import step_of
from reverie.saved import Saved, check_usable, learned_otherwise, read_saved, settings_changes, update_saved
from reverie.training.checkpointing import Keeper, check_store, place_of
from reverie.training.evaluator import Result, evaluator_of, is_of, judged, mark_of, result_of
from reverie.training.initial import begin_with, check_same_kind, with_beginning
from reverie.training.messages import describe, planned, why_idle
from reverie.training.sinks import TRACKERS, check_sinks, draw_curve, sinks_of

ROOT = Path("runs")
FEW = 200
"""Updates of a run that is too short to time its learner first."""


def train(
    config: ExperimentConfig,
    env: EnvLike | None = None,
    run: Path | str | None = None,
    say: Say = tell,
    *,
    keep_newer: bool = False,
    sinks: Sequence[Sink] = (),
) -> Result:
    """Train as ``config`` says, in a new run folder or continuing an existing run.

    Nothing is created before everything has been built and checked. One process at a time writes to a run.

    Args:
        config: the settings.
        env: a function that makes the environment, or an instance, in place of ``config.env.id``.
        run: the run folder; None: a new one under ``runs/``. An existing run of the same algorithm on the same
            environment is continued from its newest checkpoint.
        say: called with a sentence about what is happening, now and then.
        keep_newer: when continuing, learn also from stored rows newer than the checkpoint. False sets them aside.
        sinks: further destinations of the measurements; they are closed at the end.

    Raises:
        ReverieError: settings do not fit together, the folder belongs to another run or is being written, all of its
            checkpoints are damaged, or a loss, a weight or an action was not finite.
    """
    name = algorithm_name(type(config.algo))
    trackers = {tracker: getattr(config, tracker) for tracker in TRACKERS}
    check_installed(trackers)
    check_sinks(sinks)
    config, folder = placed(config, env, run, say)
    title = f"{name} on {subject(config)}"
    with contextlib.ExitStack() as stack:
        say = stack.enter_context(folder.showing(say))
        checkpoints = Checkpoints(folder.checkpoints, config.keep_checkpoints, say)
        newest = None
        check_store(config.replay.store, folder)
        check_writable(folder.path)
        continues = check_usable(folder.path, name, config.env.id)
        if continues:
            stack.enter_context(RunLock(folder.path))
            newest = newest_of(checkpoints)
            if newest is None:
                say(f"{folder.path} has no checkpoint: it starts over, and keeps the rows and logs stored there")
            else:
                config = with_beginning(config, read_saved(folder.path).experiment, folder.path)
        experiment = build(config, env, start=step_of(newest) if newest else 0, scratch=folder.path)
        stack.callback(experiment.close)
        experiment, speed = (experiment, None) if newest else paced(experiment)
        config = experiment.config
        if newest is not None:
            check_spec(folder, experiment.obs_spec, experiment.action_spec)
            check_same_kind(folder, config.data)
        check_savable(experiment.algo.state_dict(), "algo")  # an hour later the first checkpoint would fail
        keeper = Keeper(experiment, folder, checkpoints, say, anew=newest is None, keep_newer=keep_newer)
        if newest is not None:
            with naming_changes(keeper):
                keeper.load_learner(newest)
            if done := keeper.why_done():
                keeper.mark_again(newest)
                say(f"{folder.path} {done}")
                return _judged_late(keeper, newest, title, say, sinks)
            stack.push(keeper.close)
            with naming_changes(keeper):
                keeper.load(newest)
        else:
            stack.push(keeper.close)
            keeper.claim()  # a run that is refused here leaves nothing behind
            begin_with(experiment, say)
        check_reachable(trackers)
        describe(experiment, say, speed)
        if not continues:
            begin(folder, stack)
        saved = Saved(algorithm=name, experiment=config.to_dict(), custom=custom_objects(config, env))
        write_settings(folder, saved, keeper, say, anew=newest is None)
        if newest is None:
            keeper.begin()
        elif keeper.replay.copied:
            keeper.save()  # otherwise each attempt that is killed would copy the rows again
        return _run(experiment, folder, keeper, title, say, sinks)


def placed(
    config: ExperimentConfig, env: EnvLike | None, run: Path | str | None, say: Say
) -> tuple[ExperimentConfig, RunFolder]:
    """Return the settings with everything filled in that the environment and the data decide, and the run folder.

    Raises:
        ReverieError: settings cannot be saved, or the data or the environment to evaluate in cannot be opened.
    """
    folder = None if run is None else RunFolder.at(run)
    if isinstance(env, gymnasium.Env) and config.evaluates_on_the_way:
        say("no evaluations during training: they need a second environment, but only one instance was passed")
        config = config.merge({"schedule.eval_every": 0})
    config.to_dict()  # settings that cannot be saved are refused here
    config = resolved(config, env, say, None if folder is None else env_before(folder))
    folder = folder or RunFolder.at(new_path(ROOT, subject(config), algorithm_name(type(config.algo))))
    return config.merge({"replay.store": place_of(config.replay.store)}), folder


def paced(experiment: Experiment) -> tuple[Experiment, Pace | None]:
    """Time the learner of a run on a CPU, unless the run is short; if ``threads`` is 0, set it to what is faster."""
    config, algo, most = experiment.config, experiment.algo, torch.get_num_threads()
    if algo.device.type != "cpu" or planned(config, algo.window)[0] < FEW:
        return experiment, None
    choices = [1, most] if most > 1 and not config.threads else [most]
    found = pace(config.algo, experiment.obs_spec, experiment.action_spec, config.env.num, choices)
    if found is None or len(choices) == 1:
        return experiment, found
    torch.set_num_threads(found.threads)
    return replace(experiment, config=config.merge({"threads": found.threads})), found


def env_before(folder: RunFolder) -> dict[str, Any] | None:
    """Return the environment's settings of the run in ``folder``; None if there is no run."""
    found: dict[str, Any] | None = read_saved(folder.path).experiment.get("env") if folder.config.is_file() else None
    return found


def newest_of(checkpoints: Checkpoints) -> Path | None:
    """Return the checkpoint to resume from, or None. First repairs what a crash left, so the caller must hold the lock.

    Raises:
        RunError: all checkpoints are damaged.
    """
    with writing(checkpoints.folder):
        checkpoints.recover()
    return checkpoints.latest()


@contextlib.contextmanager
def naming_changes(keeper: Keeper) -> Iterator[None]:
    """Begin errors raised inside with the settings of the algorithm that differ from those of the run."""
    try:
        yield
    except ReverieError as error:
        now = json.loads(json.dumps(keeper.experiment.config.algo.to_dict()))
        lines = settings_changes(read_saved(keeper.folder.path).experiment.get("algo", {}), now, "algo.")
        if lines:
            error.args = (f"the run was begun with other settings: {'; '.join(lines)}. {error}",)
        raise


def begin(folder: RunFolder, stack: contextlib.ExitStack) -> None:
    """Make the folder and take its lock.

    Raises:
        RunError: it cannot be written, or another process has begun a run there since it was found empty.
    """
    with writing(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
    stack.enter_context(RunLock(folder.path))
    if folder.config.exists():
        raise RunError(f"another process has just created a run in {folder.path}. Choose another run folder.")


def write_settings(folder: RunFolder, saved: Saved, keeper: Keeper, say: Say, *, anew: bool) -> None:
    """Write config.yaml, spec.json and spaces.json, and report the settings that differ from the checkpoint's."""
    experiment = keeper.experiment
    with writing(folder.path):
        if anew:
            for path in (folder.spec, folder.spaces):
                path.unlink(missing_ok=True)  # without a checkpoint nothing has been learned from the old spaces
        write_spec(folder, experiment.obs_spec, experiment.action_spec)
        write_spaces(folder, experiment.spaces)
        for line in update_saved(folder, saved, version(), position(experiment.clock), keeper.settings.saved):
            say(line)


def _run(
    experiment: Experiment, folder: RunFolder, keeper: Keeper, title: str, say: Say, own: Sequence[Sink]
) -> Result:
    # The evaluation may have been logged, but the best agent not saved.
    again = {mark_of(experiment): 0.0} if keeper.owes_evaluation() else None
    with sinks_of(experiment, folder, title, say, own, again) as sinks:
        ending = loop.train(
            experiment.algo,
            experiment.source,
            experiment.clock,
            keeper.meter,
            sinks=sinks,
            collector=experiment.collector,
            evaluator=evaluator_of(experiment, keeper),
            checkpoint=keeper.save,
            schedule=experiment.config.schedule,
            precision=experiment.config.algo.precision,
        )
        result = result_of(experiment, folder, ending.checkpoint)
        if ending.reason == "interrupted":
            result = replace(result, reason=ending.reason, signal=ending.signal)
        else:
            if why := why_idle(experiment):
                say(why)
            result = judged(result, experiment, folder, sinks, say)
    return replace(result, files=folder.files() | result.files)  # the curve has been drawn meanwhile


def _judged_late(keeper: Keeper, newest: Path, title: str, say: Say, own: Sequence[Sink]) -> Result:
    """Return the result of a run that has no steps left; make up for what an interrupted end lacks.

    This is the final evaluation with everything that follows, or only the learning curve.
    """
    experiment, folder = keeper.experiment, keeper.folder
    result, config = result_of(experiment, folder, newest), experiment.config
    if lines := learned_otherwise(keeper.settings.saved or {}, keeper.settings.now):
        say(f"the training is finished and has not used these changed settings: {'; '.join(lines)}")
    lacks_score = config.eval_episodes > 0 and not is_of(folder.evaluation, position(experiment.clock))
    lacks_estimate = experiment.estimator is not None and not is_of(folder.estimate, position(experiment.clock))
    if not lacks_score and not lacks_estimate:
        if not folder.has_newest_curve():
            draw_curve(experiment, folder, title, say)
        return replace(result, evaluation=evaluation_before(config, folder, say), files=folder.files() | result.files)
    if lacks_estimate:
        keeper.load_estimator(newest)
    saved = Saved(algorithm=algorithm_name(type(config.algo)), experiment=config.to_dict(),
                  custom=read_saved(folder.path).custom)  # fmt: skip
    write_settings(folder, saved, keeper, say, anew=False)
    with sinks_of(experiment, folder, title, say, own, again={mark_of(experiment): 1.0}) as sinks:
        result = judged(result, experiment, folder, sinks, say)
    return replace(result, files=folder.files() | result.files)


def evaluation_before(config: ExperimentConfig, folder: RunFolder, say: Say) -> Evaluation | None:
    """Return the final evaluation made by an earlier process, if ``config`` asks for one; report another length."""
    found = final_evaluation_in(folder) if config.eval_episodes else None
    if found is not None and len(found.scores) != config.eval_episodes:
        say(
            f"eval_episodes = {config.eval_episodes} has no effect on a finished run: its final evaluation of "
            f"{plural(len(found.scores), 'episode')} is kept. To play more, use reverie eval {folder.path} --episodes "
            f"{config.eval_episodes}"
        )
    return found


def custom_objects(config: ExperimentConfig, env: EnvLike | None) -> dict[str, str]:
    """Name the objects that a YAML file cannot hold: an environment given from Python, configs of other classes.

    A class or function that makes environments is named ``module:name`` if that can be imported.
    """
    found = {} if env is None or isinstance(env, str) else {"env": named(env) or env_name(env)}
    return found | dict(_foreign(config.algo, type(config.algo)(), "algo"))


def _foreign(value: Any, default: Any, where: str) -> Mapping[str, str]:
    """Return the places below ``where`` at which ``value`` holds an object of another class than ``default`` does."""
    if value is None or (isinstance(value, Choice) and value.can_be_found()):
        return {}  # a file holds its kind and its values
    if type(value) is not type(default) and (isinstance(default, Config) or isinstance(value, Config)):
        return {where: f"{type(value).__module__}:{type(value).__qualname__}"}
    if not isinstance(value, Config):
        return {}
    out: dict[str, str] = {}
    for name in value.__dataclass_fields__:
        out |= _foreign(getattr(value, name), getattr(default, name), f"{where}.{name}")
    return out

"""Train from Python, with the same layers of settings as the command line."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import gymnasium

from reverie.agent.loading import load
from reverie.agent.off_policy_estimator import OffPolicyEstimator
from reverie.algos.settings import AlgorithmConfig, compatible_algorithms
from reverie.algos.table import DEFAULT_ALGORITHM
from reverie.core.errors import ConfigError, RunError
from reverie.core.logger import log_warnings_as, logger, silence_logger
from reverie.core.protocols import Sink
from reverie.core.seeding import preserve_pytorch_settings, preserve_rng_state
from reverie.core.specs import has_players
from reverie.datasets.data_path import DataLike
from reverie.distributed.actor_collector import build_actor_collector
from reverie.distributed.launch import join_learners, learner_share, log_rules, member_changes, scaled_hyperparameters
from reverie.distributed.learners import LearnerExperiment, learner_folder, make_learner_experiment, run_follower
from reverie.distributed.search_space import read_space_file
from reverie.distributed.seeds import SeedsResult, run_seeds
from reverie.distributed.tune import TuneResult, run_tuning
from reverie.envs.check import EnvReport, Start, run_env_check
from reverie.envs.config import EnvConfig, EnvLike, MakeEnv, env_name, settings_of
from reverie.envs.findings import Finding, sort_findings
from reverie.envs.worker import end_unguarded_worker
from reverie.experiment.build import Experiment, build
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.dataset_env import resolve_with_data
from reverie.experiment.lifecycle import run_experiment
from reverie.experiment.person import Person
from reverie.experiment.presets import SUITES
from reverie.experiment.rules import validate_config
from reverie.experiment.saved_settings import initial_settings, saved_settings
from reverie.experiment.settings import Request, resolve
from reverie.experiment.suggestions import suggest_starts
from reverie.log.artifacts import download_run
from reverie.log.sinks import TRACKERS, LogOutputs
from reverie.log.trackers import check_installed
from reverie.replay.config import PERSON_PAGE, Experience, HumanConfig
from reverie.run.callback import Callback, check_callbacks, make_callback
from reverie.run.channel import PageChannel
from reverie.run.checkpoint import export_checkpoint
from reverie.run.folder import RunFolder, check_module_names, new_path, read_saved_config
from reverie.run.result import TrainResult
from reverie.run.takeovers import ActionChannel

VECTOR_ALGORITHMS = ("sac", "dqn")
"""Algorithms to start with for observations without images."""

_TRAINING = threading.Lock()


def train(
    algorithm: str | AlgorithmConfig | ExperimentConfig | None = None,
    env: EnvLike | None = None,
    *,
    steps: int | None = None,
    seed: int | None = None,
    envs: int | None = None,
    size: str | None = None,
    preset: str | None = None,
    config: Path | str | Sequence[Path | str] | None = None,
    run: Path | str | None = None,
    resume: Path | str | None = None,
    replay_ratio: float | None = None,
    data: DataLike | None = None,
    experience: str | Experience | None = None,
    human: str | Person | HumanConfig | Mapping[str, Any] | None = None,
    eval_episodes: int | None = None,
    eval_env: EnvLike | Mapping[str, Any] | None = None,
    device: str | None = None,
    sinks: Sequence[Sink] = (),
    callbacks: Sequence[Callback | str] = (),
    **overrides: Any,
) -> TrainResult:
    """Train an agent, or continue a run.

    Settings come in layers, each overriding the previous ones: the preset, the files of ``config``, ``size``, ``env``,
    and then all other arguments. None: keep the value of the layers below.

    Args:
        algorithm: a name such as ``"dreamer_v3"``; an ``AlgorithmConfig``, which replaces the ``algo`` settings of
            preset and files; or an ``ExperimentConfig``, which replaces preset and files. None: the algorithm of the
            run to continue, or else ``"dreamer_v3"``.
        env: an id in Gymnasium's registry, a function that makes an environment, or an instance. With ``data`` only,
            the environment is used for evaluation. None: the environment that the dataset, the preset, the files or
            the run to continue name. ``"none"``: no environment; estimate the return from the data.
        steps: env steps of the run: decisions of the policy, summed over all environments.
        seed: seed of all random generators.
        envs: environments stepped together; 1 if ``env`` is an instance. Short for ``env.num``.
        size: a named size of the algorithm, such as ``"12m"``; ``reverie list`` names them.
        preset: name of a preset to start from. None: the preset of the environment's suite; without a GPU ``"cpu"``,
            the same preset with smaller networks and a shorter run. Cannot be combined with an ``ExperimentConfig``.
        config: a YAML file with settings, or several files; later files override earlier ones. Cannot be combined with
            an ``ExperimentConfig``. If ``algorithm`` is an ``AlgorithmConfig``, the files must not contain ``algo``
            settings. ``"settings.yaml#debug"`` is the section ``debug`` of that file.
        run: run folder; a run found there is continued. None: a new folder under ``runs/``. ``"runs:/ID"``: an MLflow
            run, which is downloaded and continued.
        resume: the same as ``run``, but the run must exist.
        replay_ratio: gradient updates per env step.
        data: dataset to learn from: a path, ``minari:NAME``, arrays or a table in memory, a ``minari.MinariDataset``,
            or a list of several datasets with the same spaces; or a mapping of ``data`` settings. Short for
            ``data.path``. To continue a run on data in memory, pass the same data again.
        experience: ``"online"`` to learn from collected rows, ``"offline"`` to learn from the dataset, or
            ``"mixed(0.5)"`` to take that fraction of each batch from the dataset. None: online without ``data``; with
            ``data`` offline, or mixed if the algorithm needs both.
        human: who can take over from the policy while it learns: ``"page"``, a page in the browser, whose link is
            printed; a :class:`Person`, or ``"module:function"``; or a mapping of ``human`` settings. To continue a run
            with a ``Person``, pass it again.
        eval_episodes: episodes of each evaluation, during training and at the end; 0: none.
        eval_env: evaluation environment, with the same spaces as the training environment: a mapping of the ``env``
            settings that differ, such as ``{"kwargs": {"load": 2.0}}``; an id; a function without arguments that makes
            it; or an instance. None: the same as for training.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or ``"auto"`` for a GPU if there is one.
        sinks: additional destinations of the metrics, with methods ``write(values, step)`` and ``close()``.
        callbacks: instances of :class:`Callback`; or texts, ``"module:Class(setting=1)"``, which are saved with the
            run's settings.
        **overrides: any other field of :class:`ExperimentConfig`, as a nested dictionary (``env_options`` for the
            ``env`` settings), as an object such as ``Schedule(...)``, or by dotted path: ``**{"algo.horizon": 20}``,
            even in addition to such an object.

    Returns:
        How the run ended: steps, updates, final evaluation and files; and the trained agent.

    Raises:
        ReverieError: settings contradict each other, the run failed, or another thread is training. The subclasses are
            in :mod:`reverie.core.errors`.

    All randomness is derived from ``seed``. The global generators of PyTorch, NumPy and Python are seeded during
    training and restored afterwards; other threads must not draw from them during training. PyTorch's number of
    threads, which the setting ``threads`` changes, is restored too.
    """
    common = {
        "steps": steps,
        "seed": seed,
        "envs": envs,
        "replay_ratio": replay_ratio,
        "device": device,
        "data": data,
        "experience": experience,
        "human": human,
        "eval_episodes": eval_episodes,
        "eval_env": eval_env if isinstance(eval_env, str | Mapping) else None,
        "callbacks": tuple(callback for callback in callbacks if isinstance(callback, str)) or None,
    }
    callback_objects = check_callbacks([callback for callback in callbacks if not isinstance(callback, str)])
    overrides |= {name: value for name, value in common.items() if value is not None}
    person = human if isinstance(human, Person) else None
    env_object = None if env is None or isinstance(env, str) else env
    eval_env_object = None if isinstance(eval_env, str | Mapping) else eval_env
    if run is not None and resume is not None:
        raise ConfigError(f"run = {run}, resume = {resume}: both name the run folder. Pass one of them.")
    named = run if resume is None else resume
    run = None if named is None else download_run(named)
    if algorithm is None:
        algorithm = _saved_algorithm(run, must_exist=resume is not None)
    settings = resolve_with_data(make_request(algorithm, env, size, preset, config, overrides, run))
    with _training_lock(), preserve_rng_state(), preserve_pytorch_settings():
        return train_config(
            settings, env=env_object, eval_env=eval_env_object, run=run, sinks=sinks, callbacks=callback_objects,
            human=person,
        )  # fmt: skip


def _saved_algorithm(run: Path | str | None, *, must_exist: bool) -> str:
    """Return the algorithm of the run to continue; the default one if there is none, unless it ``must_exist``."""
    if run is None or not (must_exist or RunFolder.from_path(run).config.is_file()):
        return DEFAULT_ALGORITHM
    saved = read_saved_config(RunFolder.from_path(run).path)
    checked_later = ("env", "eval_env", "data", "callbacks", "human")  # by resolve()
    check_module_names(saved, f"the run {run}", *checked_later)
    return saved.algorithm


def make_request(
    algorithm: str | AlgorithmConfig | ExperimentConfig, env: EnvLike | None, size: str | None, preset: str | None,
    config: Path | str | Sequence[Path | str] | None, overrides: Mapping[str, Any], run: Path | str | None = None,
) -> Request:  # fmt: skip
    """Return the arguments that :func:`train` and others share as one object."""
    files = [config] if isinstance(config, str | Path) else config or ()
    path = None if run is None else Path(run)
    return Request(
        algorithm=algorithm, env=env, size=size, preset=preset, files=[*map(Path, files)], run=path, overrides=overrides
    )


def train_config(
    config: ExperimentConfig, env: EnvLike | None = None, run: Path | str | None = None, *,
    eval_env: MakeEnv | gymnasium.Env[Any, Any] | None = None, sinks: Sequence[Sink] = (),
    callbacks: Sequence[Callback] = (), human: ActionChannel | None = None,
) -> TrainResult:  # fmt: skip
    """Train with the settings ``config``, in a new run folder or continuing an existing run.

    Args:
        config: the settings.
        env: a function that makes the environment, or an instance, instead of ``config.env.id``.
        run: the run folder; None: a new one under ``runs/``. An existing run of the same algorithm on the same
            environment is continued from its newest checkpoint.
        eval_env: a function that makes the evaluation environment, or an instance, instead of ``config.eval_env``.
        sinks: additional destinations of the metrics; they are closed at the end.
        callbacks: called after the callbacks that ``config`` names.
        human: who can take over from the policy, instead of the person whom ``config`` names.
    """
    with join_learners(config) as team:
        if team.rank:
            log_warnings_as(f"learner {team.rank}")
        check_installed({tracker: getattr(config, tracker) for tracker in TRACKERS})
        if eval_env is not None:
            config = config.merge({"eval_env": settings_of(eval_env)})
        if isinstance(env, gymnasium.Env) and config.eval_env is None and config.evaluates_during_training:
            logger.info(
                "no evaluations during training: they need a second environment, but only one instance was passed. "
                "Pass another as eval_env"
            )
            config = config.merge({"schedule.eval_every": 0})
        config.to_dict()  # settings that cannot be saved are refused here
        run_callbacks = [] if team.rank else [*map(make_callback, config.callbacks), *callbacks]
        folder = None if run is None else RunFolder.from_path(run)
        before = read_saved_config(folder.path).experiment if folder is not None and folder.config.is_file() else None
        config = config.merge(member_changes(config, team))
        log_rules(config, team.count)
        folder = folder or RunFolder.from_path(new_path(config.task_label, config.name))
        folder, before = team.broadcast_object((folder, before))
        title = f"{config.name} on {config.task_label}"
        serve_page: Callable[..., contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
        if human is None and config.human.person == PERSON_PAGE:
            from reverie.viewer.launch import open_page  # ConfigError without the packages of the viewer

            human = page = PageChannel(config.human.hz, config.human.success_reward)
            serve_page = functools.partial(open_page, page, folder.path, title)

        def build_from(start: int | None) -> LearnerExperiment:
            if team.rank == 0:
                team.broadcast_object(("build", start))
            continued = config
            if start is not None and before is not None:
                continued = config.merge(initial_settings(config, before, folder.path))
            scaled = continued.merge(scaled_hyperparameters(continued, team.count))
            settings = scaled.merge(learner_share(scaled, team))
            experiment = build(
                settings, env, eval_env=eval_env, start=start or 0, rank=team.rank,
                run=learner_folder(folder.path, team.rank), estimates=OffPolicyEstimator, actors=build_actor_collector,
                human=human,
            )  # fmt: skip
            experiment.share_batches()
            return make_learner_experiment(experiment, validate_config(continued), team, folder.path)

        @contextlib.contextmanager
        def open_outputs(experiment: Experiment, last_values: Mapping[str, float] | None) -> Iterator[Sequence[Sink]]:
            clips = config.env.clip_reward != "none" and not config.offline
            outputs = LogOutputs(
                path=folder.path,
                title=title,
                settings=experiment.config.to_dict(),
                export=export_checkpoint,
                user_sinks=sinks,
                note="; training returns sum clipped rewards" * clips,
            )
            opened = outputs.open(experiment.clock, last_values)
            with opened as opened_sinks, team.use_group(), serve_page(_find_questions(experiment, config.seed)):
                yield opened_sinks

        if team.rank:
            return run_follower(team, build_from, folder)
        result = run_experiment(build_from, folder, saved_settings(config, env, eval_env), open_outputs, run_callbacks)
        team.end(result)
        return dataclasses.replace(result, load_agent=functools.partial(load, result.run, env=env, algo=config.algo))


def _find_questions(experiment: Experiment, seed: int) -> Any:
    """Return the questions about the rows of ``experiment`` that a page asks while it learns; None: it asks none."""
    reward = getattr(experiment, "learned_reward", None)
    if reward is None or not reward.is_asking:
        return None
    from reverie.experiment.labeling import LiveSession

    env = experiment.config.env if experiment.user_env is None else None
    return LiveSession(experiment.replay, experiment.obs_spec, reward, env, seed)


@contextlib.contextmanager
def _training_lock() -> Iterator[None]:
    """Hold this process's training lock; RunError if another training run holds it."""
    end_unguarded_worker()
    if not _TRAINING.acquire(blocking=False):
        raise RunError(
            "another training run is active in this process, and both would use the same random generators. Train "
            "one after the other, or in separate processes: with reverie.train_seeds or the command line."
        )
    try:
        yield
    finally:
        _TRAINING.release()


def train_seeds(
    algorithm: str | AlgorithmConfig | ExperimentConfig = "dreamer_v3",
    env: str | None = None,
    *,
    seeds: int | Sequence[int] = 5,
    jobs: int = 0,
    size: str | None = None,
    preset: str | None = None,
    config: Path | str | Sequence[Path | str] | None = None,
    run: Path | str | None = None,
    **overrides: Any,
) -> SeedsResult:
    """Train an agent with several seeds, and aggregate the results.

    Each seed is a separate run, identical to one made by :func:`train`, in its own process.

    Args:
        algorithm: as for :func:`train`, without objects that YAML cannot represent.
        env: an id in Gymnasium's registry or ``module:Id``, since other processes must be able to make the environment.
        seeds: the number of seeds, counted up from ``seed``, or a list of different integers >= 0.
        jobs: how many to train at a time. 0: as many as the cores allow with the threads of each; one on a GPU.
        size: as for :func:`train`.
        preset: as for :func:`train`.
        config: as for :func:`train`.
        run: the folder for all of them; unfinished seeds found there are continued. None: the newest folder under
            ``runs/`` with the same settings, or else a new one.
        **overrides: ``steps``, ``envs``, ``device`` and all others, as for :func:`train`; ``seed`` is the first seed.

    Returns:
        The state of each seed, and scores and curves with 95 % intervals across the seeds that finished.

    Raises:
        ReverieError: settings contradict each other, or no seed could start. If a seed fails later, the others
            continue, and its state in the result is "failed".
    """
    if env is not None and not isinstance(env, str):
        raise ConfigError(
            f"env = {env_name(env)}: each seed runs in its own process, which cannot receive a Python object. Register "
            "the environment with Gymnasium in a module, and pass 'module:Id'."
        )
    settings = resolve_with_data(make_request(algorithm, env, size, preset, config, overrides, run))
    return run_seeds(settings, _list_seeds(seeds, settings.seed), jobs=jobs, run=run)


def tune(
    algorithm: str | AlgorithmConfig | ExperimentConfig,
    env: str | None = None,
    *,
    space: Path | str | Mapping[str, Any] | None = None,
    grid: Mapping[str, Any] | None = None,
    trials: int = 20,
    seeds: int | Sequence[int] | None = None,
    jobs: int = 0,
    prune: bool = True,
    size: str | None = None,
    preset: str | None = None,
    config: Path | str | Sequence[Path | str] | None = None,
    run: Path | str | None = None,
    **overrides: Any,
) -> TuneResult:
    """Search for the settings with the best final evaluation, with Optuna or in a grid; or continue a search.

    Args:
        algorithm: as for :func:`train_seeds`.
        env: as for :func:`train_seeds`.
        space: the settings to search, or a YAML file of them: ``{"algo.lr": {"low": 1e-5, "high": 1e-2, "log": True},
            "algo.batch_size": [32, 64]}``. No combination is tried twice, so the search ends once all have been tried.
        grid: try all combinations of these values instead: ``{"algo.lr": [1e-3, 3e-4], "algo.batch_size": [32, 64]}``.
        trials: total number of trials of a search, including trials of earlier calls.
        seeds: as for :func:`train_seeds`; the score of a trial is the mean of its seeds. None: one run for each trial.
        jobs: how many to train at a time. 0: as many as the cores allow with the threads of each; one on a GPU.
        prune: stop the worse trials of a search early, by their evaluations during training (successive halving).
        size: as for :func:`train`.
        preset: as for :func:`train`.
        config: as for :func:`train`.
        run: the folder of the search. None: a new one under ``runs/``.
        **overrides: ``steps``, ``envs``, ``device`` and all others, as for :func:`train`.

    Raises:
        ReverieError: settings contradict each other, the package optuna is missing, no trial could start, or the folder
            contains another search.
    """
    settings = resolve_with_data(make_request(algorithm, env, size, preset, config, overrides, run))
    values, space_name = choose_search(space, grid)
    return run_tuning(
        settings, values, grid=grid is not None, space_name=space_name, trials=trials, jobs=jobs, prune=prune, run=run,
        seeds=None if seeds is None else _list_seeds(seeds, settings.seed),
    )  # fmt: skip


def choose_search(
    space: Path | str | Mapping[str, Any] | None, grid: Mapping[str, Any] | None
) -> tuple[Mapping[str, Any], str]:
    """Return the settings to search, and what names them in errors; ConfigError unless there is one of both."""
    if (space is None) == (grid is None):
        raise ConfigError(
            "no settings to search: pass either a space, such as {algo.lr: {low: 1e-5, high: 1e-2}} or its file, or a "
            "grid, such as {algo.lr: [1e-3, 3e-4]}, to try all of its combinations."
        )
    if isinstance(space, str | Path):
        return read_space_file(Path(space)), str(space)
    return (space, "space") if space is not None else (grid or {}, "grid")


def _list_seeds(seeds: int | Sequence[int], first: int) -> list[int]:
    """Return a list of seeds; a number of seeds is counted up from ``first``."""
    return list(range(first, first + int(seeds)) if isinstance(seeds, int | Integral) else seeds)  # NumPy's too


def check_env(
    env: EnvLike,
    *,
    algorithm: str | None = None,
    config: Path | str | Sequence[Path | str] | None = None,
    env_options: EnvConfig | Mapping[str, Any] | None = None,
    steps: int = 2_000,
    worker: bool = False,
    watch: Callable[[int], object] = id,
) -> EnvReport:
    """Play random episodes as training would; report faults of an environment, and how learners see it.

    Args:
        env: as for :func:`train`. An instance is reset, and stays open.
        algorithm: the algorithm to train; it determines the preset. None: an algorithm that suits the spaces.
        config: as for :func:`train`.
        env_options: settings of the environment, such as ``{"pixels": "only"}``.
        steps: steps to play, for at most about 10 seconds, or until the first episode ends if that is later.
        worker: also play in a worker process; scripts then need ``if __name__ == "__main__":``.
        watch: called with the number of steps played so far.

    Raises:
        ReverieError: the environment does not exist, or the algorithm does not support its actions.
    """
    options = {} if env_options is None else {"env_options": env_options}

    def resolve_settings(name: str) -> ExperimentConfig:
        with silence_logger():
            return resolve(make_request(name, env, None, None, config, options))

    settings = resolve_settings(algorithm or DEFAULT_ALGORITHM)
    report = run_env_check(None if isinstance(env, str) else env, settings.env, steps, worker, watch)
    if (spec := report.action_spec) is None:
        return report
    on_device = "device" in report.measurements
    is_game = has_players(report.obs_spec)
    report = dataclasses.replace(report, algorithms=compatible_algorithms(spec, on_device, is_game))
    images = any(part.kind == "image" for part in report.obs_spec.values())
    if (on_device or is_game) and algorithm is None:
        start = resolve_settings("muzero" if is_game else "ppo")
        return dataclasses.replace(report, starts=suggest_starts([start]) if report.ok else ())
    if algorithm is None and not images and settings.preset.partition("+")[0] not in SUITES.values():
        name = next((name for name in VECTOR_ALGORITHMS if name in report.algorithms["online"]), DEFAULT_ALGORITHM)
        settings = resolve_settings(name)
    settings.algo.check_actions(spec)
    episodes = [*zip(*(report.measurements.get(name, ()) for name in ("returns", "lengths")), strict=True)]
    if problem := settings.algo.scale_warning(episodes):
        warning = Finding(severity="warning", name="atoms", text=problem)
        report = dataclasses.replace(report, findings=sort_findings((*report.findings, warning)))
    if not report.ok:
        return report
    if algorithm is not None:
        return dataclasses.replace(report, starts=(Start(settings.name, settings.steps, ""),))
    return dataclasses.replace(report, starts=suggest_starts([resolve_settings("ppo"), settings]))

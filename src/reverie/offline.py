"""Build any run, with recorded data or, by ``experiment.build``, without; the part of a checkpoint about such data."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from reverie.algos.base import Algorithm
from reverie.core.clock import Clock
from reverie.core.errors import ConfigError, DataError, EnvError, ReverieError, RunError
from reverie.core.importing import check_module
from reverie.core.machine import keep_freed_memory
from reverie.core.protocols import Env
from reverie.core.randomness import derived_seeds
from reverie.core.signature import differences, signature
from reverie.core.specs import EXTRAS, ActionSpec, ObsSpec
from reverie.core.types import State, Window
from reverie.core.words import Say
from reverie.datasets.dataset import DatasetConfig, Recorded, open_recorded, shown
from reverie.datasets.detect import open_reader
from reverie.datasets.recorded_env import check_mixed, env_as_recorded, env_of, lacking
from reverie.envs.make import EnvLike, MakeEnv, env_factory, make_gym, put_away
from reverie.estimating import Estimator
from reverie.experiment import Experiment, ExperimentConfig, check_start, make_eval_env, prepare
from reverie.experiment import build as build_lived
from reverie.nn.returns_to_go import RETURN, Later, returns_to_go
from reverie.replay.dataset import Dataset
from reverie.replay.mix import Mix, shares
from reverie.replay.prefetch import ahead

NO_ENV = "none"
"""Environment id of a run that has no environment."""

DEFAULT_FRACTION = 0.5
"""Default fraction of each batch that is recorded, where both data and an environment are given."""


@runtime_checkable
class TellsApart(Protocol):
    """A learner that must know which windows of a batch are recorded: the first ones. The others were collected."""

    def expect_recorded(self, windows: int) -> None:
        """Set how many windows of each batch are recorded."""
        ...


def resolved(
    config: ExperimentConfig, env: EnvLike | None, say: Say, before: Mapping[str, Any] | None = None
) -> ExperimentConfig:
    """Return ``config`` with its environment filled in. A run on data alone gets the environment to evaluate in.

    Args:
        config: the settings.
        env: an environment given from Python.
        say: called with the reason if nothing will be evaluated.
        before: the environment's settings of the run to be continued; they stay unless ``data.eval_env`` names another.

    Raises:
        ReverieError: the data cannot be read, or an environment that was asked for cannot be made.
    """
    check_data(config)
    path = config.data.path
    if path and "://" not in path and not path.startswith("minari:"):  # a continued run may start elsewhere
        config = config.merge({"data.path": os.path.abspath(os.path.expanduser(path))})
    if not config.data.alone or (env is not None and not isinstance(env, str)):
        return config
    wanted = config.data.eval_env
    if wanted == NO_ENV or config.env.id == NO_ENV:
        return without_env(config)
    if wanted != "auto":
        return config.merge({"env.id": wanted})
    if before is not None:
        kept = config.merge({"env": dict(before)})
        check_module(kept.env.id, "the run")
        return without_env(kept) if kept.env.id == NO_ENV else kept
    with contextlib.closing(open_recorded(config.data, config.env)) as recorded:
        about = recorded.about
    if not about.env:
        say("no evaluations: the data do not name their environment. Pass --eval-env ID to evaluate in one")
        return without_env(config)
    found = config.merge({"env": env_of(about, config.env).to_dict()})
    try:
        put_away(env_as_recorded(about, config.env))
    except EnvError as error:
        say(f"no evaluations: {error}")
        return without_env(config)
    return found


def env_id_of(data: DatasetConfig) -> str:
    """Return the id of the environment for evaluations of a run on ``data`` alone: the one set, or the data's own.

    Empty if it is unknown or the data cannot be read; reading them later reports the error.
    """
    if data.eval_env not in ("auto", NO_ENV):
        return data.eval_env
    try:
        with open_reader(data.path, data.reading) as reader:
            return reader.env_id()
    except ReverieError:
        return ""


def subject(config: ExperimentConfig) -> str:
    """Return what a run is named after: its environment, or the data that it learns from."""
    return Path(config.data.path).stem or config.data.path if config.data.alone else config.env.id


def without_env(config: ExperimentConfig) -> ExperimentConfig:
    """Return ``config`` without an environment and without evaluations."""
    return config.merge({"env.id": NO_ENV, "env.num": 1, "eval_episodes": 0})


def build(
    config: ExperimentConfig, env: EnvLike | None = None, *, start: int = 0, scratch: Path | None = None
) -> Experiment:
    """Build everything that ``config`` describes, with or without recorded data. Writes nothing.

    See ``experiment.build`` for the arguments.

    Raises:
        ReverieError: settings do not fit together, the data cannot be read or do not fit the environment, or the memory
            or the device is missing.
    """
    check_data(config)
    if not config.data.path:
        return build_lived(config, env, start=start, scratch=scratch)
    if config.data.alone:
        return build_alone(config, env, start=start, scratch=scratch)
    return build_mixed(config, env, start=start, scratch=scratch)


def check_data(config: ExperimentConfig) -> None:
    """Check that the algorithm gets the kinds of rows that it learns from: recorded, collected, or both.

    Raises:
        ConfigError: it does not, or a reader is named but no data.
    """
    if config.data.reader != "" and not config.data.path:
        raise ConfigError(f"data.reader = '{config.data.reader}' has no effect without data.path, the data to be read.")
    config.algo.check_data(recorded=bool(config.data.path), lived=not config.data.alone)


def build_alone(config: ExperimentConfig, env: EnvLike | None, *, start: int, scratch: Path | None) -> Experiment:
    """Build a run that collects nothing. Its environments, if there are any, are for evaluations."""
    check_start(config)
    factory = env_factory(config.env, env)
    device, seeds = prepare(config, start)
    with contextlib.ExitStack() as undo:
        eval_env: Env | None = None
        action_space = None
        if config.env.id != NO_ENV and config.eval_episodes:
            action_space, _ = looked_at(config, factory)  # first: a simulator may be able to run only once
            eval_env = make_eval_env(config, factory, workers=True)
            undo.callback(eval_env.close)
        recorded = undo.enter_context(contextlib.closing(open_recorded(config.data, config.env, action_space)))
        if eval_env is not None:
            check_fit(recorded, eval_env.obs_spec, eval_env.action_spec, config.env.id)
        algo = config.algo.build(recorded.obs_spec, recorded.action_spec, device, seeds["algo"])
        estimates = config.env.id == NO_ENV and config.data.estimate_updates > 0
        unclipped: list[np.ndarray] | None = [] if estimates and recorded.clip != "none" else None
        dataset = read(config, recorded, algo, algo.window, seeds["replay"], scratch, unclipped)
        if not start:  # runs of earlier versions, which did not check, can be continued
            check_steps(dataset, recorded)
        clock = Clock(
            total_steps=0,
            total_updates=config.updates,
            learning_starts=1,
            action_repeat=config.env.action_repeat,
        )
        estimator = None
        if estimates:
            specs, seed = (recorded.obs_spec, recorded.action_spec), derived_seeds(config.seed)["evaluation"]
            rewards = None if unclipped is None else np.concatenate(unclipped)
            estimator = Estimator(algo, dataset, *specs, seed=seed, rewards=rewards, clipped=recorded.clipped)
        if algo.device.type == "cpu":
            keep_freed_memory()
        undo.pop_all()
        recorded.close()
    return Experiment(
        config=config,
        env=None,
        obs_spec=recorded.obs_spec,
        action_spec=recorded.action_spec if eval_env is None else eval_env.action_spec,  # this has bounds
        algo=algo,
        replay=dataset,
        source=ahead(dataset, algo.device),
        collector=None,
        clock=clock,
        eval_env=eval_env,
        dataset=dataset,
        spaces=recorded.spaces if config.env.id == NO_ENV else None,
        remarks=tuple(recorded.remarks()),
        estimator=estimator,
    )


def build_mixed(config: ExperimentConfig, env: EnvLike | None, *, start: int, scratch: Path | None) -> Experiment:
    """Build a run whose batches are partly recorded and partly collected."""
    space, spec = looked_at(config, env_factory(config.env, env))  # first: a simulator may be able to run only once
    experiment = build_lived(config, env, start=start, scratch=scratch)
    with contextlib.ExitStack() as undo:
        undo.callback(experiment.close)
        recorded = open_recorded(config.data, config.env, space)
        undo.callback(recorded.close)
        check_same_task(recorded, config, spec, begun=start > 0)
        check_fit(recorded, experiment.obs_spec, experiment.action_spec, config.env.id)
        window, _ = shares(experiment.algo.window, config.data.fraction)
        seed = derived_seeds(config.seed, start)["replay"] + 1
        dataset = read(config, recorded, experiment.algo, window, seed, scratch)
        if not start:
            check_steps(dataset, recorded)
        if isinstance(experiment.algo, TellsApart):
            experiment.algo.expect_recorded(window.batch)
        undo.pop_all()
        recorded.close()
    source = Mix(ahead(dataset, experiment.algo.device), experiment.source)
    return replace(experiment, source=source, dataset=dataset, remarks=tuple(recorded.remarks()))


def read(
    config: ExperimentConfig,
    recorded: Recorded,
    algo: Algorithm,
    window: Window,
    seed: int,
    scratch: Path | None,
    unclipped: list[np.ndarray] | None = None,
) -> Dataset:
    """Read all recorded rows; on a terminal with a progress bar. Rewards before clipping go to ``unclipped``."""
    with shown(f"reading {recorded.reader.path.name}", recorded.rows()) as counted:
        dataset = config.data.build(
            recorded,
            window=window,
            seed=seed,
            batch_sampler=config.replay,
            extra_spec=algo.extra_spec,
            scratch=scratch,
            parts=counted(recorded.parts(unclipped)),
        )
    if RETURN in algo.extra_spec:
        write_returns(dataset, algo.cfg.discount)  # type: ignore[arg-type, union-attr]  # such learners have it
    return dataset


def check_steps(dataset: Dataset, recorded: Recorded) -> None:
    """Check that most rows belong to an episode with a step.

    Raises:
        DataError: they do not; the message names the data.
    """
    try:
        dataset.check_steps()
    except DataError as error:
        raise DataError(f"{recorded.where}: {error}") from None


def write_returns(dataset: Dataset, discount: float, block: int = 1 << 16) -> None:
    """Store beside each row its return-to-go, for learners that use it, such as Cal-QL.

    Runs from the last row to the first, ``block`` rows at a time.
    """
    reward, first = dataset.column("reward"), dataset.column("is_first")
    last, terminal = dataset.column("is_last"), dataset.column("is_terminal")
    later = Later()
    for stop in range(dataset.count, 0, -block):
        rows = slice(max(0, stop - block), stop)
        ends = {"first": first[rows], "last": last[rows], "terminal": terminal[rows]}
        found = returns_to_go(reward=reward[rows], discount=discount, later=later, **ends)
        dataset.write_column(EXTRAS + RETURN, rows.start, found)
        later = Later(bool(first[rows.start]), float(found[0]), float(reward[rows.start]))


def looked_at(config: ExperimentConfig, factory: MakeEnv | None) -> tuple[spaces.Space[Any], EnvSpec | None]:
    """Return the action space of the environment as the agent sees it, and the environment's spec if it has one."""
    env = make_gym(config.env, factory, render=False)
    space: spaces.Space[Any] = env.action_space
    spec = env.spec
    put_away(env)
    return space, spec


def check_same_task(recorded: Recorded, config: ExperimentConfig, spec: EnvSpec | None, *, begun: bool) -> None:
    """Check that the data were recorded in the task of the environment that the run collects in, as far as they say.

    Args:
        recorded: the data. Arguments and wrappers that ``spec`` lacks become a remark: to learn from both can be the
            purpose, as from a simulator and a robot.
        config: settings of the run.
        spec: the environment's; None if it has none.
        begun: the run is continued. Earlier versions did not check: a difference then becomes a remark as well.

    Raises:
        ConfigError: settings of the two environments differ.
    """
    try:
        check_mixed(recorded.about, config.env)
    except ConfigError as error:
        if not begun:
            raise
        recorded.reader.note(str(error).rstrip("."))
    if missing := lacking(recorded.about, spec):
        recorded.reader.note(
            f"the data were recorded in {recorded.about.env} with {', '.join(missing)}, and the environment of this "
            "run is made without that: the run learns from both as from one task"
        )


def check_fit(recorded: Recorded, obs: ObsSpec, action: ActionSpec, env: str) -> None:
    """Check that data and environment have the same observations and actions.

    ``env``: the environment's id, for the message; ``NO_ENV`` for an agent that has none.

    Raises:
        DataError: they have not; the message names each difference.
    """
    own, whose = ("the agent", "the agent") if env == NO_ENV else (env, f"the environment {env}")
    found = differences(signature(recorded.obs_spec, recorded.action_spec), signature(obs, action), ("the data", own))
    if found:
        advice = (
            "Use data of the environment that the agent has learned about."
            if env == NO_ENV
            else "Use the environment that the data were recorded in with the same options (env.include and "
            "env.exclude select observations), or other data."
        )
        raise DataError(f"{recorded.where} does not fit {whose}: {'; '.join(found)}. {advice}")


class DurableDataset:
    """Recorded rows as one part of a checkpoint: their fingerprint and the state of sampling, not the rows."""

    spare = True

    def __init__(self, dataset: Dataset, path: str, estimator: Estimator | None = None) -> None:
        """``path``: the data's path in the settings. ``estimator``: its state is saved as well."""
        self.dataset, self.path, self.estimator = dataset, path, estimator
        self.saved: State = {}

    def state_dict(self) -> State:
        """Return the fingerprint of the rows, and the state of the samplers."""
        more = {} if self.estimator is None else {"estimator": self.estimator.state_dict()}
        return {"fingerprint": self.dataset.fingerprint, "replay": dict(self.dataset.state_dict()), **more}

    def load_state_dict(self, state: State) -> None:
        """Restore the samplers, on the same rows.

        Raises:
            RunError: these are other rows.
        """
        if of_rows(state["fingerprint"]) != self.dataset.fingerprint:
            before, now = (str(s).partition("-")[0] for s in (state["fingerprint"], self.dataset.fingerprint))
            raise RunError(
                f"data.path = '{self.path}': these are not the data that the run was trained on ({before} rows then, "
                f"{now} rows now, with different contents). Pass the same data, or choose another run folder."
            )
        self.saved = state
        self.dataset.load_state_dict(state["replay"])
        if self.estimator is not None and "estimator" in state:
            self.estimator.load_state_dict(state["estimator"])

    def save_files(self, folder: Path) -> None:
        """Write the latents."""
        self.dataset.save_extras(folder)

    def load_files(self, folder: Path) -> None:
        """Read the latents. Latents that were not saved begin as zeros."""
        if any(folder.glob("*")):
            self.dataset.load_extras(folder)
        self.dataset.load_state_dict(self.saved["replay"])


def of_rows(fingerprint: str) -> str:
    """Return a fingerprint without columns derived from others, which earlier versions included."""
    return re.sub(rf"-{EXTRAS}[^:]*:[0-9a-f]{{8}}", "", fingerprint)

"""Trained agents from run folders, and as pickles."""

from __future__ import annotations

import contextlib
import copyreg
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
from torch import Tensor
from torch.utils._pytree import tree_map_only

from reverie.agent.agent import Agent
from reverie.algos.base import AlgorithmConfig
from reverie.core.discover import algorithm_config
from reverie.core.errors import EnvError, RunError
from reverie.core.importing import imported, trusting
from reverie.core.logger import logger
from reverie.core.machine import choose_device
from reverie.core.space_json import space_of
from reverie.core.spaces import ActionCodec
from reverie.core.specs import ActionSpec, differences, signature
from reverie.core.types import State
from reverie.datasets.reader import Space
from reverie.envs.flat import FlatEnv, make_flat
from reverie.envs.make import EnvLike, MakeEnv, Placeholder, env_factory, put_away
from reverie.envs.slot import generator_kept
from reverie.experiment.config import NO_ENV, ExperimentConfig
from reverie.log.artifacts import fetched
from reverie.run.checkpoint import Checkpoints
from reverie.run.folder import RunFolder, check_origin, check_spec, read_saved, read_spec
from reverie.run.manifest import step_of

SPACES_ALONE = (
    "To act only, without playing episodes, its spaces are enough: reverie.load(run, env=Spaces), with a class Spaces "
    "that has them (docs/environments.md, Acting without the environment)."
)


def load(
    run: Path | str, *, env: EnvLike | None = None, algo: AlgorithmConfig | None = None,
    checkpoint: Path | str | None = None, device: str = "auto", trust: bool = False,
) -> Agent:  # fmt: skip
    """Load the agent of a run.

    Args:
        run: the run folder; or a run or an agent at a tracker, which is downloaded to ``runs/`` once: ``"runs:/ID"``,
            ``"models:/NAME/3"`` and ``"models:/NAME@alias"`` of MLflow, ``"wandb:ENTITY/PROJECT/NAME:v3"`` of W&B,
            ``"hf://USER/NAME"`` of the Hugging Face Hub, ``"s3://BUCKET/NAME"`` and other URLs of :func:`push`.
        env: the function or instance the run was trained with, if its environment was given from Python and cannot be
            imported. For an environment that a module of yours registers: ``"module:Id"``. For a run on recorded data
            alone: the environment to act in, also by id. Where the environment is not installed: a class derived from
            gymnasium.Env that has its spaces, which is enough for :meth:`Agent.act`.
        algo: the config the run was trained with, if it held objects of your own, such as an encoder.
        checkpoint: name of a folder in ``checkpoints/``, "best", or a path. None: the newest that is whole.
        device: where networks compute: "cpu", "cuda", "cuda:1", or "auto" for a GPU if there is one.
        trust: import modules that the run names and no installed package has, such as one in the current folder.

    Raises:
        RunError: there is no such run or checkpoint, it is damaged, it needs ``env`` or ``algo``, or it was trained
            on other observations or actions than the environment has now.
        UntrustedError: the run names a module that is not installed, and it is neither imported nor trusted.
        ConfigError: the device does not exist here, or the run's config.yaml cannot be read by this version.
        EnvError: the environment cannot be made.
    """
    folder = RunFolder.at(fetched(run))
    with trusting(trust):
        env = own_factory(folder.path, env, algo)
        config = saved_config(folder.path, env, algo)
        if isinstance(env, gymnasium.Env):  # it is made already
            config = config.merge({"env.kwargs": {}})
        checkpoints = Checkpoints(folder.checkpoints)
        path = checkpoints.select(checkpoint)
        factory = env_factory(config.env.merge({"num": 1, "vector": "serial"}), env)
        alone = config.env.id == NO_ENV
        recorded = spaces_of(folder) if alone else None
        if isinstance(env, str):
            if not alone and env.rpartition(":")[2] != config.env.id.rpartition(":")[2]:
                raise RunError(
                    f"{folder.path} was trained in {config.env.id}, not in {env}. Leave env out, or pass a function "
                    "that makes the environment."
                )
            config = config.merge({"env.id": env})  # perhaps with the module that registers it
        elif alone and factory is None:
            if recorded is None:
                raise RunError(
                    f"{folder.path} was trained on {config.data.where} alone, without an environment. Pass one to act "
                    "in: --env ID, or reverie.load(run, env=...)."
                )
            factory = functools.partial(Placeholder, *recorded, folder.path)
            config = config.merge({"env.restarts": 0})  # its error is to be shown, not tried again
        with _example(config, factory) as flat:
            check_spec(folder, signature(flat.obs_spec, flat.action_spec), bounds=not alone)
            if recorded is not None and env is not None:
                compare_actions(recorded[1], flat.action_spec)
            learner = config.algo.build(flat.obs_spec, flat.action_spec, choose_device(device), config.seed)
            checkpoints.load(path, {"algo": learner})
            return Agent(config, learner, flat, factory, folder.path, path, step_of(path))


def compare_actions(recorded: Space, action: ActionSpec) -> None:
    """Say so if the bounds of actions differ from those of the recorded data: -1 and 1 would mean something else."""
    learned, own = (signature({}, spec) for spec in (ActionCodec(recorded).spec, action))
    for line in differences(learned, own, ("the data", "the environment")):
        logger.warning(
            f"{line}: the agent learned with the former, and its actions are scaled to the latter. To learn with the "
            "environment's bounds, train with --env ID"
        )


def spaces_of(folder: RunFolder) -> tuple[Space, Space] | None:
    """Return the spaces of the recorded data, from spec.json; None if it has none."""
    if (found := (read_spec(folder) or {}).get("spaces")) is None:
        return None
    return space_of(found["observation"], str(folder.spec)), space_of(found["action"], str(folder.spec))


@contextlib.contextmanager
def _example(config: ExperimentConfig, factory: MakeEnv | None) -> Iterator[FlatEnv]:
    """Make an environment whose spaces are read, and close it afterwards; an instance of the user's stays open."""
    try:
        with generator_kept("load"):
            flat = make_flat(config.env, factory, 0, False)
    except EnvError as error:
        if factory is not None:
            raise
        name = config.env.id
        own = "" if ":" in name else f" Pass it: --env module:{name}, or reverie.load(run, env='module:{name}')."
        raise EnvError(f"{error}{own} {SPACES_ALONE}") from error
    try:
        yield flat
    finally:
        put_away(flat)


def own_factory(run: Path, env: EnvLike | None, algo: AlgorithmConfig | None) -> EnvLike | None:
    """Return ``env``; if it was not given, the class or function by whose name the run was trained."""
    saved = read_saved(run)
    given = [name for name, value in {"env": env, "algo": algo}.items() if value is not None]
    check_origin(saved, run, "data", *given)
    name = saved.custom.get("env", "")
    if ":" not in name or env not in (None, name):
        return env
    own: MakeEnv = imported(name, what=f"{run} was trained with env = {name}", base=object)
    return own


def saved_config(run: Path, env: EnvLike | None = None, algo: AlgorithmConfig | None = None) -> ExperimentConfig:
    """Return the settings of ``run``; RunError if a part of them cannot be read from a file and was not given."""
    saved = read_saved(run)
    for place, what in saved.custom.items():
        if (env if place == "env" else algo) is None:
            raise RunError(
                f"{run} was trained with {place} = {what}, a Python object that cannot be read from its config.yaml. "
                f"Pass it again: reverie.load(run, {'env' if place == 'env' else 'algo'}=...)."
            )
    default: Any = algo if algo is not None else algorithm_config(saved.algorithm)()
    return ExperimentConfig(algo=default).merge(saved.experiment)


def reduced(agent: Agent) -> tuple[Any, ...]:
    """Pickle or copy the settings and the learner's state of an agent; the environment's spaces are read again."""
    state = tree_map_only(Tensor, lambda x: x.cpu(), agent.algo.state_dict())
    made = agent.config, agent.factory, agent.run, agent.checkpoint, agent.step
    return _unpickled, (*made, str(agent.algo.device), state)


def _unpickled(
    config: ExperimentConfig, factory: MakeEnv | None, run: Path, checkpoint: Path, step: int, device: str, state: State
) -> Agent:
    with _example(config, factory) as flat:
        learner = config.algo.build(flat.obs_spec, flat.action_spec, choose_device(device), config.seed)
        learner.load_state_dict(state)
        return Agent(config, learner, flat, factory, run, checkpoint, step)


copyreg.pickle(Agent, reduced)

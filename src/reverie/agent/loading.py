"""Load trained agents from run folders and from pickles."""

from __future__ import annotations

import contextlib
import copyreg
import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import gymnasium
from torch import Tensor
from torch.utils._pytree import tree_map_only

from reverie.agent.agent import Agent
from reverie.agent.evaluating import OPPONENTS, EvaluationMethods
from reverie.agent.own_policy import find_policy, make_player
from reverie.agent.player import check_choice
from reverie.algos.settings import AlgorithmConfig
from reverie.algos.table import algorithm_config
from reverie.core.action_codec import ActionCodec
from reverie.core.errors import ConfigError, EnvError, RunError, UntrustedError, did_you_mean
from reverie.core.hardware import choose_device
from reverie.core.imports import import_object, is_remembered, texts_in, trust_modules
from reverie.core.logger import logger
from reverie.core.space_json import space_from_json
from reverie.core.specs import GOAL, ActionSpec, diff_specs, spec_to_dict
from reverie.core.types import State
from reverie.datasets.reader import Space
from reverie.envs.config import EnvConfig, EnvLike, MakeEnv, Mark, marked
from reverie.envs.flat_env import FlatEnv, make_flat
from reverie.envs.goals import add_goal_space
from reverie.envs.make import SpacesOnlyEnv, close_quietly, env_factory
from reverie.envs.slot import preserve_torch_rng
from reverie.experiment.config import NO_ENV, ExperimentConfig
from reverie.experiment.environments import eval_maker
from reverie.log.artifacts import download_agent
from reverie.run.checkpoint import Checkpoints, longest_episode
from reverie.run.dream_snapshots import LearnerWeights
from reverie.run.folder import (
    RunFolder,
    SavedConfig,
    check_module_names,
    check_spec,
    read_saved_config,
    read_spec,
    warn_if_packages_changed,
)
from reverie.run.manifest import checkpoint_step
from reverie.run.provenance import warn_of_differences

DREAM_ID = "reverie/Dream-v0"
SPACES_ALONE = (
    "To act without playing episodes, its spaces are enough: reverie.load(run, env=Spaces), where the class Spaces "
    "defines them (docs/collecting.md, Acting without the environment)."
)


def load(
    run: Any, *, env: EnvLike | Mapping[str, Any] | None = None, algo: AlgorithmConfig | None = None,
    checkpoint: Path | str | int | None = None, device: str = "auto", trust_code: bool = False,
) -> Agent:  # fmt: skip
    """Load the agent of a run.

    Args:
        run: the run folder; or a run or an agent at a tracker, which is downloaded to ``runs/`` once: ``"runs:/ID"``,
            ``"models:/NAME/3"`` and ``"models:/NAME@alias"`` of MLflow, ``"wandb:ENTITY/PROJECT/NAME:v3"`` of W&B,
            ``"hf://USER/NAME"`` of the Hugging Face Hub, ``"s3://BUCKET/NAME"`` and other URLs of :func:`push`. Or a
            policy that was trained elsewhere, as for :func:`record`, or its name ``"module:name"``; it needs ``env``.
        env: environment for acting and evaluation, with the same spaces as the run's environment: an id,
            ``"module:Id"``, a function that makes it, or an instance; or a mapping of the ``env`` settings that differ
            from the run's, such as ``{"kwargs": {"load": 2.0}}``. None: the run's environment, and for evaluation its
            ``eval_env``. Required if the run's environment was passed from Python and cannot be imported; an offline
            run may have no environment. If the environment is not installed, a subclass of ``gymnasium.Env`` that
            defines the spaces is enough for :meth:`Agent.act`.
        algo: the config with which the run was trained, if it contained Python objects, such as a custom encoder.
        checkpoint: name of a folder in ``checkpoints/``, its step, "best", or a path. None: the newest intact
            checkpoint.
        device: where networks compute: "cpu", "cuda", "cuda:1", or "auto" for a GPU if there is one.
        trust_code: import modules that the run names and that belong to no installed package, such as a module in this
            folder.

    Raises:
        RunError: the run or checkpoint does not exist or is damaged, ``env`` or ``algo`` is required, or the
            observations or actions differ from the environment's.
        UntrustedError: the run names a module that belongs to no installed package and that you have not named
            yourself.
        ConfigError: the device does not exist, or this version cannot read the run's config.yaml.
        EnvError: the environment cannot be made.
    """
    if (policy := find_policy(run)) is not None:
        options = dict(env) if isinstance(env, Mapping) else {}
        if (source := options.pop("id", None) if isinstance(env, Mapping) else env) is None:
            raise ConfigError(f"{run} is a policy: pass its environment, --env ID or reverie.load(policy, env=...).")
        return make_player(source, policy, options)
    folder = RunFolder.from_path(download_agent(run))
    changes = dict(env) if isinstance(env, Mapping) else {}
    env_source = changes.pop("id", None) if isinstance(env, Mapping) else env
    with trust_modules(trust_code, texts_in(env)):  # other names are those of files
        saved = read_saved_config(folder.path)
        overrides = {"env": env_source, "eval_env": env, "algo": algo, "data": 0, "callbacks": 0, "human": 0}
        check_module_names(
            saved, f"the run {folder.path}", *(name for name, value in overrides.items() if value is not None)
        )
        source, eval_source = _resolve_env_factory(saved, folder.path, "env", env_source), None
        config = _change_env(read_config(folder.path, source, algo), env_source, changes)
        if env is not None:
            config = config.merge({"eval_env": None})
        elif "eval_env" in saved.custom:
            eval_source, config = _resolve_eval_env(saved, folder.path, config)
        if isinstance(source, gymnasium.Env):  # already made
            config = config.merge({"env.kwargs": {}, "env.vectorization": "sync"})
        checkpoints = Checkpoints(folder.checkpoints)
        path = checkpoints.select(checkpoint)
        factory = env_factory(config.env.merge({"num": 1, "vectorization": "sync"}), source)
        has_no_env = config.env.id == NO_ENV
        dataset_spaces = _read_spaces(folder) if has_no_env else None
        if isinstance(source, str):
            config = config.merge({"env.id": source})
        elif has_no_env and factory is None:
            if dataset_spaces is None:
                raise RunError(
                    f"{folder.path} was trained on {config.data.label} alone, without an environment. Pass one to act "
                    "in: --env ID, or reverie.load(run, env=...)."
                )
            factory = functools.partial(SpacesOnlyEnv, *dataset_spaces, folder.path)
            config = config.merge({"env.restarts": 0})  # show its error instead of trying again
        with _open_example(config, factory) as flat:
            warn_if_packages_changed(saved, flat.packages)
            with contextlib.suppress(RunError):  # a damaged file of provenance
                warn_of_differences([folder], logger.warning)
            check_spec(folder, spec_to_dict(flat.obs_spec, flat.action_spec), bounds=not has_no_env)
            if dataset_spaces is not None and source is not None:
                _warn_if_bounds_differ(dataset_spaces[1], flat.action_spec)
            device = choose_device(device)
            config = config.for_acting_on(device)
            learner = config.algo.build(flat.obs_spec, flat.action_spec, device, config.seed)
            checkpoints.load(path, {"algo": LearnerWeights(learner)})  # a snapshot has no optimizers
            eval_factory = eval_maker(config, factory, eval_source)
            longest = longest_episode(path)
            return Agent(
                config, learner, flat, factory, eval_factory, folder.path, path, checkpoint_step(path), longest
            )


def _change_env(config: ExperimentConfig, env: object, changes: Mapping[str, Any]) -> ExperimentConfig:
    """Return ``config`` with ``changes`` of its ``env`` settings, which dreams have applied already."""
    if env == DREAM_ID:
        config = replace(config, env=EnvConfig(**{name: getattr(config.env, name) for name in marked(Mark.COPIES)}))
    return config.merge({"env": changes})


def _warn_if_bounds_differ(recorded: Space, action: ActionSpec) -> None:
    """Warn if the action bounds differ from the dataset's, so that -1 and 1 have another meaning."""
    data_signature, env_signature = (spec_to_dict({}, spec) for spec in (ActionCodec(recorded).spec, action))
    for line in diff_specs(data_signature, env_signature, ("the data", "the environment")):
        logger.warning(
            f"{line}: the agent was trained with the former, and its actions are scaled to the latter. To train with "
            "the environment's bounds, pass --env ID"
        )


def _read_spaces(folder: RunFolder) -> tuple[Space, Space] | None:
    """Return the spaces of the dataset, from spec.json; None if it has none."""
    if (spaces := (read_spec(folder) or {}).get("spaces")) is None:
        return None
    return space_from_json(spaces["observation"], str(folder.spec)), space_from_json(spaces["action"], str(folder.spec))


@contextlib.contextmanager
def _open_example(config: ExperimentConfig, factory: MakeEnv | None) -> Iterator[FlatEnv]:
    """Make an environment to read its spaces, and close it afterwards; a user's instance stays open."""
    try:
        with preserve_torch_rng("load"):
            flat = make_flat(config.env, factory, 0, False)
    except EnvError as error:
        if factory is not None:
            raise
        name = config.env.id
        advice = "" if ":" in name else f" Pass it: --env module:{name}, or reverie.load(run, env='module:{name}')."
        if config.env.kwargs:
            advice = f" The run's env.kwargs are kept unless you pass others, for example --env.kwargs '{{}}'.{advice}"
        raise EnvError(f"{str(error).rstrip('.')}.{advice} {SPACES_ALONE}") from error
    try:
        yield _with_goals(flat, config)
    finally:
        close_quietly(flat)


def _with_goals(flat: FlatEnv, config: ExperimentConfig) -> FlatEnv:
    """Return ``flat`` with the goals among its spaces that acting needs, but the environment does not supply."""
    goals = [key for key in config.algo.acting_spec(flat.obs_spec) if key not in flat.obs_spec]
    if not goals:
        return flat
    env: gymnasium.Wrapper[Any, Any, Any, Any] = gymnasium.Wrapper(flat.env)
    env.observation_space = add_goal_space(flat.env.observation_space, [key.removeprefix(GOAL) for key in goals])
    return FlatEnv(env, config.env, "the environment", drawn=False)


def _resolve_env_factory(saved: SavedConfig, run: Path, setting: str, env: EnvLike | None) -> EnvLike | None:
    """Return ``env`` or, if it is None, the class or function that ``run`` names for ``setting``."""
    name = saved.custom.get(setting, "")
    if ":" not in name or env not in (None, name):
        return env
    source: MakeEnv = import_object(name, error_prefix=f"{run} was trained with {setting} = {name}", base=object)
    is_class = isinstance(source, type)
    if is_class and not all(callable(getattr(source, name, None)) for name in ("reset", "step")):
        raise EnvError(f"{run} was trained with {setting} = {name}, a class without the methods reset and step.")
    is_env = is_class and issubclass(cast(type, source), (gymnasium.Env, gymnasium.vector.VectorEnv))
    if not is_env and env is None and not is_remembered(name.partition(":")[0]):
        raise UntrustedError(
            f"{run} was trained with {setting} = {name}. In packages that you have not named, only subclasses of "
            "gymnasium.Env are called. If you trust it, add --trust-code; in Python, trust_code=True."
        )
    return source


def check_code(saved: SavedConfig, run: Path, *trusted: str) -> None:
    """Check the names in the settings of ``run``, except the ``trusted`` ones, if its environments are not made."""
    check_module_names(saved, f"the run {run}", *trusted)
    for setting in ("env", "eval_env"):
        _resolve_env_factory(saved, run, setting, None)


def _resolve_eval_env(
    saved: SavedConfig, run: Path, config: ExperimentConfig
) -> tuple[EnvLike | None, ExperimentConfig]:
    """Return the factory of the run's evaluation environment, and its settings.

    The training environment if it has no name.
    """
    if (source := _resolve_env_factory(saved, run, "eval_env", None)) is None:
        logger.warning(
            f"{run} was evaluated in {saved.custom['eval_env']}, a Python object that cannot be imported: evaluation "
            "uses the training environment instead. To use another one, pass env"
        )
        config = config.merge({"eval_env": None})
    return source, config


def read_config(run: Path, env: EnvLike | None = None, algo: AlgorithmConfig | None = None) -> ExperimentConfig:
    """Return the settings of ``run``; RunError if a part cannot be read from a file and was not passed."""
    saved = read_saved_config(run)
    for setting, description in saved.custom.items():
        if setting != "eval_env" and (env if setting == "env" else algo) is None:
            raise RunError(
                f"{run} was trained with {setting} = {description}, a Python object that cannot be read from its "
                f"config.yaml. Pass it again: reverie.load(run, {'env' if setting == 'env' else 'algo'}=...)."
            )
    default: Any = algo if algo is not None else algorithm_config(saved.algorithm)()
    try:
        return ExperimentConfig(algo=default).merge(saved.experiment)
    except ConfigError as error:
        raise ConfigError(f"{RunFolder(run).config}: {error}") from None


def _reduce_agent(agent: Agent) -> tuple[Any, ...]:
    """Pickle or copy the settings and the learner's state of an agent.

    Unpickling reads the environment's spaces again.
    """
    state = tree_map_only(Tensor, lambda x: x.cpu(), agent.algo.state_dict())
    return _rebuild_agent, (
        agent.config, agent.factory, agent.eval_factory, agent.run, agent.checkpoint, agent.step, agent.longest_episode,
        str(agent.algo.device), state,
    )  # fmt: skip


def _rebuild_agent(
    config: ExperimentConfig, factory: MakeEnv | None, eval_factory: MakeEnv | None, run: Path, checkpoint: Path,
    step: int, longest: int, device: str, state: State,
) -> Agent:  # fmt: skip
    with _open_example(config, factory) as flat:
        learner = config.algo.build(flat.obs_spec, flat.action_spec, choose_device(device), config.seed)
        learner.load_state_dict(state)
        return Agent(config, learner, flat, factory, eval_factory, run, checkpoint, step, longest)


copyreg.pickle(Agent, _reduce_agent)


# ---------------------------------------------------------------------- opponents


def load_opponent(text: str, device: str = "auto") -> Agent | str:
    """Return the agent of a run, ``RUN`` or ``RUN@STEP``; ``random`` and ``perfect`` are returned unchanged."""
    run, _, step = text.rpartition("@")
    if text in OPPONENTS:
        return text
    if did_you_mean(text, OPPONENTS) and not Path(text).exists():
        check_choice("opponent", text, OPPONENTS)
    if run and not Path(text).exists() and (step.isdecimal() or step == "best"):
        return load(run, checkpoint=int(step) if step.isdecimal() else step, device=device)
    return load(text, device=device)


EvaluationMethods.load_opponent = staticmethod(load_opponent)

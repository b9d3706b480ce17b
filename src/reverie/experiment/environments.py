"""The environments of a run, for training and evaluation, and their factories."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec

from reverie.core.errors import ConfigError, short_repr
from reverie.core.hardware import choose_device
from reverie.core.protocols import Env
from reverie.core.seeding import derived_seeds
from reverie.core.specs import diff_bounds, diff_specs, spec_to_dict
from reverie.envs.config import EnvLike, MakeEnv
from reverie.envs.make import InstanceWrapper, close_quietly, env_factory, make_gym, to_learnable_obs
from reverie.envs.slot_vector_env import make_vector_env
from reverie.experiment.config import NO_ENV, ExperimentConfig
from reverie.replay.config import PERSON_PAGE


class EnvMakers(NamedTuple):
    """The factories of the environments; None: the id in the settings."""

    training: MakeEnv | None
    evaluation: MakeEnv | None

    @classmethod
    def from_config(cls, config: ExperimentConfig, env: EnvLike | None, eval_env: EnvLike | None) -> EnvMakers:
        """Return the factories from the settings, or from the user's environments. See ``build`` for these."""
        factory = env_factory(config.env, env)
        return cls(factory, eval_maker(config, factory, eval_env))

    @property
    def share_instance(self) -> bool:
        """Whether training and evaluation share one instance, which cannot be made a second time."""
        return isinstance(self.training, InstanceWrapper) and self.evaluation is self.training


class ProbedEnv(NamedTuple):
    """The spaces and spec of an environment; None if none was made."""

    observation: gymnasium.Space[Any] | None = None
    action: gymnasium.Space[Any] | None = None
    spec: EnvSpec | None = None


class Environments(NamedTuple):
    """The environments of a run."""

    training: Env | None
    """None in an offline run."""
    evaluation: Env | None
    """None if there are no evaluations, or only in the user's instance, which training uses."""
    reopen: Callable[[], Env] | None
    """Returns the user's instance after training, with its true rewards; None unless evaluations need it."""


def plays(config: ExperimentConfig) -> bool:
    """Return whether the run acts in an environment, for training or evaluation."""
    return config.env.id != NO_ENV and (config.offline_fraction < 1 or config.eval_episodes > 0)


def open_environments(
    config: ExperimentConfig, makers: EnvMakers, seed: int, undo: contextlib.ExitStack, *, new: bool
) -> Environments:
    """Make the environments of the run; ``undo`` closes them if the rest of the run cannot be built."""
    training = evaluation = None
    if config.offline_fraction < 1:
        training = _make_training_env(config, makers.training, seed, new=new)
        undo.callback(training.close)
    # An instance cannot be made a second time: the run is evaluated in it at its end.
    is_shared = training is not None and makers.share_instance
    if plays(config) and config.eval_episodes and not is_shared:
        # Another number of compiled environments would be compiled anew, which takes longer than their steps.
        num = config.env.num if training is not None and training.defers else None
        evaluation = make_eval_env(config, makers.evaluation, config.eval_video, workers=True, num=num)
        undo.callback(evaluation.close)
        _check_eval_env(config, training, evaluation)
        if training is not None and not config.actors and training.instances & evaluation.instances:
            raise ConfigError(
                "evaluations would reset the training environment, and end its episodes, since both are the same "
                "object: expected a new environment in each call of a function that makes environments, or another "
                "instance as eval_env. An instance passed as env itself is only evaluated after training; with "
                "eval_episodes = 0 there are no evaluations."
            )
    reopen = functools.partial(make_eval_env, config, makers.training, config.eval_video)
    return Environments(training, evaluation, reopen if is_shared else None)


def probe_env(config: ExperimentConfig, factory: MakeEnv | None) -> ProbedEnv:
    """Return the observation and action spaces of the environment, and its spec if it has one."""
    env = make_gym(config.env, factory, render=False)
    observation = to_learnable_obs(env, config.env.mission).observation_space
    probed = ProbedEnv(observation, env.action_space, env.spec)
    close_quietly(env)
    return probed


def _make_training_env(config: ExperimentConfig, factory: MakeEnv | None, seed: int, *, new: bool) -> Env:
    """Make the training environments. With actors, which make their own, return a closed one with known spaces."""
    if not config.actors:
        return make_vector_env(
            config.env, seed=seed, factory=factory, render=config.human.person == PERSON_PAGE, new=new,
            device=choose_device(config.device),
        )  # fmt: skip
    if isinstance(factory, InstanceWrapper):
        raise ConfigError(
            f"actors = {config.actors} with an environment instance: each actor makes its own in its own process. Pass "
            "a function that makes environments, or its class."
        )
    vectorization = "native" if config.env.vectorization == "native" else "sync"
    env = make_vector_env(
        config.env.merge({"num": 1, "vectorization": vectorization}), seed=seed, factory=factory, new=new
    )
    env.close()
    return env


def make_eval_env(
    config: ExperimentConfig, factory: MakeEnv | None = None, render: bool = False, *, as_trained: bool = False,
    workers: bool = False, num: int | None = None,
) -> Env:  # fmt: skip
    """Make the evaluation environments with the ``factory`` of :func:`eval_maker`.

    ``as_trained``: instead, make training environments with training rewards and ``factory``, except that whole games
    are played. They run in this process. ``workers``: in worker processes if training uses them, so that a crash does
    not end the run. ``num``: their number, unless it is an instance; None: ``eval_envs``, or fewer.
    """
    env = config.env.merge({"terminal_on_life_loss": False}) if as_trained else config.eval_env_config
    num = 1 if isinstance(factory, InstanceWrapper) else num or max(1, min(config.eval_envs, config.eval_episodes))
    vectorization = env.vectorization if workers or env.vectorization == "native" else "sync"
    seed = derived_seeds(config.seed)["evaluation"]
    warns = not workers or config.eval_env is not None  # otherwise the training environment warns
    env = env.merge({"num": num, "vectorization": vectorization})
    device = choose_device(config.device) if workers else "cpu"
    return make_vector_env(env, seed=seed, factory=factory, render=render, new=False, warns=warns, device=device)


def eval_maker(config: ExperimentConfig, factory: MakeEnv | None, user_env: EnvLike | None = None) -> MakeEnv | None:
    """Return the factory of the evaluation environments: ``user_env``, if passed; None for an id; else ``factory``.

    ``factory`` makes the training environments. ConfigError if both would be the same instance.
    """
    named = "id" in config.eval_env_overrides
    if isinstance(factory, InstanceWrapper) and (
        user_env is factory.env or (config.eval_env is not None and not named)
    ):
        raise ConfigError(
            f"eval_env = {short_repr(config.eval_env if user_env is None else user_env)}, but env is an instance, "
            "which training uses. Pass as eval_env an id, a function that makes an environment, or another instance."
        )
    make_env_ = env_factory(config.eval_env_config.merge({"num": 1}), user_env)
    return make_env_ if named else factory


def diff_spaces(trained: Any, played: Any, labels: tuple[str, str]) -> list[str]:
    """Return how observations and actions of two environments, or of an agent and one, differ. ``labels``: names."""
    first, second = (spec_to_dict(x.obs_spec, x.action_spec) for x in (trained, played))
    return diff_specs(first, second, labels) or diff_bounds(first, second, labels)


def _check_eval_env(config: ExperimentConfig, train_env: Env | None, eval_env: Env) -> None:
    """Raise ConfigError unless a separate evaluation environment has the same observations and actions as training."""
    if train_env is None or config.eval_env is None:
        return
    if problems := diff_spaces(train_env, eval_env, ("training", "evaluations")):
        raise ConfigError(
            f"eval_env = {short_repr(config.eval_env)}: {'; '.join(problems)}. Evaluate in an environment with the "
            "same observations and actions, perhaps by a wrapper (eval_env: {wrappers: [...]})."
        )

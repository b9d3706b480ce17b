"""Goals in a run: those of goal-conditioned learners, and those that hindsight experience replay relabels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.algos.base import Algorithm
from reverie.algos.goal_conditioned import GoalConditioned, GoalKeysConfig
from reverie.algos.model_free import ModelFree
from reverie.core.errors import ConfigError
from reverie.core.imports import import_object
from reverie.core.logger import logger
from reverie.core.obs_codec import ObsCodec
from reverie.core.specs import GOAL, ObsSpec
from reverie.core.types import Step
from reverie.envs.config import Env, MakeEnv
from reverie.envs.goals import GOALS, GoalFunction, goal_spec_problem, is_goal_env
from reverie.envs.make import make_gym
from reverie.experiment.config import NO_ENV, ExperimentConfig
from reverie.nn.preprocess import Preprocessor, inspect_policy
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.config import PERSON_PAGE
from reverie.replay.episodes import EpisodeBounds
from reverie.replay.goals import GoalSampler
from reverie.replay.hindsight import GoalRelabeler

NUM_TRIPLES = 1000
"""Number of held-out rows, each with two goals, in :func:`goal_recall`."""
FUNCTION_ADVICE = "name a function of goals: future(reward='module:function')"


def sample_goals(algo: Algorithm, replay: ReplayBuffer, seed: int) -> None:
    """Let ``replay`` add goals to sampled transitions if ``algo`` is goal-conditioned."""
    if isinstance(algo, GoalConditioned):
        replay.goals = GoalSampler(
            replay.storage, replay.window, replay.batch_sampler.windows, algo.goal_sampling, seed
        )


def goal_recall(algo: Algorithm, replay: ReplayBuffer, seed: int) -> dict[str, float]:
    """Return ``goal/recall``: how often ``algo`` takes the earlier of two rows for the nearer goal, in [0, 1].

    The two are random later rows of the same episode. Empty if the learner estimates no distances, or episodes have
    less than three rows.
    """
    handles = np.arange(replay.oldest * replay.storage.streams, replay.count * replay.storage.streams)
    row, stream = np.divmod(handles, replay.storage.streams)
    end = EpisodeBounds(replay.storage).find(row, stream)[1]
    able = np.flatnonzero(end - row >= 2)
    if not isinstance(algo, ModelFree) or not isinstance(algo.cfg, GoalKeysConfig) or not len(able):
        return {}
    rng = np.random.default_rng(seed)
    chosen = able[rng.integers(len(able), size=NUM_TRIPLES)]
    near = rng.integers(row[chosen] + 1, end[chosen])
    far = rng.integers(near + 1, end[chosen] + 1)
    goals = (goal * replay.storage.streams + stream[chosen] for goal in (near, far))
    try:
        first, second = (_estimate_distances(algo, replay, handles[chosen], goal) for goal in goals)
    except ConfigError:
        return {}
    ordered = (first < second).float() + 0.5 * (first == second).float()
    return {"goal/recall": float(ordered.mean())}


@torch.no_grad()
def _estimate_distances(algo: ModelFree, replay: ReplayBuffer, rows: np.ndarray, goals: np.ndarray) -> Tensor:
    """Return the estimated distances ``[R]`` from stored rows to goals, both handles ``[R]``."""
    obs = {key: replay.storage.gather_column(name, rows) for name, key in replay.obs_names.items()}
    for key in algo.preprocess.goals:
        obs[f"{GOAL}{key}"] = replay.storage.gather_column(f"obs/{key}", goals)
    none = torch.zeros(len(rows), dtype=torch.bool)
    step = Step(obs=obs, reward=none.float(), is_first=~none, is_last=none, is_terminal=none)
    return algo.goal_distance(inspect_policy(algo.policy, step, algo.policy.initial(len(rows))))


def _has_world_model(learner: type[Any]) -> bool:
    """Return whether a class of learners predicts observations, which relabeled goals would contradict."""
    return getattr(learner, "dream", Algorithm.dream) is not Algorithm.dream


def _make_goal_env(config: ExperimentConfig, factory: MakeEnv | None, prefix: str) -> Env | None:
    """Return a goal environment that computes rewards; None if the settings name a function. ``prefix``: of errors."""
    assert config.replay.hindsight is not None
    if config.replay.hindsight.reward:
        return None
    if config.env.id == NO_ENV:
        raise ConfigError(f"{prefix}: no environment computes rewards: {FUNCTION_ADVICE}.")
    makes_vectors = config.env.vectorization == "native" and (factory is not None or ":" in config.env.id)
    alone = {} if makes_vectors else {"vectorization": "sync"}
    env = make_gym(config.env.merge({"num": 1, **alone}), factory, render=False)
    if not is_goal_env(env):
        env.close()
        raise ConfigError(f"{prefix}: the environment has no goals or no compute_reward: {FUNCTION_ADVICE}.")
    return env


def ignore_row_rewards(config: ExperimentConfig, algo: Algorithm, prefix: str) -> None:
    """Let the statistics of ``algo`` ignore the rewards of rows, since batches have others; ``prefix`` says why."""
    if config.human.person == PERSON_PAGE and config.human.success_reward:
        logger.warning(f"{prefix}: the key S ends episodes without human.success_reward, which only rows have")
    if isinstance(preprocess := getattr(algo, "preprocess", None), Preprocessor):
        preprocess.follows_rewards = False
        if preprocess.scaler is not None or preprocess.range is not None:
            name = "bound_values" if preprocess.scaler is None else "reward_scale = return_std"
            logger.info(f"{prefix}: algo.{name} has no effect, since it follows the rewards of stored rows")


def relabel_goals(
    config: ExperimentConfig, algo: Algorithm, factory: MakeEnv | None, spec: ObsSpec,
    replays: Iterable[ReplayBuffer | None], seed: int,
) -> Env | None:  # fmt: skip
    """Let ``replays`` relabel sampled windows if ``config.replay.hindsight`` is set.

    Args:
        config: the settings.
        algo: the learner; ConfigError if it cannot use relabeled windows.
        factory: makes a training environment; None: the id in the settings.
        spec: of the stored observations.
        replays: of recorded and collected rows; None: there is none.
        seed: of the drawn goals.

    Returns:
        The environment that computes rewards, which the caller closes; None if there is none.
    """
    if (hindsight := config.replay.hindsight) is None:
        return None
    prefix = f"replay.hindsight = {hindsight.to_text()}"
    if isinstance(config.algo, GoalKeysConfig) or _has_world_model(type(algo)) or algo.extra_spec:
        raise ConfigError(
            f"{prefix}: {config.name} samples goals itself, has a world model, or stores values with the rows that "
            "belong to the collected goals. Expected an off-policy algorithm without memory, such as dqn, td3 or sac."
        )
    if problem := goal_spec_problem(spec):
        raise ConfigError(f"{prefix}: {problem}. Use a goal environment.")
    env = _make_goal_env(config, factory, prefix)
    if env is None:
        goal_fn = GoalFunction(import_object(hindsight.reward, error_prefix=prefix, base=object))
    else:
        codec = ObsCodec(env.observation_space, lambda key: key in GOALS, config.env.channel_axis)
        if any(codec.spec[key] != spec[key] for key in GOALS):
            env.close()
            raise ConfigError(
                f"{prefix}: the rows store other goals than the environment computes with. Stack frames by "
                "algo.frame_stack, and change no goals by env.resize or env.grayscale."
            )
        goal_fn = GoalFunction.from_env(env, codec)
    ignore_row_rewards(config, algo, prefix)
    for number, replay in enumerate(replays):
        if replay is not None:
            replay.goals = relabeler = GoalRelabeler(replay.storage, replay.window, hindsight, goal_fn, seed + number)
            relabeler.is_checked = not getattr(replay, "has_rewards", True)  # there is nothing to compare
    return env

"""Play with a policy that was not trained here: a function, a controller, or an agent of another library."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from gymnasium import spaces

from reverie.agent.play import max_episode_steps, play_episode
from reverie.agent.player import AgentState, Player, policy_mode
from reverie.agent.recording import first_seed, record_agent
from reverie.core.errors import ConfigError, DataError, short_repr
from reverie.core.logger import logger
from reverie.core.seeding import seeded_rng
from reverie.datasets.options import RecordConfig
from reverie.datasets.output import WriteReport
from reverie.envs.config import EnvConfig, EnvLike, env_name
from reverie.envs.episode_info import success_summary
from reverie.envs.flat_env import make_flat
from reverie.envs.make import close_quietly, env_factory
from reverie.experiment.config import ExperimentConfig
from reverie.run.evaluate import Evaluation, warn_takeovers

MASK_NAMES = ("action_masks", "action_mask")
"""Parameters of a policy that take the legal actions."""

Choose = Callable[[Any, Any, bool, Any], tuple[Any, Any]]
"""Returns an action and the policy's next memory: for an observation, the memory, whether the most likely action is
taken, and the legal actions."""


def record(
    env: EnvLike, policy: Any, *, out: Path | str, episodes: int | None = None, steps: int | None = None,
    epsilon: float = 0.0, noise: float = 0.0, deterministic: bool = True, seed: int = 0, format: str = "auto",
    env_options: Mapping[str, Any] | None = None,
) -> WriteReport:  # fmt: skip
    """Play episodes with a policy of your own and write them as a dataset.

    Args:
        env: the environment, as for :func:`reverie.train`.
        policy: a function of the observation that returns an action; an object with ``predict``, as models of
            Stable-Baselines3 have, or with ``act``, as a reverie agent. The legal actions are passed to a parameter
            ``action_masks`` or ``action_mask``. Actions beyond the bounds of a Box are clipped.
        out: a folder that does not exist yet, a file for d4rl, robomimic and tianshou, or ``minari:NAME``.
        episodes: number of episodes.
        steps: number of env steps, instead of episodes; the last episode is truncated.
        epsilon: probability that a random action replaces the policy's.
        noise: standard deviation of Gaussian noise on continuous actions, in units of half their range.
        deterministic: passed to ``predict`` and ``act``.
        seed: of environments, exploration and actions.
        format: output format. "auto": by the suffix of ``out``, .hdf5 (d4rl) or .parquet, else Minari.
        env_options: settings of the environment, such as ``{"kwargs": {"size": 3}}``.

    Returns:
        What was written, and remarks.

    Raises:
        ReverieError: the policy or an action does not fit, the environment fails, or ``out`` exists.
    """
    config = RecordConfig(
        episodes=episodes, steps=steps, epsilon=epsilon, noise=noise, deterministic=deterministic, seed=seed
    )
    return record_agent(make_player(env, policy, env_options), str(out), config, format)


def evaluate(
    env: EnvLike, policy: Any, episodes: int = 20, *,
    deterministic: bool = True, seed: int = 0, env_options: Mapping[str, Any] | None = None,
) -> Evaluation:  # fmt: skip
    """Play whole episodes with a policy of your own; return their scores and, if the info tells it, their success.

    Args:
        env: the environment, as for :func:`reverie.train`.
        policy: as for :func:`record`.
        episodes: number of episodes, at least 1.
        deterministic: passed to ``predict`` and ``act``.
        seed: of environments and actions: the same seed plays the same episodes with another policy.
        env_options: settings of the environment, such as ``{"kwargs": {"size": 3}}``.

    Raises:
        ReverieError: the policy or an action does not fit, or the environment fails.
    """
    player = make_player(env, policy, env_options)
    config = RecordConfig(episodes=episodes, deterministic=deterministic, seed=seed)
    played = player.make_env()
    scores, lengths, info, cut_off, num_takeovers = list[float](), list[int](), list[dict[str, float]](), 0, 0
    limit, first = max_episode_steps(player, played), first_seed(config)
    try:
        with seeded_rng(seed):
            for number in range(episodes):
                rewards = list[float]()
                steps = play_episode(player, played, seed=first + number, deterministic=deterministic)
                for step in itertools.islice(steps, limit + 1):
                    rewards.append(step.reward)
                    num_takeovers += step.is_takeover
                scores.append(float(np.sum(rewards[1:])))
                lengths.append(len(rewards) - 1)
                info.append(success_summary(step.info))
                cut_off += not (step.terminated or step.truncated)
    finally:
        close_quietly(played)
    warn_takeovers(num_takeovers)
    result = Evaluation(
        scores=scores, lengths=lengths, mode=policy_mode(deterministic), info=info if any(info) else [],
        intervention_rate=num_takeovers / sum(lengths), cut_off=cut_off, most_steps=limit if cut_off else None,
    )  # fmt: skip
    if cut_off:
        logger.warning(f"{result.cut_text()}: their scores include only these steps")
    return result


def make_player(env: EnvLike, policy: Any, env_options: Mapping[str, Any] | None = None) -> PolicyPlayer:
    """Return a player of ``policy`` in ``env``; ConfigError if it is no policy."""
    choose = _read_policy(policy)
    settings = EnvConfig(id=env_name(env)).merge(dict(env_options or {})).merge({"num": 1, "vectorization": "sync"})
    config = ExperimentConfig().merge({"env": settings})
    return PolicyPlayer(config, choose, env_factory(settings, env), _name_of(policy))


def _read_policy(policy: Any) -> Choose:
    """Return a function that calls ``policy`` as it expects; ConfigError if it is no policy."""
    if isinstance(policy, Player):
        return lambda obs, state, deterministic, mask: policy.act(
            obs, state, deterministic=deterministic, action_mask=mask
        )
    predict = getattr(policy, "predict", None)
    if isinstance(policy, type) or not (callable(policy) or callable(predict)):
        raise ConfigError(
            f"policy = {short_repr(policy)}: expected a function of the observation that returns an action, or an "
            "object with a method predict, as models of Stable-Baselines3 have."
        )
    if callable(predict):
        return _read_predict(predict)
    names = _parameters(policy)
    mask_name = next((name for name in MASK_NAMES if name in names), "")
    return lambda obs, state, deterministic, mask: (policy(obs, **({mask_name: mask} if mask_name else {})), None)


def _read_predict(predict: Callable[..., Any]) -> Choose:
    """Return a function that calls ``predict`` of a model with those arguments of Stable-Baselines3 that it takes."""
    names = _parameters(predict)

    def choose(obs: Any, state: Any, deterministic: bool, mask: Any) -> tuple[Any, Any]:
        arguments = {"state": state, "episode_start": np.array([state is None]), "deterministic": deterministic}
        arguments |= {} if mask is None else dict.fromkeys(MASK_NAMES, mask)
        chosen = predict(obs, **{name: value for name, value in arguments.items() if name in names})
        action, memory = chosen if isinstance(chosen, tuple) and len(chosen) == 2 else (chosen, None)
        return action, memory

    return choose


def _parameters(function: Callable[..., Any]) -> set[str]:
    try:
        return {*inspect.signature(function).parameters}
    except (TypeError, ValueError):  # of a compiled function
        return set()


def _name_of(policy: Any) -> str:
    return str(getattr(policy, "__name__", type(policy).__name__))


class PolicyPlayer(Player):
    """A policy of one's own, in an environment."""

    def __init__(self, config: ExperimentConfig, choose: Choose, factory: Any, name: str) -> None:
        flat = make_flat(config.env, factory, 0, False)
        try:
            super().__init__(config, cast(Any, None), flat, factory, factory, Path(name), Path(name), 0)
        finally:
            close_quietly(flat)
        self.choose: Choose = choose
        self.name: str = name

    @property
    def label(self) -> str:
        """Name of the policy, for datasets."""
        return self.name

    @property
    def origin(self) -> str:
        """Name of the policy, for datasets."""
        return f"policy {self.name}"

    def act(
        self, obs: Any, state: AgentState | None = None, *,
        deterministic: bool = True, is_first: Any = None, reward: Any = 0.0, action_mask: Any = None, goal: Any = None,
    ) -> tuple[Any, AgentState]:  # fmt: skip
        """Choose an action for a single observation."""
        action, memory = self.choose(obs, None if state is None else state.policy, deterministic, action_mask)
        return fit_action(self.action_space, action), AgentState(memory, ())

    def override(self, state: AgentState, action: Any) -> AgentState:
        """Return ``state``: the policy is not told of other actions."""
        return state


def fit_action(space: spaces.Space[Any], action: Any) -> Any:
    """Return ``action`` with the types and within the bounds of ``space``; DataError if it is not in it."""
    if isinstance(space, spaces.Box):
        array = np.asarray(action, np.float64)
        if array.size == int(np.prod(space.shape)) and np.isfinite(array).all():
            return np.clip(array.reshape(space.shape), space.low, space.high).astype(space.dtype)
    elif isinstance(space, spaces.Dict) and isinstance(action, Mapping) and set(action) == set(space):
        return {key: fit_action(part, action[key]) for key, part in space.items()}
    elif isinstance(space, spaces.Tuple) and isinstance(action, tuple | list) and len(action) == len(space):
        return tuple(fit_action(part, value) for part, value in zip(space, action, strict=True))
    elif isinstance(space, spaces.Discrete):
        array = np.asarray(action)
        if array.size == 1 and space.contains(number := int(array.reshape(())) if array.dtype.kind in "iub" else -1):
            return space.dtype.type(number)
    elif space.contains(array := np.asarray(action, space.dtype)):
        return array
    raise DataError(f"the policy returned {short_repr(action)}: expected an action in {space}.")

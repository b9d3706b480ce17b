"""Play with a policy that was not trained here: a function, a controller, or an agent of another library."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike
from torch import nn

from reverie.agent.agent import Agent
from reverie.agent.play import first_seed, play_episode
from reverie.agent.play import max_episode_steps as step_limit
from reverie.agent.player import AgentState, Player, policy_mode
from reverie.core.errors import ConfigError, DataError, short_repr
from reverie.core.images import last_frame
from reverie.core.imports import import_object, is_module_name
from reverie.core.logger import logger
from reverie.core.seeding import seeded_rng
from reverie.core.specs import has_players
from reverie.datasets.options import RecordConfig
from reverie.envs.config import EnvConfig, EnvLike, MakeEnv, env_name
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
    return make_player(env, policy, env_options).evaluate(episodes, deterministic=deterministic, seed=seed)


def find_policy(source: object) -> Any:
    """Return the policy that ``source`` is, or that it names, ``module:name``; None for a path or another location."""
    if not isinstance(source, str | Path):
        return source
    module, _, name = str(source).partition(":")
    if not (name.isidentifier() and is_module_name(module)) or Path(source).exists():
        return None
    policy = import_object(str(source), error_prefix=f"policy = {source}", base=object)
    return policy() if isinstance(policy, type) else policy


def make_player(env: EnvLike, policy: Any, env_options: Mapping[str, Any] | None = None) -> PolicyAgent:
    """Return an agent that acts in ``env`` as ``policy`` does; ConfigError if it is no policy."""
    _check_policy(policy)
    settings = EnvConfig(id=env_name(env)).merge(dict(env_options or {})).merge({"num": 1, "vectorization": "sync"})
    config = ExperimentConfig().merge({"env": settings})
    return PolicyAgent(config, policy, env_factory(settings, env))


def _check_policy(policy: object) -> None:
    """Raise ConfigError unless ``policy`` can be called, or has a method ``predict``."""
    if isinstance(policy, type) or not (callable(policy) or callable(getattr(policy, "predict", policy))):
        raise ConfigError(
            f"policy = {short_repr(policy)}: expected a function of the observation that returns an action, a PyTorch "
            "module, or an object with a method predict, as models of Stable-Baselines3 have."
        )


def _read_policy(policy: Any, space: spaces.Space[Any]) -> Choose:
    """Return a function that calls ``policy``, which chooses actions in ``space``, as it expects."""
    if isinstance(policy, Player):
        return lambda obs, state, deterministic, mask: policy.act(
            obs, state, deterministic=deterministic, action_mask=mask
        )
    if callable(predict := getattr(policy, "predict", None)):
        return _read_predict(predict)
    if isinstance(policy, nn.Module):
        return _read_module(policy, space)
    names = _parameters(policy)
    mask_name = next((name for name in MASK_NAMES if name in names), "")
    return lambda obs, state, deterministic, mask: (policy(obs, **({mask_name: mask} if mask_name else {})), None)


def _read_module(module: nn.Module, space: spaces.Space[Any]) -> Choose:
    """Return a function that calls ``module`` with batches of one observation, and of its state if it takes one.

    Of n outputs for a choice among n actions, the highest one that is legal is chosen.
    """
    module.eval()
    device = next((x.device for x in (*module.parameters(), *module.buffers())), torch.device("cpu"))
    names = _parameters(module.forward)

    def to_batch(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: to_batch(part) for key, part in value.items()}
        array = np.asarray(value)
        return torch.as_tensor(array.astype(np.float32) if array.dtype == np.float64 else array, device=device)[None]

    @torch.no_grad()
    def choose(obs: Any, state: Any, deterministic: bool, mask: Any) -> tuple[Any, Any]:
        arguments = {} if mask is None else dict.fromkeys(MASK_NAMES, to_batch(mask))
        arguments["state"] = state
        output = module(to_batch(obs), **{name: x for name, x in arguments.items() if name in names})
        output, memory = output if isinstance(output, tuple) else (output, None)
        action = output[0].cpu().numpy()
        if isinstance(space, spaces.Discrete) and action.size == space.n > 1:
            legal = action if mask is None else np.where(np.asarray(mask, bool), action, -np.inf)
            action = space.start + legal.argmax()
        return action, memory

    return choose


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


def _name_of(policy: object) -> str:
    return str(getattr(policy, "__name__", type(policy).__name__))


class NoLearnerError(ConfigError, AttributeError):
    """A policy of one's own lacks what only a learner has."""


class NoLearner:
    """Stands for the learner of a policy of one's own."""

    device: torch.device = torch.device("cpu")

    def __getattr__(self, name: str) -> Any:
        raise NoLearnerError(f"this agent is a policy of your own: it has no learner, and so no '{name}'.")


class PolicyAgent(Agent):
    """A policy of one's own, in an environment. What needs a learner, such as ``value``, raises ConfigError."""

    def __init__(self, config: ExperimentConfig, policy: Any, factory: MakeEnv | None) -> None:
        self.policy: Any = policy
        self.name: str = _name_of(policy)
        flat = make_flat(config.env, factory, 0, False)
        try:
            super().__init__(
                config, cast(Any, NoLearner()), flat, factory, factory, Path(self.name), Path(self.name), 0
            )
        finally:
            close_quietly(flat)
        self.choose: Choose = _read_policy(policy, self.action_space)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name} in {self.config.env.id})"

    def evaluate(
        self, episodes: int = 20, *,
        env: EnvLike | Mapping[str, Any] | None = None, deterministic: bool = True, record: bool = False,
        seed: int | None = None, max_episode_steps: int | None = None, tasks: tuple[int, ...] = (),
        opponent: Player | Path | str | None = None, simulations: int | None = None,
    ) -> Evaluation:  # fmt: skip
        """Play whole episodes as :meth:`Agent.evaluate` does, but no games of two players; ``seed`` None is 0."""
        if opponent is not None or simulations is not None or has_players(self.obs_spec):
            raise ConfigError(f"{self.name} is a policy of your own: only trained agents search or play games of two.")
        changes = {"max_episode_steps": max_episode_steps, "tasks": tasks or None}
        changes = {name: value for name, value in changes.items() if value is not None}
        agent = self
        if env is not None and not isinstance(env, Mapping):
            agent = make_player(env, self.policy, changes)
        elif env or changes:
            agent = PolicyAgent(self.config.merge({"env": {**(env or {}), **changes}}), self.policy, self.factory)
        return agent._play(RecordConfig(episodes=episodes, deterministic=deterministic, seed=seed or 0), record)

    def _play(self, config: RecordConfig, record: bool) -> Evaluation:
        """Play the episodes that ``config`` describes; keep the frames of the first one if ``record`` is set."""
        env, rewards, frames = self.make_env(render=record), list[list[float]](), list[Any]()
        limit, info, cut_off, num_takeovers = step_limit(self, env), list[dict[str, float]](), 0, 0
        try:
            with seeded_rng(config.seed):
                for number in range(config.episodes or 0):
                    rewards.append([])
                    seed = first_seed(config) + number
                    steps = play_episode(self, env, seed=seed, deterministic=config.deterministic)
                    for step in itertools.islice(steps, limit + 1):
                        rewards[-1].append(step.reward)
                        num_takeovers += step.is_takeover
                        if record and number == 0 and env.render_mode is not None:
                            frames.append(last_frame(env.render()))
                    info.append(success_summary(step.info))
                    cut_off += not (step.terminated or step.truncated)
        finally:
            close_quietly(env)
        warn_takeovers(num_takeovers)
        lengths = [len(episode) - 1 for episode in rewards]
        result = Evaluation(
            scores=[float(np.sum(episode[1:])) for episode in rewards], lengths=lengths,
            mode=policy_mode(config.deterministic), info=info if any(info) else [],
            intervention_rate=num_takeovers / sum(lengths), cut_off=cut_off, most_steps=limit if cut_off else None,
            frames=np.stack(frames) if len({frame.shape for frame in frames}) == 1 else None,
        )  # fmt: skip
        if cut_off:
            logger.warning(f"{result.cut_text()}: their scores include only these steps")
        return result

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
        deterministic: bool = True, is_first: ArrayLike | None = None, reward: ArrayLike = 0.0,
        action_mask: Any = None, goal: Any = None,
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

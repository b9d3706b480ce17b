"""Play with a policy that was not trained here: a function, a controller, or an agent of another library."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike
from torch import Tensor, nn

from reverie.agent.agent import Agent
from reverie.agent.conversion import to_numpy_readable
from reverie.agent.play import first_seed, play_episode
from reverie.agent.play import max_episode_steps as step_limit
from reverie.agent.player import AgentState, Player, policy_mode
from reverie.agent.sb3_pickles import seems_normalized
from reverie.core.errors import ConfigError, DataError, short_repr
from reverie.core.images import last_frame
from reverie.core.imports import import_object, is_module_name
from reverie.core.logger import logger
from reverie.core.masks import MaskCodec
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

BATCH_NAMES = ("X", "x")
"""First parameters of ``predict`` that take a batch, as in scikit-learn and in d3rlpy."""
PASS_A_FUNCTION = (
    "Pass a function that returns the action, as the author of the policy computes it, such as lambda obs: "
    "policy(obs)[0]."
)
NORMALIZED = (
    "the model learned in a VecNormalize. If that normalized observations, load the model with their statistics: "
    "{}.load(FILE, env=VecNormalize.load(STATISTICS, VEC_ENV))"
)
Choose = Callable[[Any, Any, dict[str, Any]], tuple[Any, Any]]
"""Returns an action and the policy's next memory: for an observation, the memory and other arguments by name."""


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
    if inspect.ismethod(policy) and policy.__name__ == "predict":
        policy = policy.__self__  # the model has more, such as statistics of observations
    _check_policy(policy)
    settings = EnvConfig(id=env_name(env)).merge(dict(env_options or {})).merge({"num": 1})
    config = ExperimentConfig().merge({"env": settings})
    return PolicyAgent(config, policy, env_factory(settings, env))


def _check_policy(policy: object) -> None:
    """Raise ConfigError unless ``policy`` has one of the ``FORMS``."""
    if isinstance(policy, type) or not any(form.matches(policy) for form in FORMS):
        forms = "; ".join(form.name for form in FORMS)
        raise ConfigError(f"policy = {short_repr(policy)}: expected one of these: {forms}.")


def _read_policy(policy: Any, space: spaces.Space[Any]) -> Choose:
    """Return a function that calls ``policy``, which chooses actions in ``space``, as its form says."""
    return next(form.read(policy, space) for form in FORMS if form.matches(policy))


def _read_function(
    function: Callable[..., Any], space: spaces.Space[Any], signature: Callable[..., Any] | None = None
) -> Choose:
    """Return a function that calls ``function`` with one observation, and those other arguments that it takes.

    ``signature``: a function that has its parameters; None: itself.
    """
    names = _parameters(signature or function)[1:]  # the observation may be called state, too

    def choose(obs: Any, memory: Any, arguments: dict[str, Any]) -> tuple[Any, Any]:
        arguments = arguments | {"state": memory}
        output = function(obs, **{name: value for name, value in arguments.items() if name in names})
        return _split_memory(output, "state" in names, space)

    return choose


def _split_memory(output: Any, takes_state: bool, space: spaces.Space[Any]) -> tuple[Any, Any]:
    """Return the action in the ``output`` of a policy and its next memory; DataError if there may be something else."""
    is_pair = isinstance(output, tuple) and len(output) == 2
    if is_pair and (takes_state or output[1] is None):
        action, memory = output
        return action, memory
    if isinstance(output, tuple | Mapping) and not isinstance(space, spaces.Tuple | spaces.Dict):
        kind = f"{type(output).__name__} of {len(output)} values"
        raise DataError(f"the policy returned a {kind}: expected an action in {space}. {PASS_A_FUNCTION}")
    return output, None


def _read_predict(model: Any, space: spaces.Space[Any]) -> Choose:
    """Return a function that calls ``model.predict``, with a batch of one observation if its parameter is X or x."""
    first = next(iter(_parameters(model.predict)), "")
    normalize, flatten_mask = _find_normalizer(model), MaskCodec(space)
    is_composed = isinstance(space, spaces.Dict | spaces.Tuple)  # which Stable-Baselines3 does not have
    predict = _read_function(model.predict, space)

    def choose(obs: Any, memory: Any, arguments: dict[str, Any]) -> tuple[Any, Any]:
        mask = arguments[MASK_NAMES[0]]
        flags = mask if mask is None or is_composed else flatten_mask(mask)
        values = _to_batch(normalize(obs), np.asarray) if first in BATCH_NAMES else normalize(obs)
        action, memory = predict(values, memory, arguments | dict.fromkeys(MASK_NAMES, flags))
        return (_best_action(np.asarray(action)[0], flags, space) if first in BATCH_NAMES else action), memory

    return choose


def _find_normalizer(model: Any) -> Callable[[Any], Any]:
    """Return the function with which VecNormalize normalized observations in the training of ``model``."""
    vec_normalize = model.get_vec_normalize_env() if hasattr(model, "get_vec_normalize_env") else None
    if vec_normalize is not None and vec_normalize.norm_obs:
        logger.info("observations are normalized by the statistics of the model's VecNormalize")
        return vec_normalize.normalize_obs  # type: ignore[no-any-return]  # of Stable-Baselines3
    if vec_normalize is None and seems_normalized(getattr(model, "__dict__", {})):
        logger.warning(NORMALIZED.format(type(model).__name__))
    return lambda obs: obs


def _read_module(module: Any, space: spaces.Space[Any]) -> Choose:
    """Return a function that calls ``module`` with batches of one observation.

    Of n outputs for a choice among n actions, the highest one that is legal is chosen.
    """
    module = module.module() if _is_exported(module) else module
    if getattr(module.forward, "__name__", "") == nn.Module.forward.__name__:
        raise ConfigError(f"policy = {type(module).__name__} defines no forward: expected one. {PASS_A_FUNCTION}")
    with contextlib.suppress(NotImplementedError):  # of exported modules, which have no modes
        module.eval()
    tensors = [*module.parameters(), *module.buffers()]
    device = next((x.device for x in tensors), torch.device("cpu"))
    dtype = next((x.dtype for x in tensors if x.is_floating_point()), torch.float32)
    forward, flatten_mask = _read_function(module, space, module.forward), MaskCodec(space)

    def to_tensor(value: object) -> Tensor:
        tensor = torch.as_tensor(np.asarray(value), device=device)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    @torch.no_grad()
    def choose(obs: Any, memory: Any, arguments: dict[str, Any]) -> tuple[Any, Any]:
        flags = None if arguments[MASK_NAMES[0]] is None else flatten_mask(arguments[MASK_NAMES[0]])
        batch_flags = None if flags is None else to_tensor(flags)[None]
        output, memory = forward(_to_batch(obs, to_tensor), memory, arguments | dict.fromkeys(MASK_NAMES, batch_flags))
        if not isinstance(output, Tensor):
            raise DataError(f"the policy returned a {type(output).__name__}: expected a tensor. {PASS_A_FUNCTION}")
        values = output[0].cpu()
        return _best_action((values.double() if values.is_floating_point() else values).numpy(), flags, space), memory

    return choose


def _is_exported(policy: object) -> bool:
    """Return whether ``policy`` is a program of ``torch.export``, whose import takes a second."""
    return type(policy).__module__.startswith("torch.export.")


def _to_batch(obs: Any, convert: Callable[[Any], Any]) -> Any:
    """Return an observation as a batch of one; ``convert`` makes an array or a tensor of each part."""
    if isinstance(obs, Mapping):
        return {key: _to_batch(part, convert) for key, part in obs.items()}
    return tuple(_to_batch(part, convert) for part in obs) if isinstance(obs, tuple) else convert(obs)[None]


def _best_action(output: np.ndarray, flags: np.ndarray | None, space: spaces.Space[Any]) -> Any:
    """Return the legal action of the highest of n outputs for a choice among n actions; other outputs as they are."""
    if not isinstance(space, spaces.Discrete) or output.size != space.n or space.n == 1:
        return output
    values = output.reshape(-1)
    return space.start + (values if flags is None else np.where(flags, values, -np.inf)).argmax()


class Form(NamedTuple):
    """How policies of one kind are called."""

    name: str
    """For errors."""
    matches: Callable[[object], bool]
    read: Callable[[Any, spaces.Space[Any]], Choose]


FORMS = (
    Form(
        "an object with a method predict, as models of Stable-Baselines3 have",
        lambda policy: callable(getattr(policy, "predict", None)), _read_predict,
    ),
    Form(
        "a PyTorch module whose output is the action, or a value of each action",
        lambda policy: isinstance(policy, nn.Module) or _is_exported(policy), _read_module,
    ),
    Form("a function of the observation that returns an action", callable, _read_function),
)  # fmt: skip
"""The forms of policies, of which the first that matches is taken."""


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return [*inspect.signature(function).parameters]
    except (TypeError, ValueError):  # of a compiled function
        return []


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
    def algorithm(self) -> str:
        """Name of the policy."""
        return self.name

    @property
    def label(self) -> str:
        """Name of the policy, for datasets."""
        return self.name

    @property
    def origin(self) -> str:
        """Name of the policy, for datasets."""
        return f"policy {self.name}"

    def turn(
        self, obs: Any, reward: ArrayLike, action_mask: Any, state: AgentState | None, *,
        deterministic: bool = True, is_first: ArrayLike | None = None, goal: Any = None,
    ) -> tuple[Any, AgentState]:  # fmt: skip
        """Choose an action for a single observation."""
        arguments = dict.fromkeys(MASK_NAMES, self.observer.find_mask(obs) if action_mask is None else action_mask)
        arguments |= {"reward": reward, "deterministic": deterministic, "episode_start": np.array([state is None])}
        action, memory = self.choose(obs, None if state is None else state.policy, arguments)
        return fit_action(self.action_space, to_numpy_readable(action)), AgentState(memory, ())

    def override(self, state: AgentState, action: Any) -> AgentState:
        """Return the state for executing ``action``, of which a policy is told that has a method ``override``."""
        override = getattr(self.policy, "override", None)
        return replace(state, policy=override(state.policy, action)) if callable(override) else state


def fit_action(space: spaces.Space[Any], action: Any) -> Any:
    """Return ``action`` with the types and within the bounds of ``space``; DataError if it is not in it."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):  # no array of numbers
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
            if array.size == 1 and space.contains(
                number := int(array.reshape(())) if array.dtype.kind in "iub" else -1
            ):
                return space.dtype.type(number)
        elif space.contains(array := np.asarray(action, space.dtype)):
            return array
    raise DataError(f"the policy returned {short_repr(action)}: expected an action in {space}.")

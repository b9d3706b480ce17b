"""A trained policy that acts on observations of one or many Gymnasium environments."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike

from reverie.agent.conversion import ObsConverter, action_statistics, obs_to_step, to_numpy
from reverie.agent.goal_input import add_goal
from reverie.algos.base import Algorithm
from reverie.core.action_codec import ActionCodec
from reverie.core.errors import ConfigError, DataError, count_noun, did_you_mean, short_repr
from reverie.core.foreign_names import AGENT_NAMES, describe_missing, find_line
from reverie.core.spaces import column, get_at_path, iter_leaves
from reverie.core.specs import MASK_KEY, SPECIAL_KINDS, ActionSpec, ObsSpec
from reverie.core.types import Mode, PolicyOutput, Step
from reverie.envs.config import MakeEnv
from reverie.envs.flat_env import FlatEnv
from reverie.envs.make import make_gym
from reverie.envs.vector_steps import CLIPS
from reverie.envs.wrappers import FrameStack
from reverie.experiment.config import NO_ENV, ExperimentConfig
from reverie.nn.encoder import CoderConfig, DenseCoderConfig
from reverie.nn.preprocess import inspect_policy
from reverie.run.evaluate import episode_limit
from reverie.run.turn import initial_state, random_flat_actions


@dataclass(frozen=True)
class AgentState:
    """State of an agent between two observations. Opaque: pass it back unchanged."""

    policy: Any
    stacks: tuple[FrameStack | None, ...]
    goal: Any = None
    """The goal that the caller passed last."""


class Player:
    """A trained policy, with the same observation and action processing as in training.

    Users work with its subclass :class:`~reverie.Agent`, which documents the attributes.
    """

    def __init__(
        self, config: ExperimentConfig, algo: Algorithm, flat: FlatEnv, factory: MakeEnv | None,
        eval_factory: MakeEnv | None, run: Path, checkpoint: Path, step: int, longest_episode: int = 0,
    ) -> None:  # fmt: skip
        """Users call :func:`reverie.load` instead. ``flat`` defines the spaces; it is not stepped."""
        self.config: ExperimentConfig = config
        self.algo: Algorithm = algo
        self.factory: MakeEnv | None = factory
        self.eval_factory: MakeEnv | None = eval_factory
        self.run: Path = run
        self.checkpoint: Path = checkpoint
        self.step: int = step
        self.longest_episode: int = longest_episode
        self.observer: ObsConverter = ObsConverter(flat, config.env, _unread_observations(config.algo, flat.obs_spec))
        self.action_space: spaces.Space[Any] = flat.env.action_space
        self.observation_space: spaces.Space[Any] | None = self.observer.accepted
        per_second = (flat.metadata or {}).get("render_fps") or 30
        self.frames_per_second: int = max(1, round(per_second / config.env.action_repeat))
        self.codec: ActionCodec = ActionCodec(self.action_space)
        self.obs_spec: ObsSpec = self.observer.spec
        self.action_spec: ActionSpec = self.codec.spec

    if not TYPE_CHECKING:  # a type checker would take all names for attributes

        def __getattr__(self, name: str) -> Any:
            line = find_line(AGENT_NAMES, name)
            line = line.format(run=str(self.run)) if line else ""
            raise AttributeError(describe_missing(f"'{type(self).__name__}' object", name, line, dir(type(self))))

    def __repr__(self) -> str:
        config = self.config
        origin = f"on {config.data.label}" if config.env.id == NO_ENV else f"in {config.env.id}"
        return f"{type(self).__name__}({config.algo.algorithm} {origin}, from {self.checkpoint})"

    def act(
        self, obs: Any, state: AgentState | None = None, *,
        deterministic: bool = True, is_first: ArrayLike | None = None, reward: ArrayLike = 0.0,
        action_mask: Any = None, goal: Any = None,
    ) -> tuple[Any, AgentState]:  # fmt: skip
        """Choose an action for an observation.

        Args:
            obs: an observation as the Gymnasium environment returns it, or a batch of N as a vector environment does.
            state: the state that the last call returned; None at the beginning of an episode.
            deterministic: take the policy's most likely action. False: sample an action, with the exploration of
                training at the checkpoint. A world model samples its latents in both cases, from PyTorch's generator:
                the same ``torch.manual_seed`` plays the same episode.
            is_first: for batches, ``[N]`` bool: which environments have begun a new episode since the last call.
            reward: reward received with ``obs``, before ``env.clip_reward``; ``[N]`` for batches. Only Decision
                Transformer and agents with ``encoder.encode_reward`` use it.
            action_mask: the legal actions, from the environment's ``info["action_mask"]`` or ``action_masks()``; for
                batches, one mask per environment. Agents trained with masks need it, unless the observation contains
                one: then actions are legal that both allow.
            goal: for goal-conditioned agents, the observation to reach: one for all environments, or one for each.
                ``state`` keeps it until another is passed. None: that of ``state``, or of the environment in ``obs``.

        Returns:
            ``(action, state)``. Pass the action to ``env.step``; for batches, to the ``step`` of a vector environment.

        Raises:
            DataError: ``obs`` does not fit the space the agent was trained on, or a goal is missing or does not fit.
        """
        return self.turn(obs, reward, action_mask, state, deterministic=deterministic, is_first=is_first, goal=goal)

    def turn(
        self, obs: Any, reward: ArrayLike, action_mask: Any, state: AgentState | None, *,
        deterministic: bool = True, is_first: ArrayLike | None = None, goal: Any = None,
    ) -> tuple[Any, AgentState]:  # fmt: skip
        """Choose an action as :meth:`act` does, for callers that play: they forget neither rewards nor masks."""
        single, step, state = self._prepare_input(obs, state, is_first, reward, action_mask, goal)
        chosen, policy = self.algo.policy.act(step, state.policy, policy_mode(deterministic))
        flat = chosen.cpu().numpy()  # [N, A]
        return self.codec(flat[0] if single else flat), replace(state, policy=policy)

    def predict(
        self, obs: Any, state: AgentState | None = None, episode_start: ArrayLike | None = None,
        deterministic: bool = True, action_masks: Any = None, reward: ArrayLike = 0.0,
    ) -> tuple[Any, AgentState]:  # fmt: skip
        """Choose an action as :meth:`act` does, with the arguments of Stable-Baselines3's ``predict``.

        ``episode_start`` is the ``is_first`` of :meth:`act`, ``action_masks`` its ``action_mask``.
        """
        return self.turn(obs, reward, action_masks, state, deterministic=deterministic, is_first=episode_start)

    def distribution(
        self, obs: Any, state: AgentState | None = None, *,
        is_first: ArrayLike | None = None, reward: ArrayLike = 0.0, action_mask: Any = None, goal: Any = None,
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """Return the policy's action distribution: probabilities, means and standard deviations, or values.

        Takes the same arguments as :meth:`act`, which can be called afterwards with the same ``state``: random
        generators do not advance. A world model samples the same latents as :meth:`act` would sample now.

        Returns:
            Arrays by name, with suffix ``/KEY`` for each part of ``Dict`` and ``Tuple`` actions; ``[N, ...]`` for
            batches. ``probabilities`` for discrete actions: ``[n]`` for ``Discrete(n)``; ``[*shape, C]`` for several
            choices, where C is the largest number of classes. Illegal and padding classes have probability 0. ``mean``
            and ``std`` (standard deviation) for continuous actions: ``[*shape]`` in the environment's units. For tanh
            policies (SAC, TD-MPC2, DreamerV1) and truncated normals (DreamerV2) they describe the action itself, to
            three digits; for other normals (PPO, DreamerV3, IQL) the normal before actions are clipped to their bounds.
            Deterministic policies (TD3, DDPG) have a ``std`` of 0, without their exploration noise. TD-MPC2 returns its
            policy's distribution, not its planner's. ``values`` instead of probabilities, for policies that choose the
            highest value (DQN, QR-DQN, discrete CQL and BCQ): the same shape, -inf for illegal and padding classes.

        Raises:
            DataError: ``obs`` does not fit the space the agent was trained on.
            ConfigError: the policy has no distribution, such as BCQ, or a custom policy without a method ``inspect``.
        """
        single, output = self.inspect(obs, state, is_first, reward, action_mask, goal)
        statistics = {name: to_numpy(x) for name, x in action_statistics(output.decision, self.action_space).items()}
        return {name: x[0] for name, x in statistics.items()} if single else statistics

    def value(
        self, obs: Any, state: AgentState | None = None, *,
        is_first: ArrayLike | None = None, reward: ArrayLike = 0.0, action_mask: Any = None, goal: Any = None,
    ) -> Any:  # fmt: skip
        """Return the critic's value of an observation: the expected discounted sum of rewards.

        This is V(s) for PPO, A2C and world models, whose state includes ``obs``; min_i Q_i(s, a) of the policy's most
        likely action for SAC, TD3, DDPG, CQL, IQL and CRR, including discrete actions; and max_a Q(s, a) for DQN,
        QR-DQN, discrete CQL and discrete BCQ, averaged over several choices. Rewards are in the critic's units: after
        ``env.clip_reward``, ``algo.reward_scale`` and ``algo.reward_transform``. Takes the same arguments, and raises
        the same DataErrors, as :meth:`distribution`.

        Returns:
            A float; ``[N]`` for batches.

        Raises:
            ConfigError: the algorithm has no critic, such as BC, or its policy does not support inspection.
        """
        single, output = self.inspect(obs, state, is_first, reward, action_mask, goal)
        with torch.no_grad():
            values = to_numpy(self.algo.state_value(output).reshape(-1))  # [N]
        return float(values[0]) if single else values

    def distance(self, obs: Any, state: AgentState | None = None, *, goal: Any = None) -> Any:
        """Return the estimated distance of an observation to a goal, as a goal-conditioned agent learned it.

        It is a number of steps for GCIVL, HIQL, GCIQL and QRL, and the distance of latents for LeWM. ``goal``: as in
        :meth:`act`.

        Returns:
            A float, infinite if the goal cannot be reached; ``[N]`` for batches.

        Raises:
            ConfigError: the algorithm does not estimate distances.
            DataError: the observation or the goal does not fit.
        """
        single, output = self.inspect(obs, state, goal=goal)
        with torch.no_grad():
            distances = to_numpy(self.algo.goal_distance(output).reshape(-1))  # [N]
        return float(distances[0]) if single else distances

    def to_step(self, obs: Any, goal: Any = None, state: AgentState | None = None, action_mask: Any = None) -> Step:
        """Return an observation and the rest, all as for :meth:`act`, as rows for the policy ``[1, ...]``."""
        return self._prepare_input(obs, state, None, 0.0, action_mask, goal)[1]

    def _prepare_input(
        self, obs: Any, state: AgentState | None, is_first: ArrayLike | None, reward: ArrayLike, action_mask: Any,
        goal: Any = None,
    ) -> tuple[bool, Step, AgentState]:  # fmt: skip
        """Return whether ``obs`` is a single observation, the rows, and the state with updated frame stacks."""
        if state is not None and not isinstance(state, AgentState):
            raise DataError(
                f"state = {short_repr(state)}: expected the state that the last call returned, or None at the "
                "beginning of an episode."
            )
        goal = state.goal if goal is None and state is not None else goal
        if self.config.algo.has_goals and isinstance(self.observation_space, spaces.Dict):
            obs = add_goal(self.observation_space, obs, goal)
        elif goal is not None:
            raise DataError(f"goal: {self.config.algo.algorithm} does not act toward goals. Leave it out.")
        if action_mask is None:
            obs, action_mask = self.observer.split_mask(obs)
        count, obs = self.observer.count_obs(obs)
        if (num_obs := 1 if count is None else count) == 0:
            raise DataError("a batch of 0 observations: expected at least one.")
        first = np.full(num_obs, state is None) if is_first is None else np.asarray(is_first, bool).reshape(-1)
        if state is None:
            state = AgentState(self.initial_state(num_obs), self.observer.stacks(num_obs))
            first = np.ones(num_obs, bool)
        if len(state.stacks) != num_obs or len(first) != num_obs:
            raise DataError(
                f"{count_noun(num_obs, 'observation')}, a state of {len(state.stacks)}, is_first of {len(first)}: "
                "expected the same number of each."
            )
        stacks = state.stacks  # copied, since the caller can reuse the old state
        if stacks[0] is not None:
            stacks = tuple(copy.deepcopy(stack) for stack in stacks)
        if count is None:
            flat_obs = self.observer(obs, stacks[0], first[0], action_mask)
            flat = {key: x[None] for key, x in flat_obs.items()}
        else:
            flat = self.observer.batch(obs, count, stacks, first, action_mask)
        reward = reward if self.config.env.clip_reward == "none" else self.clip_rewards(reward)
        step = obs_to_step(flat, first, reward)
        return count is None, step, AgentState(state.policy, stacks, goal)

    def inspect(
        self, obs: Any, state: AgentState | None = None, is_first: ArrayLike | None = None, reward: ArrayLike = 0.0,
        action_mask: Any = None, goal: Any = None,
    ) -> tuple[bool, PolicyOutput]:  # fmt: skip
        """Return whether ``obs`` is a single observation, and the policy's output; random generators are unchanged."""
        single, step, before = self._prepare_input(obs, state, is_first, reward, action_mask, goal)
        device = self.algo.device
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            return single, inspect_policy(self.algo.policy, step, before.policy)

    def clip_rewards(self, rewards: ArrayLike) -> np.ndarray:
        """Return rewards of the environment as in training, after ``env.clip_reward``: float32 in the same shape."""
        return np.asarray(CLIPS[self.config.env.clip_reward](np.asarray(rewards, np.float64)), np.float32)

    def random_action(self, obs: Mapping[str, Any], rng: np.random.Generator) -> Any:
        """Return a random action that is legal according to the mask in ``obs``, an observation as learners see it."""
        legal = torch.from_numpy(np.asarray(obs[MASK_KEY], bool))[None]
        return self.codec(random_flat_actions(self.action_spec, 1, rng, legal)[0].numpy())

    def initial_state(self, num_envs: int) -> Any:
        """Return the policy's state before the first observation, with the exploration of the checkpoint."""
        return initial_state(self.algo.policy, num_envs, self.config.exploration_step(self.step))

    def override(self, state: AgentState, action: Any) -> AgentState:
        """Return the state for executing ``action`` instead of the action that :meth:`act` returned with ``state``.

        ``action``: in ``action_space``, else DataError; for N environments, a batch as for a vector environment.
        """
        flat = self.flatten_actions(action, len(state.stacks))
        return replace(state, policy=self.algo.policy.override(state.policy, torch.from_numpy(flat)))

    def flatten_actions(self, actions: Any, count: int = -1) -> np.ndarray:
        """Convert n actions of a vector environment to the format of rows: one-hot, or in [-1, 1]; ``[n, A]`` float32.

        Raises:
            DataError: an action is not in ``action_space``.
        """
        columns: dict[str, np.ndarray] = {}
        for path, leaf in iter_leaves(self.action_space):
            try:
                values = np.asarray(get_at_path(actions, path)).reshape(count, *(leaf.shape or ()))
            except DataError as error:
                raise DataError(f"{column('action', path)} {error}") from None
            columns[column("action", path)] = values.astype(np.float64)
            columns["is_last"] = np.zeros(len(values), bool)
        return self.codec.flatten(columns)

    def make_env(self, render: bool = False, env_id: str | None = None) -> gymnasium.Env[Any, Any]:
        """Make an environment as in training, or another one by its id; EnvError if it cannot be made.

        ``render``: render RGB arrays, if supported.
        """
        if env_id is not None:
            return make_gym(self.config.env.merge({"id": env_id}), None, render)
        return make_gym(self.config.env, self.factory, render)

    @property
    def algorithm(self) -> str:
        """Name of the algorithm."""
        return self.config.algo.algorithm

    @property
    def label(self) -> str:
        """Name of the learner and the checkpoint, for datasets."""
        return f"{type(self.algo).__name__} ({self.checkpoint.name})"

    @property
    def origin(self) -> str:
        """The checkpoint and its run, for datasets."""
        return f"{self.checkpoint.name} of {self.run.name}"

    @property
    def episode_limit(self) -> int:
        """Steps after which an episode is cut off, unless the environment's own time limit is higher."""
        return episode_limit(self.config.eval_episode_steps, self.longest_episode)

    def with_learner(self, algo: Algorithm, config: ExperimentConfig) -> Self:
        """Return a copy of the player with another learner, on another device or in another precision."""
        player = object.__new__(type(self))  # copy.copy would make the environment again, like pickle
        vars(player).update(vars(self) | {"algo": algo, "config": config})
        return player


def policy_mode(deterministic: bool) -> Mode:
    """Return the policy's mode for most likely actions, or for sampled actions."""
    return "eval" if deterministic else "explore"


def actions_label(deterministic: bool) -> str:
    """Describe how actions are chosen."""
    return "deterministic actions" if deterministic else "sampled actions"


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise ConfigError unless ``value`` is one of the ``choices`` of the setting ``name``."""
    if value not in choices:
        words = " or ".join(map(repr, choices))
        raise ConfigError(f"{name} = {short_repr(value)}: expected {words}.{did_you_mean(str(value), choices)}")


def _unread_observations(algo: Any, spec: ObsSpec) -> list[str]:
    """Return the observations that a policy with the settings ``algo`` does not use, except perhaps in its decoder."""
    encoder = getattr(algo, "encoder", None)
    keys = encoder.keys if isinstance(encoder, CoderConfig | DenseCoderConfig) else ".*"
    probed = algo.probe.targets(spec) if getattr(algo, "probe", None) is not None else []
    unread = [key for key, part in spec.items() if part.kind not in SPECIAL_KINDS and not re.fullmatch(keys, key)]
    return [*unread, *probed]

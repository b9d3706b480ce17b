"""A trained agent that acts on the observations of Gymnasium environments, one or many at once; its evaluation."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from reverie.agent.imagining import (
    STEPS,
    Imagined,
    Mind,
    ModelState,
    array,
    describing,
    given_actions,
    latent_of,
    observed,
    probe_of,
    seeded,
    seen_in,
)
from reverie.agent.observer import Observer
from reverie.agent.traced import said_of_actions
from reverie.algos.base import INSIDE, Algorithm
from reverie.core.bounds import AtLeast
from reverie.core.errors import ConfigError, DataError, RunError, brief, did_you_mean, plural
from reverie.core.files import writing
from reverie.core.logger import logger
from reverie.core.randomness import derived_seeds, reproducible
from reverie.core.rows import episode_rows
from reverie.core.spaces import ActionCodec, column, follow, leaves_of
from reverie.core.specs import MASK, ActionSpec, ObsSpec, signature
from reverie.core.types import Batch, Mode, Step, Told
from reverie.datasets.dataset import RecordedEpisodes, dataset_config, open_recorded
from reverie.datasets.memory import DataLike
from reverie.envs.flat import CLIPS, FlatEnv
from reverie.envs.make import MakeEnv, make_gym
from reverie.envs.wrappers import FlatObs, FrameStack
from reverie.experiment.config import NO_ENV, ExperimentConfig
from reverie.experiment.environments import make_eval_env
from reverie.experiment.offline import check_dataset_fits
from reverie.log.video import write_video
from reverie.nn.encoder import CoderConfig, DenseCoderConfig
from reverie.nn.preprocess import told
from reverie.run.collect import initial_state, random_action
from reverie.run.evaluate import Evaluation, episode_limit, evaluate
from reverie.run.folder import RunFolder, write_found

if TYPE_CHECKING:
    from reverie.agent.export import Exported


Actions = Literal["mode", "sample"]
MODES: dict[str, Mode] = {"mode": "eval", "sample": "explore"}


@dataclass(frozen=True)
class AgentState:
    """State that an agent carries from one observation to the next. Opaque: pass it back unchanged."""

    policy: Any
    stacks: tuple[FrameStack | None, ...]


def model_state(state: ModelState | AgentState) -> ModelState:
    """Return the states of the world model in ``state``."""
    if isinstance(state, ModelState):
        return state
    latent = state.policy.latent
    return ModelState(array(latent.deter), array(latent.stoch))


class Agent:
    """A trained policy, with the observation and action processing that its training had.

    Made by :func:`reverie.load`.

    Attributes:
        config: settings of the run.
        algo: the learner, with its weights; ``algo.policy`` maps tensors to actions.
        run: run folder.
        checkpoint: folder of the checkpoint that was loaded.
        step: step at which it was written: env steps, or updates in a run on recorded data alone.
        action_space: Gymnasium space of the actions that :meth:`act` returns.
        observation_space: Gymnasium space of the observations that :meth:`act` takes, declared by the environment or
            the data, or inferred; None if the agent observes rendered frames, whose size no space declares.
        obs_spec: observations that the networks receive.
        action_spec: actions that the policy chooses from.
        frames_per_second: of videos in real time, one frame per decision of the policy.
        factory: makes the environment if it was given from Python; None if it is made from ``config.env.id``.
        eval_factory: the same for the environments of evaluations, which ``config.eval_env_config`` describes.
        longest_episode: env steps of the longest episode of training before the checkpoint; 0 if that is not known.
    """

    def __init__(
        self, config: ExperimentConfig, algo: Algorithm, flat: FlatEnv, factory: MakeEnv | None,
        eval_factory: MakeEnv | None, run: Path, checkpoint: Path, step: int, longest_episode: int = 0,
    ) -> None:  # fmt: skip
        """Set up an agent; users call :func:`reverie.load`. ``flat`` defines the spaces; it is not stepped."""
        self.config: ExperimentConfig = config
        self.algo: Algorithm = algo
        self.factory: MakeEnv | None = factory
        self.eval_factory: MakeEnv | None = eval_factory
        self.run: Path = run
        self.checkpoint: Path = checkpoint
        self.step: int = step
        self.longest_episode: int = longest_episode
        self.observer: Observer = Observer(flat, config.env, unread(config.algo, flat.obs_spec))
        self.action_space: spaces.Space[Any] = flat.env.action_space
        self.observation_space: spaces.Space[Any] | None = self.observer.accepted
        per_second = (flat.metadata or {}).get("render_fps") or 30
        self.frames_per_second: int = max(1, round(per_second / config.env.frames_per_action))
        self.codec: ActionCodec = ActionCodec(self.action_space)
        self.obs_spec: ObsSpec = self.observer.spec
        self.action_spec: ActionSpec = self.codec.spec

    def __repr__(self) -> str:
        config = self.config
        where = f"on {config.data.label}" if config.env.id == NO_ENV else f"in {config.env.id}"
        return f"Agent({config.algo.algorithm} {where}, from {self.checkpoint})"

    def act(
        self, obs: Any, state: AgentState | None = None, *,
        actions: Actions = "mode", is_first: Any = None, reward: Any = 0.0, action_mask: Any = None,
    ) -> tuple[Any, AgentState]:  # fmt: skip
        """Choose an action for an observation.

        Args:
            obs: an observation as the Gymnasium environment returns it, or a batch of N as a vector environment does.
            state: the state that the last call returned; None at the beginning of an episode.
            actions: "mode" takes the policy's most likely action, "sample" draws one as training did at the checkpoint.
                A world model samples its latents in both cases, from PyTorch's generator: after ``torch.manual_seed``
                the same episode is played again.
            is_first: for batches, ``[N]`` bool: which environments have begun a new episode since the last call.
            reward: that came with ``obs``; ``[N]`` for batches. Only agents with ``encoder.arrival`` read it.
            action_mask: which actions are legal, as the environment tells it in ``info["action_mask"]`` or by
                ``action_masks()``; for batches one for each environment. Agents that were trained with masks need it,
                unless the observation holds it.

        Returns:
            ``(action, state)``. The action is ready for ``env.step``, that of a batch for a vector environment's.

        Raises:
            DataError: ``obs`` does not fit the space the agent was trained on.
            ConfigError: ``actions`` is neither "mode" nor "sample".
        """
        single, step, state = self._shown(obs, state, is_first, reward, action_mask)
        chosen, policy = self.algo.policy.act(step, state.policy, mode_of(actions))
        flat = chosen.cpu().numpy()  # [N, A]
        return self.codec(flat[0] if single else flat), replace(state, policy=policy)

    def distribution(
        self, obs: Any, state: AgentState | None = None, *,
        is_first: Any = None, reward: Any = 0.0, action_mask: Any = None,
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """Return what the policy would choose an action from: probabilities, means and deviations, or values.

        The arguments are those of :meth:`act`, which may be called afterwards with the same ``state``: nothing is
        drawn. Where a world model draws latents, they are those that :meth:`act` would draw now.

        Returns:
            Arrays by name, which ends with ``/KEY`` for each part of ``Dict`` and ``Tuple`` actions; ``[N, ...]`` for
            batches.

            ``probabilities`` of classes: ``[n]`` for ``Discrete(n)``; of several choices ``[*shape, C]``, C being the
            largest number of classes. They are 0 for illegal classes, and for those that a choice does not have.

            ``mean`` and ``std``, the standard deviation, of numbers ``[*shape]`` in the environment's units. Those of
            tanh policies (SAC, TD-MPC2, DreamerV1) and of truncated normals (DreamerV2) are of the action itself, to
            three digits; those of other normals (PPO, DreamerV3, IQL) are of the normal before actions are clipped to
            their bounds. Deterministic policies (TD3, DDPG) have a ``std`` of 0; their exploration is not counted.
            TD-MPC2 tells of its policy, not of its plan.

            ``values`` of classes in place of probabilities, if the highest value is chosen (DQN, QR-DQN, discrete CQL
            and BCQ): shaped like those, -inf for illegal classes and for those that a choice does not have.

        Raises:
            DataError: ``obs`` does not fit the space the agent was trained on.
            ConfigError: the policy has no distribution: that of BCQ, or your own without a method ``tell``.
        """
        single, told = self._told(obs, state, is_first, reward, action_mask)
        found = {name: array(x) for name, x in said_of_actions(told.choice, self.action_space).items()}
        return {name: x[0] for name, x in found.items()} if single else found

    def value(
        self, obs: Any, state: AgentState | None = None, *,
        is_first: Any = None, reward: Any = 0.0, action_mask: Any = None,
    ) -> Any:  # fmt: skip
        """Return the discounted sum of rewards that the critic expects from an observation on.

        V(s) of PPO, A2C and world models, whose state includes ``obs``. min_i Q_i(s, a) of the policy's likeliest
        action of SAC, TD3, DDPG, CQL, IQL and CRR, also of discrete ones. max_a Q(s, a) of DQN, QR-DQN, discrete CQL
        and discrete BCQ, the mean over several choices. Rewards are those that the critic learns from: after
        ``env.clip_reward``, ``algo.reward_scale`` and ``algo.rewards``.

        The arguments and DataErrors are those of :meth:`distribution`.

        Returns:
            A float; ``[N]`` for batches.

        Raises:
            ConfigError: the algorithm learns no values, as BC, or its policy cannot tell what it sees.
        """
        single, told = self._told(obs, state, is_first, reward, action_mask)
        with torch.no_grad():
            values = array(self.algo.state_value(told).reshape(-1))  # [N]
        return float(values[0]) if single else values

    def _shown(
        self, obs: Any, state: AgentState | None, is_first: Any, reward: Any, action_mask: Any
    ) -> tuple[bool, Step, AgentState]:
        """Return whether ``obs`` is a single one, the rows, and the state before them with the frames up to them."""
        count, obs = self.observer.counted(obs)
        rows = 1 if count is None else count
        first = np.full(rows, state is None) if is_first is None else np.asarray(is_first, bool).reshape(-1)
        if state is None:
            state = AgentState(self.initial_state(rows), self.observer.stacks(rows))
            first = np.ones(rows, bool)
        if len(state.stacks) != rows or len(first) != rows:
            raise DataError(
                f"{plural(rows, 'observation')}, a state of {len(state.stacks)}, is_first of {len(first)}: expected as "
                "many of each."
            )
        stacks = state.stacks  # copied, as the caller may go back to the old state
        if stacks[0] is not None:
            stacks = tuple(copy.deepcopy(stack) for stack in stacks)
        if count is None:
            one = self.observer(obs, stacks[0], first[0], action_mask)
            flat = {key: x[None] for key, x in one.items()}
        else:
            flat = self.observer.batch(obs, count, stacks, first, action_mask)
        return count is None, as_step(flat, first, reward), AgentState(state.policy, stacks)

    def _told(
        self, obs: Any, state: AgentState | None, is_first: Any, reward: Any, action_mask: Any
    ) -> tuple[bool, Told]:
        """Return whether ``obs`` is a single one, and what the policy chooses by; generators stay as they are."""
        single, step, before = self._shown(obs, state, is_first, reward, action_mask)
        device = self.algo.device
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            return single, told(self.algo.policy, step, before.policy)

    def random_action(self, shown: Mapping[str, Any], rng: np.random.Generator) -> Any:
        """Return a random action that is legal by the mask in ``shown``, an observation as learners see it."""
        legal = torch.from_numpy(np.asarray(shown[MASK], bool))[None]
        return self.codec(random_action(self.action_spec, 1, rng, legal)[0].numpy())

    def initial_state(self, num_envs: int) -> Any:
        """Return the policy's state before the first observation: its exploration is that at the checkpoint."""
        return initial_state(self.algo.policy, num_envs, self.config.exploration_step(self.step))

    def override(self, state: AgentState, action: Any) -> AgentState:
        """Return the state for the case that another action is executed than :meth:`act` returned with ``state``.

        ``action``: in ``action_space``, else DataError; of N environments, a batch as their vector takes it.
        """
        flat = self.flat_actions(action, len(state.stacks))
        return AgentState(self.algo.policy.override(state.policy, torch.from_numpy(flat)), state.stacks)

    def flat_actions(self, actions: Any, count: int = -1) -> np.ndarray:
        """Return n actions of a vector environment as rows hold them: one-hot, or in [-1, 1]; ``[n, A]`` float32.

        Raises:
            DataError: one is not in ``action_space``.
        """
        columns: dict[str, np.ndarray] = {}
        for path, leaf in leaves_of(self.action_space):
            try:
                values = np.asarray(follow(actions, path)).reshape(count, *(leaf.shape or ()))
            except DataError as error:
                raise DataError(f"{column('action', path)} {error}") from None
            columns[column("action", path)] = values.astype(np.float64)
            columns["is_last"] = np.zeros(len(values), bool)
        return self.codec.encode(columns)

    def make_env(self, render: bool = False) -> gymnasium.Env[Any, Any]:
        """Make an environment as in training; EnvError if it cannot be made. ``render``: as RGB arrays, if it can."""
        return make_gym(self.config.env, self.factory, render)

    @property
    def episode_limit(self) -> int:
        """Steps after which an episode is cut off, unless the environment's own time limit is higher."""
        return episode_limit(self.config.eval_episode_steps, self.longest_episode)

    def episode(self, number: int, data: DataLike | None = None) -> Batch:
        """Return a recorded episode as the learner sees it, to look inside: ``agent.algo.dream(batch, context)``.

        Args:
            number: 0 for the first episode; -1 for the last one. Those of a single row count here.
            data: recorded data that fit the agent: a path, minari:NAME, data in memory, or a DatasetConfig.
                None: the rows that the run has collected, or the data that it learned from alone.

        Returns:
            All rows of the episode, ``[1, T]``, on the CPU. Rewards are clipped if ``env.clip_reward`` says so.

        Raises:
            ConfigError: there is no such episode, or an option does not fit.
            DataError: the data cannot be read, or do not fit the agent.
        """
        with self.recorded(data) as recorded:
            return recorded.episode(number)

    def rows(
        self, observations: Sequence[Any], actions: Sequence[Any], rewards: Any = None, *,
        terminal: bool = False, action_masks: Sequence[Any] | None = None,
    ) -> Batch:  # fmt: skip
        """Return an episode that you have recorded yourself as the learner sees it, for :meth:`observe`.

        Args:
            observations: n + 1, as :meth:`act` takes them one by one; the last is what the last action led to.
            actions: n, in ``action_space``, each taken after the observation of the same place.
            rewards: n, each what the action of the same place was answered with. None: 0.
            terminal: whether the episode ended with the last observation for good.
            action_masks: n + 1, for agents that choose among legal actions.

        Returns:
            n + 1 rows, ``[1, n + 1]``, on the CPU.

        Raises:
            DataError: an observation or an action does not fit, or their numbers do not fit together.
        """
        count, steps = len(observations), len(actions)
        masks = [None] * count if action_masks is None else action_masks
        if count != steps + 1 or len(masks) != count or not steps:
            raise DataError(
                f"{count} observations, {steps} actions, {len(masks)} masks: expected n >= 1 actions, and n + 1 of the "
                "others, the last of which are what the last action led to."
            )
        (stack,), seen = self.observer.stacks(1), list[dict[str, np.ndarray]]()
        for number, (obs, mask) in enumerate(zip(observations, masks, strict=True)):
            row = self.observer(self.observer.counted(obs)[1], stack, number == 0, mask, number == steps)
            seen.append({key: x.copy() for key, x in row.items()})  # a stack reuses its memory
        room: Any = create_empty_array(self.action_space, steps)
        taken = self.flat_actions(concatenate(self.action_space, list(actions), room), steps)
        earned = np.zeros(steps, np.float32) if rewards is None else np.asarray(rewards, np.float32)
        if self.config.env.clip_reward in CLIPS:
            earned = np.array([CLIPS[self.config.env.clip_reward](x) for x in earned.tolist()], np.float32)
        together = {key: np.stack([one[key] for one in seen]) for key in seen[0]}
        columns = episode_rows(together, taken, earned, terminal=terminal)
        tensors = {name: torch.from_numpy(values)[None] for name, values in columns.items()}
        return Batch.from_columns(tensors, torch.zeros(1, dtype=torch.int64))

    def observe(self, rows: Batch, *, seed: int | None = None) -> ModelState:
        """Return the world model's state after rows ``[B, T]``, such as ``agent.episode(0).rows(0, 20)``.

        They are the beginnings of episodes, also of your own (:meth:`rows`); a later part is observed as if nothing had
        been before. ``seed``: of the latents, which are drawn; None follows from the run's seed.

        Raises:
            ConfigError: the algorithm has no world model.
        """
        world = describing(self).world
        with torch.no_grad(), reproducible(seeded(self, seed)):
            latent = world.observe(rows.to(self.algo.device)).latent  # [B, T, ...]
        return ModelState(array(latent.deter[:, -1]), array(latent.stoch[:, -1]))

    def imagine(
        self, state: ModelState | AgentState, steps: int | None = None, *,
        actions: Any = None, mode: Actions = "mode", seed: int | None = None,
    ) -> Imagined:  # fmt: skip
        """Imagine on from a state of the world model, which may have been edited (:meth:`ModelState.replace`).

        Args:
            state: B states, from :meth:`observe` or :meth:`Imagined.state`, or as :meth:`act` returned it.
            steps: T, imagined steps: decisions of the policy. None: as many as there are ``actions``, or 15.
            actions: to be taken, ``[T, A]`` or ``[B, T, A]`` as rows hold them (:meth:`flat_actions`). None: the policy
                acts.
            mode: the policy's most likely actions ("mode"), or drawn ones ("sample").
            seed: of latents and drawn actions; the same one imagines the same again. None: follows from the run's seed.

        Raises:
            ConfigError: the algorithm has no world model, or there is no such ``mode``.
            DataError: the actions have another shape.
        """
        mind, chosen, state = Mind(self), mode_of(mode), model_state(state)
        given = None if actions is None else given_actions(self, actions, len(state.deter))  # [B, T, A]
        if steps is None:
            steps = STEPS if given is None else given.shape[1]
        start = latent_of(mind.world, state)
        with torch.no_grad(), reproducible(seeded(self, seed)):
            latents, taken = mind.imagine(
                start, steps, lambda step, latent: mind.act(latent, chosen) if given is None else given[:, step]
            )
            said = mind.say([start, *latents])
        return Imagined(
            observations=seen_in(said, self.obs_spec),
            rewards=said["reward"],
            continues=said["cont"],
            values=said[f"{INSIDE}value"],
            actions=array(torch.stack(taken, 1)),
            deter=said[f"{INSIDE}deter"],
            stoch=array(torch.stack([latent.stoch for latent in (start, *latents)], 1)),  # not said by TD-MPC2
            agent=self,
        )

    def probe(self, state: ModelState | AgentState, given: Mapping[str, Any] | None = None) -> dict[str, np.ndarray]:
        """Return what probes (``algo.probe`` of DreamerV2 and V3) read from states, by key, ``[B, ...]``.

        Vectors are in their own units ``[B, *shape]``; of categorical ones the class probabilities ``[B, n, C]``.
        ``given``: what probes are given beside the state (``ProbeHead.given``), by key, ``[B, *shape]`` or without B;
        probes of which something is absent are left out.

        Raises:
            ConfigError: the algorithm has no probes.
        """
        probe, feature = probe_of(self), latent_of(describing(self).world, model_state(state)).feature
        with torch.no_grad():
            obs = observed(self, given or {}, len(feature))
            keys = [key for key, needed in probe.given.items() if needed.keys() <= obs.keys()]
            return {key: array(said.value()) for key, said in probe(feature, obs, keys).items()}

    def steer(
        self, state: ModelState | AgentState, probe: Mapping[str, Any], given: Mapping[str, Any] | None = None, *,
        steps: int = 200, lr: float = 0.01,
    ) -> ModelState:  # fmt: skip
        """Return states that the probes read otherwise, to imagine on from: h is moved by gradient steps of Adam.

        The latents z stay. Whether the world model takes such a state as the probe does is what dreaming on shows.

        Args:
            state: B states, as :meth:`imagine` takes them.
            probe: what probes shall predict, by key, ``[B, *shape]`` or ``[*shape]``: classes as numbers.
            given: see :meth:`probe`; what these probes are given.
            steps: gradient steps on -ln p of ``probe``.
            lr: learning rate, the largest change of a number of h in a step.

        Raises:
            ConfigError: the algorithm has no probes.
            DataError: there is no such probe.
        """
        heads, state = probe_of(self), model_state(state)
        latent = latent_of(describing(self).world, state)
        if unknown := probe.keys() - heads.parts.keys():
            raise DataError(f"there is no probe of {', '.join(unknown)}: expected some of {', '.join(heads.parts)}.")
        obs = observed(self, {**(given or {}), **probe}, len(state.deter))
        deter = latent.deter.clone().requires_grad_()
        optim = torch.optim.Adam([deter], lr)
        with torch.enable_grad():
            for _ in range(steps):
                said = heads(latent._replace(deter=deter).feature, obs, probe)
                loss = torch.stack([predicted.loss(obs[key]).sum() for key, predicted in said.items()]).sum()
                (deter.grad,) = torch.autograd.grad(loss, deter)
                optim.step()
                deter.detach().clamp_(-1, 1)  # where the h of every cell is
        return ModelState(array(deter), state.stoch)

    def export(self, out: Path | str | None = None, **options: Any) -> Exported:
        """Write the policy as a file that runs without this library: see :func:`reverie.export`."""
        from reverie.agent.export import export

        return export(self, out, **options)

    @contextlib.contextmanager
    def recorded(self, data: DataLike | None = None) -> Iterator[RecordedEpisodes]:
        """Open recorded data, to read rows as the learner sees them; ``data`` and errors as in :meth:`episode`."""
        given = dataset_config(self.run if data is None else data)
        if data is None and self.config.offline:
            given = self.config.data
        with contextlib.closing(
            open_recorded(given, self.config.env, self.action_space, self.observer.shown)
        ) as recorded:
            check_dataset_fits(recorded, signature(self.obs_spec, self.action_spec), self.config.env.id)
            yield recorded

    def evaluate(
        self, episodes: int = 10, *,
        actions: Actions = "mode", record: bool = False, seed: int | None = None, time_limit: int | None = None,
    ) -> Evaluation:  # fmt: skip
        """Play whole episodes in new environments, and count their true rewards, not clipped ones.

        Those that do not end are cut off after ``episode_limit`` steps: ``Evaluation.cut_off`` says how many.
        They are those that :func:`reverie.load` was given, or else those in which the run was evaluated (``eval_env``).

        Args:
            episodes: how many, at least 1.
            actions: "mode" takes the policy's most likely action, "sample" draws one.
            record: keep the frames of the first episode.
            seed: of environments and actions. None: the seed of the run's final evaluation, from ``config.seed``. To
                compare agents, give all of them the same seed and number of episodes.
            time_limit: most decisions of an episode, at least 1. None: that of the run's environment.

        Raises:
            ConfigError: ``episodes``, ``actions``, ``seed`` or ``time_limit`` is out of range.
            EnvError: the environment cannot be made.
        """
        AtLeast(1).check("episodes", episodes)
        AtLeast(0).check("seed", seed)
        AtLeast(1).check("time_limit", time_limit)
        seed = derived_seeds(self.config.seed)["test"] if seed is None else int(seed)
        limit = {} if time_limit is None else {"eval_env": {**self.config.eval_env_overrides, "time_limit": time_limit}}
        config = self.config.merge({"eval_episodes": episodes, **limit})
        env = make_eval_env(config, self.eval_factory, render=record)
        try:
            with reproducible(seed):
                mode, explored = mode_of(actions), config.exploration_step(self.step)
                kept = np.array if record else None
                found = evaluate(
                    env, self.algo.policy, episodes, mode, kept, seed=seed, env_steps=explored,
                    most_steps=self.episode_limit,
                )  # fmt: skip
            if found.cut_off:
                logger.warning(f"{found.cut_text()} (eval_episode_steps): their scores are those until then")
            return found
        finally:
            env.close()


def mode_of(actions: str) -> Mode:
    """Return the policy's mode for ``actions``."""
    check_word("actions", actions, MODES)
    return MODES[actions]


def check_word(name: str, value: str, known: Collection[str]) -> None:
    """Raise ConfigError unless ``value`` is one of the words that the setting ``name`` knows."""
    if value not in known:
        words = " or ".join(map(repr, known))
        raise ConfigError(f"{name} = {brief(value)}: expected {words}.{did_you_mean(str(value), known)}")


def unread(algo: Any, spec: ObsSpec) -> list[str]:
    """Return the observations that a policy with the settings ``algo`` does not read, but at most its decoder."""
    encoder = getattr(algo, "encoder", None)
    keys = encoder.keys if isinstance(encoder, CoderConfig | DenseCoderConfig) else ".*"
    return [key for key, part in spec.items() if part.kind != "mask" and not re.fullmatch(keys, key)]


def as_step(flat: FlatObs, first: np.ndarray, reward: Any) -> Step:
    """Return a copy of flat observations ``[N, ...]``, which begin episodes where ``first``, as rows."""
    obs = {key: torch.from_numpy(np.array(x, order="C")) for key, x in flat.items()}
    reward = torch.as_tensor(reward, dtype=torch.float32).expand(len(first))
    none = torch.zeros(len(first), dtype=torch.bool)
    return Step(obs=obs, reward=reward, is_first=torch.from_numpy(first), is_last=none, is_terminal=none)


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    """An evaluation, and the files that hold it."""

    evaluation: Evaluation
    files: dict[str, Path]
    """Written files by name: "evaluation", and "video" if one was asked for and the environment can be rendered."""


def evaluate_run(
    agent: Agent, episodes: int = 20, *,
    actions: Actions = "mode", video: bool = False, seed: int | None = None, time_limit: int | None = None,
) -> EvaluationReport:  # fmt: skip
    """Play ``episodes`` as :meth:`Agent.evaluate` does; write eval.json, and with ``video`` the first one."""
    evaluation = agent.evaluate(episodes, actions=actions, record=video, seed=seed, time_limit=time_limit)
    folder, files = RunFolder(agent.run), dict[str, Path]()
    content = {"updates" if agent.config.offline else "env_steps": agent.step, **evaluation.to_dict()}
    content |= {"checkpoint": agent.checkpoint.name, "env": agent.config.eval_env_config.label()}
    content |= {} if time_limit is None else {"time_limit": time_limit}
    try:
        with writing(folder.path):
            write_found(folder.evaluation, content)
            files["evaluation"] = folder.evaluation
            if evaluation.frames is not None:
                path = folder.videos / f"eval-{agent.step:012d}.mp4"
                files["video"] = write_video(path, evaluation.frames, agent.frames_per_second)
    except RunError as error:
        logger.warning(str(error))
    return EvaluationReport(evaluation=evaluation, files=files)

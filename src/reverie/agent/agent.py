"""The agent that :func:`reverie.load` returns: a player that also reads episodes, evaluates and imagines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector.utils import concatenate, create_empty_array

from reverie.agent import agent_file, evaluating, planning, policy_file, reaching, world_model_inspector
from reverie.agent.planning import Plan, SearchResult
from reverie.agent.player import AgentState, Player
from reverie.agent.policy_file import ExportReport
from reverie.agent.reaching import ReachResult
from reverie.agent.world_model_inspector import ImaginedTrajectory, ModelState
from reverie.core.errors import DataError
from reverie.core.rows import episode_rows
from reverie.core.specs import spec_to_dict
from reverie.core.types import Batch
from reverie.datasets.config import dataset_config
from reverie.datasets.data_path import DataLike
from reverie.datasets.dataset import RecordedEpisodes, open_recorded
from reverie.envs.config import EnvLike
from reverie.envs.flat_env import CLIPS
from reverie.experiment.offline import check_dataset_fits
from reverie.run.evaluate import Evaluation
from reverie.run.folder import check_locations
from reverie.run.result import run_html


class Agent(Player):
    """A trained policy, with the same observation and action processing as in training. Made by :func:`reverie.load`.

    Attributes:
        config: settings of the run.
        algo: the learner, with its weights; ``algo.policy`` maps tensors to actions.
        run: run folder.
        checkpoint: folder of the checkpoint that was loaded.
        step: step at which it was written: env steps, or updates in an offline run.
        action_space: Gymnasium space of the actions that :meth:`act` returns.
        observation_space: Gymnasium space of the observations that :meth:`act` takes, declared by the environment or
            the dataset, or inferred; None if the agent observes rendered frames, whose size no space declares.
        obs_spec: observations that the networks receive.
        action_spec: actions that the policy chooses from.
        frames_per_second: of videos in real time, one frame per decision of the policy.
        factory: makes the environment if it was passed from Python; None if it is made from ``config.env.id``.
        eval_factory: the same for the evaluation environments, which ``config.eval_env_config`` describes.
        longest_episode: env steps of the longest training episode before the checkpoint; 0 if unknown.
    """

    def _repr_html_(self) -> str:
        """Show the agent in a notebook: its run's learning curve and newest video, and the next commands."""
        return run_html(repr(self), self.run)

    def load_episode(self, number: int, data: DataLike | None = None) -> Batch:
        """Return a recorded episode as the learner sees it, for example for ``agent.algo.dream(batch, context)``.

        Args:
            number: 0 for the first episode; -1 for the last one. Episodes of a single row count.
            data: a dataset that matches the agent: a path, minari:NAME, data in memory, or a DatasetConfig. None: the
                rows that the run has collected, or the dataset of an offline run.

        Returns:
            All rows of the episode, ``[1, T]``, on the CPU. Rewards are clipped according to ``env.clip_reward``.

        Raises:
            ConfigError: the episode does not exist, or an option is invalid.
            DataError: the data cannot be read, or do not match the agent.
        """
        with self.open_dataset(data) as dataset:
            return dataset.episode(number)

    def make_episode(
        self, observations: Sequence[Any], actions: Sequence[Any], rewards: Any = None, *,
        terminal: bool = False, action_masks: Sequence[Any] | None = None,
    ) -> Batch:  # fmt: skip
        """Convert an episode that you recorded yourself to the rows that the learner sees, for :meth:`observe`.

        Args:
            observations: n + 1 observations, each as for :meth:`act`; the last one follows the last action.
            actions: n actions in ``action_space``, each taken after the observation with the same index.
            rewards: n rewards, each received for the action with the same index. None: 0.
            terminal: whether the last observation is terminal.
            action_masks: n + 1 masks, for agents with action masks.

        Returns:
            n + 1 rows, ``[1, n + 1]``, on the CPU.

        Raises:
            DataError: an observation or an action is not in its space, or their numbers do not match.
        """
        count, steps = len(observations), len(actions)
        masks = [None] * count if action_masks is None else action_masks
        if count != steps + 1 or len(masks) != count or not steps:
            raise DataError(
                f"{count} observations, {steps} actions, {len(masks)} masks: expected n >= 1 actions, and n + 1 "
                "observations and masks; the last ones follow the last action."
            )
        (stack,), obs_list = self.observer.stacks(1), list[dict[str, np.ndarray]]()
        for number, (obs, mask) in enumerate(zip(observations, masks, strict=True)):
            row = self.observer(self.observer.count_obs(obs)[1], stack, number == 0, mask, number == steps)
            obs_list.append({key: x.copy() for key, x in row.items()})  # a stack reuses its memory
        out: Any = create_empty_array(self.action_space, steps)
        action_rows = self.flatten_actions(concatenate(self.action_space, list(actions), out), steps)
        reward = np.zeros(steps, np.float32) if rewards is None else np.asarray(rewards, np.float32)
        if self.config.env.clip_reward in CLIPS:
            reward = np.array([CLIPS[self.config.env.clip_reward](x) for x in reward.tolist()], np.float32)
        obs_arrays = {key: np.stack([flat_obs[key] for flat_obs in obs_list]) for key in obs_list[0]}
        columns = episode_rows(obs_arrays, action_rows, reward, terminal=terminal)
        tensors = {name: torch.from_numpy(values)[None] for name, values in columns.items()}
        return Batch.from_columns(tensors, torch.zeros(1, dtype=torch.int64))

    def observe(self, batch: Batch, *, seed: int | None = None) -> ModelState:
        """Return the world model's state after the rows of a batch ``[B, T]``.

        The batch contains beginnings of episodes: ``agent.load_episode(0).slice_time(0, 20)``, or your own episodes
        (:meth:`make_episode`). If it starts later in an episode, the model observes it as if it were the beginning.
        ``seed``: for sampling the latents; None: derived from the run's seed.

        Raises:
            ConfigError: the algorithm has no world model.
        """
        return world_model_inspector.observe(self, batch, seed)

    def imagine(
        self, state: ModelState | AgentState, steps: int | None = None, *,
        actions: Any = None, deterministic: bool = True, seed: int | None = None,
    ) -> ImaginedTrajectory:  # fmt: skip
        """Imagine a trajectory from a state of the world model, which can be edited (:meth:`ModelState.replace`).

        Args:
            state: B states, from :meth:`observe`, :meth:`ImaginedTrajectory.state` or :meth:`act`.
            steps: T, the number of imagined steps (decisions of the policy). None: as many as there are ``actions``, or
                15.
            actions: actions to take, ``[T, A]`` or ``[B, T, A]`` in the format of rows (:meth:`flatten_actions`). None:
                the policy acts.
            deterministic: the policy takes its most likely actions. False: it samples them.
            seed: for sampling latents and actions; the same seed gives the same trajectory. None: derived from the
                run's seed.

        Raises:
            ConfigError: the algorithm has no world model.
            DataError: the actions have another shape.
        """
        return world_model_inspector.imagine_trajectory(
            self, state, steps, actions=actions, deterministic=deterministic, seed=seed
        )

    def probe(self, state: ModelState | AgentState, inputs: Mapping[str, Any] | None = None) -> dict[str, np.ndarray]:
        """Return the predictions of the probes (``algo.probe`` of DreamerV2 and V3) for states, by key, ``[B, ...]``.

        Vectors are in the observation's units ``[B, *shape]``; categorical observations are class probabilities ``[B,
        n, C]``. ``inputs``: additional inputs of the probes (``ProbeHead.inputs``), by key, ``[B, *shape]`` or without
        B; probes with missing inputs are omitted.

        Raises:
            ConfigError: the algorithm has no probes.
        """
        return world_model_inspector.probe(self, state, inputs)

    def steer(
        self, state: ModelState | AgentState, probe: Mapping[str, Any], inputs: Mapping[str, Any] | None = None, *,
        steps: int = 200, lr: float = 0.01,
    ) -> ModelState:  # fmt: skip
        """Return states with changed probe predictions, to imagine from: Adam optimizes h by gradient steps.

        The latents z do not change. To see whether the world model interprets such a state like the probe, continue the
        dream.

        Args:
            state: B states, as :meth:`imagine` takes them.
            probe: target predictions of the probes, by key, ``[B, *shape]`` or ``[*shape]``; classes as indices.
            inputs: inputs of these probes, as in :meth:`probe`.
            steps: number of gradient steps on -ln p of ``probe``.
            lr: learning rate, which is also the largest change of an element of h per step.

        Raises:
            ConfigError: the algorithm has no probes.
            DataError: the probe does not exist.
        """
        return world_model_inspector.steer(self, state, probe, inputs, steps=steps, lr=lr)

    def reach(
        self, goal: Any, env: gymnasium.Env[Any, Any] | str | None = None, *,
        max_steps: int | None = None, radius: float | None = None, seed: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> ReachResult:  # fmt: skip
        """Play one episode toward a goal, with a goal-conditioned agent.

        Args:
            goal: the observation to reach, as for :meth:`act`. ``env.reset`` gets it as the option ``goal``.
            env: the environment, or its id. None: a new one, as in training.
            max_steps: actions after which the episode is over. None: ``episode_limit``, or the own limit of the
                environment if it is higher.
            radius: distance from the goal within which it is reached: Euclidean, of pictures the mean difference of
                pixels in [0, 1]. None: the environment judges by ``info["success"]``, if the goal that it observes is
                this one.
            seed: of the environment.
            options: more options of ``env.reset``.

        Raises:
            ConfigError: the algorithm does not act toward goals, or an argument is out of range.
            DataError: the goal does not fit the observations.
        """
        return reaching.reach(self, goal, env, max_steps=max_steps, radius=radius, seed=seed, options=options)

    def plan(self, obs: Any, goal: Any = None, *, state: AgentState | None = None, action_mask: Any = None) -> Plan:
        """Return what an agent that plans intends to do; the arguments are those of :meth:`act`.

        LeWM plans to a goal. For TD-MPC2 and BMPC it is the mean of the plan, for MuZero the principal variation of its
        search. Random generators do not advance.

        Returns:
            ``actions`` to take, as :meth:`act` returns them, one after the other; and tensors ``[1, ...]``, or
            ``[N, ...]`` for batches: the predicted ``latents`` and their ``values``, or ``costs`` of LeWM, the squared
            distances to the goal's latent.

        Raises:
            ConfigError: the algorithm does not plan, or not to goals.
            DataError: the observation or the goal does not fit.
        """
        return planning.plan(self, obs, goal, state, action_mask)

    def search(
        self, obs: Any, simulations: int | None = None, *, state: AgentState | None = None, action_mask: Any = None
    ) -> SearchResult:
        """Search from a single observation, as MuZero does in :meth:`act`; the other arguments are those of ``act``.

        DreamerV3 and R2-Dreamer with one discrete action are searched in their latents. ``simulations``: nodes that the
        search adds to the tree, at least 2. None: as in training; 16 for a Dreamer.

        Raises:
            ConfigError: the algorithm does not search.
            DataError: the observation does not fit.
        """
        return planning.search(self, obs, simulations, state, action_mask)

    def subgoal(self, obs: Any, goal: Any, states: Any) -> int:
        """Return which of N ``states`` is nearest to where HIQL aims first, on the way from an observation to a goal.

        ``obs`` and ``goal``: as for :meth:`act`. ``states``: a batch of observations, such as recorded ones.

        Raises:
            ConfigError: the algorithm chooses no subgoals.
            DataError: the observation, the goal or a state does not fit.
        """
        return reaching.subgoal(self, obs, goal, states)

    def save(self, path: Path | str) -> Path:
        """Write the agent as it is now to one file, which :func:`reverie.load` reads: weights, settings and spaces.

        The file has no rows, no optimizers and no code. ``path`` without a suffix gets ``.zip``. An existing file is
        replaced. :func:`reverie.push` shares the agent with its page; :meth:`export` needs no reverie to run.

        Returns:
            The path of the file.

        Raises:
            RunError: the file cannot be written.
        """
        return agent_file.save_agent(self, Path(path))

    def export(self, out: Path | str | None = None, **options: Any) -> ExportReport:
        """Export the policy to a file that runs without reverie: see :func:`reverie.export`."""
        return policy_file.export_policy(self, out, **options)

    @contextlib.contextmanager
    def open_dataset(self, data: DataLike | None = None) -> Iterator[RecordedEpisodes]:
        """Open a dataset, to read rows as the learner sees them; ``data`` and errors as in :meth:`load_episode`."""
        source = dataset_config(self.run if data is None else data)
        if data is None and self.config.offline:
            source = self.config.data
            check_locations({"data": source.to_dict()}, self.run / "config.yaml")
        env, learner_space = self.config.env, self.observer.learner_space
        with contextlib.closing(open_recorded(source, env, self.action_space, learner_space)) as dataset:
            check_dataset_fits(dataset, spec_to_dict(self.obs_spec, self.action_spec), env.id, self.config.algo)
            yield dataset

    def evaluate(
        self, episodes: int = 10, *,
        env: EnvLike | Mapping[str, Any] | None = None, deterministic: bool = True, record: bool = False,
        seed: int | None = None, max_episode_steps: int | None = None, tasks: tuple[int, ...] = (),
        opponent: Player | Path | str | None = None, simulations: int | None = None,
    ) -> Evaluation:  # fmt: skip
        """Play whole episodes in new environments, and sum their true, unclipped rewards.

        Episodes that do not end are cut off after ``episode_limit`` steps; ``Evaluation.cut_off`` is their number. The
        environment is the one passed to :func:`reverie.load`, or else the run's evaluation environment (``eval_env``).

        Args:
            episodes: number of episodes, at least 1.
            env: another environment with the same spaces, as for :func:`reverie.load`. An instance stays open.
            deterministic: take the policy's most likely actions. False: sample them.
            record: keep the frames of the first episode.
            seed: of environments and actions. None: the seed of the run's final evaluation, from ``config.seed``. To
                compare agents, give all of them the same seed and number of episodes.
            max_episode_steps: maximum decisions per episode, at least 1. None: the limit of the run's environment.
            tasks: tasks of the episodes, in turn, in an environment with tasks. Empty: those of the run.
            opponent: in games of two players, another agent, or its run, ``"RUN"`` or ``"RUN@STEP"``; ``"perfect"``, if
                the solution of the game is known; or ``"random"``. None: random moves, and the strength is measured,
                if the solution is known.
            simulations: act by tree searches of so many nodes, at least 2, in the model of ``muzero``, or in the
                latents of ``dreamer_v3``, ``plan2explore_v3`` or ``r2dreamer`` with one discrete action. None: as
                trained.

        Raises:
            ConfigError: ``episodes``, ``seed``, ``max_episode_steps``, ``tasks`` or ``simulations`` is out of range, or
                ``env`` or ``opponent`` has other spaces, or the agent has no model for a search.
            EnvError: the environment cannot be made.
        """
        return evaluating.evaluate_agent(
            self, episodes, env=env, deterministic=deterministic, record=record, seed=seed,
            max_episode_steps=max_episode_steps, tasks=tasks, opponent=opponent, simulations=simulations,
        )  # fmt: skip

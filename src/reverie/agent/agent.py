"""The agent that :func:`reverie.load` returns: a player that also reads episodes, evaluates and imagines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import ArrayLike

from reverie.agent import agent_file, policy_file
from reverie.agent.evaluating import EvaluationMethods
from reverie.agent.planning import PlanMethods
from reverie.agent.policy_file import ExportReport
from reverie.agent.reaching import GoalMethods
from reverie.agent.world_model_inspector import WorldModelMethods
from reverie.core.errors import DataError
from reverie.core.rows import episode_rows
from reverie.core.specs import spec_to_dict
from reverie.core.types import Batch
from reverie.datasets.config import dataset_config
from reverie.datasets.data_path import DataLike
from reverie.datasets.dataset import RecordedEpisodes, open_recorded
from reverie.experiment.offline import check_dataset_fits
from reverie.run.folder import check_locations
from reverie.run.result import run_html


class Agent(WorldModelMethods, PlanMethods, GoalMethods, EvaluationMethods):
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
        self, observations: Sequence[Any], actions: Sequence[Any], rewards: ArrayLike | None = None, *,
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
        reward = self.clip_rewards(np.zeros(steps) if rewards is None else rewards)
        obs_arrays = {key: np.stack([flat_obs[key] for flat_obs in obs_list]) for key in obs_list[0]}
        columns = episode_rows(obs_arrays, action_rows, reward, terminal=terminal)
        tensors = {name: torch.from_numpy(values)[None] for name, values in columns.items()}
        return Batch.from_columns(tensors, torch.zeros(1, dtype=torch.int64))

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

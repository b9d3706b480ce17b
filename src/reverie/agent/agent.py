"""The agent that users hold: a player, and what can be asked of it. Each method is a function of another module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from reverie.agent import evaluating, policy_file, probing, recorded, world_model_inspector
from reverie.agent.player import AgentState, Player
from reverie.agent.policy_file import ExportReport
from reverie.agent.world_model_inspector import ImaginedTrajectory, ModelState
from reverie.core.types import Batch
from reverie.datasets.dataset import RecordedEpisodes
from reverie.datasets.in_memory import DataLike
from reverie.run.evaluate import Evaluation


class Agent(Player):
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

    def load_episode(self, number: int, data: DataLike | None = None) -> Batch:
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
        return recorded.load_episode(self, number, data)

    def make_episode(
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
        return recorded.make_episode(self, observations, actions, rewards, terminal=terminal, action_masks=action_masks)

    def observe(self, batch: Batch, *, seed: int | None = None) -> ModelState:
        """Return the world model's state after the rows of a batch ``[B, T]``.

        The batch holds beginnings of episodes: ``agent.load_episode(0).rows(0, 20)``, or episodes of your own
        (:meth:`make_episode`). The model observes a later part as if nothing had been before. ``seed``: of the latents,
        which are drawn; None: follows from the run's seed.

        Raises:
            ConfigError: the algorithm has no world model.
        """
        return world_model_inspector.observe(self, batch, seed)

    def imagine(
        self, state: ModelState | AgentState, steps: int | None = None, *,
        actions: Any = None, deterministic: bool = True, seed: int | None = None,
    ) -> ImaginedTrajectory:  # fmt: skip
        """Imagine on from a state of the world model, which may have been edited (:meth:`ModelState.replace`).

        Args:
            state: B states, from :meth:`observe` or :meth:`ImaginedTrajectory.state`, or as :meth:`act` returned it.
            steps: T, imagined steps: decisions of the policy. None: as many as there are ``actions``, or 15.
            actions: to be taken, ``[T, A]`` or ``[B, T, A]`` as rows hold them (:meth:`flatten_actions`). None: the
                policy acts.
            deterministic: the policy takes its most likely actions. False: it samples them.
            seed: of latents and drawn actions; the same one imagines the same again. None: follows from the run's seed.

        Raises:
            ConfigError: the algorithm has no world model.
            DataError: the actions have another shape.
        """
        return world_model_inspector.imagine_trajectory(
            self, state, steps, actions=actions, deterministic=deterministic, seed=seed
        )

    def probe(self, state: ModelState | AgentState, inputs: Mapping[str, Any] | None = None) -> dict[str, np.ndarray]:
        """Return what probes (``algo.probe`` of DreamerV2 and V3) read from states, by key, ``[B, ...]``.

        Vectors are in their own units ``[B, *shape]``; of categorical ones the class probabilities ``[B, n, C]``.
        ``inputs``: what probes are given beside the state (``ProbeHead.inputs``), by key, ``[B, *shape]`` or without B;
        probes of which something is absent are left out.

        Raises:
            ConfigError: the algorithm has no probes.
        """
        return probing.probe(self, state, inputs)

    def steer(
        self, state: ModelState | AgentState, probe: Mapping[str, Any], inputs: Mapping[str, Any] | None = None, *,
        steps: int = 200, lr: float = 0.01,
    ) -> ModelState:  # fmt: skip
        """Return states that the probes read otherwise, to imagine on from: h is moved by gradient steps of Adam.

        The latents z stay. Whether the world model takes such a state as the probe does is what dreaming on shows.

        Args:
            state: B states, as :meth:`imagine` takes them.
            probe: what probes shall predict, by key, ``[B, *shape]`` or ``[*shape]``: classes as numbers.
            inputs: see :meth:`probe`; what these probes are given.
            steps: gradient steps on -ln p of ``probe``.
            lr: learning rate, the largest change of a number of h in a step.

        Raises:
            ConfigError: the algorithm has no probes.
            DataError: there is no such probe.
        """
        return probing.steer(self, state, probe, inputs, steps=steps, lr=lr)

    def export(self, out: Path | str | None = None, **options: Any) -> ExportReport:
        """Write the policy as a file that runs without this library: see :func:`reverie.export`."""
        return policy_file.export_policy(self, out, **options)

    def open_dataset(self, data: DataLike | None = None) -> AbstractContextManager[RecordedEpisodes]:
        """Open recorded data, to read rows as the learner sees them; ``data`` and errors as in :meth:`load_episode`."""
        return recorded.open_dataset(self, data)

    def evaluate(
        self, episodes: int = 10, *,
        deterministic: bool = True, record: bool = False, seed: int | None = None, max_episode_steps: int | None = None,
    ) -> Evaluation:  # fmt: skip
        """Play whole episodes in new environments, and count their true rewards, not clipped ones.

        Those that do not end are cut off after ``episode_limit`` steps: ``Evaluation.cut_off`` says how many.
        They are those that :func:`reverie.load` was given, or else those in which the run was evaluated (``eval_env``).

        Args:
            episodes: how many, at least 1.
            deterministic: take the policy's most likely actions. False: sample them.
            record: keep the frames of the first episode.
            seed: of environments and actions. None: the seed of the run's final evaluation, from ``config.seed``. To
                compare agents, give all of them the same seed and number of episodes.
            max_episode_steps: most decisions of an episode, at least 1. None: that of the run's environment.

        Raises:
            ConfigError: ``episodes``, ``seed`` or ``max_episode_steps`` is out of range.
            EnvError: the environment cannot be made.
        """
        return evaluating.evaluate_agent(
            self, episodes, deterministic=deterministic, record=record, seed=seed, max_episode_steps=max_episode_steps
        )

"""How many dreams are right: the agent or chance plays whole episodes, and the model imagines them from the actions."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from reverie.agent.agent import Agent
from reverie.agent.dream_report import open_played_episodes, predict_open_loop, stack_windows
from reverie.agent.dream_strip import make_dream_strip
from reverie.algos.base import prediction_name
from reverie.core.seeding import derived_seeds, seeded_rng
from reverie.core.specs import MASK_KEY, ActionSpec
from reverie.core.types import Batch, Mode, Step
from reverie.nn.exploration import StatelessStorage
from reverie.run.collect import random_flat_actions

CONTEXT = 1
"""Rows that the model observes before it dreams."""


class RightDreams(NamedTuple):
    """Of ``total`` dreams, how many do not part from their episode."""

    right: int
    total: int


class RandomPolicy(StatelessStorage[Any]):
    """Takes uniformly random legal actions."""

    def __init__(self, spec: ActionSpec, seed: int) -> None:
        self._spec, self._rng = spec, np.random.default_rng(seed)

    def initial(self, num_envs: int) -> Any:
        """Return None: there is no state."""

    def act(self, step: Step, state: Any, mode: Mode) -> tuple[Tensor, Any]:
        """Return flat actions ``[N, A]``, and ``state`` as it is."""
        return random_flat_actions(self._spec, len(step), self._rng, step.obs.get(MASK_KEY)), state


def play_beginnings(agent: Agent, episodes: int = 100, *, random: bool = False) -> list[Batch]:
    """Play new episodes with the agent's actions or ``random`` ones; return batches ``[B, T]`` of one length each.

    Episodes are cut off one row and ``algo.horizon`` steps after their first row.

    Raises:
        EnvError: the environment cannot be made.
    """
    seed = derived_seeds(agent.config.seed)["test"]
    policy = RandomPolicy(agent.action_spec, seed) if random else None
    source = open_played_episodes(agent, CONTEXT + dream_horizon(agent), "eval", seed, policy, episodes)
    with source as (played, _), seeded_rng(seed):
        return _group_by_length(itertools.islice(played, episodes))


def dream_horizon(agent: Agent) -> int:
    """Return how many steps the agent dreams while it trains; 15 if it does not."""
    return int(getattr(agent.config.algo, "horizon", 15))


def count_right_dreams(agent: Agent, batches: Sequence[Batch]) -> RightDreams:
    """Return how many dreams of episodes are right: the model observes the first row and imagines the others.

    A dream is right if no row of :func:`make_dream_strip` parts from the episode.

    Raises:
        ConfigError: the algorithm has no world model.
    """
    with seeded_rng(derived_seeds(agent.config.seed)["test"]):
        verdicts = [is_right for batch in batches for is_right in judge_dreams(agent, batch)]
    return RightDreams(sum(verdicts), len(verdicts))


def _group_by_length(episodes: Iterable[Batch]) -> list[Batch]:
    """Return episodes ``[1, T]`` of more than a row as batches ``[B, T]`` of one length each."""
    groups = defaultdict[int, list[Batch]](list)
    for episode in episodes:
        groups[episode.shape[1]].append(episode)
    return [stack_windows(group) for length, group in sorted(groups.items()) if length > CONTEXT]


def judge_dreams(agent: Agent, batch: Batch) -> Sequence[bool]:
    """Return for each episode of a batch ``[B, T]`` whether its dream is right."""
    predicted = predict_open_loop(agent, batch, CONTEXT)
    origins = ["seen"] * CONTEXT + ["imagined"] * (batch.shape[1] - CONTEXT)
    real = {prediction_name(key): x.numpy() for key, x in batch.obs.items()} | {"reward": batch.reward.numpy()}
    return [
        make_dream_strip(
            agent.obs_spec, {k: x[i] for k, x in real.items()}, {k: x[i] for k, x in predicted.items()}, origins,
            is_terminal=bool(batch.is_terminal[i, -1]),
        ).parting is None
        for i in range(batch.shape[0])
    ]  # fmt: skip

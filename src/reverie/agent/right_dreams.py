"""How many dreams are right: the agent or chance plays whole episodes, and the model imagines them from the actions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from reverie.agent.agent import Agent
from reverie.agent.dream_figures import Arrays
from reverie.agent.dream_report import open_played_episodes, predict_open_loop, stack_windows
from reverie.agent.dream_strip import make_dream_strip
from reverie.algos.base import prediction_name
from reverie.core.files import write_json
from reverie.core.logger import logger
from reverie.core.seeding import derived_seeds, seeded_rng
from reverie.core.specs import MASK_KEY, ActionSpec
from reverie.core.types import FLAGS, Batch, Mode, Step
from reverie.log.right_dreams import RIGHT_DREAMS
from reverie.log.strip import Strip
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
    """Play new episodes with the agent's actions or ``random`` ones; return those of more than a row, ``[1, T]`` each.

    Episodes are cut off one row and ``algo.horizon`` steps after their first row.

    Raises:
        EnvError: the environment cannot be made.
    """
    seed = derived_seeds(agent.config.seed)["test"]
    policy = RandomPolicy(agent.action_spec, seed) if random else None
    source = open_played_episodes(agent, CONTEXT + dream_horizon(agent), "eval", seed, policy, episodes)
    with source as (played, _), seeded_rng(seed):
        return [episode for episode in itertools.islice(played, episodes) if episode.shape[1] > CONTEXT]


def dream_horizon(agent: Agent) -> int:
    """Return how many steps the agent dreams while it trains; 15 if it does not."""
    return int(getattr(agent.config.algo, "horizon", 15))


def count_right_dreams(agent: Agent, episodes: Sequence[Batch]) -> RightDreams:
    """Return how many dreams of episodes ``[1, T]`` are right: see :func:`dream_episodes`.

    Raises:
        ConfigError: the algorithm has no world model.
    """
    return count_right(dream_again(agent, episodes))


def dream_again(agent: Agent, episodes: Sequence[Batch]) -> list[tuple[Arrays, Strip]]:
    """Return :func:`dream_episodes`, with the same random numbers each time."""
    with seeded_rng(derived_seeds(agent.config.seed)["test"]):
        return dream_episodes(agent, episodes)


def count_right(dreams: Sequence[tuple[Arrays, Strip]]) -> RightDreams:
    """Return how many of ``dreams`` are right."""
    return RightDreams(sum(strip.parting is None for _, strip in dreams), len(dreams))


def dream_episodes(agent: Agent, episodes: Sequence[Batch], context: int = CONTEXT) -> list[tuple[Arrays, Strip]]:
    """Let the model observe ``context`` rows of longer episodes ``[1, T]``, and imagine the others from the actions.

    Returns:
        For each episode the predictions ``[T, ...]``, and the strip. The dream is right if no row of the strip parts
        from the episode.
    """
    if not episodes:
        return []
    longest = max(episode.shape[1] for episode in episodes)
    predicted = predict_open_loop(agent, stack_windows([_pad(episode, longest) for episode in episodes]), context)
    parts = [{k: x[i, : episode.shape[1]] for k, x in predicted.items()} for i, episode in enumerate(episodes)]
    return [(part, _make_strip(agent, episode, part, context)) for part, episode in zip(parts, episodes, strict=True)]


def _pad(episode: Batch, length: int) -> Batch:
    """Return an episode ``[1, T]`` with its last row repeated, ``[1, length]``: all are dreamt in one batch."""
    rows = torch.arange(length).clamp(max=episode.shape[1] - 1)
    columns = {name: getattr(episode, name)[:, rows] for name in ("action", "reward", *FLAGS)}
    return replace(episode, obs={key: x[:, rows] for key, x in episode.obs.items()}, extras={}, **columns)


def _make_strip(agent: Agent, episode: Batch, predicted: Arrays, context: int) -> Strip:
    real = {prediction_name(key): x[0].numpy() for key, x in episode.obs.items()} | {
        "reward": episode.reward[0].numpy()
    }
    origins = ["seen"] * context + ["imagined"] * (episode.shape[1] - context)
    return make_dream_strip(agent.obs_spec, real, predicted, origins, is_terminal=bool(episode.is_terminal[0, -1]))


def save_right_dreams(run: Path, counts: Iterable[tuple[int, int, int]], title: str, unit: str) -> None:
    """Keep how many dreams of snapshots are right, ``(step, right, total)``; draw the learning curve of the run again.

    A disk error is only reported.
    """
    from reverie.log.plot import plot_learning_curve  # matplotlib takes long to import

    path = run / f"{RIGHT_DREAMS}.json"
    try:
        path.parent.mkdir(exist_ok=True)
        write_json(path, {str(step): [right, total] for step, right, total in counts})
        if (curve := run / "curve.png").is_file():
            plot_learning_curve(run / "metrics.jsonl", curve, title, unit)
    except OSError as error:
        logger.warning(f"cannot write: {error}")

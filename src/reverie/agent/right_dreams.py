"""How many dreams are right: the agent or chance plays whole episodes, and the model imagines them from the actions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch

from reverie.agent.agent import Agent
from reverie.agent.dream_figures import Arrays
from reverie.agent.dream_report import make_episode_strip, open_played_episodes, predict_open_loop, stack_windows
from reverie.core.seeding import derived_seeds, seeded_rng
from reverie.core.statistics import Share
from reverie.core.types import FLAGS, Batch
from reverie.log.strip import Strip
from reverie.run.match import RandomPolicy

CONTEXT = 1
"""Rows that the model observes before it dreams."""


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


def dream_again(agent: Agent, episodes: Sequence[Batch]) -> list[tuple[Arrays, Strip]]:
    """Return :func:`dream_episodes`, with the same random numbers each time."""
    with seeded_rng(derived_seeds(agent.config.seed)["test"]):
        return dream_episodes(agent, episodes)


def count_right(dreams: Sequence[tuple[Arrays, Strip]]) -> Share:
    """Return how many of ``dreams`` do not part from their episode."""
    return Share(sum(strip.parting is None for _, strip in dreams), len(dreams))


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
    strips = [make_episode_strip(agent, x, part, context) for x, part in zip(episodes, parts, strict=True)]
    return list(zip(parts, strips, strict=True))


def _pad(episode: Batch, length: int) -> Batch:
    """Return an episode ``[1, T]`` with its last row repeated, ``[1, length]``: all are dreamt in one batch."""
    rows = torch.arange(length).clamp(max=episode.shape[1] - 1)
    columns = {name: getattr(episode, name)[:, rows] for name in ("action", "reward", *FLAGS)}
    return replace(episode, obs={key: x[:, rows] for key, x in episode.obs.items()}, extras={}, **columns)

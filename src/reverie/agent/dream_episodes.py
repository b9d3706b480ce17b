"""The episodes that a world model predicts: played by the agent, or read from recorded data."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from reverie.agent.agent import Agent
from reverie.core.errors import RunError
from reverie.core.protocols import Env
from reverie.core.types import FLAGS, Batch, Mode, Step
from reverie.core.words import Say, plural
from reverie.datasets.dataset import DatasetConfig
from reverie.experiment import make_eval_env
from reverie.run.collect import executed

CONTEXT = 8
"""Most rows that the model sees, unless others are asked for."""
MAX_EPISODES = 50
"""Most episodes that are played to find some that are long enough."""

Episodes = tuple[Iterator[Batch], dict[str, str]]
"""The rows of one episode after the other, ``[1, T]`` each, and what dream.json says of where they are from."""


@contextlib.contextmanager
def played(agent: Agent, longest: int, mode: Mode, seed: int) -> Iterator[Episodes]:
    """Make the environment, to play up to ``MAX_EPISODES`` episodes, each cut off after ``longest`` rows."""
    config = agent.config.merge({"eval_envs": 1, "eval_episodes": 1})
    env = make_eval_env(config, agent.factory, true_rewards=False)
    try:
        yield _episodes(env, agent, longest, mode, seed), {"actions": "mode" if mode == "eval" else "sample"}
    finally:
        env.close()


@contextlib.contextmanager
def recorded(agent: Agent, data: DatasetConfig | Path | str, longest: int, say: Say) -> Iterator[Episodes]:
    """Open recorded data, to read their episodes, each cut off after ``longest`` rows; then say their remarks."""
    with agent.recorded(data) as found:
        yield found.beginnings(longest), {"data": str(found.reader.path)}
        for remark in found.remarks():
            say(f"{found.reader.path}: {remark}")


def fitting(episodes: Iterator[Batch], sequences: int) -> tuple[int, Iterator[Batch]]:
    """Return how many rows to show: a third of the usual length, 1 to ``CONTEXT``; and the same episodes ``[1, T]``.

    The usual length is the median of the first ``sequences`` episodes.
    """
    first = list(itertools.islice(episodes, sequences))
    lengths = sorted(rows_of(episode) for episode in first) or [0]
    return max(1, min(CONTEXT, lengths[len(lengths) // 2] // 3)), itertools.chain(first, episodes)


def gather(episodes: Iterable[Batch], context: int, sequences: int, enough: int, horizon: int) -> Batch:
    """Return the beginnings of up to ``sequences`` episodes ``[1, T]`` as one batch ``[B, T]``, cut to one length T.

    T is at most ``context + horizon``. They are the first with ``enough`` rows or, if ``episodes`` end before there are
    so many, also the longest others.

    Raises:
        RunError: no episode has more rows than ``context``.
    """
    long: list[Batch] = []
    count = 0
    for episode in episodes:
        count += 1
        if rows_of(episode) > context:
            long.append(episode)
        if len(long) > sequences:
            del long[min(range(len(long)), key=lambda i: (rows_of(long[i]), -i))]  # the latest of the shortest
        if sum(rows_of(episode) >= enough for episode in long) == sequences:
            break
    if not long:
        raise RunError(
            f"none of {plural(count, 'episode')} is longer than context = {context} rows, so no rows are left to "
            "predict. Use a smaller --context."
        )
    # A few long dreams are better than many short ones: cut to the length that half of the episodes have.
    lengths = sorted(rows_of(episode) for episode in long)
    length = min(lengths[len(lengths) // 2], context + horizon)
    return stacked([episode.rows(0, length) for episode in long if rows_of(episode) >= length])


def rows_of(batch: Batch) -> int:
    """Return T of a batch ``[B, T]``."""
    return batch.shape[1]


def stacked(batches: list[Batch]) -> Batch:
    """Return batches ``[1, T]`` of one length as one ``[B, T]``."""
    names = ("action", "reward", *FLAGS, "weight", "index")
    return Batch(
        obs={key: torch.cat([batch.obs[key] for batch in batches]) for key in batches[0].obs},
        **{name: torch.cat([getattr(batch, name) for batch in batches]) for name in names},
        extras={},
    )


def _episodes(env: Env, agent: Agent, longest: int, mode: Mode, seed: int) -> Iterator[Batch]:
    """Yield one episode after the other as rows ``[1, T]``, each cut off after ``longest`` rows."""
    policy = agent.algo.policy
    for number in range(MAX_EPISODES):
        step, state = env.reset(seed if number == 0 else None), agent.initial_state(1)
        steps: list[Step] = []
        actions: list[Tensor] = []
        while True:
            action, state = policy.act(step, state, mode)
            steps.append(step)
            actions.append(executed(action, step))
            if len(steps) == longest or bool(step.is_last[0]):
                break
            step = env.step(actions[-1])
        columns = {f"obs/{key}": torch.stack([step.obs[key] for step in steps], 1) for key in step.obs}
        columns |= {name: torch.stack([getattr(step, name) for step in steps], 1) for name in ("reward", *FLAGS)}
        yield Batch.of_columns({**columns, "action": torch.stack(actions, 1)}, torch.tensor([number]))

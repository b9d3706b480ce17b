"""Making the rows of an episode, and cutting a stream of rows into episodes, and episodes into pieces."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from reverie.core.errors import DataError
from reverie.core.types import FLAGS
from reverie.datasets.reader import Rows

WRONG_ENDS = (
    "Check what marks the ends of episodes: a column for episode has one value in all steps of an episode (a timestamp "
    "or a step number has another in each), and a flag is true in the last step only"
)
"""What to do about data of which most rows are episodes without a step."""


def mostly_stepless(rows: int, stepless: int) -> str:
    """Return that most of the data would be left out, and why; "" if not.

    ``stepless``: how many of the ``rows`` are episodes of a single row, an observation without an action after it.
    """
    if 2 * stepless <= rows:
        return ""
    return (
        f"{stepless:,} of the {rows:,} rows are episodes of a single row, without a step, from which nothing can be "
        f"learned. {WRONG_ENDS}"
    )


def worth_the_same(rewards: tuple[float, float], terminal: int) -> str:
    """Return that by these data every policy has the same value, and what to do; "" if that is not so.

    Args:
        rewards: the smallest and the largest reward.
        terminal: number of episodes that end terminally. The values of all others go on beyond their ends.
    """
    least, most = rewards
    if least != most or (terminal and least):
        return ""
    ends = " and no episode ends terminally" if least else ""
    return (
        f"all rewards are {least:g}{ends}, so by these data every policy is worth the same, and at best the recorded "
        f"actions are imitated. {'Mark where episodes ended for good, or use' if least else 'Use'} rewards that differ"
    )


def episode_rows(
    obs: np.ndarray | Mapping[str, np.ndarray],
    action: np.ndarray | Mapping[str, np.ndarray],
    reward: np.ndarray,
    *,
    terminal: bool,
) -> Rows:
    """Return an episode of n steps as its n + 1 rows, columns ``[n + 1, ...]`` by name.

    Args:
        obs: observations ``[n + 1, ...]``, of which the last is what the last action led to. Several are a mapping;
            ``{"arm": ...}`` becomes the column ``obs/arm``.
        action: actions ``[n, ...]``, or several of them as a mapping.
        reward: ``[n]``, what each action was answered with.
        terminal: whether the episode ended terminated, so that nothing is worth anything after it; else it was
            truncated.

    Raises:
        DataError: the lengths do not fit together, or there is no step.
    """
    seen, done = _columns(obs, "obs"), _columns(action, "action")
    reward = np.asarray(reward)
    steps = len(reward) if reward.ndim else 0
    for name, values in {**seen, **done, "reward": reward}.items():
        expected = steps + 1 if name in seen else steps
        if not values.ndim or len(values) != expected or not steps:
            raise DataError(
                f"{name} has shape {list(values.shape)} in an episode with rewards of shape {list(reward.shape)}: "
                "expected n >= 1 rewards [n], n actions [n, ...], and n + 1 observations [n + 1, ...], of which the "
                "last is what the last action led to."
            )
    flags = {name: np.zeros(steps + 1, bool) for name in FLAGS}
    flags["is_first"][0], flags["is_last"][-1], flags["is_terminal"][-1] = True, True, bool(terminal)
    unused = {name: np.concatenate([values, np.zeros_like(values[:1])]) for name, values in done.items()}
    return {**seen, **unused, "reward": np.concatenate([np.zeros(1, reward.dtype), reward]), **flags}


def _columns(values: np.ndarray | Mapping[str, np.ndarray], root: str) -> Rows:
    if isinstance(values, Mapping):
        return {f"{root}/{key}": np.asarray(inner) for key, inner in values.items()}
    return {root: np.asarray(values)}


def episodes_of(parts: Iterable[Rows]) -> Iterator[Rows]:
    """Yield every episode, ``[n, ...]`` by column. Needs the memory of one part and one episode."""
    held: list[Rows] = []
    for part in parts:
        first = part["is_first"]
        edges = [0, *np.flatnonzero(first[1:]) + 1, len(first)]
        for start, stop in itertools.pairwise(edges):
            if held and first[start]:
                yield joined(held)
                held = []
            held.append({name: values[start:stop] for name, values in part.items()})
    if held:
        yield joined(held)


def joined(pieces: list[Rows]) -> Rows:
    """Return the pieces concatenated."""
    if len(pieces) == 1:
        return pieces[0]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def chosen(lengths: np.ndarray, steps: int, seed: int) -> np.ndarray:
    """Return a mask ``[E]`` of random episodes with ``steps`` steps or more in all. ``lengths`` ``[E]`` is in steps."""
    order = np.random.default_rng(seed).permutation(len(lengths))
    before = np.cumsum(lengths[order]) - lengths[order]
    out = np.zeros(len(lengths), bool)
    out[order[before < steps]] = True
    return out


def drawn(total: int, steps: int, seed: int) -> np.ndarray:
    """Return a mask ``[total]`` of ``steps`` random steps."""
    out = np.zeros(total, bool)
    out[np.random.default_rng(seed).permutation(total)[:steps]] = True
    return out


def pieces_of(episode: Rows, kept: np.ndarray) -> Iterator[Rows]:
    """Yield each unbroken run of ``kept`` steps ``[n - 1]`` as an episode of its own.

    A piece has the rows of its steps and the row after the last one. It ends truncated, unless the episode ends there.
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], kept, [False]]).astype(np.int8)))
    for start, stop in edges.reshape(-1, 2).tolist():
        piece = {name: values[start : stop + 1].copy() for name, values in episode.items()}
        piece["is_first"][0], piece["reward"][0] = True, 0.0
        piece["is_last"][-1] = True
        for name, values in piece.items():
            if name.partition("/")[0] == "action":
                values[-1] = 0
        yield piece

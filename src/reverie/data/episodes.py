"""Cutting a stream of rows into episodes, and episodes into pieces."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from reverie.data.readers.base import Rows


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

"""Parts of a stream of rows cut into episodes, and into pieces of episodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from reverie.data.readers.base import Rows


def episodes_of(parts: Iterable[Rows]) -> Iterator[Rows]:
    """Every episode, ``[n, ...]`` by column. Takes the memory of one part and one episode."""
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
    """One after the other."""
    if len(pieces) == 1:
        return pieces[0]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def chosen(lengths: np.ndarray, steps: int, seed: int) -> np.ndarray:
    """``[E]`` bool: episodes drawn at random until they have ``steps`` together. ``lengths`` ``[E]`` in steps."""
    order = np.random.default_rng(seed).permutation(len(lengths))
    before = np.cumsum(lengths[order]) - lengths[order]
    out = np.zeros(len(lengths), bool)
    out[order[before < steps]] = True
    return out


def drawn(total: int, steps: int, seed: int) -> np.ndarray:
    """``[total]`` bool: ``steps`` steps drawn at random."""
    out = np.zeros(total, bool)
    out[np.random.default_rng(seed).permutation(total)[:steps]] = True
    return out


def pieces_of(episode: Rows, kept: np.ndarray) -> Iterator[Rows]:
    """The runs of steps that are ``kept`` ``[n - 1]``, each an episode of its own.

    A piece begins where a run does, and shows what its last step led to. It is cut off there, unless the episode ends.
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

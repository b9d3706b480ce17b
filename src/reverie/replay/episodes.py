"""Where the episodes of stored rows begin and end."""

from __future__ import annotations

import numpy as np

from reverie.replay.storage import Storage
from reverie.replay.windows import HandleQueue


class EpisodeBounds:
    """The first and the newest stored row of each episode of a storage."""

    def __init__(self, storage: Storage) -> None:
        """Register all stored rows; ``add`` registers later ones."""
        self.storage = storage
        self.starts: list[HandleQueue] = [HandleQueue() for _ in range(storage.streams)]
        """Numbers of the rows at which the episodes of each stream begin, or their oldest stored rows."""
        self.clear()
        self.add(storage.read(storage.oldest, storage.count, ["is_first"])["is_first"])

    def clear(self) -> None:
        """Forget all episodes: the storage is empty now, or its rows will be added again."""
        for starts in self.starts:
            starts.clear()
            starts.add([self.storage.oldest])

    def add(self, is_first: np.ndarray) -> None:
        """Register ``n`` more rows of each stream, ``[N, n]``, already stored."""
        row = self.storage.count - is_first.shape[1]
        for starts, flags in zip(self.starts, is_first, strict=True):
            starts.add(row + np.flatnonzero(flags))
            newest = np.searchsorted(starts.handles, self.storage.oldest, "right") - 1
            starts.drop(int(starts.handles[newest]))

    def find(self, row: np.ndarray, stream: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first and the newest stored row ``[R]`` of the episodes of stored rows ``[R]``."""
        begin, end = np.empty_like(row), np.empty_like(row)
        for number, starts in enumerate(self.starts):
            of_stream, edges = stream == number, starts.handles
            following = edges.searchsorted(row[of_stream], "right")
            begin[of_stream] = edges[following - 1]
            is_newest = following == len(edges)
            end[of_stream] = np.where(is_newest, self.storage.count, edges[following - is_newest]) - 1
        return np.maximum(begin, self.storage.oldest), end

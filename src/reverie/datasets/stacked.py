"""Frame stacking of observations that were stored as single frames."""

from __future__ import annotations

import numpy as np

from reverie.datasets.transitions import Column


class StackedColumn:
    """The last ``count`` frames of each transition, oldest first; a ``transitions.Column``.

    Images are stacked along their channels, ``[n, H, W, C * count]``, everything else along a new first axis,
    ``[n, count, ...]``. At the beginning of an episode its first frame is repeated. All as ``envs/wrappers.py`` does.
    """

    def __init__(self, frames: Column, end: np.ndarray, count: int) -> None:
        """Stack ``frames`` ``[n, ...]``; of 2 or 3 dimensions each, they are images ``[H, W]`` or ``[H, W, C]``.

        ``end``, bool ``[n]``, marks the last of each episode.
        """
        self.frames, self.count = frames, count
        shape = frames.shape[1:]
        self.axis = -1 if len(shape) in (2, 3) else 1
        self.one = {2: (*shape, 1), 3: shape}.get(len(shape), (1, *shape))
        stacked = (*self.one[:-1], self.one[-1] * count) if self.axis == -1 else (count, *shape)
        self.shape = (frames.shape[0], *stacked)
        self.dtype = frames.dtype
        first = np.zeros(len(end), np.int64)
        begins = np.flatnonzero(end[:-1]) + 1
        first[begins] = begins
        self.first = np.maximum.accumulate(first)  # [n], the first transition of each one's episode

    def read(self, start: int, stop: int) -> np.ndarray:
        """See ``Column``."""
        return self.at(np.arange(start, min(stop, self.shape[0])))

    def at(self, index: np.ndarray) -> np.ndarray:
        """See ``Column``."""
        if not len(index):
            return np.empty((0, *self.shape[1:]), self.dtype)
        low = max(int(index[0]) - self.count + 1, 0)
        near = self.frames.read(low, int(index[-1]) + 1)
        near = near.reshape(len(near), *self.one)
        beginning = np.maximum(self.first[index], low)
        parts = [near.take(np.maximum(index - back, beginning) - low, axis=0) for back in range(self.count - 1, -1, -1)]
        return np.concatenate(parts, axis=self.axis)

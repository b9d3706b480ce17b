"""The windows of a replay in which a person acted."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from reverie.core.seeding import GeneratorState
from reverie.core.specs import IS_INTERVENTION
from reverie.core.types import Window
from reverie.replay.windows import HandleQueue, Windows


class TaggedWindows(GeneratorState):
    """The windows of a replay in whose learned rows a person acted.

    They follow from the column ``is_intervention``, which is read once for each window: a second index, no second
    storage.
    """

    def __init__(self, windows: Windows, window: Window, seed: int) -> None:
        """``windows``: of a replay, each of which is a ``window``."""
        self.windows: Windows = windows
        self.window: Window = window
        self.rng: np.random.Generator = np.random.default_rng(seed)
        self.queue: HandleQueue = HandleQueue()
        self._next = 0  # all smaller handles were looked at

    def clear(self) -> None:
        """Forget all windows: the storage is empty now."""
        self.queue.clear()
        self._next = 0

    def __len__(self) -> int:
        """Return their number, with those that have become complete since the last call."""
        windows = self.windows
        self.queue.drop(windows.oldest)
        if IS_INTERVENTION in windows.storage.specs and len(windows):
            start = max(0, int(windows.positions(np.array([self._next]))[0]))
            if len(new := windows.handles_at(np.arange(start, len(windows)))):
                self.queue.add(new[self._has_tag(new)])
                self._next = int(new[-1]) + 1
        return len(self.queue)

    def _has_tag(self, handles: np.ndarray) -> np.ndarray:
        """Return whether a person acted in a learned row of the windows ``handles`` ``[n]``."""
        window, storage = self.window, self.windows.storage
        rows, streams = np.divmod(handles, storage.streams)
        rows = rows + window.context
        width = window.length if window.learns_rows else window.length - 1
        begin = int(rows.min())
        tags = storage.read(begin, int(rows.max()) + width, [IS_INTERVENTION])[IS_INTERVENTION]  # [N, n]
        counts = np.pad(tags.astype(np.int64).cumsum(1), ((0, 0), (1, 0)))
        rows = rows - begin
        return np.asarray(counts[streams, rows + width] > counts[streams, rows])

    def draw(self, count: int) -> Tensor:
        """Return ``count`` handles, drawn uniformly with replacement."""
        return torch.from_numpy(self.queue.handles[self.rng.integers(len(self.queue), size=count)])

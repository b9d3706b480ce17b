"""Reads what ``ReplayBuffer.dump`` of d3rlpy 2 writes: an HDF5 file with arrays for each episode i.

| array | shape | what |
|---|---|---|
| `observations_i`, or `observations_i_j` of a tuple | `[n, ...]` | observations; the final one is not recorded |
| `actions_i` | `[n, ...]` | actions; discrete ones are `[n, 1]` |
| `rewards_i` | `[n, 1]` | rewards |
| `terminated_i` | `[]` | whether the episode terminated; otherwise it was truncated |

Source: github.com/takuseno/d3rlpy, dataset/io.py and components.py.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from reverie.datasets.hdf5 import EpisodeArraysReader
from reverie.datasets.reader import DatasetInfo, ReadOptions, to_bool_column
from reverie.datasets.transitions import LazyColumn, Transitions, without_axis

NUM_EPISODES = "num_episodes"
COUNTERS = ("version", "columns")
MORE_EPISODES = "the file has {:,} episodes, but num_episodes is {:,}: the others are left out"


class D3rlpyReader(EpisodeArraysReader):
    """See the top of this file."""

    format = "d3rlpy 2 (HDF5)"
    required_names: ClassVar[Sequence[str]] = (NUM_EPISODES, "actions_0")

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        with self.file:
            numbers = range(int(self.file.dataset(NUM_EPISODES)[()]))
            stored = sum(name.startswith("rewards_") for name in self.file.handle)
            self.add_remark(MORE_EPISODES.format(stored, len(numbers)), int(stored > len(numbers)))
            stems = {re.sub(r"(_\d+)+$", "", name) for name in self.file.handle}
            if unused := sorted(stems - {"observations", "actions", "rewards", "terminated", NUM_EPISODES, *COUNTERS}):
                self.add_remark(f"left out: {', '.join(unused)}")
            self.set_steps({number: int(self.file.handle[f"rewards_{number}"].shape[0]) for number in numbers})

    def _obs(self) -> dict[str, LazyColumn]:
        first = next(iter(self.steps))
        if f"observations_{first}" in self.file.handle:
            return {"obs": self.column("observations_{}")}
        parts = itertools.takewhile(lambda j: f"observations_{first}_{j}" in self.file.handle, itertools.count())
        return {f"obs/{j}": self.column(f"observations_{{}}_{j}") for j in parts}

    @cached_property
    def transitions(self) -> Transitions:
        with self.file:
            flags = np.array([self.file.dataset(f"terminated_{number}")[()] for number in self.steps])
            action, end = self.column("actions_{}"), self.last_steps()
            terminal = np.zeros_like(end)
            terminal[end] = to_bool_column(flags, f"{self.path}: 'terminated'", "episode {:,}".format)
            return Transitions(
                obs=self._obs(),
                next_obs={},
                action={"action": without_axis(action) if action.dtype.kind in "iu" else action},
                reward=self.column("rewards_{}"),
                end=end,
                terminal=terminal,
                reader=self,
            )

    def info(self) -> DatasetInfo:
        with self.file:
            return self.infer_info()

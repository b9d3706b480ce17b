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
from functools import cached_property
from pathlib import Path

import numpy as np

from reverie.core.errors import DataError
from reverie.datasets.hdf5 import HDF5_SUFFIXES, Hdf5File, check_filters
from reverie.datasets.reader import DatasetInfo, ReadOptions, to_bool_column
from reverie.datasets.source import reading
from reverie.datasets.transitions import STEPLESS, LazyColumn, Transitions, TransitionsReader, chain, without_axis

NUM_EPISODES = "num_episodes"


class D3rlpyReader(TransitionsReader):
    """See the top of this file."""

    format = "d3rlpy 2 (HDF5)"
    suffixes = HDF5_SUFFIXES
    required_names = (NUM_EPISODES, "actions_0")

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        self.file: Hdf5File = Hdf5File(path)  # type: ignore[misc]  # one for each reader
        with self.file:
            every = range(int(self.file.dataset(NUM_EPISODES)[()]))
            steps = {number: int(self.file.handle[f"rewards_{number}"].shape[0]) for number in every}
        self.steps: dict[int, int] = {number: count for number, count in steps.items() if count}
        """Number of steps of each episode that has any."""
        self.add_remark(STEPLESS, len(steps) - len(self.steps))
        if not self.steps:
            raise DataError(f"{path} has no episode with a step.")

    def _column(self, name: str) -> LazyColumn:
        """Return the arrays ``name`` of all episodes, such as ``actions_{}``, as one column."""
        numbers = list(self.steps)
        first = self.file.dataset(name.format(numbers[0]))
        check_filters(first, f"{self.path}: '{name}'")
        for number, steps in self.steps.items():
            if (shape := self.file.dataset(name.format(number)).shape) != (steps, *first.shape[1:]):
                expected = [steps, *first.shape[1:]]
                raise DataError(f"{self.path}: {name.format(number)} has shape {list(shape)}: expected {expected}.")

        def read(index: int) -> np.ndarray:
            with reading(f"{self.path}: {name.format(numbers[index])}"):
                return np.asarray(self.file.handle[name.format(numbers[index])][()])

        return chain(list(self.steps.values()), first[:0], read)

    def _obs(self) -> dict[str, LazyColumn]:
        first = next(iter(self.steps))
        if f"observations_{first}" in self.file.handle:
            return {"obs": self._column("observations_{}")}
        parts = itertools.takewhile(lambda j: f"observations_{first}_{j}" in self.file.handle, itertools.count())
        return {f"obs/{j}": self._column(f"observations_{{}}_{j}") for j in parts}

    @cached_property
    def transitions(self) -> Transitions:
        with self.file:
            flags = np.array([self.file.dataset(f"terminated_{number}")[()] for number in self.steps])
            action = self._column("actions_{}")
            end, terminal = np.zeros((2, sum(self.steps.values())), bool)
            last = np.cumsum(list(self.steps.values())) - 1
            end[last], terminal[last] = True, to_bool_column(flags, f"{self.path}: 'terminated'", "episode {:,}".format)
            return Transitions(
                obs=self._obs(),
                next_obs={},
                action={"action": without_axis(action) if action.dtype.kind in "iu" else action},
                reward=self._column("rewards_{}"),
                end=end,
                terminal=terminal,
                reader=self,
            )

    def info(self) -> DatasetInfo:
        with self.file:
            return self.infer_info()

    def position(self, index: int) -> str:
        edges = np.cumsum([0, *self.steps.values()])
        episode = int(np.searchsorted(edges, index, "right")) - 1
        return f"index {index - int(edges[episode]):,} of episode {list(self.steps)[episode]:,}"

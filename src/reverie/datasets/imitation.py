"""Reads the npz files of imitation (``imitation/data/serialize.py``, version 0.4 and earlier). Nothing is unpickled.

The arrays contain all trajectories one after the other; ``indices`` are the numbers of actions before each trajectory
except the first.

| array | shape | what |
|---|---|---|
| `obs` | `[steps + trajectories, ...]` | observations; each trajectory has one more than actions |
| `acts` | `[steps, ...]` | actions |
| `rews` | `[steps]` | rewards; optional |
| `terminal` | `[trajectories]` | whether the trajectory is a whole episode, which may have ended at a time limit |
| `indices` | `[trajectories - 1]` | where trajectories begin |
| `infos` | `[steps]` | pickled objects; not used |
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from reverie.core.errors import DataError
from reverie.core.rows import Rows
from reverie.datasets.npz import array_column, arrays_in, open_npz
from reverie.datasets.reader import DatasetInfo, ReadOptions, to_bool_column
from reverie.datasets.transitions import STEPLESS, LazyColumn, Transitions, TransitionsReader, reorder

NO_TRUNCATIONS = (
    "whole episodes are treated as terminated: the files do not mark time limits. If episodes have one, pass "
    "--data.max-episode-steps"
)


class ImitationReader(TransitionsReader):
    """See the top of this file."""

    format = "imitation npz"
    suffixes: ClassVar[tuple[str, ...]] = (".npz",)
    required_names: ClassVar[Sequence[str]] = ("obs", "acts", "terminal", "indices")

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        with open_npz(path) as file:
            self.arrays: Rows = arrays_in(file, (*self.required_names, *({"rews"} & set(file.files))))
            if unused := [name for name in file.files if name not in self.arrays]:
                self.add_remark(f"left out: {', '.join(unused)}")

    def supports_option(self, option: str) -> bool:
        return option == "max_episode_steps" or super().supports_option(option)

    def info(self) -> DatasetInfo:
        return self.infer_info(text={"trajectories": f"{len(self.arrays['terminal']):,}"})

    def column(self, name: str) -> LazyColumn:
        """Return an array of numbers as a column."""
        return array_column(self.arrays.get(name), f"{self.path}: '{name}'")

    @cached_property
    def transitions(self) -> Transitions:
        obs, action, flags = (self.column(name) for name in ("obs", "acts", "terminal"))
        edges = np.concatenate([[0], self.arrays["indices"].astype(np.int64), [action.shape[0]]])
        lengths = np.diff(edges)
        expected = {"obs": action.shape[0] + len(lengths), "terminal": len(lengths), "rews": action.shape[0]}
        for name, length in expected.items():
            if name in self.arrays and len(self.arrays[name]) != length:
                counts = f"{len(lengths):,} trajectories with {action.shape[0]:,} actions"
                raise DataError(
                    f"{self.path}: '{name}' has length {len(self.arrays[name]):,}: expected {length:,}, for {counts}."
                )
        if (lengths < 0).any():
            raise DataError(f"{self.path}: 'indices' is not ascending at index {int((lengths < 0).argmax())}.")
        self.add_remark(STEPLESS, int(np.count_nonzero(lengths == 0)))
        terminal = to_bool_column(flags.read(0, len(lengths)), f"{self.path}: 'terminal'", "trajectory {:,}".format)
        end, is_terminal = np.zeros((2, action.shape[0]), bool)
        last = edges[1:][lengths > 0] - 1
        end[last], is_terminal[last] = True, terminal[lengths > 0]
        if (limit := self.options.max_episode_steps) is None:
            self.add_remark(NO_TRUNCATIONS, int(is_terminal.any()))
        else:
            is_terminal[last] &= lengths[lengths > 0] != limit
        index = np.arange(action.shape[0]) + np.repeat(np.arange(len(lengths)), lengths)
        return Transitions(
            obs={"obs": reorder(obs, index)},
            next_obs={"obs": reorder(obs, index + 1)},
            action={"action": action},
            reward=self.column("rews") if "rews" in self.arrays else None,
            end=end,
            terminal=is_terminal,
            reader=self,
        )

"""Reads the HDF5 files of ALOHA and ACT, one for each episode.

| in the file | shape | what |
|---|---|---|
| `observations/qpos`, `observations/qvel`, ... | `[n, ...]` | the observations `qpos`, `qvel`, ... before each action |
| `observations/images/NAME` | `[n, H, W, C]` | the observation `images/NAME`; `[n, bytes]`: compressed images |
| `action` | `[n, A]` | actions |
| `reward` or `rewards` | `[n]` | rewards; optional |

Final observations are not recorded. Source: github.com/tonyzhaozh/act, record_sim_episodes.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from reverie.core.errors import DataError
from reverie.datasets.arrow_values import decode_images
from reverie.datasets.hdf5 import HDF5_SUFFIXES, Hdf5File
from reverie.datasets.reader import DatasetInfo, Reader, ReadOptions
from reverie.datasets.source import Source, arrays_below, natural_sort_key, open_hdf5, reading
from reverie.datasets.time_order import note_disorder
from reverie.datasets.transitions import UNMARKED, LazyColumn, Transitions, TransitionsReader, chain

OBSERVATIONS, ACTION, IMAGES = "observations", "action", "images/"
REWARDS = ("reward", "rewards")


class ActReader(TransitionsReader):
    """See the top of this file."""

    format = "ALOHA/ACT (HDF5)"
    suffixes: ClassVar[tuple[str, ...]] = HDF5_SUFFIXES
    required_names: ClassVar[Sequence[str]] = (OBSERVATIONS, ACTION)

    @classmethod
    def matches(cls, source: Source) -> bool:
        if not source.is_hdf5 or not source.names.issuperset(cls.required_names):
            return False
        with open_hdf5(source.path) as file:
            return hasattr(file[OBSERVATIONS], "keys")

    @classmethod
    def open(cls, path: Path, sources: Sequence[Source], options: ReadOptions) -> list[Reader]:
        return [cls(path, options, [source.path for source in sources])]

    def __init__(self, path: Path, options: ReadOptions | None = None, paths: Sequence[Path] = ()) -> None:
        super().__init__(path, options)
        self.paths: list[Path] = sorted(paths or [path], key=natural_sort_key)
        self.opened: Hdf5File = Hdf5File(self.paths[0])
        self.lengths: list[int] = []
        self.names: set[str] = self._names(self.paths[0])
        for file_path in self.paths:
            names = self._names(file_path)
            if names != self.names:
                problem = f"has {', '.join(sorted(names))}, but {self.paths[0]} has {', '.join(sorted(self.names))}"
                raise DataError(f"{file_path} {problem}: expected the same arrays.")
            self.lengths.append(self._file(file_path).dataset(ACTION).shape[0])
        self.edges: np.ndarray = np.append(0, np.cumsum(self.lengths))
        used = {ACTION, *REWARDS, *(name for name in self.names if name.startswith(f"{OBSERVATIONS}/"))}
        if unused := sorted(self.names - used):
            self.add_remark(f"left out: {', '.join(unused)}")

    def _file(self, path: Path) -> Hdf5File:
        """Return the file at ``path``; one is open at a time."""
        if self.opened.path != path:
            self.opened.__exit__()
            self.opened = Hdf5File(path)
        return self.opened

    def _names(self, path: Path) -> set[str]:
        """Return the names of all arrays in a file."""
        with reading(path):
            return {*arrays_below(self._file(path).handle)}

    def _column(self, name: str) -> LazyColumn:
        """Return the arrays ``name`` of all files as one column; compressed images are decoded."""
        first_shape = self._file(self.paths[0]).dataset(name).shape
        is_image = name.startswith(f"{OBSERVATIONS}/{IMAGES}") and len(first_shape) == 2

        def read_file(number: int, start: int, stop: int) -> np.ndarray:
            path = self.paths[number]
            column = self._file(path).column(name)
            if column.shape[0] != self.lengths[number]:
                expected = f"expected {self.lengths[number]:,}, the number of actions"
                raise DataError(f"{path}: {name} has {column.shape[0]:,} rows: {expected}.")
            if number and not is_image and column.shape[1:] != first_shape[1:]:
                shapes = f"shape {list(column.shape[1:])}, but {list(first_shape[1:])} in {self.paths[0]}"
                raise DataError(f"{path}: {name} has {shapes}: expected one shape in all files.")
            values = column.read(start, stop)
            return decode_images([bytes(row) for row in values], f"{path}: {name}", start) if is_image else values

        return chain(self.lengths, read_file(int(np.flatnonzero(self.lengths)[0]), 0, 1), read_file)

    def _times(self, name: str) -> np.ndarray:
        """Return an array of all files with one number for each step, ``[n]``; empty if there is none."""
        shapes = [self._file(path).dataset(name).shape for path in self.paths]
        if any(math.prod(shape) != length for shape, length in zip(shapes, self.lengths, strict=True)):
            return np.empty(0)
        return self._column(name).read(0, int(self.edges[-1])).reshape(-1)

    @cached_property
    def transitions(self) -> Transitions:
        end = np.zeros(self.edges[-1], bool)
        end[self.edges[1:] - 1] = True
        self.add_remark(UNMARKED)
        others = [name for name in self.names if not name.startswith(f"{OBSERVATIONS}/{IMAGES}")]
        note_disorder(self, others, self._times, end)
        prefix = f"{OBSERVATIONS}/"
        reward = next((name for name in REWARDS if name in self.names), None)
        return Transitions(
            obs={f"obs/{n.removeprefix(prefix)}": self._column(n) for n in sorted(self.names) if n.startswith(prefix)},
            next_obs={},
            action={"action": self._column(ACTION)},
            reward=self._column(reward) if reward else None,
            end=end,
            terminal=np.zeros_like(end),
            reader=self,
        )

    def info(self) -> DatasetInfo:
        return self.infer_info(text={"episodes": f"{len(self.paths):,}"})

    def close(self) -> None:
        self.opened.__exit__()

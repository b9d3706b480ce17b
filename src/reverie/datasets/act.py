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

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from reverie.core.errors import DataError
from reverie.datasets.compressed_images import decode_rows
from reverie.datasets.hdf5 import HDF5_SUFFIXES, Hdf5File
from reverie.datasets.reader import DatasetInfo, FilesReader, ReadOptions
from reverie.datasets.source import Source, arrays_below, open_hdf5, reading
from reverie.datasets.tasks import FAILED, TASK_KEYS, find_task, has_failed
from reverie.datasets.time_order import note_disorder
from reverie.datasets.transitions import UNMARKED, LazyColumn, Transitions, TransitionsReader, chain

OBSERVATIONS, ACTION, IMAGES = "observations", "action", "images/"
REWARDS = ("reward", "rewards")


class ActReader(FilesReader, TransitionsReader):
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

    def __init__(self, path: Path, options: ReadOptions | None = None, paths: Sequence[Path] = ()) -> None:
        super().__init__(path, options, paths)
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
        attributes = [self._attributes(file) for file, length in zip(self.paths, self.lengths, strict=True) if length]
        self.episode_tasks: Sequence[str] = list(map(find_task, attributes))
        self.add_remark(FAILED, sum(map(has_failed, attributes)))
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

    def _attributes(self, path: Path) -> dict[str, object]:
        """Return the attributes of a file, and the texts that it has in their place."""
        handle = self._file(path).handle
        return {**{name: handle[name][()] for name in self.names.intersection(TASK_KEYS)}, **handle.attrs}

    def _column(self, name: str) -> LazyColumn:
        """Return the arrays ``name`` of all files as one column; compressed images are decoded."""
        is_image = name.startswith(f"{OBSERVATIONS}/{IMAGES}")

        def read_file(number: int, start: int, stop: int) -> np.ndarray:
            path = self.paths[number]
            column = self._file(path).column(name)
            if column.shape[0] != self.lengths[number]:
                expected = f"expected {self.lengths[number]:,}, the number of actions"
                raise DataError(f"{path}: {name} has {column.shape[0]:,} rows: {expected}.")
            values = column.read(start, stop)
            values = decode_rows(values, f"{path}: {name}", start) if is_image and values.ndim == 2 else values
            if number and values.shape[1:] != sample.shape[1:]:
                shapes = f"shape {list(values.shape[1:])}, but {list(sample.shape[1:])} in {self.paths[0]}"
                raise DataError(f"{path}: {name} has {shapes}: expected one shape in all files.")
            return values

        sample = read_file(int(np.flatnonzero(self.lengths)[0]), 0, 1)
        return chain(self.lengths, sample, read_file)

    def _times(self, name: str) -> np.ndarray:
        """Return an array of all files with one number or text for each step, ``[n]``; empty if there is none."""
        if [self._file(path).dataset(name).size for path in self.paths] != self.lengths:
            return np.empty(0)
        return np.concatenate([self._file(path).dataset(name)[()].reshape(-1) for path in self.paths])

    @cached_property
    def transitions(self) -> Transitions:
        end = np.zeros(self.edges[-1], bool)
        end[self.edges[1:] - 1] = True
        self.add_remark(UNMARKED)
        others = [name for name in self.names if not name.startswith(f"{OBSERVATIONS}/{IMAGES}")]
        note_disorder(self, others, self._times, end)
        prefix = f"{OBSERVATIONS}/"
        reward = next((name for name in REWARDS if name in self.names), None)
        obs = {f"obs/{n.removeprefix(prefix)}": self._column(n) for n in sorted(self.names) if n.startswith(prefix)}
        return Transitions(
            obs=obs | self.task_column(end),
            next_obs={},
            action={"action": self._column(ACTION)},
            reward=self._column(reward) if reward else None,
            end=end,
            terminal=np.zeros_like(end),
            reader=self,
        )

    def info(self) -> DatasetInfo:
        text = {"tasks": "; ".join(sorted(self.tasks()))} if self.tasks() else {}
        return self.infer_info(text={"episodes": f"{len(self.paths):,}", **text})

    def close(self) -> None:
        self.opened.__exit__()

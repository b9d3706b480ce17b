"""Reads npz files. Nothing is unpickled.

Arrays have one row per step. D4RL's names of the arrays, and the names in other files:

| D4RL | OGBench | Stable-Baselines 2 | what |
|---|---|---|---|
| `observations` | `observations` | `obs` | observations |
| `actions` | `actions` | `actions` | actions |
| `rewards` | | `rewards` | rewards, optional |
| `terminals` | | | the step terminates the episode |
| `episode_terminals` | `terminals` | | the step is the last one of its episode |
| | | `episode_starts` | the step is the first one of its episode |
| | `qpos`, `qvel`, `button_states` | `episode_returns` | not used |
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np

from reverie.core.errors import DataError
from reverie.core.files import open_zip
from reverie.core.rows import Rows
from reverie.datasets.compressed_images import decode_column
from reverie.datasets.hdf5 import D4RL_ARRAYS, REWARDS, ColumnsReader, check_numbers, is_end_flag
from reverie.datasets.ogbench import parse_name
from reverie.datasets.options import OPTIONAL_COLUMNS, REQUIRED_COLUMNS
from reverie.datasets.reader import ReadOptions
from reverie.datasets.source import Source, reading
from reverie.datasets.transitions import LazyColumn


@contextlib.contextmanager
def open_npz(path: Path, content: IO[bytes] | None = None) -> Iterator[Any]:
    """Open the file at ``path``, or its ``content``; errors while it is open name it."""
    with reading(path), open_zip(path, content) as opened, np.load(opened, allow_pickle=False) as file:
        yield file


def arrays_in(file: np.lib.npyio.NpzFile, names: Iterable[str]) -> Rows:
    """Return arrays of an open file by name. Arrays of Python objects are omitted, since they are pickled."""
    arrays: Rows = {}
    for name in names:
        try:
            arrays[name] = file[name]
        except ValueError as error:
            if "allow_pickle" not in str(error):
                raise
    return arrays


def array_column(values: np.ndarray | None, label: str) -> LazyColumn:
    """Return an array of numbers as a column; None stands for Python objects. ``label`` is for messages."""
    if values is None or not values.ndim:
        contents = "Python objects, which are not unpickled" if values is None else f"{values.dtype}"
        raise DataError(f"{label} contains {contents}: expected an array of numbers.")
    column = LazyColumn(values.shape, values.dtype, lambda start, stop: values[start:stop])
    return check_numbers(decode_column(column, label), label)


def is_observation(name: str, values: np.ndarray) -> bool:
    """Return whether an array is one of numbers, and does not mark ends of episodes."""
    return values.dtype.kind in "biuf" and not is_end_flag(name, values)


# ---------------------------------------------------------------- readers


class ArraysReader(ColumnsReader):
    """Columns that are arrays in memory, or in an npz file."""

    format = "arrays of D4RL's names"
    suffixes: ClassVar[tuple[str, ...]] = (".npz",)

    @classmethod
    def matches(cls, source: Source) -> bool:
        return not (source.is_hdf5 or source.names.isdisjoint(D4RL_ARRAYS))

    def __init__(self, path: Path, options: ReadOptions, arrays: Mapping[str, np.ndarray] | None = None) -> None:
        self.arrays = arrays
        super().__init__(path, options)

    def names(self) -> list[str]:
        if self.arrays is not None:
            return list(self.arrays)
        with open_npz(self.path) as file:
            return list(file.files)

    def array(self, name: str) -> np.ndarray | None:
        if self.arrays is not None:
            return self.arrays[name]
        with open_npz(self.path) as file:
            return arrays_in(file, [name]).get(name)

    def column(self, name: str) -> LazyColumn:
        return array_column(self.array(name), f"{self.path}: '{name}'")


class OGBenchReader(ArraysReader):
    """Reads what ``ogbench/utils.py: load_dataset`` reads: ``terminals`` marks the end of a trajectory.

    The name of the file tells the environment.
    """

    format = "OGBench npz"
    array_names: Mapping[str, str] = {
        "observations": "observations",
        "actions": "actions",
        "episode_terminals": "terminals",
    }
    has_final_steps = True

    def __init__(self, path: Path, options: ReadOptions, arrays: Mapping[str, np.ndarray] | None = None) -> None:
        self.declared: dict[str, Any] = {"env_id": parse_name(path.stem)[0]}
        super().__init__(path, options, arrays)

    @classmethod
    def matches(cls, source: Source) -> bool:
        is_d4rl = not source.names.isdisjoint(OPTIONAL_COLUMNS) or any(map(REWARDS.fullmatch, source.names))
        return source.names.issuperset(REQUIRED_COLUMNS) and not (source.is_hdf5 or is_d4rl)


class StableBaselines2Reader(ArraysReader):
    """Reads what ``gail/dataset/record_expert.py: generate_expert_traj`` writes."""

    format = "Stable-Baselines 2 npz"
    required_names: ClassVar[Sequence[str]] = ("obs", "actions", "episode_starts")
    array_names: Mapping[str, str] = {
        "observations": "obs", "actions": "actions", "rewards": "rewards", "episode_starts": "episode_starts",
    }  # fmt: skip

    @classmethod
    def matches(cls, source: Source) -> bool:
        return source.names.issuperset(cls.required_names)

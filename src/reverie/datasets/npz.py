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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.errors import DataError
from reverie.core.files import open_zip
from reverie.core.rows import Rows
from reverie.datasets.hdf5 import D4RL, OPTIONAL_COLUMNS, REQUIRED_COLUMNS, REWARDS, Layout
from reverie.datasets.reader import reading
from reverie.datasets.transitions import LazyColumn


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[Any]:
    """Open a file; errors while it is open name it."""
    with reading(path), open_zip(path) as opened, np.load(opened, allow_pickle=False) as file:
        yield file


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays in a file."""
    with open_npz(path) as file:
        return list(file.files)


def arrays_in(file: Any, names: Iterable[str]) -> Rows:
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
    if values is None or values.dtype.kind not in "biuf" or not values.ndim:
        contents = "Python objects, which are not unpickled" if values is None else f"{values.dtype}"
        raise DataError(f"{label} contains {contents}: expected an array of numbers.")
    return LazyColumn(values.shape, values.dtype, lambda start, stop: values[start:stop])


# ---------------------------------------------------------------- layouts of npz files with D4RL-like columns

OGBENCH = Layout(
    "OGBench npz",
    {"observations": "observations", "actions": "actions", "episode_terminals": "terminals"},
    ("observations", "actions", "episode_terminals"),
    has_final_steps=True,
)
"""As ``ogbench/utils.py: load_dataset`` reads it: ``terminals`` marks the end of a trajectory, not a terminal state."""
STABLE_BASELINES2 = Layout(
    "Stable-Baselines 2 npz",
    {"observations": "obs", "actions": "actions", "rewards": "rewards", "episode_starts": "episode_starts"},
    ("observations", "actions", "episode_starts"),
)
"""As ``gail/dataset/record_expert.py: generate_expert_traj`` writes it."""


def layout_of(names: Iterable[str]) -> Layout:
    """Return the layout of a file with arrays ``names``: see the top of this file."""
    names = set(names)
    if {"obs", "episode_starts"} <= names:
        return STABLE_BASELINES2
    is_d4rl = names & {*OPTIONAL_COLUMNS} or any(map(REWARDS.fullmatch, names))
    return D4RL if is_d4rl or not names >= {*REQUIRED_COLUMNS} else OGBENCH

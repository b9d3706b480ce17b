"""Reads robomimic's HDF5 files, with a group of arrays for each episode. Nothing is unpickled.

| in the file | shape | what |
|---|---|---|
| `data/demo_K` | group | an episode, in the order of K; `demo_K` if there is no group `data` |
| `data/demo_K/obs/KEY` | `[n, ...]` | the observation `KEY` before each action; or one array `obs` |
| `data/demo_K/next_obs/KEY` | `[n, ...]` | the same after each action; optional |
| `data/demo_K/actions` | `[n, A]` | actions |
| `data/demo_K/rewards` | `[n]` | rewards; optional |
| `data/demo_K/dones` | `[n]` | in the last step: whether the episode terminated; optional |
| `data`, attribute `env_args` | JSON | name and settings of the environment |
| `mask/NAME` | text | names of the episodes of a part, such as `train` and `valid` |
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.errors import DataError, did_you_mean
from reverie.datasets.hdf5 import HDF5_SUFFIXES, Hdf5File, check_filters, check_storage, declared_fields
from reverie.datasets.reader import DatasetInfo, ReadOptions, to_bool_column
from reverie.datasets.source import Source, natural_sort_key, reading
from reverie.datasets.transitions import (
    EARLY_END_REMARK,
    STEPLESS,
    LazyColumn,
    Transitions,
    TransitionsReader,
    chain,
    without_axis,
)

OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "obs": ("observations", "observation"),
    "next_obs": ("next_observations", "next_observation"),
    "actions": ("action",),
    "rewards": ("reward",),
    "dones": ("done", "terminals", "terminal"),
}
"""Other names of the arrays and groups, in files of the same layout."""
LONE_KEY = "observation"
"""Key of the only observation, which is then not in a dictionary."""
UNMARKED = "there are no dones: all episodes are treated as truncated"


class RobomimicReader(TransitionsReader):
    """See the top of this file."""

    format = "robomimic (HDF5)"
    suffixes = HDF5_SUFFIXES
    required_names = ("data/demo_0",)

    @classmethod
    def matches(cls, source: Source) -> bool:
        return any(name.startswith(("demo", "data/demo")) for name in source.names)

    def __init__(self, path: Path, options: ReadOptions | None = None, *, mask: str = "") -> None:
        """``mask``: read only the episodes that `mask/MASK` in the file names."""
        super().__init__(path, options)
        self.file: Hdf5File = Hdf5File(path)  # type: ignore[misc]  # one for each reader
        with self.file:
            file = self.file.handle
            self.root: str = "data/" if "data" in file else ""
            data, masks = file["data"] if self.root else file, file.get("mask", {})
            if mask and mask not in masks:
                raise DataError(f"{path} has no mask/{mask}.{did_you_mean(mask, masks)} It has: {', '.join(masks)}.")
            chosen = self.file.dataset(f"mask/{mask}")[()] if mask else ()
            demos = [name.decode() for name in chosen] if mask else [n for n in data if n != "mask"]
            if missing := [name for name in demos if name not in data]:
                raise DataError(f"{path}: mask/{mask} names {missing[0]}, but {self.root}{missing[0]} does not exist.")
            self.declared: dict[str, Any] = dict(file.attrs)
            with reading(f"{path}, attribute env_args"):
                self.env_args: dict[str, Any] = json.loads(data.attrs.get("env_args", "{}"))
            self.masks: dict[str, int] = {name: len(values) for name, values in masks.items()}
            arrays = next((list(data[name]) for name in demos), [])
            self.names: dict[str, str] = {
                name: next((n for n in (name, *aliases) if n in arrays), name) for name, aliases in OTHER_NAMES.items()
            }
            self.steps: dict[str, int] = {
                name: self._array(name, self.names["actions"]).shape[0]
                for name in sorted(demos, key=lambda name: natural_sort_key(Path(name)))
            }
            """Number of steps of each episode."""
        self.add_remark(STEPLESS, sum(not steps for steps in self.steps.values()))
        self.steps = {name: steps for name, steps in self.steps.items() if steps}
        self.demos: list[str] = list(self.steps)
        if not self.demos:
            raise DataError(f"{path} has no episode with a step.")

    def _array(self, demo: str, name: str) -> Any:
        """Return an array of an episode, not yet read."""
        array = self.file.handle.get(f"{self.root}{demo}/{name}")
        if getattr(getattr(array, "dtype", None), "kind", "") not in tuple("biuf"):
            contents = "is missing" if array is None else "is not an array of numbers"
            raise DataError(f"{self.path}: {self.root}{demo}/{name} {contents}.")
        check_storage(array, self.path)
        return array

    def _column(self, name: str) -> LazyColumn:
        """Return the arrays ``name`` of all episodes as one column."""
        first = self._array(self.demos[0], name)
        check_filters(first, f"{self.path}: '{name}'")
        for demo, steps in self.steps.items():
            if (shape := self._array(demo, name).shape) != (steps, *first.shape[1:]):
                expected = [steps, *first.shape[1:]]
                raise DataError(f"{self.path}: {self.root}{demo}/{name} has shape {list(shape)}: expected {expected}.")

        def read(index: int) -> np.ndarray:
            with reading(f"{self.path}: {self.root}{self.demos[index]}/{name}"):
                return np.asarray(self._array(self.demos[index], name)[()])

        return chain(list(self.steps.values()), first[:0], read)

    def _actions(self, name: str) -> LazyColumn:
        """Return the actions; those that reverie's writer stored as vectors of one element are numbers again."""
        column, declared = self._column(name), declared_fields(self.declared, self.path).get("action")
        is_number = column.dtype.kind in "iu" if declared is None else declared.shape == ()
        return without_axis(column) if is_number else column

    def _columns(self, group: str) -> dict[str, LazyColumn]:
        """Return the columns of the observations in a group, or of the only observation."""
        top, keys = self.file.handle.get(f"{self.root}{self.demos[0]}/{group}"), list[str]()
        if hasattr(top, "dtype"):
            return {"obs": self._column(group)}
        if top is not None:
            top.visititems(lambda key, item: keys.append(key) if hasattr(item, "dtype") else None)
        names = {"obs": LONE_KEY} if keys == [LONE_KEY] else {f"obs/{key}": key for key in keys}
        return {column: self._column(f"{group}/{key}") for column, key in names.items()}

    @cached_property
    def transitions(self) -> Transitions:
        with self.file:
            first, names = f"{self.root}{self.demos[0]}", self.names
            arrays, obs = self.file.handle[first], self._columns(names["obs"])
            if not obs:
                raise DataError(
                    f"{self.path}: {first}/obs has no observations. Compute them from "
                    "the simulator's states with robomimic's dataset_states_to_obs.py."
                )
            end = np.zeros(sum(self.steps.values()), bool)
            end[np.cumsum(list(self.steps.values())) - 1] = True
            done = end & False
            if names["dones"] in arrays:
                flags = self._column(names["dones"])
                done = to_bool_column(flags.read(0, len(end)), f"{self.path}: 'dones'", self.position)
                self.add_remark(EARLY_END_REMARK, int(np.count_nonzero(done & ~end)))
            self.add_remark(UNMARKED, int(names["dones"] not in arrays))
            return Transitions(
                obs=obs,
                next_obs=self._columns(names["next_obs"]),
                action={"action": self._actions(names["actions"])},
                reward=self._column(names["rewards"]) if names["rewards"] in arrays else None,
                end=end,
                terminal=done & end,
                reader=self,
            )

    def info(self) -> DatasetInfo:
        text = {"task": str(self.env_args["env_name"])} if self.env_args.get("env_name") else {}
        text |= {"masks": ", ".join(f"{name} ({count:,})" for name, count in self.masks.items())} if self.masks else {}
        with self.file:
            return self.infer_info(text=text, **declared_fields(self.declared, self.path))

    def position(self, index: int) -> str:
        edges = np.cumsum(list(self.steps.values()))
        episode = int(np.searchsorted(edges, index, "right"))
        return f"index {index - int(np.append(0, edges)[episode]):,} of {self.root}{self.demos[episode]}"

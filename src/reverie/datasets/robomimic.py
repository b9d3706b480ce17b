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

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from reverie.core.errors import DataError, did_you_mean
from reverie.datasets.hdf5 import EpisodeArraysReader, declared_fields
from reverie.datasets.options import PROPENSITY
from reverie.datasets.reader import CONTROLLER, FPS, ROBOT, TASK, DatasetInfo, ReadOptions, to_bool_column
from reverie.datasets.source import Source, arrays_below, natural_sort_key, reading
from reverie.datasets.tasks import FAILED, find_task, has_failed
from reverie.datasets.time_order import note_disorder
from reverie.datasets.transitions import EARLY_END_REMARK, UNMARKED, LazyColumn, Transitions, without_axis

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


class RobomimicReader(EpisodeArraysReader):
    """See the top of this file."""

    format = "robomimic (HDF5)"
    required_names: ClassVar[Sequence[str]] = ("data/demo_0",)

    @classmethod
    def matches(cls, source: Source) -> bool:
        return any(name.startswith(("demo", "data/demo")) for name in source.names)

    def __init__(self, path: Path, options: ReadOptions | None = None, *, mask: str = "") -> None:
        """``mask``: read only the episodes that `mask/MASK` in the file names."""
        super().__init__(path, options)
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
            demos = sorted(demos, key=lambda name: natural_sort_key(Path(name)))
            arrays = next((list(data[name]) for name in demos), [])
            self.names: dict[str, str] = {
                name: next((n for n in (name, *aliases) if n in arrays), name) for name, aliases in OTHER_NAMES.items()
            }
            self._note_unread({name: data[name] for name in demos})
            self.set_steps({demo: self.array(f"{self.root}{demo}/{self.names['actions']}").shape[0] for demo in demos})
            task = find_task(data.attrs) or find_task(self.env_args)
            self.episode_tasks: Sequence[str] = [find_task(data[demo].attrs) or task for demo in self.steps]
            self.add_remark(FAILED, sum(has_failed(data[demo].attrs) for demo in self.steps))

    def _note_unread(self, demos: Mapping[str, Any]) -> None:
        """Add remarks on arrays that are not read: of other names, and those that the first demo lacks.

        Another number of steps than a demo's attribute says is named, too.
        """
        used, arrays, cut = {*self.names.values(), PROPENSITY}, [[*arrays_below(demo)] for demo in demos.values()], 0
        for demo in demos.values():
            actions = demo.get(self.names["actions"], ())
            cut += bool(demo.attrs.get("num_samples", len(actions)) != len(actions))
        counts = Counter(itertools.chain.from_iterable(arrays))
        self.add_remark("the attribute num_samples of an episode differs from its number of actions", cut)
        if unused := sorted({name.partition("/")[0] for name in counts} - used):
            self.add_remark(f"left out: {', '.join(unused)}")
        for name, count in counts.items():
            if name not in arrays[0] and name.partition("/")[0] in used:
                self.add_remark(f"left out: {name}, which only {count:,} of {len(demos):,} episodes have")

    def _column(self, name: str) -> LazyColumn:
        return self.column(f"{self.root}{{}}/{name}")

    def _actions(self, name: str) -> LazyColumn:
        """Return the actions; those that reverie's writer stored as vectors of one element are numbers again."""
        column, declared = self._column(name), declared_fields(self.declared, self.path).get("action")
        is_number = column.dtype.kind in "iu" if declared is None else declared.shape == ()
        return without_axis(column) if is_number else column

    def _columns(self, group: str) -> dict[str, LazyColumn]:
        """Return the columns of the observations in a group, or of the only observation."""
        top = self.file.handle.get(f"{self.root}{next(iter(self.steps))}/{group}")
        if hasattr(top, "dtype"):
            return {"obs": self._column(group)}
        keys = [] if top is None else [*arrays_below(top)]
        names = {"obs": LONE_KEY} if keys == [LONE_KEY] else {f"obs/{key}": key for key in keys}
        return {column: self._column(f"{group}/{key}") for column, key in names.items()}

    def _times(self, name: str) -> np.ndarray:
        """Return an array of all episodes with one number or text for each step, ``[n]``; empty if there is none."""
        names = {demo: f"{self.root}{demo}/{name}" for demo in self.steps}
        if {
            demo: self.file.handle[name].size for demo, name in names.items() if name in self.file.handle
        } != self.steps:
            return np.empty(0)
        return np.concatenate([self.file.dataset(name)[()].reshape(-1) for name in names.values()])

    @cached_property
    def transitions(self) -> Transitions:
        with self.file:
            first, names = f"{self.root}{next(iter(self.steps))}", self.names
            arrays, obs, next_obs = self.file.handle[first], *map(self._columns, (names["obs"], names["next_obs"]))
            if not obs:
                raise DataError(
                    f"{self.path}: {first}/obs has no observations. Compute them from "
                    "the simulator's states with robomimic's dataset_states_to_obs.py."
                )
            end = self.last_steps()
            task = self.task_column(end) if obs.keys() != {"obs"} else {}
            done = end & False
            if names["dones"] in arrays:
                flags = self._column(names["dones"])
                done = to_bool_column(flags.read(0, len(end)), f"{self.path}: 'dones'")
                self.add_remark(EARLY_END_REMARK, int(np.count_nonzero(done & ~end)))
            self.add_remark(UNMARKED, int(names["dones"] not in arrays))
            others = [name for name in arrays if hasattr(arrays[name], "dtype") and name not in names.values()]
            note_disorder(self, others, self._times, end)
            return Transitions(
                obs=obs | task,
                next_obs=next_obs and next_obs | task,
                action={"action": self._actions(names["actions"])},
                reward=self._column(names["rewards"]) if names["rewards"] in arrays else None,
                end=end,
                terminal=done & end,
                reader=self,
                propensity=self._column(PROPENSITY) if PROPENSITY in arrays else None,
            )

    def info(self) -> DatasetInfo:
        settings = self.env_args.get("env_kwargs") or {}
        robots = settings.get("robots") or ""
        declared = {TASK: self.env_args.get("env_name"), FPS: settings.get("control_freq")}
        declared |= {ROBOT: robots if isinstance(robots, str) else ", ".join(map(str, robots))}
        controller = settings.get("controller_configs")
        declared |= {CONTROLLER: json.dumps(controller)} if controller else {}
        text = {title: str(value) for title, value in declared.items() if value}
        text |= {"tasks": "; ".join(sorted(self.tasks()))} if self.tasks() else {}
        text |= {"masks": ", ".join(f"{name} ({count:,})" for name, count in self.masks.items())} if self.masks else {}
        with self.file:
            return self.infer_info(text=text, **declared_fields(self.declared, self.path))

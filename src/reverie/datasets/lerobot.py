"""Reads LeRobot datasets of version 2 and 3: a folder with tables of steps, videos and metadata.

| feature | role |
|---|---|
| `observation.KEY` | observation `KEY`; 8-bit images and videos are uint8 `[H, W, C]`, depth videos float32 in mm |
| `action` | action |
| `next.reward`, else `next.success` | reward; without both, there are no rewards |
| `next.success`, else `next.done` | in the last step: whether the episode terminated |
| `episode_index` | episode |
| `task_index` | with several tasks: observation `task`, text |

Values have the declared shapes. All other features, such as texts, are left out, with a remark.

The option ``columns`` chooses others. Only the videos of chosen features are decoded.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.datasets.hdf5 import declared_fields
from reverie.datasets.inferred_spaces import infer_obs_space, nested_space
from reverie.datasets.lerobot_metadata import ADVICE, INFO, LeRobotMetadata
from reverie.datasets.reader import ColumnNames, DatasetInfo, Reader, ReadOptions, Space
from reverie.datasets.source import Source
from reverie.datasets.table import TableReader, tables_in
from reverie.datasets.transitions import EARLY_END_REMARK, LazyColumn, Transitions
from reverie.datasets.video_frames import VideoFrames

SUCCESS_AS_REWARD = "there is no next.reward: next.success is the reward"
OBS_DTYPES = ("float", "int", "uint", "bool", "image", "video")
"""Beginnings of the dtypes that observations can have."""
INDICES = frozenset({"timestamp", "frame_index", "episode_index", "index", "task_index"})
"""Features that LeRobot adds to each dataset."""


class LeRobotReader(TableReader):
    """See the top of this file."""

    format = "LeRobot"

    @classmethod
    def matches(cls, source: Source) -> bool:
        return (source.path / INFO).is_file() and (source.path / "data").is_dir()

    @classmethod
    def open(cls, path: Path, sources: Sequence[Source], options: ReadOptions) -> list[Reader]:
        return [cls(source.path, options) for source in sources]

    def __init__(self, path: Path, options: ReadOptions) -> None:
        self.metadata: LeRobotMetadata = LeRobotMetadata(path)
        self.cameras: list[VideoFrames] = []
        self.has_final_steps: bool = bool(self.metadata.own)
        self.names_columns: bool = bool(options.columns)
        every = (options.columns or self._default_roles()) | {"episode": "episode_index"}
        stored = {role: name for role, name in every.items() if name not in self.metadata.videos}
        super().__init__(path, dataclasses.replace(options, columns=stored), tables_in(path / "data"))
        self.roles: dict[str, ColumnNames] = every
        self.add_remark(SUCCESS_AS_REWARD, int(every.get("reward") == "next.success"))
        unused = [name for name in self.metadata.features if name not in INDICES.union(every.values())]
        self.add_remark(f"left out: {', '.join(unused)}", bool(unused) and not options.columns)

    def _default_roles(self) -> dict[str, ColumnNames]:
        features = self.metadata.features
        columns = self.metadata.own.get("columns", {})
        roles: dict[str, ColumnNames] = {
            str(columns.get(name, f"obs/{name.partition('.')[2]}")).replace("/", ".", 1): name
            for name, feature in features.items()
            if name.startswith("observation.") and feature["dtype"].startswith(OBS_DTYPES)
        }
        roles |= {"obs.task": "task_index"} if "task_index" in columns or len(self.metadata.tasks) > 1 else {}
        candidates = {
            "action": ("action",),
            "reward": ("next.reward", "next.success"),
            "terminal": ("next.success", "next.done"),
        }
        present = {role: [name for name in names if name in features] for role, names in candidates.items()}
        return roles | {role: names[0] for role, names in present.items() if names}

    def supports_option(self, option: str) -> bool:
        return option == "columns"

    @cached_property
    def has_episode_rows(self) -> bool:
        return False

    @cached_property
    def episodes(self) -> list[tuple[int, int, int]]:
        """Number, first step and end of each episode, in the order of the steps."""
        numbers = self.columns("episode")[0].values.read(0, self.total)
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), self.total]
        episodes = [(int(numbers[start]), start, stop) for start, stop in itertools.pairwise(edges)]
        self.metadata.check_lengths({number: stop - start for number, start, stop in episodes})
        return episodes

    def column(self, role: str) -> LazyColumn:
        name = self.roles[role]
        if name in self.metadata.videos:
            return self._video(str(name))
        column, declared = super().column(role), self.metadata.own
        if name in (shapes := declared.get("shapes", {})):
            return _in_recorded_shape(column, shapes[name])
        if name == "task_index":
            return self._texts(column)
        if declared or name not in self.metadata.features:
            return column
        return _in_declared_shape(column, self.metadata.shape(str(name)), f"{self.path}: '{name}'")

    def _texts(self, index: LazyColumn) -> LazyColumn:
        def read(start: int, stop: int) -> np.ndarray:
            return np.array([self.metadata.tasks[number] for number in index.read(start, stop).tolist()], object)

        return LazyColumn(index.shape, np.dtype(object), read)

    def _video(self, key: str) -> LazyColumn:
        shape, depths = self.metadata.frame_shape(key), self.metadata.depths(key)
        frames = VideoFrames(shape, self.metadata.fps, depths)
        self.cameras.append(frames)
        starts = [start for _, start, _ in self.episodes]

        def read(start: int, stop: int) -> np.ndarray:
            parts = []
            begin, end = int(np.searchsorted(starts, start, "right")) - 1, int(np.searchsorted(starts, stop))
            for number, first, last in self.episodes[begin:end]:
                file, offset = self.metadata.locate(key, number)
                at = max(start, first)
                parts.append(frames.read(file, offset + at - first, min(stop, last) - at))
            return parts[0] if len(parts) == 1 else np.concatenate(parts)

        return LazyColumn((self.total, *shape), np.dtype(np.uint8 if depths is None else np.float32), read)

    def close(self) -> None:
        for frames in self.cameras:
            frames.close()

    def _flag(self, role: str) -> np.ndarray:
        """Return a flag where episodes end, bool ``[n]``; a success can also be set before."""
        flags, last = super()._flag(role), np.zeros(self.total, bool)
        last[[stop - 1 for _, _, stop in self.episodes]] = True
        self.add_remark(EARLY_END_REMARK, int(np.count_nonzero(flags & ~last)))
        return np.asarray(flags & last)

    @cached_property
    def transitions(self) -> Transitions:
        declared = int(self.metadata.about.get("total_frames", self.total))
        if self.total != declared:
            raise DataError(f"{self.path}: {INFO} declares {declared:,} steps, but data has {self.total:,}. {ADVICE}")
        assert self.episodes  # checks their lengths
        return super().transitions

    def info(self) -> DatasetInfo:
        columns, metadata = self.transitions.obs, self.metadata.about
        keys = {role.replace(".", "/", 1): name for role, name in self.roles.items()}
        leaves = {name: self._obs_space(keys[name], column) for name, column in columns.items()}
        tasks, fps = "; ".join(self.metadata.tasks.values()), f"{self.metadata.fps:g}"
        text = {"robot": str(metadata.get("robot_type") or ""), "frames per second": fps, "tasks": tasks}
        text = {title: value for title, value in text.items() if value}
        declared = {} if self.names_columns else declared_fields(self.metadata.own, self.path)
        return self.infer_info(**{"observation": nested_space(leaves, "obs"), "text": text, **declared})

    def _obs_space(self, key: ColumnNames, column: LazyColumn) -> Space:
        if column.dtype == object:
            return self._task_space()
        depths = self.metadata.depths(str(key)) if key in self.metadata.videos else None
        if depths is not None:
            return spaces.Box(depths[0], depths[-1], column.shape[1:], np.float32)
        return infer_obs_space(column.shape[1:], column.dtype)

    def _task_space(self) -> spaces.Text:
        texts = self.metadata.tasks.values()
        return spaces.Text(max(map(len, texts)), min_length=0, charset="".join(sorted(set("".join(texts)))))


def _in_declared_shape(column: LazyColumn, shape: tuple[int, ...], label: str) -> LazyColumn:
    """Return a column in the declared ``shape``, which can have axes of size 1 that the table has not."""
    stored = column.shape[1:]
    if stored == (*shape[1:], *shape[:1]):  # an image, whose channels are declared first
        return column
    if [size for size in stored if size > 1] != [size for size in shape if size > 1]:
        raise DataError(f"{label} is declared with shape {list(shape)}, but has shape {list(stored)}. {ADVICE}")

    def read(start: int, stop: int) -> np.ndarray:
        return column.read(start, stop).reshape(stop - start, *shape)

    return LazyColumn((column.shape[0], *shape), column.dtype, read)


def _in_recorded_shape(images: LazyColumn, shape: Sequence[int]) -> LazyColumn:
    """Return decoded ``images``, ``[n, H, W]`` or ``[n, H, W, C]``, in the shape that reverie's writer recorded."""

    def read(start: int, stop: int) -> np.ndarray:
        values = images.read(start, stop)
        is_moved = values.ndim == 4 and list(values.shape[1:]) != list(shape)
        return (np.moveaxis(values, -1, 1) if is_moved else values).reshape(-1, *shape)

    return LazyColumn((images.shape[0], *shape), images.dtype, read)

"""Reads LeRobot datasets of version 2 and 3: a folder with tables of steps, videos and metadata.

| feature | role |
|---|---|
| `observation.KEY` | observation `KEY`; 8-bit images and videos are uint8 `[H, W, C]`, depth videos float32 in mm |
| `action` | action |
| `next.reward`, else `next.success` | reward; without both, there are no rewards |
| `next.success`, else `next.done` | in the last step: whether the episode terminated |
| `episode_index` | episode |
| `frame_index` | order of the steps, which the tables must have; a gap ends the episode |
| `timestamp` | compared with the frames per second |
| `task_index` | with several tasks: observation `task`, text |

Values have the declared shapes. All other features, such as texts, are left out, with a remark.

The option ``columns`` chooses others. Only the videos of chosen features are decoded. Where metadata and videos are:

| version 2 | version 3 | what |
|---|---|---|
| `meta/info.json` | the same | version, frames per second, and the features: names, dtypes and shapes |
| `meta/episodes.jsonl` | `meta/episodes/**/*.parquet` | length of each episode; version 3: where its videos begin |
| `meta/tasks.jsonl` | `meta/tasks.parquet` | text of each `task_index` |
| `videos/**/*.mp4`, one per episode | several episodes per file | frames of the features with dtype `video` |
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.documents import read_json
from reverie.core.errors import DataError
from reverie.core.files import LARGEST_LOG, iter_lines, open_file
from reverie.datasets.arrow import TableColumn, read_table
from reverie.datasets.hdf5 import declared_fields
from reverie.datasets.inferred_spaces import infer_obs_space, nested_space, text_space
from reverie.datasets.options import PROPENSITY
from reverie.datasets.reader import FPS, ROBOT, ColumnNames, DatasetInfo, Reader, ReadOptions, Space
from reverie.datasets.source import COPY_ADVICE, Source, natural_sort_key, reading
from reverie.datasets.table import TableReader, tables_in
from reverie.datasets.transitions import EARLY_END_REMARK, LazyColumn, Transitions, chain
from reverie.datasets.video_frames import DEPTH_CODES, VideoFrames

INFO = "meta/info.json"
VIDEO_PATHS = {
    2: "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    3: "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
}
"""Paths of the videos, by the major version of the format, unless ``video_path`` declares others."""
OWN = "reverie"
"""Key in ``meta/info.json`` of what reverie declares: environment, spaces, names of columns, shapes of images."""
DEPTH_SETTINGS: dict[str, float] = {"depth_min": 0.01, "depth_max": 10.0, "shift": 3.5, "use_log": True}
"""Defaults of the settings of depth videos, in meters. Source: huggingface/lerobot, configs/video.py."""
MAX_FPS = 10_000
MAX_VALUES = 1 << 30
"""Upper limits of the frames per second, and of the values of a feature in one step."""
FRAME_GAP = "frame_index skips frames within an episode, which is truncated there"
WRONG_TIMES = "timestamp does not advance by 1 / fps = {:.4g} s from a frame to the next one"
TIME_TOLERANCE = 0.1
"""Largest error of the time between two frames, as a part of it."""
UNNAMED_TASKS = "task_index has several tasks, but meta/tasks, which names them, is missing: the task is not observed"
ALL_SPLITS = "all splits are read: {}"
SUCCESS_AS_REWARD = "there is no next.reward: next.success is the reward"
OBS_DTYPES = ("float", "int", "uint", "bool", "image", "video")
"""Beginnings of the dtypes that observations can have."""
INDICES = frozenset({"timestamp", "frame_index", "episode_index", "index", "task_index"})
"""Features that LeRobot adds to each dataset."""


class LeRobotMetadata:
    """The metadata in the folder ``path``. Raises DataError if they are damaged or of another version."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.about: dict[str, Any] = read_json(path / INFO, COPY_ADVICE)
        with reading(path / INFO):
            version = str(self.about["codebase_version"])
            self.version: int = int(version.lstrip("v").partition(".")[0])
            self.features: dict[str, Mapping[str, Any]] = dict(self.about["features"])
            self.fps: float = float(self.about["fps"])
            self.own: dict[str, Any] = dict(self.about.get(OWN, {}))
            self.videos: list[str] = [key for key, feature in self.features.items() if feature["dtype"] == "video"]
        if self.version not in VIDEO_PATHS:
            raise DataError(f"{path / INFO}: codebase_version = {version}: expected v2 or v3.")
        if not 0 < self.fps <= MAX_FPS:
            raise DataError(f"{path / INFO}: fps = {self.fps:g}: expected a number above 0, at most {MAX_FPS:,}.")
        if named := [key for key in self.videos if "/" in key]:
            raise DataError(f"{path / INFO}: the feature {named[0]} contains a slash: expected a name.")
        with reading(path / "meta"):
            self.episodes: dict[int, dict[str, Any]] = {
                int(row["episode_index"]): row for row in self._rows("episodes")
            }
            self.tasks: dict[int, str] = {int(row["task_index"]): _task_text(row) for row in self._rows("tasks")}

    def _rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a table, JSON lines or Parquet, without statistics; empty if there is none."""
        rows: list[dict[str, Any]] = []
        if (file := self.path / "meta" / f"{name}.jsonl").is_file():
            with open_file(file, LARGEST_LOG) as opened:
                for number, line in enumerate(iter_lines(opened), 1):
                    with reading(f"{file}, line {number}"):
                        rows += [json.loads(line)] if line.strip() else []
        files = [self.path / "meta" / f"{name}.parquet", *(self.path / "meta" / name).rglob("*.parquet")]
        for file in sorted(filter(Path.is_file, files), key=natural_sort_key):
            table = read_table(file)
            rows += table.select(
                [column for column in table.column_names if not column.startswith("stats/")]
            ).to_pylist()
        return rows

    def check_lengths(self, lengths: Mapping[int, int]) -> None:
        """Raise DataError unless the episodes in the data have these ``lengths``, by number."""
        for number in sorted(self.episodes.keys() | lengths.keys()):
            declared, actual = int(self.episodes.get(number, {}).get("length", 0)), lengths.get(number, 0)
            if declared != actual:
                problem = f"episode {number:,} has {actual:,} steps in data, but {declared:,} in meta"
                raise DataError(f"{self.path}: {problem}. {COPY_ADVICE}")

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the declared shape of a feature's values; that of images is [H, W, C], also if stored otherwise."""
        names = self.features[key].get("names")
        with reading(f"{self.path / INFO}, feature {key}"):
            shape = tuple(map(int, self.features[key]["shape"]))
        if min(shape, default=1) < 1 or math.prod(shape) > MAX_VALUES:
            expected = f"expected sizes of 1 or more, and at most {MAX_VALUES:,} values"
            raise DataError(f"{self.path / INFO}, feature {key}: shape = {list(shape)}: {expected}.")
        is_moved = isinstance(names, list) and str(*names[:1]).startswith("channel")
        return (*shape[1:], shape[0]) if is_moved and len(shape) == 3 else shape

    def element_names(self, key: str) -> tuple[str, ...]:
        """Return the names of a vector's elements, such as joints; version 2 groups them, ``{"motors": [...]}``."""
        feature = self.features.get(key, {})
        is_picture = feature.get("dtype") in ("image", "video")
        names = () if is_picture or not feature.get("names") else tuple(_flatten(feature["names"]))
        return names if names and len(names) == math.prod(self.shape(key)) else ()  # openpi names the whole vector

    def frame_shape(self, key: str) -> tuple[int, int, int]:
        """Return the shape [H, W, C] of a video's frames."""
        shape = self.shape(key)
        with reading(f"{self.path / INFO}, feature {key}"):
            height, width, channels = shape
        return height, width, channels

    def depths(self, key: str) -> np.ndarray | None:
        """Return the depth in millimeters of each 12-bit code of a depth video, float32 ``[4096]``; None for others.

        Source: huggingface/lerobot, datasets/depth_utils.py, dequantize_depth, with its default unit.
        """
        feature = self.features[key]
        with reading(f"{self.path / INFO}, feature {key}"):
            info = {**(feature.get("video_info") or {}), **(feature.get("info") or {})}
            is_depth = info.get("is_depth_map") or info.get("video.is_depth_map")
            if not is_depth or self.frame_shape(key)[2] != 1:
                return None
            stored = [(info.get(f"video.{name}"), default) for name, default in DEPTH_SETTINGS.items()]
            low, high, shift, use_log = (float(default if value is None else value) for value, default in stored)
            if use_log:
                meters = np.geomspace(low + shift, high + shift, DEPTH_CODES) - shift
            else:
                meters = np.linspace(low, high, DEPTH_CODES)
        return np.rint(1000 * meters).astype(np.float32)

    def locate(self, key: str, episode: int) -> tuple[Path, int]:
        """Return the video file of an episode, and the index of the episode's first frame."""
        chunk, file, first = episode // int(self.about.get("chunks_size", 1000)), 0, 0
        if self.version == 3:
            with reading(f"{self.path}: meta/episodes, episode {episode:,}"):
                row = self.episodes[episode]
                chunk, file = (int(row[f"videos/{key}/{name}_index"]) for name in ("chunk", "file"))
                first = round(float(row[f"videos/{key}/from_timestamp"]) * self.fps)
        names: dict[str, str | int] = {
            "video_key": key,
            "chunk_index": chunk,
            "file_index": file,
            "episode_chunk": chunk,
        }
        return self._fill_path(names | {"episode_index": episode}), first

    def _fill_path(self, names: Mapping[str, str | int]) -> Path:
        """Return the declared path of a video, with the values of its ``names``."""
        template = str(self.about.get("video_path") or VIDEO_PATHS[self.version])
        with reading(f"{self.path / INFO}: video_path = {template}"):
            filled = re.sub(
                r"\{(\w+)(?::0?(\d)d)?\}", lambda match: str(names[match[1]]).zfill(int(match[2] or 0)), template
            )
        file = self.path / filled
        if ".." in file.parts or not file.is_relative_to(self.path):
            raise DataError(f"{self.path / INFO}: video_path = {template}: expected a path in this folder.")
        return file


def _flatten(names: object) -> list[str]:
    """Return nested lists and mappings of names as one list. Numbers in a mapping are indices, not names."""
    items = names
    if isinstance(names, Mapping):
        items = list(names.values())
        if all(isinstance(index, int) for index in items):
            items = sorted(map(str, names), key=names.__getitem__)  # {"delta_x": 0, "delta_y": 1}
        elif all(map(str.isdecimal, names)):
            items = [names[index] for index in sorted(names, key=int)]  # {"0": "delta_x", "1": "delta_y"}
    return [name for item in items for name in _flatten(item)] if isinstance(items, list) else [str(items)]


def _task_text(row: Mapping[str, Any]) -> str:
    """Return the text in a row of the tasks; pandas stores it as the index, under another name."""
    texts = (str(value) for name, value in row.items() if name != "task_index")
    return str(row["task"]) if "task" in row else next(texts, "")


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
        self.task_column_name: str = "task_index" if len(self.metadata.tasks) > 1 else ""
        self.names_columns: bool = bool(options.columns)
        every = (options.columns or self._default_roles()) | {"episode": "episode_index"}
        stored = {role: name for role, name in every.items() if name not in self.metadata.videos}
        super().__init__(path, dataclasses.replace(options, columns=stored), tables_in(path / "data"))
        self.roles: dict[str, ColumnNames] = every
        splits = self.metadata.about.get("splits") or {}
        self.add_remark(ALL_SPLITS.format(", ".join(splits)), int(len(splits) > 1))
        self.add_remark(SUCCESS_AS_REWARD, int(every.get("reward") == "next.success"))
        columns = dict.fromkeys([*self.metadata.features, *self.schema.names])
        unused = [name for name in columns if name not in INDICES.union(every.values())]
        self.add_remark(f"left out: {', '.join(unused)}", bool(unused) and not options.columns)

    def _default_roles(self) -> dict[str, ColumnNames]:
        features = self.metadata.features
        columns = self.metadata.own.get("columns", {})
        roles: dict[str, ColumnNames] = {
            str(columns.get(name, f"obs/{name.partition('.')[2]}")).replace("/", ".", 1): name
            for name, feature in features.items()
            if name.startswith("observation.") and feature["dtype"].startswith(OBS_DTYPES)
        }
        roles |= {"obs.task": "task_index"} if "task_index" in columns or (roles and self.task_column_name) else {}
        candidates = {
            "action": ("action",),
            "reward": ("next.reward", "next.success"),
            "terminal": ("next.success", "next.done"),
        }
        present = {role: [name for name in names if name in features] for role, names in candidates.items()}
        roles |= {PROPENSITY: PROPENSITY} if PROPENSITY in features else {}
        return roles | {role: names[0] for role, names in present.items() if names}

    def supports_option(self, option: str) -> bool:
        return option == "columns"

    def tasks(self) -> Collection[str]:
        return self.metadata.tasks.values()

    def assume_tasks(self, tasks: Collection[str]) -> None:
        super().assume_tasks(tasks)
        if self.tasks() and not (self.names_columns or "obs" in self.roles):
            self.roles["obs.task"] = "task_index"

    @cached_property
    def has_episode_rows(self) -> bool:
        return False

    @property
    def is_one_table(self) -> bool:
        return True  # the metadata have the length of each episode

    @cached_property
    def episodes(self) -> list[tuple[int, int, int]]:
        """Number, first step and end of each episode, in the order of the steps."""
        numbers, frames = self.columns("episode")[0].values.read(0, self.total), self.frames
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), self.total]
        starts = numbers[edges[:-1]]
        wrong = np.append(False, (np.diff(numbers) == 0) & (np.diff(frames) <= 0))
        wrong[edges[:-1]] = ~np.isin(np.arange(len(starts)), np.unique(starts, return_index=True)[1])  # seen before
        if wrong.any():
            row = int(wrong.argmax())
            after = f"after frame {frames[row - 1]:,} of episode {numbers[row - 1]:,}"
            raise DataError(
                f"{self.path}: {self.position(row)} has frame {frames[row]:,} of episode {numbers[row]:,}, {after}: "
                "expected the order of time. Sort the tables by episode_index and frame_index."
            )
        episodes = [(int(numbers[start]), start, stop) for start, stop in itertools.pairwise(edges)]
        self.metadata.check_lengths({number: stop - start for number, start, stop in episodes})
        return episodes

    @cached_property
    def frames(self) -> np.ndarray:
        """Number of each step's frame in its episode, ``[n]``; without frame_index, that of its row."""
        if "frame_index" in self.schema.names:
            column = TableColumn(self.pieces, "frame_index", f"{self.path}: 'frame_index'").values
            return column.read(0, self.total).reshape(-1)
        return np.arange(self.total)

    @cached_property
    def gaps(self) -> np.ndarray:
        """Steps of an episode that the next frame does not follow."""
        inside = np.ones(self.total - 1, bool)
        inside[[stop - 1 for _, _, stop in self.episodes[:-1]]] = False
        steps = np.diff(self.frames)
        if "timestamp" in self.schema.names:
            column = TableColumn(self.pieces, "timestamp", f"{self.path}: 'timestamp'").values
            seconds = np.diff(column.read(0, self.total).astype(np.float64).reshape(-1)) * self.metadata.fps
            wrong = inside & (steps == 1) & ~(np.abs(seconds - 1) <= TIME_TOLERANCE)
            self.add_remark(WRONG_TIMES.format(1 / self.metadata.fps), int(wrong.sum()))
        gaps = np.flatnonzero(inside & (steps > 1))
        self.add_remark(FRAME_GAP, len(gaps))
        return gaps

    def _episode_ends(self, end: np.ndarray, flags: Mapping[str, np.ndarray]) -> np.ndarray:
        ends = super()._episode_ends(end, flags)
        ends[self.gaps] = True
        return ends

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
            numbers = index.read(start, stop).reshape(-1).tolist()
            if unknown := set(numbers) - self.metadata.tasks.keys():
                raise DataError(f"{self.path}: meta/tasks has no task {min(unknown)}, which data names. {COPY_ADVICE}")
            return np.array([self.metadata.tasks[number] for number in numbers], object)

        return LazyColumn(index.shape, np.dtype(object), read)

    def _video(self, key: str) -> LazyColumn:
        shape, depths = self.metadata.frame_shape(key), self.metadata.depths(key)
        frames = VideoFrames(shape, self.metadata.fps, depths)
        self.cameras.append(frames)
        firsts = [start for _, start, _ in self.episodes]
        starts = np.union1d(firsts, self.gaps + 1)  # of steps whose frames follow each other
        has_frames = "frame_index" in self.schema.names

        def read_run(run: int, start: int, stop: int) -> np.ndarray:
            first = int(starts[run]) + start
            number, episode_start, _ = self.episodes[int(np.searchsorted(firsts, first, "right")) - 1]
            file, offset = self.metadata.locate(key, number)
            frame = int(self.frames[first]) if has_frames else first - episode_start
            return frames.read(file, offset + frame, stop - start)

        sample = np.empty((0, *shape), np.uint8 if depths is None else np.float32)
        return chain(np.diff(starts, append=self.total).tolist(), sample, read_run)

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
            raise DataError(
                f"{self.path}: {INFO} declares {declared:,} steps, but data has {self.total:,}. {COPY_ADVICE}"
            )
        assert self.episodes  # checks their lengths
        if "task_index" in self.schema.names and not (self.names_columns or self.metadata.tasks):
            column = TableColumn(self.pieces, "task_index", f"{self.path}: 'task_index'").values
            self.add_remark(UNNAMED_TASKS, int(len(np.unique(column.read(0, self.total))) > 1))
        return super().transitions

    def info(self) -> DatasetInfo:
        columns, metadata = self.transitions.obs, self.metadata.about
        keys = {role.replace(".", "/", 1): name for role, name in self.roles.items()}
        leaves = {name: self._obs_space(keys[name], column) for name, column in columns.items()}
        tasks, fps = "; ".join(self.metadata.tasks.values()), f"{self.metadata.fps:g}"
        text = {ROBOT: str(metadata.get("robot_type") or ""), FPS: fps, "tasks": tasks}
        text = {title: value for title, value in text.items() if value}
        declared = {} if self.names_columns else declared_fields(self.metadata.own, self.path)
        named = {name: key for name, key in keys.items() if name in columns or name.partition("/")[0] == "action"}
        names = {name: self.metadata.element_names(key) if isinstance(key, str) else key for name, key in named.items()}
        declared["element_names"] = {name: value for name, value in names.items() if value}
        return self.infer_info(**{"observation": nested_space(leaves, "obs"), "text": text, **declared})

    def _obs_space(self, key: ColumnNames, column: LazyColumn) -> Space:
        if column.dtype == object:
            return text_space(self.all_tasks or self.tasks())
        depths = self.metadata.depths(str(key)) if key in self.metadata.videos else None
        if depths is not None:
            return spaces.Box(depths[0], depths[-1], column.shape[1:], np.float32)
        return infer_obs_space(column.shape[1:], column.dtype)


def _in_declared_shape(column: LazyColumn, shape: tuple[int, ...], label: str) -> LazyColumn:
    """Return a column in the declared ``shape``, which can have axes of size 1 that the table has not."""
    stored = column.shape[1:]
    if stored == (*shape[1:], *shape[:1]):  # an image, whose channels are declared first
        return column
    if [size for size in stored if size > 1] != [size for size in shape if size > 1]:
        raise DataError(f"{label} is declared with shape {list(shape)}, but has shape {list(stored)}. {COPY_ADVICE}")

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

"""The metadata of LeRobot datasets of version 2 and 3, and where they store the frames of their videos.

| version 2 | version 3 | what |
|---|---|---|
| `meta/info.json` | the same | version, frames per second, and the features: names, dtypes and shapes |
| `meta/episodes.jsonl` | `meta/episodes/**/*.parquet` | length of each episode; version 3: where its videos begin |
| `meta/tasks.jsonl` | `meta/tasks.parquet` | text of each `task_index` |
| `videos/**/*.mp4`, one per episode | several episodes per file | frames of the features with dtype `video` |
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.documents import read_json
from reverie.core.errors import DataError
from reverie.core.files import LARGEST_LOG, read_file
from reverie.datasets.arrow import read_table
from reverie.datasets.source import natural_sort_key, reading
from reverie.datasets.video_frames import DEPTH_CODES

INFO = "meta/info.json"
VIDEO_PATHS = {
    2: "videos/chunk-{chunk:03d}/{key}/episode_{episode:06d}.mp4",
    3: "videos/{key}/chunk-{chunk:03d}/file-{file:03d}.mp4",
}
"""Paths of the videos, by the major version of the format."""
OWN = "reverie"
"""Key in ``meta/info.json`` of what reverie declares: environment, spaces, names of columns, shapes of images."""
DEPTH_SETTINGS: dict[str, float] = {"depth_min": 0.01, "depth_max": 10.0, "shift": 3.5, "use_log": True}
"""Defaults of the settings of depth videos, in meters. Source: huggingface/lerobot, configs/video.py."""
MAX_FPS = 10_000
MAX_VALUES = 1 << 30
"""Upper limits of the frames per second, and of the values of a feature in one step."""
ADVICE = "Download or copy the dataset again."


class LeRobotMetadata:
    """The metadata in the folder ``path``. Raises DataError if they are damaged or of another version."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.about: dict[str, Any] = read_json(path / INFO, ADVICE)
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
            for number, line in enumerate(read_file(file, LARGEST_LOG).decode().splitlines(), 1):
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
                raise DataError(
                    f"{self.path}: episode {number:,} has {actual:,} steps in data, but {declared:,} in meta. {ADVICE}"
                )

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
        return self.path / VIDEO_PATHS[self.version].format(key=key, chunk=chunk, file=file, episode=episode), first


def _task_text(row: Mapping[str, Any]) -> str:
    """Return the text in a row of the tasks; pandas stores it as the index, under another name."""
    texts = (str(value) for name, value in row.items() if name != "task_index")
    return str(row["task"]) if "task" in row else next(texts, "")

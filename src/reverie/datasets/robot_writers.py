"""Writes episodes as robomimic's HDF5 file, or as a LeRobot dataset of version 3.

They raise the errors of the writers in ``writers.py``. After an error nothing is left.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from reverie.core.errors import ConfigError
from reverie.core.obs_conversion import has_channels_first
from reverie.core.rows import Rows
from reverie.datasets.lerobot import INFO, OWN
from reverie.datasets.options import PROPENSITY
from reverie.datasets.output import WriteReport, check_room, staged_file, total_bytes
from reverie.datasets.reader import FPS, ROBOT, DatasetInfo
from reverie.datasets.robomimic import LONE_KEY
from reverie.datasets.source import import_pyarrow
from reverie.datasets.writers import (
    BUFFERED,
    MINARI_ADVICE,
    append_to_hdf5,
    cast_to_first,
    check_distinct,
    check_one_action,
    check_plain,
    declarations,
    declare,
    hdf5_file,
    is_images,
    to_arrow,
    transitions_of,
    write_json_files,
)

ROBOMIMIC_NAMES = {"action": "actions", "reward": "rewards", "terminal": "dones", PROPENSITY: PROPENSITY}
GYM_TYPE = 2
"""robomimic's number of the environments that Gym makes, without which it cannot make one."""
FILE_BYTES = 100_000_000
"""Bytes of steps in memory after which a new table of a LeRobot dataset is started."""
DEFAULT_FPS = 30
LONE_ACTIONS = "robomimic reads vectors: actions are stored as [steps, 1]; its policies treat them as continuous"
UNKNOWN_FPS = f"the frames per second are unknown: {INFO} declares {DEFAULT_FPS}"
FINAL_FRAMES = "each episode ends with one more frame, which has its final observation and repeats its last action"
TASK_COLUMN = "obs/task"
PANDAS_INDEX: dict[str, Any] = {
    "index_columns": ["task"], "column_indexes": [], "pandas_version": "2.0.0", "columns": [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": dtype, "metadata": None}
        for name, kind, dtype in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ],
}  # fmt: skip
"""Metadata of a table by which pandas, and so LeRobot, takes the tasks as the index."""


def write_robomimic(episodes: Iterable[Rows], target: Path, info: DatasetInfo) -> WriteReport:
    """Write one HDF5 file in robomimic's layout; attributes declare the environment and the spaces.

    The only observation of an unnested space is called ``observation``. Actions that are numbers become ``[n, 1]``, as
    robomimic needs.
    """
    report, label = WriteReport(target), "robomimic's files"
    with staged_file(target) as staged, hdf5_file(staged) as file:
        data = file.create_group("data")
        for rows in episodes:
            if len(rows["reward"]) < 2:
                continue
            steps = transitions_of(rows)
            check_plain(steps, label, "arrays of numbers", 99, nested=True)
            check_one_action(steps, label)
            check_room(target, 2 * total_bytes(steps) + BUFFERED)
            demo = data.create_group(f"demo_{report.episodes}")
            for name, values in steps.items():
                root, _, key = name.partition("/")
                if root == "action" and values.ndim == 1:
                    values = values[:, None]
                    report.remarks = [LONE_ACTIONS]
                if root != "truncated" and (root != "reward" or info.has_rewards):
                    append_to_hdf5(demo, ROBOMIMIC_NAMES.get(root) or f"{root}/{key or LONE_KEY}", values)
            demo.attrs["num_samples"] = len(steps["reward"])
            report.add(len(steps["reward"]))
        report.check()
        data.attrs["total"] = report.steps
        environment = {"env_name": info.env, "type": GYM_TYPE, "env_kwargs": info.env_kwargs}
        data.attrs["env_args"] = json.dumps(environment)
        declare(file, info, report)
    return report


# ---------------------------------------------------------------- LeRobot


def write_lerobot(episodes: Iterable[Rows], target: Path, info: DatasetInfo) -> WriteReport:
    """Write a LeRobot dataset of version 3; images are PNG in the tables, not videos.

    LeRobot stores no final observations, so each episode ends with one more frame. ``meta/info.json`` says so, and
    declares the environment, the spaces and the names of the observations.
    """
    report = WriteReport(target, remarks=[FINAL_FRAMES, *([] if FPS in info.text else [UNKNOWN_FPS])])
    with staged_file(target, folder=True) as staged:
        tables = LeRobotTables(staged, info)
        try:
            for rows in episodes:
                if len(rows["reward"]) > 1:
                    check_room(target, 2 * total_bytes({n: v for n, v in rows.items() if v.dtype != object}) + BUFFERED)
                    tables.add(rows)
                    report.add(len(rows["reward"]) - 1)
        finally:
            tables.close()
        report.check()
        tables.write_metadata()
    return report


class LeRobotTables:
    """The files of a LeRobot dataset in ``folder`` that is being written."""

    def __init__(self, folder: Path, info: DatasetInfo) -> None:
        self.arrow: Any = import_pyarrow()
        self.folder = folder
        self.info = info
        self.fps: float = float(info.text.get(FPS, DEFAULT_FPS))
        self.features: dict[str, dict[str, Any]] = {}
        self.columns: dict[str, str] = {}
        """Column of reverie of each observation, by feature."""
        self.shapes: dict[str, list[int]] = {}
        """Recorded shape of each image, by feature."""
        self.dtypes: dict[str, np.dtype[Any]] = {}
        self.statistics: dict[str, FeatureStatistics] = {}
        self.episodes: list[dict[str, Any]] = []
        self.tasks: dict[str, int] = {}
        self.rows: int = 0
        self._writer: Any = None
        self._file: int = -1
        self._written: int = 0

    def add(self, rows: Rows) -> None:
        """Write an episode of n + 1 rows as n + 1 frames."""
        number, length, arrow = len(self.episodes), len(rows["reward"]), self.arrow
        texts = rows.get(TASK_COLUMN, np.full(length, self.info.text.get("tasks", ""), object)).tolist()
        self.columns |= {"task_index": TASK_COLUMN} if TASK_COLUMN in rows else {}
        frames = self._frames({name: values for name, values in rows.items() if name != TASK_COLUMN})
        frames = cast_to_first(frames, self.dtypes)
        index = np.arange(length)
        tasks = np.array([self.tasks.setdefault(str(text), len(self.tasks)) for text in texts])
        frames |= {"timestamp": (index / self.fps).astype(np.float32), "frame_index": index}
        frames |= {"index": self.rows + index, "episode_index": np.full(length, number), "task_index": tasks}
        for name, values in frames.items():
            names = self.info.element_names.get(self.columns.get(name, name))
            self.features.setdefault(name, _describe_feature(values, names))
            self.statistics.setdefault(name, FeatureStatistics()).add(values)
        table = arrow.table({name: _encode_column(arrow, values) for name, values in frames.items()})
        if self._writer is None or self._written > FILE_BYTES:
            self.close()
            self._file, self._written = self._file + 1, 0
            path = self.folder / f"data/chunk-000/file-{self._file:03d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = arrow.parquet.ParquetWriter(path, table.schema)
        self._writer.write_table(table)  # a row group for each episode
        self._written += table.nbytes
        self.episodes.append({
            "episode_index": number, "tasks": sorted({str(text) for text in texts}), "length": length,
            "data/chunk_index": 0, "data/file_index": self._file, "dataset_from_index": self.rows,
            "dataset_to_index": self.rows + length, "meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0,
        })  # fmt: skip
        self.rows += length

    def _frames(self, rows: Rows) -> Rows:
        """Return the frames of an episode by feature, ``[n + 1, ...]``."""
        label = "LeRobot datasets"
        check_one_action(rows, label)
        check_plain(rows, label, "arrays of numbers, and text called task", 99, nested=True)
        names = {name: _feature_name(name, values) for name, values in rows.items() if name.startswith("obs")}
        check_distinct(names, label)
        self.columns |= {feature: name for name, feature in names.items()}
        frames = {feature: rows[name] for name, feature in names.items()}
        frames["action"] = np.concatenate([rows["action"][:-1], rows["action"][-2:-1]])
        frames |= {PROPENSITY: rows[PROPENSITY]} if PROPENSITY in rows else {}
        if self.info.has_rewards:
            frames["next.reward"] = np.append(rows["reward"][1:], 0).astype(np.float32)
        images = {feature: values for feature, values in frames.items() if is_images(values)}
        self.shapes |= {feature: list(values.shape[1:]) for feature, values in images.items()}
        frames |= {feature: _to_channels_last(values, feature) for feature, values in images.items()}
        return frames | {"next.done": rows["is_terminal"]}

    def close(self) -> None:
        """Finish the current table."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def write_metadata(self) -> None:
        """Write the files in ``meta``."""
        fps = int(self.fps) if self.fps == int(self.fps) else self.fps
        metadata = {
            "codebase_version": "v3.0", "robot_type": self.info.text.get(ROBOT),
            "total_episodes": len(self.episodes), "total_frames": self.rows, "total_tasks": len(self.tasks),
            "chunks_size": 1000, "data_files_size_in_mb": FILE_BYTES // 1_000_000, "video_files_size_in_mb": 200,
            "fps": fps, "splits": {"train": f"0:{len(self.episodes)}"},
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet", "video_path": None,
            "features": self.features,
            OWN: {"columns": self.columns, "shapes": self.shapes, **declarations(self.info)},
        }  # fmt: skip
        statistics = {name: numbers.to_json() for name, numbers in self.statistics.items()}
        episodes, parquet = self.folder / "meta/episodes/chunk-000", self.arrow.parquet
        episodes.mkdir(parents=True)
        write_json_files(self.folder, {INFO: metadata, "meta/stats.json": statistics})
        parquet.write_table(self.arrow.Table.from_pylist(self.episodes), episodes / "file-000.parquet")
        tasks = self.arrow.table({"task_index": list(self.tasks.values()), "task": list(self.tasks)})
        tasks = tasks.replace_schema_metadata({"pandas": json.dumps(PANDAS_INDEX)})
        parquet.write_table(tasks, self.folder / "meta/tasks.parquet")


class FeatureStatistics:
    """Statistics of a feature over all frames, as LeRobot stores them; of images by channel, in [0, 1]."""

    def __init__(self) -> None:
        self.count: int = 0
        self.sums: Any = 0.0
        """Sums of the values, and of their squares, ``[2, elements]``."""
        self.low: Any = np.inf
        self.high: Any = -np.inf
        self.shape: tuple[int, ...] = (-1,)

    def add(self, values: np.ndarray) -> None:
        """Add values ``[n, ...]``."""
        numbers = values.reshape(len(values), -1).astype(np.float64)
        if is_images(values):
            numbers, self.shape = values.reshape(-1, values.shape[3]) / 255, (-1, 1, 1)
        self.count += len(numbers)
        self.sums = self.sums + np.stack([numbers.sum(0), np.square(numbers).sum(0)])
        self.low, self.high = np.minimum(self.low, numbers.min(0)), np.maximum(self.high, numbers.max(0))

    def to_json(self) -> dict[str, list[Any]]:
        """Return the statistics as plain numbers."""
        mean, square = self.sums / self.count
        arrays = {"min": self.low, "max": self.high, "mean": mean}
        arrays["std"] = np.sqrt(np.maximum(square - np.square(mean), 0.0))
        return {name: array.reshape(self.shape).tolist() for name, array in arrays.items()} | {"count": [self.count]}


def _feature_name(column: str, values: np.ndarray) -> str:
    """Return LeRobot's name of an observation ``[n, ...]``: ``observation.images.top`` for ``obs/images.top``."""
    key = column.partition("/")[2] or ("image" if is_images(values) else "state")
    return f"observation.{key.replace('/', '.')}"


def _to_channels_last(values: np.ndarray, feature: str) -> np.ndarray:
    """Return images ``[n, H, W]``, ``[n, C, H, W]`` or ``[n, H, W, C]`` as ``[n, H, W, C]``, as LeRobot needs them.

    Raises:
        ConfigError: PNG cannot store their number of channels.
    """
    images = values[..., None] if values.ndim == 3 else values
    if images.ndim == 4 and has_channels_first(images.shape[1:]):
        images = np.moveaxis(images, 1, -1)
    if images.ndim != 4 or images.shape[-1] > 4:
        problem = f"can only store images of 1 to 4 channels, not {feature} (shape {list(values.shape[1:])})"
        raise ConfigError(f"LeRobot datasets {problem}. {MINARI_ADVICE}.")
    return images


def _describe_feature(values: np.ndarray, names: Sequence[str] | None) -> dict[str, Any]:
    """Return the entry of a feature ``[n, ...]`` in the metadata; ``names``: those of its elements."""
    shape = list(values.shape[1:]) or [1]
    if is_images(values):
        return {"dtype": "image", "shape": shape, "names": ["height", "width", "channels"]}
    return {"dtype": str(values.dtype), "shape": shape, "names": names and list(names)}


def _encode_column(arrow: ModuleType, values: np.ndarray) -> Any:
    """Return values ``[n, ...]`` as an Arrow column; images as PNG, in the way of Hugging Face."""
    from PIL import Image

    if not is_images(values):
        return to_arrow(arrow, values)
    pictures = []
    for value in values:
        file = io.BytesIO()
        Image.fromarray(value[..., 0] if value.shape[-1] == 1 else value).save(file, "PNG")
        pictures.append({"bytes": file.getvalue(), "path": None})
    return arrow.array(pictures, arrow.struct({"bytes": arrow.binary(), "path": arrow.string()}))

"""Where measured values go: JSON lines, TensorBoard, video files."""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from reverie.log.video import to_rgb, upscale, write_video

Values = Mapping[str, float | np.ndarray]


def is_video(value: object) -> bool:
    """Whether ``value`` is a ``[T, H, W, C]`` array of bytes."""
    return isinstance(value, np.ndarray) and value.ndim == 4 and value.dtype == np.uint8


def scalars(values: Values) -> dict[str, float]:
    """The single numbers among ``values``."""
    return {k: float(v) for k, v in values.items() if np.ndim(v) == 0}


class JsonlSink:
    """One JSON object a flush: ``{"step": ..., "<name>": ...}``, appended and flushed line by line.

    Numbers that are not finite become ``null``, which every reader of JSON takes. A line that an earlier process
    could not finish is cut off before the first new one is written.
    """

    def __init__(self, path: Path, since: int | None = None) -> None:
        """``since``: where the run goes on; what an earlier process wrote of later steps is put into a file beside."""
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_unfinished_line(path)
        if since is not None:
            set_aside(path, since)
        self._file = path.open("a", encoding="utf-8")

    def write(self, values: Values, step: int) -> None:
        """Append the scalars among ``values``."""
        row = {name: value if math.isfinite(value) else None for name, value in scalars(values).items()}
        if row:
            self._file.write(json.dumps({"step": step, **row}) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows a ``JsonlSink`` wrote, in the order of their steps; ``null`` is read as NaN.

    A truncated last line is left out. Where a file has rows that a run lived a second time, these replace the first.
    """
    rows: list[dict[str, Any]] = []
    if not path.exists():
        return rows
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if not isinstance(row, dict) or "step" not in row:
            continue
        while rows and rows[-1]["step"] > row["step"]:
            rows.pop()
        rows.append({name: math.nan if value is None else value for name, value in row.items()})
    return rows


def set_aside(path: Path, since: int) -> None:
    """Move the lines of steps beyond ``since`` to the end of a file beside it: ``metrics-aside.jsonl``.

    A run that goes on from a checkpoint lives those steps again, and perhaps otherwise. A crash may leave lines in both
    files, never in none.
    """
    if not path.exists():
        return
    kept: list[str] = []
    moved: list[str] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        try:
            beyond = json.loads(line)["step"] > since
        except (ValueError, KeyError, TypeError):
            beyond = False
        (moved if beyond else kept).append(line)
    if not moved:
        return
    with path.with_name(f"{path.stem}-aside{path.suffix}").open("a", encoding="utf-8") as file:
        file.writelines(moved)
        file.flush()
        os.fsync(file.fileno())
    staged = path.with_name(f".{path.name}.{os.getpid()}.part")
    with staged.open("w", encoding="utf-8") as file:
        file.writelines(kept)
        file.flush()
        os.fsync(file.fileno())
    os.replace(staged, path)


def _cut_unfinished_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
            os.fsync(file.fileno())


class TensorBoardSink:
    """TensorBoard event files: scalars under their names, videos as moving images.

    Raises:
        ImportError: the package ``tensorboard`` is not installed.
    """

    def __init__(self, folder: Path, fps: int = 15, purge_step: int | None = None) -> None:
        """``purge_step``: where the run goes on; what an earlier process wrote from there on is hidden."""
        from torch.utils.tensorboard import SummaryWriter  # optional third-party package, and slow to import

        self._writer: Any = SummaryWriter(str(folder), purge_step=purge_step)
        self._fps = fps

    def write(self, values: Values, step: int) -> None:
        """Record scalars, videos, and other arrays as histograms."""
        for name, value in values.items():
            if np.ndim(value) == 0:
                self._writer.add_scalar(name, float(value), step)
            elif isinstance(value, np.ndarray) and is_video(value):
                self._add_video(name, value, step)
            else:
                self._writer.add_histogram(name, np.asarray(value), step)

    def _add_video(self, name: str, frames: np.ndarray, step: int) -> None:
        """A GIF, which TensorBoard plays; its own ``add_video`` would need one more package."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]  # optional, no types

        shown = upscale(to_rgb(frames), 128)
        gif = io.BytesIO()
        pictures = [Image.fromarray(frame) for frame in shown]
        pictures[0].save(
            gif, format="GIF", save_all=True, append_images=pictures[1:], duration=1000 // self._fps, loop=0
        )
        height, width = shown.shape[1:3]
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=gif.getvalue())
        summary = Summary(value=[Summary.Value(tag=name, image=image)])
        self._writer._get_file_writer().add_summary(summary, step)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


def video_path(folder: Path, name: str, step: int) -> Path:
    """Where the video ``name`` of a step is written."""
    stem = re.sub(r"[^\w.-]+", "_", name)
    return folder / f"{stem}-{step:012d}.mp4"


class VideoSink:
    """Every video becomes ``<folder>/<name>-<step>.mp4``; everything else is left to other sinks."""

    def __init__(self, folder: Path, fps: int = 15, keep: int = 20) -> None:
        self._folder, self._fps, self._keep = folder, fps, keep

    def write(self, values: Values, step: int) -> None:
        """Write the videos among ``values`` and drop the oldest of each name."""
        for name, value in values.items():
            if isinstance(value, np.ndarray) and is_video(value):
                path = write_video(video_path(self._folder, name, step), value, self._fps)
                stem = path.stem.rpartition("-")[0]
                for old in sorted(self._folder.glob(f"{stem}-{'[0-9]' * 12}.mp4"))[: -self._keep]:
                    old.unlink()

    def close(self) -> None:
        """Nothing is held open."""

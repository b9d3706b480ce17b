"""Destinations of a run's measurements: JSON lines, TensorBoard, video files, trackers, the console, user sinks."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from reverie.core.clock import Clock
from reverie.core.files import disk_errors_as_run_error, write_atomic, write_json
from reverie.core.logger import logger
from reverie.core.protocols import Sink
from reverie.core.seeding import preserve_rng_state
from reverie.log.artifacts import tracker_ids
from reverie.log.console import ConsoleSink
from reverie.log.jsonl import EpisodeSink, JsonlSink, Values
from reverie.log.trackers import MlflowSink, TrackedRun, WandbSink
from reverie.log.video import is_image, is_video, media_path, to_rgb, upscale, write_image, write_video

FPS = 15
"""Frames per second of videos."""


class TensorBoardSink:
    """Writes TensorBoard event files: scalars under their names, videos as animated images."""

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        """``purge_step``: the step at which the run is resumed; earlier events from there on are hidden."""
        self._folder, self._purge_step = folder, purge_step

    @functools.cached_property
    def _writer(self) -> Any:
        """The event file. It is opened by the first entry: the import is slow, and not needed to start."""
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self._folder), purge_step=self._purge_step)

    def write(self, values: Values, step: int) -> None:
        """Record scalars, texts, images, videos, and other arrays as histograms."""
        for name, value in values.items():
            if isinstance(value, str):
                self._writer.add_text(name, value, step)
            elif np.ndim(value) == 0:
                self._writer.add_scalar(name, float(value), step)
            elif isinstance(value, np.ndarray) and is_video(value):
                self._add_video(name, value, step)
            elif isinstance(value, np.ndarray) and is_image(value):
                self._writer.add_image(name, to_rgb(value), step, dataformats="HWC")
            else:
                self._writer.add_histogram(name, np.asarray(value), step)

    def _add_video(self, name: str, frames: np.ndarray, step: int) -> None:
        """Write a GIF, which TensorBoard plays; its own ``add_video`` would need another package."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]  # optional, no types

        gif = io.BytesIO()
        peak = int(frames.max(initial=0))
        pictures = (Image.fromarray(upscale(to_rgb(frame, peak), 128)) for frame in frames)  # one at a time
        first = next(pictures)
        first.save(gif, format="GIF", save_all=True, append_images=pictures, duration=1000 // FPS, loop=0)
        width, height = first.size
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=gif.getvalue())
        summary = Summary(value=[Summary.Value(tag=name, image=image)])
        self._writer._get_file_writer().add_summary(summary, step)

    def close(self) -> None:
        """Flush and close the event file, if there is one."""
        if "_writer" in vars(self):
            self._writer.close()


class MediaSink:
    """Writes videos, images and texts to files below ``folder``, the newest ``keep`` of each name; nothing else.

    ``videos/<name>-<step>.mp4``, ``images/<name>-<step>.png`` and ``texts/<name>-<step>.txt``.
    """

    def __init__(self, folder: Path, keep: int = 20) -> None:
        self._folder, self._keep = folder, keep

    def write(self, values: Values, step: int) -> None:
        """Write the videos, images and texts among ``values`` and delete the oldest ones of each name."""
        for name, value in values.items():
            if (path := media_path(self._folder, name, value, step)) is not None:
                if isinstance(value, str):
                    write_atomic(path, value)
                elif isinstance(value, np.ndarray):
                    write_image(path, value) if is_image(value) else write_video(path, value, FPS)
                stem = path.stem.rpartition("-")[0]
                older = [old for old in path.parent.glob(f"{stem}-{'[0-9]' * 12}{path.suffix}") if old != path]
                older.sort(key=lambda old: (old.stat().st_mtime_ns, old))
                for old in older[: max(0, len(older) + 1 - self._keep)]:
                    old.unlink()

    def close(self) -> None:
        """Do nothing: no file is held open."""


class ErrorTolerantSink:
    """A sink whose errors do not end the run: they are reported once each time that writing begins to fail.

    A user's sink gets copies of the values, and its random draws do not affect the run.
    """

    def __init__(self, sink: Sink, label: str = "", errors: type[Exception] = OSError) -> None:
        """``label``: name in messages (default: its class). ``errors``: exceptions that do not end the run."""
        self.sink: Sink = sink
        self.errors: type[Exception] = errors
        self.failed: bool = False
        self.name: str = label or f"the sink {type(sink).__name__}"

    def write(self, values: Values, step: int) -> None:
        """Pass a copy of the values on."""
        copied = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in values.items()}
        self._try(self.sink.write, copied, step)

    def write_episodes(self, episodes: Sequence[dict[str, float]]) -> None:
        """Pass copies of the finished episodes on, if the sink takes them."""
        if hasattr(self.sink, "write_episodes"):
            self._try(self.sink.write_episodes, [dict(episode) for episode in episodes])

    def _try(self, write: Callable[..., object], *args: Any) -> None:
        try:
            with preserve_rng_state() if self.errors is Exception else contextlib.nullcontext():
                write(*args)
        except self.errors as error:
            if not self.failed:
                text = _format_error(error)
                logger.warning(f"{self.name} cannot write: {text}. The run continues; later entries go to it")
            self.failed = True
        else:
            self.failed = False

    def close(self) -> None:
        """Close the sink; an error is reported."""
        try:
            with preserve_rng_state():
                self.sink.close()
        except self.errors as error:
            logger.warning(f"closing {self.name} failed: {_format_error(error)}")


def _format_error(error: Exception) -> str:
    """Return the message of an error; for an error in a user's sink also its type, and the line in the sink's file."""
    if isinstance(error, OSError):
        return str(error)
    frame = next(f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__)
    return f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno} in {frame.name})"


TRACKERS = {"wandb": "Weights & Biases", "mlflow": "MLflow"}
"""Settings that switch a tracker on, and the tracker's name."""


@dataclass(frozen=True, kw_only=True)
class LogOutputs(TrackedRun):
    """The logs of a run: files in its folder ``path``, its name at trackers, and the sinks that ``settings`` enable."""

    user_sinks: Sequence[Sink] = field(default=())
    """Sinks of the user."""
    note: str = ""
    """Note on training returns in the title of the learning curve."""

    @contextlib.contextmanager
    def open(self, clock: Clock, repeated_values: Values | None = None) -> Iterator[list[Sink]]:
        """Open all sinks, the user's sinks last. On exit all are closed, and the learning curve is drawn.

        ``repeated_values``: values that mark logged entries of the current step which will be written again.
        """
        with contextlib.ExitStack() as stack:
            sinks: list[Sink] = []
            for sink in self._iter_sinks(clock, repeated_values):
                stack.callback(sink.close)
                sinks.append(sink)
            for user_sink in self.user_sinks:
                sinks.append(ErrorTolerantSink(user_sink, errors=Exception))
                stack.callback(sinks[-1].close)
            stack.callback(self.draw_curve, clock.unit)  # before the trackers close, which upload it
            yield sinks

    def _iter_sinks(self, clock: Clock, repeated_values: Values | None) -> Iterator[Sink]:
        """Yield the sinks of reverie one by one: files first, since the trackers may upload them."""
        path, board = self.path, self.path / "tensorboard"
        with disk_errors_as_run_error(path):
            lines = JsonlSink(path / "metrics.jsonl", since=clock.position, repeated_values=repeated_values)
            yield ErrorTolerantSink(lines, f"{path / 'metrics.jsonl'} (its entries wait in memory)")
            episodes = EpisodeSink(path / "episodes.jsonl", since=clock.position)
            yield ErrorTolerantSink(episodes, f"{path / 'episodes.jsonl'} (its entries wait in memory)")
            yield ErrorTolerantSink(MediaSink(path), "an image, a text or a video")
            if self.settings["tensorboard"]:
                since = clock.position + 1 if board.is_dir() else None  # a run can also start over
                yield ErrorTolerantSink(TensorBoardSink(board, purge_step=since), "TensorBoard")
            yield from self._trackers()
        if self.settings["console"]:
            yield ConsoleSink(clock, self.title)

    def _trackers(self) -> Iterator[Sink]:
        """Yield the trackers that are switched on. Their ids of the run are stored, so that they continue it."""
        ids = tracker_ids(self.path)
        run = replace(self, settings=json.loads(json.dumps(dict(self.settings))))  # lists instead of tuples
        for name in (name for name in TRACKERS if self.settings[name]):
            kind = WandbSink if name == "wandb" else MlflowSink
            sink = kind(run, ids.get(name))
            if ids.get(name) != sink.ident:
                ids[name] = sink.ident
                write_json(self.path / "tracked.json", ids)
            logger.info(f"{TRACKERS[name]}: {sink.location}")
            yield ErrorTolerantSink(sink, TRACKERS[name], Exception)

    def draw_curve(self, unit: str) -> None:
        """Draw the learning curve of the run. A disk error is only reported."""
        from reverie.log.plot import plot_learning_curve  # matplotlib: a fifth of all imports, not needed to start

        try:
            plot_learning_curve(self.path / "metrics.jsonl", self.path / "curve.png", f"{self.title}{self.note}",
                           "env steps" if unit == "steps" else unit)  # fmt: skip
        except OSError as error:
            logger.warning(f"cannot write: {error}")

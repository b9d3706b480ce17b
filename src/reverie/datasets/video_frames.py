"""Frames of video files, decoded by ffmpeg one range at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.errors import DataError

PIXEL_FORMATS = {1: "gray", 3: "rgb24"}
"""ffmpeg's names of the formats of uint8 images, by their number of channels."""
DEPTH_FORMAT, DEPTH_CODES = "gray12le", 1 << 12
"""ffmpeg's name of the format of depth videos, and the number of its values."""


class VideoFrames:
    """Frames of the videos of one camera. Reading on where the latest range ended does not search in the file."""

    def __init__(self, shape: tuple[int, int, int], fps: float, depths: np.ndarray | None = None) -> None:
        """``shape``: [H, W, C] of a frame. ``depths``: of a depth video, the depth of each code, ``[DEPTH_CODES]``."""
        self.shape = shape
        self.fps = fps
        self.depths = depths
        self._next: tuple[Path, int] | None = None
        """File and index of the frame that ``_frames`` yields next."""
        self._frames: Iterator[Any] = iter(())

    def read(self, file: Path, start: int, count: int) -> np.ndarray:
        """Return ``count`` frames from index ``start`` on, ``[count, H, W, C]``: uint8, or the depths of their codes.

        Raises:
            DataError: the file is missing, does not decode, ends too early, or has frames of another shape or rate.
        """
        if self._next != (file, start):
            self.close()
            self._frames = self._open(file, start)
        self._next = None  # after an error, the position is unknown
        out = np.empty((count, *self.shape), np.uint8 if self.depths is None else "<u2")
        for i in range(count):
            try:
                out[i] = np.frombuffer(next(self._frames), out.dtype).reshape(self.shape)
            except (StopIteration, RuntimeError, OSError):
                raise DataError(f"{file}: frame {start + i:,} is missing or does not decode.") from None
        self._next = file, start + count
        return out if self.depths is None else self.depths[out]

    def _open(self, file: Path, start: int) -> Iterator[Any]:
        import imageio_ffmpeg  # type: ignore[import-untyped]  # it has no types

        if not file.is_file():
            raise DataError(f"{file} is missing. Download the videos too, or name other features: --data.columns.")
        seek = ["-ss", f"{(start - 0.5) / self.fps:.6f}"] if start else []
        luma = "" if self.depths is None else "extractplanes=y,"  # a conversion of YUV to gray would scale the codes
        once = ["-vf", f"{luma}setpts=N/{self.fps:g}/TB", "-r", f"{self.fps:g}"]  # no frame is dropped or repeated
        channels = self.shape[2]
        pixels, bits = (PIXEL_FORMATS.get(channels), 8 * channels) if self.depths is None else (DEPTH_FORMAT, 16)
        if pixels is None:
            raise DataError(f"{file}: frames have {channels} channels: expected 1 or 3.")
        frames: Iterator[Any] = imageio_ffmpeg.read_frames(
            str(file.absolute()),  # to ffmpeg, a relative one can be a protocol such as concat:
            pixels, bits_per_pixel=bits, input_params=seek, output_params=once,
        )  # fmt: skip
        try:
            header = next(frames)
            width, height = header["size"]
            fps = float(header["fps"])  # 0 if unknown
        except (StopIteration, RuntimeError, OSError, KeyError, IndexError, ValueError):
            raise DataError(
                f"{file} does not decode as a video: it is damaged or only a pointer to a download."
            ) from None
        if (height, width) != self.shape[:2]:
            raise DataError(f"{file}: frames have size {height} x {width}: expected {self.shape[0]} x {self.shape[1]}.")
        if fps and abs(fps - self.fps) > 0.02 * self.fps:
            raise DataError(f"{file} has {fps:g} frames per second: expected {self.fps:g}, as the dataset declares.")
        return frames

    def close(self) -> None:
        """End the ffmpeg process."""
        if (close := getattr(self._frames, "close", None)) is not None:
            close()
        self._frames, self._next = iter(()), None

"""Videos: image observations with any number of channels as RGB, labeled, and written as mp4."""

from __future__ import annotations

import colorsys
import contextlib
import errno
import io
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import imageio_ffmpeg  # type: ignore[import-untyped]  # it has no types
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from reverie.core.files import key_to_filename, write_atomic

OBSERVED_COLOR, IMAGINED_COLOR, EDITED_COLOR = (111, 171, 242), (240, 163, 82), (224, 127, 216)
"""Edges of rows that the model observes, imagines, or that were edited: the viewer's colors in a dark theme."""
TEXT = (225, 228, 232)
BACKGROUND = (22, 24, 28)
MIN_FONT_PIXELS, CHARACTERS_PER_LINE = 18, 40
"""Smallest letters of a caption in pixels, and how many such heights are at most the width of its picture."""
SHEET_SIDE = 128
"""Longer side in pixels of an image on a contact sheet."""
EDGE = 40
"""Difference of neighboring pixels, 0 to 255, that is an edge."""
MIN_SECONDS = 3
"""Seconds that a video should last."""


def write_video(path: Path, frames: np.ndarray, fps: int = 30) -> Path:
    """Write ``frames`` ``[T, H, W, C]`` uint8, of any size and channel count, as H.264 mp4; return ``path``.

    Small images are enlarged and odd sides padded, since 4:2:0 color needs even sides. A video shorter than
    ``MIN_SECONDS`` is slowed down, but not below two frames per second. The file appears once it is complete.
    """
    peak, (height, width) = int(frames.max()), _pad_even(upscale(frames[:1])).shape[1:3]
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        pictures = (_pad_even(upscale(to_rgb(frame, peak)))[0] for frame in frames[:, None])  # one at a time
        encode_mp4(pictures, (width, height), staged, min(fps, max(2, len(frames) // MIN_SECONDS)))
        os.replace(staged, path)
    finally:
        staged.unlink(missing_ok=True)
    return path


def encode_mp4(frames: Iterable[np.ndarray], size: tuple[int, int], path: Path, fps: int) -> None:
    """Write ``frames`` ``[H, W, 3]`` uint8, whose ``size`` (W, H) is even, as H.264 mp4."""
    inputs = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", "{}x{}".format(*size), "-r", str(fps), "-i", "-"]
    outputs = ["-vcodec", "libx264", "-pix_fmt", "yuv420p", "-crf", "10", str(path)]
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-v", "error", "-xerror", *inputs, *outputs]
    with subprocess.Popen(  # in a separate process group: Ctrl-C is for this process
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0
    ) as ffmpeg:
        assert ffmpeg.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # ended early with an error message
            for frame in frames:
                ffmpeg.stdin.write(np.ascontiguousarray(frame).data)
        _, stderr = ffmpeg.communicate()
    if ffmpeg.returncode:
        first = re.sub(r"^\[.*?\] ", "", stderr.decode(errors="replace").strip().partition("\n")[0])
        raise OSError(errno.EIO, f"ffmpeg: {first or f'exit code {ffmpeg.returncode}'}")


def to_rgb(frames: np.ndarray, peak: int | None = None) -> np.ndarray:
    """Return ``frames`` ``[..., H, W, C]``, uint8 or floats in 0..255, as RGB ``[..., H, W, 3]`` uint8.

    One channel is grayscale and three are RGB; others are masks, whose colors are mixed where several are set. If the
    largest value ``peak`` is below 32, values are symbols, as in MiniGrid and MinAtar, and are stretched.
    """
    peak = int(frames.max(initial=0)) if peak is None else peak
    factor, channels = 255 / peak if 0 < peak < 32 else 1.0, frames.shape[-1]
    light = frames.astype(np.float32) * factor
    if channels == 1:
        light = np.repeat(light, 3, axis=-1)
    elif channels != 3:
        colors = palette(channels)  # [C, 3]
        mixed = light @ colors / light.sum(-1, keepdims=True).clip(min=1e-6)  # [..., 3] in 0..1
        light = mixed * light.max(-1, keepdims=True)
    return light.clip(0, 255).astype(np.uint8)


def palette(count: int) -> np.ndarray:
    """Return ``count`` distinct colors, ``[count, 3]`` in 0..1."""
    hues = (np.arange(count) * 0.618034) % 1.0  # golden ratio: consecutive hues are far apart
    return np.array([colorsys.hsv_to_rgb(hue, 0.8, 1.0 - 0.35 * (i % 2)) for i, hue in enumerate(hues)], np.float32)


def upscale(frames: np.ndarray, side: int = 256) -> np.ndarray:
    """Return ``[..., H, W, C]`` with each pixel repeated so that the longer side is at least ``side``."""
    factor = max(1, -(-side // max(frames.shape[-3:-1])))
    return frames.repeat(factor, axis=-3).repeat(factor, axis=-2) if factor > 1 else frames


def shrink(frame: np.ndarray, side: int) -> np.ndarray:
    """Return ``[H, W, 3]`` uint8 scaled down so that the longer side is at most ``side``; the aspect ratio is kept."""
    height, width = frame.shape[:2]
    scale = side / max(height, width)
    if scale >= 1:
        return frame
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BOX))


def _pad_even(frames: np.ndarray) -> np.ndarray:
    """Return ``[T, H, W, C]`` with the last row or column repeated if the height or width is odd."""
    height, width = frames.shape[1:3]
    return np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def border(frames: np.ndarray, colors: Sequence[tuple[int, int, int]], width: int = 4) -> np.ndarray:
    """Return ``[T, H, W, 3]`` with a border of ``colors[t]`` around image t; images grow by ``2 * width``."""
    out = np.pad(frames, ((0, 0), (width, width), (width, width), (0, 0)))
    for picture, color in zip(out, colors, strict=True):
        picture[:width] = picture[-width:] = color
        picture[:, :width] = picture[:, -width:] = color
    return out


def outline_truth(dream: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the picture ``dream`` ``[H, W, 3]`` uint8 with the edges of ``truth`` that it lacks, as a faint line."""
    real, guess = truth.astype(np.int16), dream.astype(np.int16)
    differs = np.abs(real - guess).max(-1) > EDGE
    is_edge = np.zeros_like(differs)
    for edge, step, wrong in ((is_edge, real, differs), (is_edge.T, real.swapaxes(0, 1), differs.T)):  # views
        edge[1:] |= (np.abs(step[1:] - step[:-1]).max(-1) > EDGE) & (wrong[1:] | wrong[:-1])
    out = dream.copy()
    out[is_edge] = (0.25 * out[is_edge] + 0.75 * np.array(OBSERVED_COLOR)).astype(np.uint8)
    return out


def tile(videos: np.ndarray, gap: int = 4) -> np.ndarray:
    """Put ``[B, T, H, W, 3]`` side by side: return ``[T, H, B * (W + gap) - gap, 3]``."""
    spaced = np.pad(videos, ((0, 0), (0, 0), (0, 0), (0, gap), (0, 0)), constant_values=BACKGROUND[0])
    rows = spaced.transpose(1, 2, 0, 3, 4)  # [T, H, B, W + gap, 3]
    return rows.reshape(*rows.shape[:2], -1, 3)[:, :, :-gap]


def caption(text: str, width: int) -> np.ndarray:
    """Return an image ``[H, width, 3]`` uint8 with ``text`` on it, legible where the picture is as wide as a page."""
    size = max(MIN_FONT_PIXELS, width // CHARACTERS_PER_LINE)
    picture = Image.new("RGB", (width, size * 3 // 2), BACKGROUND)
    font = ImageFont.load_default(size)
    ImageDraw.Draw(picture).text((6, size * 3 // 4), text, fill=TEXT, font=font, anchor="lm")
    return np.asarray(picture)


def channels_last(images: np.ndarray) -> np.ndarray:
    """Return images ``[T, H, W]``, ``[T, H, W, C]`` or ``[T, C, H, W]`` as ``[T, H, W, C]``."""
    if images.ndim == 3:
        return images[..., None]
    return np.moveaxis(images, 1, -1) if images.shape[1] in (1, 3) and images.shape[-1] not in (1, 3) else images


def write_contact_sheet(png: Path, frames: Mapping[str, Sequence[np.ndarray]]) -> Path:
    """Write sample images to ``png`` and return it: for each name a caption, and one line for each of its episodes.

    ``frames``: images ``[T, ...]`` uint8 of each episode, by name; see ``channels_last``.
    """
    parts: list[np.ndarray] = []
    for name, episodes in frames.items():
        images = (to_rgb(channels_last(episode)) for episode in episodes)
        lines = ([shrink(upscale(image, SHEET_SIDE), SHEET_SIDE) for image in those] for those in images)
        sheet = np.concatenate([tile(np.stack(line)[:, None])[0] for line in lines])
        parts += [caption(name, sheet.shape[1]), sheet]
    width = max(part.shape[1] for part in parts)
    padded = [np.pad(part, ((0, 4), (0, width - part.shape[1]), (0, 0))) for part in parts]
    Image.fromarray(np.concatenate(padded)).save(png)
    return png


def dream_video(truth: np.ndarray, prediction: np.ndarray, context: int) -> np.ndarray:
    """Return truth, dream and difference of B sequences, one below the other, ``[T, H', W', 3]`` uint8.

    ``truth``: uint8 ``[B, T, H, W, C]``; ``prediction``: the same in the same units, uint8 or float. The ``context``
    rows that the model observed have a blue border, imagined rows an orange one.
    """
    peak, steps = int(truth.max(initial=0)), truth.shape[1]
    side = max(96, min(256, 768 // truth.shape[0]))
    real, dreamt = (upscale(to_rgb(x, peak), side) for x in (truth, prediction))
    off = (dreamt.astype(np.int16) - real.astype(np.int16)) // 2 + 128
    colors = [OBSERVED_COLOR if t < context else IMAGINED_COLOR for t in range(steps)]
    captions = [f"sees frame {t + 1}" if t < context else f"imagines step {t + 1 - context}" for t in range(steps)]
    videos = (
        (["truth"] * steps, real),
        ([f"dream: {words}" for words in captions], dreamt),
        (["difference (gray: none)"] * steps, off.astype(np.uint8)),
    )
    parts: list[np.ndarray] = []
    for titles, video in videos:
        row = tile(np.stack([border(v, colors) for v in video]))
        strips = {title: caption(title, row.shape[2]) for title in titles}
        parts.append(np.concatenate([np.stack([strips[title] for title in titles]), row], axis=1))
    return np.concatenate(parts, axis=1)


def is_video(value: object) -> bool:
    """Return whether ``value`` is a uint8 array ``[T, H, W, C]``."""
    return isinstance(value, np.ndarray) and value.ndim == 4 and value.dtype == np.uint8


def is_image(value: object) -> bool:
    """Return whether ``value`` is a uint8 array ``[H, W, C]``."""
    return isinstance(value, np.ndarray) and value.ndim == 3 and value.dtype == np.uint8


def write_image(path: Path, image: np.ndarray) -> Path:
    """Write ``image`` ``[H, W, C]`` uint8 as PNG; return ``path``."""
    content = io.BytesIO()
    Image.fromarray(to_rgb(image)).save(content, format="PNG")
    write_atomic(path, content.getvalue())
    return path


def media_path(run: Path, name: str, value: object, step: int) -> Path | None:
    """Return the path of the video, image or text ``name`` at ``step``; None if ``value`` is none of these.

    It is ``videos/report_KEY-000000000008.mp4`` in the folder ``run`` for ``report/KEY``.
    """
    kinds = {"videos": (is_video(value), "mp4"), "images": (is_image(value), "png")}
    kinds["texts"] = (isinstance(value, str), "txt")
    stem = f"{key_to_filename(name.replace('/', '_', 1))}-{step:012d}"
    return next((run / folder / f"{stem}.{suffix}" for folder, (fits, suffix) in kinds.items() if fits), None)

"""Images: rendered frames as uint8, resizing and grayscale, for one image or many.

This file must not import torch: worker processes import it.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from reverie.core.errors import ConfigError, DataError
from reverie.core.logger import logger
from reverie.core.specs import ObsPart

LUMA = np.array([0.299, 0.587, 0.114], np.float32)
ROUNDING = 1e-3
"""Tolerance of floats outside 0..1, due to the precision of 16-bit floats."""


def last_frame(frame: object) -> Any:
    """Return the result of ``render``; for a list, its last frame; None if it is empty."""
    return (frame[-1] if frame else None) if isinstance(frame, list) else frame


def frame_to_rgb(image: np.ndarray) -> np.ndarray:
    """Convert a frame (uint8, floats in 0..1 or integers in 0..255, gray or with alpha) to uint8 ``[H, W, 3]``."""
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[-1] not in (1, 3, 4)):
        raise DataError(
            f"the rendered image has shape {image.shape}: expected [H, W], or [H, W, C] with C = 1, 3 or "
            "4. Several images in one array must be [N, H, W, C]"
        )
    if image.dtype != np.uint8:
        image = _scaled(image)
    if image.ndim == 2:
        image = image[..., None]
    if image.shape[-1] == 1:
        image = np.repeat(image, 3, axis=-1)
    return np.ascontiguousarray(image[..., :3])


def _scaled(image: np.ndarray) -> np.ndarray:
    low, high = image.min(), image.max()
    if image.dtype.kind == "f" and low >= -ROUNDING and high <= 1.0 + ROUNDING:
        image = np.rint(np.clip(image, 0.0, 1.0) * 255.0)
    elif image.dtype.kind not in "iu" or low < 0 or high > 255:
        raise DataError(
            f"the rendered image has {image.dtype} values from {low} to {high}: expected uint8, floats "
            "from 0 to 1, or other integers from 0 to 255. Convert it in render()"
        )
    return image.astype(np.uint8)


def open_image(data: bytes) -> Image.Image:
    """Open a compressed image as viewers show it: upright by its EXIF orientation, in a mode of :func:`plain_mode`."""
    return plain_mode(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))


def plain_mode(image: Image.Image) -> Image.Image:
    """Return an image as gray (8 or more bits), RGB or RGBA; others, such as palettes and CMYK, are converted."""
    if image.mode in ("L", "F", "RGB", "RGBA") or image.mode.startswith("I"):
        return image
    alpha = "A" if image.has_transparency_data else ""
    return image.convert("L" if image.mode == "1" else f"RGB{alpha}")


def resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize images ``[..., H, W, C]``, uint8 or float32, to ``size`` (height, width): bilinear with antialiasing."""
    if image.shape[-3:-1] == size:
        return image
    if image.ndim > 3:
        out = np.empty((len(image), *image.shape[1:-3], *size, image.shape[-1]), image.dtype)
        for row, single in enumerate(image):
            out[row] = resize(single, size)
        return out
    to = (size[1], size[0])
    if image.dtype == np.uint8 and image.shape[-1] == 3:
        return np.asarray(Image.fromarray(image).resize(to, Image.Resampling.BILINEAR))
    planes = [Image.fromarray(np.ascontiguousarray(image[..., c])) for c in range(image.shape[-1])]
    return np.stack([np.asarray(p.resize(to, Image.Resampling.BILINEAR)) for p in planes], axis=-1)


def grayscale(image: np.ndarray) -> np.ndarray:
    """Return the luma ``[..., H, W, 1]`` of colors ``[..., H, W, 3]`` (ITU-R BT.601), in the dtype of ``image``."""
    gray = image @ LUMA
    return (np.rint(gray) if image.dtype == np.uint8 else gray).astype(image.dtype)[..., None]


class ImageOptions:
    """Resizes images and converts them to grayscale; ``spec`` describes the result."""

    def __init__(
        self, spec: Mapping[str, ObsPart], size: tuple[int, int] | None, gray: bool,
        max_size: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        """``max_size``: that to which larger images are resized if there is no ``size``."""
        self.spec: dict[str, ObsPart] = dict(spec)
        self._steps: list[tuple[str, Callable[[np.ndarray], np.ndarray]]] = []
        images = {key: part for key, part in spec.items() if part.kind == "image"}
        if (size or gray) and not images:
            option = "resize" if size else "grayscale"
            available = ", ".join(map(repr, sorted(spec)))
            raise ConfigError(
                f"env.{option} needs image observations, but found only {available}. Set env.pixels = 'only' to "
                "observe rendered images."
            )
        for key, part in images.items():
            is_large = max_size is not None and (part.shape[0] > max_size[0] or part.shape[1] > max_size[1])
            if target := size or (max_size if is_large else None):  # also where it fits: a later rendering may not
                self._steps.append((key, functools.partial(resize, size=target)))
                part = replace(part, shape=(*target, part.shape[2]))
            if gray and part.shape[2] not in (1, 3):
                logger.warning(
                    f"env.grayscale leaves the image '{key}' as it is: it has {part.shape[2]} channels, not red, green "
                    "and blue"
                )
            elif gray and part.shape[2] == 3:
                self._steps.append((key, grayscale))
                part = replace(part, shape=(*part.shape[:2], 1))
            self.spec[key] = part

    def applied_to(self, key: str) -> dict[str, Any]:
        """Return the transformations of the image ``key``: its new height and width, and whether it becomes gray."""
        steps = [step for name, step in self._steps if name == key]
        resized = {"resized": list(self.spec[key].shape[:2])} if any(step is not grayscale for step in steps) else {}
        return resized | ({"grayscale": True} if grayscale in steps else {})

    def image(self, key: str, image: np.ndarray) -> np.ndarray:
        """Return the image ``key``, ``[..., H, W, C]``, resized and converted to gray as configured."""
        for name, step in self._steps:
            image = step(image) if name == key else image
        return image

    def __call__(self, obs: dict[str, np.ndarray], prefix: str = "") -> dict[str, np.ndarray]:
        """Transform the images in ``obs``, ``[..., H, W, C]`` under ``prefix`` and their key, and return ``obs``."""
        for key, step in self._steps:
            obs[prefix + key] = step(obs[prefix + key])
        return obs

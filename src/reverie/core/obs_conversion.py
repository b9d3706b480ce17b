"""Conversion of leaf observation spaces to the arrays of learners: images, vectors, class indices, masks, text.

:func:`conversion` returns the spec of a space and the functions in both directions. This file must not import torch:
worker processes import it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError, EnvError, short_repr
from reverie.core.spaces import MOST_CLASSES, NUMBERS, Space, classes_of
from reverie.core.specs import ObsPart

ChannelAxis = Literal["auto", "first", "last"]
Encode = Callable[[Any, int], np.ndarray]
"""Takes values ``[..., *space.shape]`` and the number of their leading axes; returns ``[..., *part.shape]``."""
Decode = Callable[[np.ndarray], Any]
"""The inverse: takes ``[..., *part.shape]`` and returns ``[..., *space.shape]``."""
Conversion = tuple[ObsPart, Encode, Decode]
INTEGERS = "biu"
"""Kinds of NumPy dtypes of class indices and pixels."""
MAX_PYTHON_SUM = 64
"""Up to this many numbers, Python sums faster than NumPy."""
MAX_QUICK_CHECK = 1024
"""More numbers would wake BLAS threads."""
MAX_SUM = 1e38
"""A smaller sum fits in float32."""
TINY = float(np.finfo(np.float32).tiny)
"""Smallest normal float32 number. The range of a float image must be between this and ``MAX_SUM``."""


def conversion(space: Space, channel_axis: ChannelAxis) -> Conversion:
    """Return the spec of a leaf space, and the conversion functions in both directions."""
    if isinstance(space, spaces.MultiBinary) and len(space.shape) == 3:
        return _image(spaces.Box(0, 1, space.shape, np.uint8), channel_axis)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return _categories(*classes_of(space))
    if isinstance(space, spaces.Text):
        return _text(space)
    if isinstance(space, spaces.Box) and space.dtype.kind in NUMBERS:
        return _image(space, channel_axis) if looks_like_image(space) else _vector(space)
    raise EnvError(f"has the space {space}: expected a numeric Box, Discrete, MultiDiscrete, MultiBinary or Text")


def mask_conversion(space: Space) -> Conversion:
    """Return the spec of an action mask, and the conversion functions in both directions.

    Masks ``[parts, classes]`` become ``[A]``.
    """
    shape = space.shape or ()

    def encode(value: object, lead: int) -> np.ndarray:
        array = _as_array(value, shape, space.dtype, NUMBERS, lead)
        if not ((array == 0) | (array == 1)).all():
            raise DataError(f"is {array}: expected 1 for legal actions and 0 for all others")
        return array.reshape(*array.shape[:lead], -1).astype(bool)

    return ObsPart(kind="mask", shape=(math.prod(shape),), dtype="bool"), encode, np.asarray


def _as_array(value: object, shape: tuple[int, ...], dtype: object, kinds: str, lead: int) -> np.ndarray:
    array: np.ndarray = np.asarray(value)
    if array.shape[lead:] != shape:
        raise DataError(f"has shape {array.shape[lead:]}; its space declares {shape}")
    if array.dtype.kind not in kinds:
        raise DataError(f"has dtype {array.dtype}; its space declares {dtype}")
    return array


def _as_float32(values: np.ndarray, lead: int) -> np.ndarray:
    """Return float32; raise DataError for NaN, infinity and numbers too large for float32."""
    if is_surely_finite(values):
        return values.astype(np.float32, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):  # checked below
        array = values.astype(np.float32, copy=False)
        if np.isfinite(np.add.reduce(array, axis=None)):  # many times faster than checking each number
            return array
    wrong = np.argwhere(~np.isfinite(array))
    if len(wrong):
        at = tuple(map(int, wrong[0]))
        raise DataError(f"is {values[at]} at index {at[lead:]}: expected finite float32 numbers")
    return array


def is_surely_finite(array: np.ndarray) -> bool:
    """Return True only if ``array`` is small and its sum proves all numbers finite. Faster than ``np.isfinite``."""
    if array.dtype.kind != "f" or array.size > MAX_QUICK_CHECK:
        return False
    if array.size <= MAX_PYTHON_SUM:
        return bool(sum(map(abs, array.ravel().tolist())) < MAX_SUM)
    return bool(np.vdot(array, array) < MAX_SUM)


def _vector(space: spaces.Box) -> Conversion:
    low = float(space.low.astype(np.float64).min(initial=np.inf))
    high = float(space.high.astype(np.float64).max(initial=-np.inf))
    declared = f"{'numbers' if space.dtype.kind == 'f' else 'integers'} in {low:g}..{high:g}"
    is_bounded = math.isfinite(low) and math.isfinite(high)
    shape, dtype = space.shape, space.dtype
    part = ObsPart(kind="vector", shape=shape, dtype="float32", declared_bounds=declared if is_bounded else "")
    return part, lambda value, lead: _as_float32(_as_array(value, shape, dtype, NUMBERS, lead), lead), np.asarray


def looks_like_image(space: spaces.Box | spaces.MultiBinary) -> bool:
    """Return whether ``space`` has rank 3 with usable bounds, or rank 2 with dtype uint8 and bounds 0..255.

    Rank 4 is a stack of images if these have 1, 3 or 4 channels, or channels first. The bounds of floats must differ.
    """
    if isinstance(space, spaces.MultiBinary) or space.dtype.kind not in NUMBERS:
        return len(space.shape) == 3 and isinstance(space, spaces.MultiBinary)
    if len(space.shape) == 4 and space.shape[-1] not in (1, 3, 4) and not has_channels_first(space.shape[1:]):
        return False
    if len(space.shape) in (3, 4) and space.dtype.kind == "f":
        return TINY <= float(space.high.max()) - float(space.low.min()) < MAX_SUM
    if len(space.shape) in (3, 4):
        return int(space.high.max()) - int(space.low.min()) <= 255
    gray = space.dtype == np.uint8 and len(space.shape) == 2
    return bool(gray and space.low.min() == 0 and space.high.max() == 255)


def has_channels_first(shape: tuple[int, ...]) -> bool:
    """Return whether ``shape`` reads as C, H, W: a usual channel count first, two larger sides, no such count last."""
    c, h, w = shape
    usual = c in (1, 3, 4) or (c <= 16 and min(h, w) >= 32)
    return usual and c < min(h, w) and w not in (1, 3, 4)


def is_channels_first(shape: tuple[int, ...], channel_axis: ChannelAxis) -> bool:
    """Return whether channels are the first axis of the images ``shape``, and are moved to the end."""
    return len(shape) > 2 and (channel_axis == "first" or (channel_axis == "auto" and has_channels_first(shape[-3:])))


def _image(space: spaces.Box, channel_axis: ChannelAxis) -> Conversion:
    """Return the conversion to ``[H, W, C]``; stacked frames become channels, as with ``env.frame_stack``."""
    rank, dtype = len(space.shape), "float32" if space.dtype.kind == "f" else "uint8"
    image_shape = space.shape if rank > 2 else (*space.shape, 1)
    frames = image_shape[0] if rank == 4 else 1
    first = is_channels_first(space.shape, channel_axis)
    bounds = channel_bounds(space, rank - 3 if first else rank - 1) if rank > 2 else None
    if bounds is not None:
        low, high, encode, decode = _scaled_pixels(space, *bounds)
    else:
        low, high, encode, decode = _float_pixels(space) if dtype == "float32" else _byte_pixels(space)
    c, h, w = image_shape[-3:] if first else (image_shape[-1], *image_shape[-3:-1])
    part = ObsPart(kind="image", shape=(h, w, frames * c), dtype=dtype, low=low, high=high)

    def to_hwc(array: np.ndarray) -> np.ndarray:
        if rank == 2:
            return array[..., None]
        array = np.moveaxis(array, -3, -1) if first else array  # [..., H, W, C]
        return array if rank == 3 else np.moveaxis(array, -4, -2).reshape(*array.shape[:-4], *part.shape)

    def from_hwc(array: np.ndarray) -> np.ndarray:
        if rank == 4:
            array = np.moveaxis(array.reshape(*array.shape[:-1], frames, c), -2, -4)
        array = np.moveaxis(array, -1, -3) if first else array
        return array[..., 0] if rank == 2 else array

    if rank == 3 and not first:
        return part, encode, decode
    return part, lambda value, lead: to_hwc(encode(value, lead)), lambda values: decode(from_hwc(values))


def _check_between(array: np.ndarray, low: float, high: float, slack: float = 0.0) -> None:
    if array.size and (array.min() < low - slack or array.max() > high + slack):
        raise DataError(f"has values {array.min():g}..{array.max():g}; its space declares {low:g}..{high:g}")


def _float_pixels(space: spaces.Box) -> tuple[float, float, Encode, Decode]:
    low, high = float(space.low.min()), float(space.high.max())
    shape, dtype = space.shape, space.dtype

    def encode(value: object, lead: int) -> np.ndarray:
        array = _as_float32(_as_array(value, shape, dtype, NUMBERS, lead), lead)
        _check_between(array, low, high, 1e-3 * (high - low))
        return array

    return low, high, encode, np.asarray


def channel_bounds(space: spaces.Box, axis: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the bounds of each channel, along ``axis``, with the axes of ``space``; None if all are equal."""
    other_axes = tuple(i for i in range(len(space.shape)) if i != axis)
    low = space.low.astype(np.float64).min(other_axes, keepdims=True)
    high = space.high.astype(np.float64).max(other_axes, keepdims=True)
    return None if (low == low.min()).all() and (high == high.max()).all() else (low, high)


def _scaled_pixels(space: spaces.Box, low: np.ndarray, high: np.ndarray) -> tuple[float, float, Encode, Decode]:
    """Return the conversion to 0..1, or 0..255 for integers, of channels that each have their own bounds.

    With common bounds, a plane of 0..1 would vanish next to one of 0..1e6.
    """
    shape, dtype, is_float = space.shape, space.dtype, space.dtype.kind == "f"
    top = 1.0 if is_float else 255.0
    scale = top / np.where(high > low, high - low, 1.0)

    def encode(value: object, lead: int) -> np.ndarray:
        array = _as_array(value, shape, dtype, NUMBERS if is_float else INTEGERS, lead)
        scaled = (_as_float32(array, lead).astype(np.float64) - low) * scale if is_float else (array - low) * scale
        _check_between(scaled, 0.0, top, 1e-3 if is_float else 0.0)
        pixels: np.ndarray = scaled.astype(np.float32) if is_float else np.rint(scaled).astype(np.uint8)
        return pixels

    def decode(values: np.ndarray) -> np.ndarray:
        array: np.ndarray = values / scale + low
        return array if is_float else np.rint(array)

    return 0.0, top, encode, decode


def _byte_pixels(space: spaces.Box) -> tuple[float, float, Encode, Decode]:
    """Return the conversion to uint8: the declared bounds are scaled to 0..255, so that 0/1 planes are visible."""
    low, high, shape, dtype = int(space.low.min()), int(space.high.max()), space.shape, space.dtype
    table = np.rint(np.arange(high - low + 1) * (255 / max(1, high - low))).astype(np.uint8)
    plain = (low, high) == (0, 255)

    def encode(value: object, lead: int) -> np.ndarray:
        array = _as_array(value, shape, dtype, INTEGERS, lead)
        if plain and array.dtype == np.uint8:
            return array
        binary = array.dtype == np.bool_ and low == 0  # MinAtar's planes cannot be out of bounds
        if not binary:
            _check_between(array, low, high)
        stretched: np.ndarray = table[array.view(np.uint8) if binary else array.astype(np.int64) - low]
        return stretched

    def decode(values: np.ndarray) -> np.ndarray:
        return values if plain else np.rint(values * ((high - low) / 255)) + low

    return 0.0, 255.0, encode, decode


def _categories(counts: np.ndarray, start: np.ndarray) -> Conversion:
    shape = counts.shape
    if (total := int(counts.astype(np.float64).sum())) > MOST_CLASSES:
        raise EnvError(f"has {total:,} classes, which networks encode one-hot: expected at most {MOST_CLASSES:,}")
    part = ObsPart(kind="categorical", shape=shape, dtype="int64", classes=tuple(map(int, counts.reshape(-1))))
    low, count = (int(start), int(counts)) if shape == () else (0, 0)

    def encode(value: object, lead: int) -> np.ndarray:
        if isinstance(value, int | np.integer) and 0 <= (number := int(value) - low) < count:  # five times as fast
            return np.asarray(number, np.int64)
        array = _as_array(value, shape, "int64", INTEGERS, lead)
        index = array.astype(np.int64) - start
        wrong = (index < 0) | (index >= counts)
        if wrong.any():
            full_index = tuple(map(int, np.argwhere(wrong)[0]))
            at = full_index[lead:]
            position = f" at index {at}" if at else ""
            declared = f"{start[at]}..{start[at] + counts[at] - 1}"
            raise DataError(f"is {array[full_index]}{position}; its space declares {declared}")
        return np.asarray(index)

    return part, encode, lambda values: values + start


def _text(space: spaces.Text) -> Conversion:
    """Return the conversion of text: class 0 is padding; the characters follow in the order of their code points."""
    length, characters = int(space.max_length), sorted(space.character_set)
    codes = {character: code for code, character in enumerate(characters, start=1)}
    part = ObsPart(kind="categorical", shape=(length,), dtype="int64", classes=(len(characters) + 1,) * length)
    letters = np.array(["", *characters])

    def encode_one(value: object) -> np.ndarray:
        out = np.zeros(length, np.int64)
        if not isinstance(value, str) or len(value) > length or not codes.keys() >= set(value):
            allowed = short_repr("".join(characters))
            raise DataError(
                f"is {short_repr(value)}; its space declares a text of at most {length} of the characters {allowed}"
            )
        out[: len(value)] = [codes[character] for character in value]
        return out

    def encode(value: Any, lead: int) -> np.ndarray:
        return (
            np.array([encode_one(text) for text in value], np.int64).reshape(-1, length) if lead else encode_one(value)
        )

    return part, encode, lambda values: np.array(["".join(row) for row in letters[values]], object)

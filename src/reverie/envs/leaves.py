"""How each kind of leaf in an observation space becomes an array: a vector, an image or categories.

The conversion is chosen once, when the environment is made. Each step then calls one small function per leaf.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError, EnvError
from reverie.core.specs import ObsPart

Channels = Literal["auto", "first", "last"]
Convert = Callable[[Any], np.ndarray]

INTEGERS = "biu"
NUMBERS = "biuf"

HANDFUL, FEW, SMALL = 64, 1024, 1e38
"""Limits of ``surely_finite``. Up to ``HANDFUL`` numbers Python sums faster than NumPy, whose code an update has pushed
out of the cache. More than ``FEW`` would wake the threads of a BLAS. A sum below ``SMALL`` fits float32."""
TINY = float(np.finfo(np.float32).tiny)
"""Least normal number of float32. A float image needs bounds whose distance lies between this and ``SMALL``."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The part that a leaf space becomes, and the function that converts its values."""

    part: ObsPart
    convert: Convert


def make_leaf(space: spaces.Space[Any], channels: Channels) -> Leaf:
    """Return the leaf for ``space``.

    Raises:
        EnvError: spaces of this kind or dtype are not supported.
    """
    if isinstance(space, spaces.Discrete):
        return _discrete(space)
    if isinstance(space, spaces.MultiDiscrete):
        return _multi_discrete(space)
    if isinstance(space, spaces.Text):
        return _text(space)
    if isinstance(space, spaces.MultiBinary):
        shape = tuple(int(n) for n in space.shape)
        box = spaces.Box(0, 1, shape, np.uint8)
        return _image(box, channels) if len(shape) == 3 else _multi_binary(shape)
    if isinstance(space, spaces.Box) and space.dtype.kind in NUMBERS:
        return _image(space, channels) if _is_image(space) else _vector(space)
    if isinstance(space, spaces.Box):
        raise EnvError(f"has dtype {space.dtype}: expected a numeric dtype")
    raise EnvError(f"has a {type(space).__name__} space: expected Box, Discrete, MultiDiscrete, MultiBinary or Text")


def numeric(value: Any, shape: tuple[int, ...], dtype: Any, kinds: str = NUMBERS) -> np.ndarray:
    """Return ``value`` as an array; check that it has the declared ``shape`` and one of the dtype ``kinds``.

    Raises:
        DataError: the shape or the kind of dtype differs.
    """
    array: np.ndarray = np.asarray(value)
    if array.shape != shape:
        raise DataError(f"has shape {array.shape}; its space declares {shape}")
    if array.dtype.kind not in kinds:
        raise DataError(f"has dtype {array.dtype}; its space declares {dtype}")
    return array


def finite(shape: tuple[int, ...], dtype: Any = np.float32) -> Convert:
    """Return a conversion to float32 that raises DataError for NaN, infinity and numbers too large for float32."""

    def convert(value: Any) -> np.ndarray:
        given = array = numeric(value, shape, dtype)
        if surely_finite(given):
            return given.astype(np.float32, copy=False)
        if given.dtype != np.float32:
            with np.errstate(over="ignore"):  # checked below
                array = given.astype(np.float32)
        if not np.isfinite(array).all():
            index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise DataError(f"is {given[index]} at index {index}: expected finite float32 numbers")
        return array

    return convert


def surely_finite(array: np.ndarray) -> bool:
    """Return True only if ``array`` is small and its sum, of absolute values or squares, proves all numbers finite.

    Faster than ``np.isfinite``. False means that it is not known.
    """
    if array.dtype.kind != "f" or array.size > FEW:
        return False
    if array.size <= HANDFUL:
        return bool(sum(map(abs, array.ravel().tolist())) < SMALL)
    return bool(np.vdot(array, array) < SMALL)


def _vector(space: spaces.Box) -> Leaf:
    low = float(space.low.astype(np.float64).min(initial=np.inf))
    high = float(space.high.astype(np.float64).max(initial=-np.inf))
    declared = f"{'numbers' if space.dtype.kind == 'f' else 'integers'} in {low:g}..{high:g}"
    known = math.isfinite(low) and math.isfinite(high)
    part = ObsPart(kind="vector", shape=space.shape, dtype="float32", declared=declared if known else "")
    return Leaf(part, finite(space.shape, space.dtype))


def _is_image(space: spaces.Box) -> bool:
    """Return whether ``space`` has rank 3 with usable bounds, or rank 2 with dtype uint8 and bounds 0..255.

    Rank 4 is a stack of images if these have 1, 3 or 4 channels, or channels first. The bounds of floats must be finite
    and differ, as pixels are divided by their distance.
    """
    if len(space.shape) == 4 and space.shape[-1] not in (1, 3, 4) and not _channels_first(space.shape[1:]):
        return False
    if len(space.shape) in (3, 4) and space.dtype.kind == "f":
        return TINY <= float(space.high.max()) - float(space.low.min()) < SMALL
    if len(space.shape) in (3, 4):
        return int(space.high.max()) - int(space.low.min()) <= 255
    grey = space.dtype == np.uint8 and len(space.shape) == 2
    return bool(grey and space.low.min() == 0 and space.high.max() == 255)


def _image(space: spaces.Box, channels: Channels) -> Leaf:
    pixels = _float_pixels(space) if space.dtype.kind == "f" else _byte_pixels(space)
    if len(space.shape) == 2:
        return _placed(pixels, (*space.shape, 1), lambda array: array[..., None])
    first = channels == "first" or (channels == "auto" and _channels_first(space.shape[-3:]))
    c, h, w = space.shape[-3:] if first else (space.shape[-1], *space.shape[-3:-1])
    if len(space.shape) == 4:  # the frames become channels, as those that env.frame_stack stacks
        axes, shape = (2, 3, 0, 1) if first else (1, 2, 0, 3), (h, w, space.shape[0] * c)
        return _placed(pixels, shape, lambda array: array.transpose(axes).reshape(shape))
    return _placed(pixels, (h, w, c), lambda array: array.transpose(1, 2, 0)) if first else pixels


def _placed(leaf: Leaf, shape: tuple[int, ...], place: Callable[[np.ndarray], np.ndarray]) -> Leaf:
    part, convert = leaf.part, leaf.convert
    moved = ObsPart(kind="image", shape=shape, dtype=part.dtype, low=part.low, high=part.high)
    return Leaf(moved, lambda value: place(convert(value)))


def _channels_first(shape: tuple[int, ...]) -> bool:
    """Return whether ``shape`` reads as C, H, W: a usual channel count first, two larger sides, no such count last."""
    c, h, w = shape
    usual = c in (1, 3, 4) or (c <= 16 and min(h, w) >= 32)
    return usual and c < min(h, w) and w not in (1, 3, 4)


def _float_pixels(space: spaces.Box) -> Leaf:
    low, high = float(space.low.min()), float(space.high.max())
    part = ObsPart(kind="image", shape=space.shape, dtype="float32", low=low, high=high)
    to_float = finite(space.shape, space.dtype)
    slack = 1e-3 * (high - low)

    def convert(value: Any) -> np.ndarray:
        array = to_float(value)
        if array.min() < low - slack or array.max() > high + slack:
            found = f"{array.min():g}..{array.max():g}"
            raise DataError(f"has values {found}; its space declares {low:g}..{high:g}")
        return array

    return Leaf(part, convert)


def _byte_pixels(space: spaces.Box) -> Leaf:
    """Return the leaf of an integer image: uint8, the declared bounds stretched to 0..255 so that 0/1 planes show."""
    low, high = int(space.low.min()), int(space.high.max())
    part = ObsPart(kind="image", shape=space.shape, dtype="uint8")
    table = np.rint(np.arange(high - low + 1) * (255 / max(1, high - low))).astype(np.uint8)
    plain = (low, high) == (0, 255)

    def convert(value: Any) -> np.ndarray:
        array = numeric(value, space.shape, space.dtype, INTEGERS)
        if plain and array.dtype == np.uint8:
            return array
        if array.min() < low or array.max() > high:
            raise DataError(f"has values {array.min()}..{array.max()}; its space declares {low}..{high}")
        stretched: np.ndarray = table[array.astype(np.int64) - low]
        return stretched

    return Leaf(part, convert)


def _discrete(space: spaces.Discrete) -> Leaf:
    start, count = int(space.start), int(space.n)
    part = ObsPart(kind="categorical", shape=(), dtype="int64", classes=(count,))

    def convert(value: Any) -> np.ndarray:
        index = int(numeric(value, (), "int64", INTEGERS)) - start
        if not 0 <= index < count:
            raise DataError(f"is {value}; its space declares {start}..{start + count - 1}")
        return np.asarray(index, np.int64)

    return Leaf(part, convert)


def _multi_discrete(space: spaces.MultiDiscrete) -> Leaf:
    shape = tuple(int(n) for n in space.nvec.shape)
    counts, start = space.nvec.astype(np.int64), np.asarray(space.start, np.int64)
    classes = tuple(int(n) for n in counts.reshape(-1))
    part = ObsPart(kind="categorical", shape=shape, dtype="int64", classes=classes)

    def convert(value: Any) -> np.ndarray:
        array = numeric(value, shape, "int64", INTEGERS)
        index: np.ndarray = array.astype(np.int64) - start
        wrong = (index < 0) | (index >= counts)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            low = int(start[at])
            raise DataError(f"is {array[at]} at index {at}; its space declares {low}..{low + int(counts[at]) - 1}")
        return index

    return Leaf(part, convert)


def _multi_binary(shape: tuple[int, ...]) -> Leaf:
    return _multi_discrete(spaces.MultiDiscrete(np.full(shape, 2)))


def _text(space: spaces.Text) -> Leaf:
    """Return the leaf of text: class 0 is padding; the characters follow in the order of their code points."""
    length, characters = int(space.max_length), sorted(space.character_set)
    codes = {character: code for code, character in enumerate(characters, start=1)}
    classes = (len(characters) + 1,) * length
    part = ObsPart(kind="categorical", shape=(length,), dtype="int64", classes=classes)

    def convert(value: Any) -> np.ndarray:
        if not isinstance(value, str):
            raise DataError(f"is {value!r}; its space declares text")
        if len(value) > length:
            raise DataError(f"is {value!r} with {len(value)} characters; its space declares at most {length}")
        out = np.zeros(length, np.int64)
        try:
            out[: len(value)] = [codes[character] for character in value]
        except KeyError as error:
            raise DataError(f"is {value!r}, with the character {error} that its space does not declare") from None
        return out

    return Leaf(part, convert)

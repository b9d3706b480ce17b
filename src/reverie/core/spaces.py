"""Gymnasium spaces: as specs, and their values as the arrays that learners see, one value or a column of n, both ways.

Nested ``Dict`` and ``Tuple`` spaces become keys such as ``arm/camera`` and ``sensors/0``; a *leaf* is a space inside
them that is neither. A bare observation is called ``image`` or ``observation``, a bare action ``action``. Columns of
recorded values are called ``obs`` or ``obs/<key>``, and ``action`` or ``action/<key>``.

This file must not import torch: it is imported in worker processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError, EnvError, RowError, brief
from reverie.core.specs import MASK, ActionPart, ActionSpec, ObsPart

Space = spaces.Space[Any]
Channels = Literal["auto", "first", "last"]
Path = tuple[Any, ...]
Columns = Mapping[str, np.ndarray]
Encode = Callable[[Any, int], np.ndarray]
"""Takes values ``[..., *space.shape]`` and the number of their leading axes; returns ``[..., *part.shape]``."""
Decode = Callable[[np.ndarray], Any]
"""The inverse: takes ``[..., *part.shape]`` and returns ``[..., *space.shape]``."""
Conversion = tuple[ObsPart, Encode, Decode]

INTEGERS, NUMBERS = "biu", "biuf"

MOST_CLASSES = 2**24
"""Classes of an observation or action, together: networks see them one-hot."""
HANDFUL, FEW, SMALL = 64, 1024, 1e38
"""Limits of ``surely_finite``. Up to ``HANDFUL`` numbers Python sums faster than NumPy. More than ``FEW`` would wake
threads of a BLAS. A sum below ``SMALL`` fits float32."""
SCALARS = 16
"""Up to this many numbers Python scales faster than NumPy."""
TINY = float(np.finfo(np.float32).tiny)
"""Least normal number of float32. A float image needs bounds whose distance lies between this and ``SMALL``."""
ROUNDING = 1e-6
"""Relative, and below 1 absolute, distance of a float32 number from the whole number that it stands for."""
SLACK = 1e-4
"""How far rounding alone may put an action outside its bounds, in units of half their distance."""


# ---------------------------------------------------------------- nested spaces


def children(space: Space) -> list[tuple[Any, Space]]:
    """Return the names and the spaces directly inside a ``Dict`` or ``Tuple``; of other spaces, nothing."""
    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else []


def is_nested(space: Space) -> bool:
    """Return whether ``space`` is a ``Dict`` or a ``Tuple``."""
    return isinstance(space, spaces.Dict | spaces.Tuple)


def leaves_of(space: Space, path: Path = ()) -> Iterator[tuple[Path, Space]]:
    """Yield the path and the space of each leaf; ``path`` is that of ``space``."""
    if not is_nested(space):
        yield path, space
    for name, inner in children(space):
        yield from leaves_of(inner, (*path, name))


def column(root: str, path: Path) -> str:
    """Return the name of the column of the leaf at ``path`` in the space ``root``: ``obs/arm/camera``."""
    return "/".join((root, *map(str, path)))


def columns_in(space: Space, root: str) -> list[tuple[str, Space]]:
    """Return the name of the column and the space of each leaf."""
    return [(column(root, path), leaf) for path, leaf in leaves_of(space)]


def with_leaves(space: Space, root: str, leaf_fn: Callable[[str, Space], Space]) -> Space:
    """Return ``space`` with each leaf replaced by ``made(column, leaf)``; ``root`` is the name of the whole space."""
    inner = {name: with_leaves(part, f"{root}/{name}", leaf_fn) for name, part in children(space)}
    if isinstance(space, spaces.Dict):
        return spaces.Dict(inner)
    return spaces.Tuple(tuple(inner.values())) if isinstance(space, spaces.Tuple) else leaf_fn(root, space)


def nested(space: Space, columns: Columns, root: str) -> Any:
    """Arrange columns ``[n, ...]`` as n values of ``space``: dictionaries and tuples of arrays."""
    if is_nested(space):
        inner = {name: nested(part, columns, f"{root}/{name}") for name, part in children(space)}
        return inner if isinstance(space, spaces.Dict) else tuple(inner.values())
    values = columns[root]
    return [str(text) for text in values] if isinstance(space, spaces.Text) else values.astype(space.dtype, copy=False)


def follow(value: Any, path: Path) -> Any:
    """Return what lies at ``path`` in nested dictionaries and tuples, or in a nested space; DataError if nothing does.

    The error continues a sentence that names the whole path.
    """
    for name in path:
        try:
            value = value[name]
        except (LookupError, TypeError):
            present = f"only {', '.join(map(repr, value)) or 'no keys'}" if isinstance(value, Mapping) else brief(value)
            raise DataError(f"is missing: its space declares {name!r}, but there is {present}") from None
    return value


# ---------------------------------------------------------------- observations


class Leaf(NamedTuple):
    """One array of an observation."""

    key: str
    path: Path
    space: Space
    part: ObsPart
    encode: Encode
    decode: Decode


class ObsCodec:
    """Converts observations of one space. Keys for which ``keep`` returns False are not read and need no support."""

    def __init__(self, space: Space, keep: Callable[[str], bool] = bool, channels: Channels = "auto") -> None:
        self.space = space
        leaves = [(path, inner) for path, inner in leaves_of(space) if math.prod(inner.shape or (1,))]
        keyed_leaves = [("/".join(map(str, path)) or bare_key(inner), path, inner) for path, inner in leaves]
        keys = [key for key, _, _ in keyed_leaves]
        if twice := next((key for key in keys if keys.count(key) > 1), ""):
            raise EnvError(f"two observations have the same key '{twice}' once nested keys are joined. Rename one of "
                           "them.")  # fmt: skip
        self.leaves: list[Leaf] = [_leaf(key, path, inner, channels) for key, path, inner in keyed_leaves if keep(key)]
        """The leaves that are kept."""
        self._encoders = [(leaf.key, leaf.path, leaf.encode) for leaf in self.leaves]
        self.spec: dict[str, ObsPart] = {leaf.key: leaf.part for leaf in self.leaves}
        if not self.spec:
            available = ", ".join(f"'{key}'" for key in keys) or "none"
            raise EnvError(
                "no observations are left to learn from. Available keys, before env.include and env.exclude: "
                f"{available}."
            )

    def __call__(self, obs: Any, without: Collection[str] = ()) -> dict[str, np.ndarray]:
        """Return the arrays of one observation by key, as ``spec`` describes them, ``without`` some."""
        out = {}
        for key, path, encode in self._encoders:
            if key in without:
                continue
            try:
                out[key] = encode(follow(obs, path), 0)
            except DataError as error:
                raise DataError(f"observation '{key}' {error}") from None
        return out

    def batch(self, obs: Any, without: Collection[str] = ()) -> dict[str, np.ndarray]:
        """Return the arrays ``[N, *part.shape]`` of N observations, as a vector environment returns them."""
        encoders = [encoder for encoder in self._encoders if encoder[0] not in without]
        values = ((key, np.asarray(follow(obs, path)), encode) for key, path, encode in encoders)
        return {key: _convert_rows(encode, (array,), 1, f"observation '{key}'", 0) for key, array, encode in values}

    def missing(self, obs: Any) -> list[str]:
        """Return the keys that are not in ``obs``, one observation or many."""
        out = []
        for key, path, _ in self._encoders:
            try:
                follow(obs, path)
            except DataError:
                out.append(key)
        return out

    def encode(self, rows: Columns, first: int = 0) -> dict[str, np.ndarray]:
        """Return columns ``obs/<key>`` ``[n, *part.shape]`` of recorded rows; ``first`` is the number of the first."""
        out = {}
        for leaf in self.leaves:
            values = rows[column("obs", leaf.path)]
            if leaf.part.shape == () and values.shape[1:] == (1,):
                values = values[:, 0]
            out[f"obs/{leaf.key}"] = _convert_rows(leaf.encode, (values,), 1, f"observation '{leaf.key}'", first)
        return out

    def decode(self, rows: Columns) -> dict[str, np.ndarray]:
        """Return ``rows`` with the columns of the space in place of those that ``encode`` makes."""
        out = {name: values for name, values in rows.items() if name.partition("/")[0] != "obs"}
        for leaf in self.leaves:
            name, stored = column("obs", leaf.path), f"obs/{leaf.key}"
            values = leaf.decode(rows[stored if stored in rows else "obs"])  # what is alone may have no name
            out[name] = values if isinstance(leaf.space, spaces.Text) else cast(values, leaf.space.dtype, name)
        return out

    def kept_space(self) -> Space:
        """Return the space with the leaves that are kept alone."""
        return _drop_leaves(self.space, (), {leaf.path for leaf in self.leaves})


def bare_key(space: Space) -> str:
    """Return the key of an observation that is alone: it is called by its kind."""
    return "image" if isinstance(space, spaces.Box | spaces.MultiBinary) and looks_like_image(space) else "observation"


def _leaf(key: str, path: Path, space: Space, channels: Channels) -> Leaf:
    if {"", ".", "..", "zarr.json"}.intersection(key.split("/")):
        raise EnvError(f"observation {key!r} cannot be stored in a folder of that name. Rename it in a wrapper.")
    try:
        return Leaf(key, path, space, *(_mask(space) if key == MASK else conversion(space, channels)))
    except EnvError as error:
        remedy = f"Leave it out with env.exclude = '{key}', or convert it with a wrapper around the environment."
        raise EnvError(f"observation '{key}' {error}. {remedy}") from None


def _drop_leaves(space: Space, path: Path, paths: set[Path]) -> Space:
    branches = [
        (name, inner) for name, inner in children(space) if any(p[: len(path) + 1] == (*path, name) for p in paths)
    ]
    parts = {name: _drop_leaves(inner, (*path, name), paths) for name, inner in branches}
    if isinstance(space, spaces.Tuple):
        if len(parts) < len(space.spaces):
            raise ValueError("a part of a tuple was not recorded, so the keys of the parts after it would change")
        return spaces.Tuple(tuple(parts.values()))
    return spaces.Dict(parts) if isinstance(space, spaces.Dict) else space


def _convert_rows(
    convert: Callable[..., np.ndarray], columns: Sequence[np.ndarray], argument: Any, error_prefix: str, first: int
) -> np.ndarray:
    """Return ``convert(*columns, more)``; if it fails, name the first row that is wrong."""
    try:
        return convert(*columns, argument)
    except DataError:
        for row in range(len(columns[0])):
            try:
                convert(*(values[row : row + 1] for values in columns), argument)
            except DataError as problem:
                raise RowError(error_prefix, first + row, str(problem), error_prefix.partition(" ")[0]) from None
        raise


def cast(values: np.ndarray, dtype: Any, name: str, first: int = 0) -> np.ndarray:
    """Return ``values`` ``[n, ...]`` called ``name`` as ``dtype``, which changes them by rounding errors only.

    ``first``: number of the first row, for messages.
    """
    if values.dtype == dtype or values.dtype.kind not in NUMBERS:
        return values.astype(dtype, copy=False)
    dtype = np.dtype(dtype)
    with np.errstate(invalid="ignore", over="ignore"):  # checked below
        if dtype.kind == "f":
            out = values.astype(dtype)
            wrong = np.isfinite(values) & ~np.isfinite(out)
            if values.dtype.kind in "iu":  # an identifier, which must not become its neighbour
                wrong |= out.astype(values.dtype) != values
        else:
            out = (np.rint(values) if values.dtype.kind == "f" else values).astype(dtype)
            wrong = ~np.isclose(out, values, ROUNDING, ROUNDING)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        problem = (
            f"is {values[at]}: expected a value of {dtype}, the dtype that its space declares. Correct the space of "
            "the environment, or its values"
        )
        raise RowError(name, first + at[0], problem, name.partition("/")[0])
    return out


# ---------------------------------------------------------------- leaves of observations


def conversion(space: Space, channels: Channels) -> Conversion:
    """Return what a leaf space becomes, with the functions there and back."""
    if isinstance(space, spaces.MultiBinary) and len(space.shape) == 3:
        return _image(spaces.Box(0, 1, space.shape, np.uint8), channels)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return _categories(*classes_of(space))
    if isinstance(space, spaces.Text):
        return _text(space)
    if isinstance(space, spaces.Box) and space.dtype.kind in NUMBERS:
        return _image(space, channels) if looks_like_image(space) else _vector(space)
    raise EnvError(f"has the space {space}: expected a numeric Box, Discrete, MultiDiscrete, MultiBinary or Text")


def _mask(space: Space) -> Conversion:
    shape = space.shape or ()

    def encode(value: Any, lead: int) -> np.ndarray:
        array = _as_array(value, shape, space.dtype, NUMBERS, lead)
        if not ((array == 0) | (array == 1)).all():
            raise DataError(f"is {array}: expected 1 for legal actions and 0 for all others")
        return array.astype(bool)

    return ObsPart(kind="mask", shape=shape, dtype="bool"), encode, np.asarray


def classes_of(space: Space) -> tuple[np.ndarray, np.ndarray]:
    """Return how many classes each element of a discrete space has, and its first class, ``[*space.shape]`` int64."""
    if isinstance(space, spaces.Discrete):
        return np.int64(space.n), np.int64(space.start)  # type: ignore[return-value]  # scalars, as arrays of rank 0
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec.astype(np.int64), np.asarray(space.start, np.int64)
    shape = space.shape or ()
    return np.full(shape, 2), np.zeros(shape, np.int64)


def _as_array(value: Any, shape: tuple[int, ...], dtype: Any, kinds: str, lead: int) -> np.ndarray:
    array: np.ndarray = np.asarray(value)
    if array.shape[lead:] != shape:
        raise DataError(f"has shape {array.shape[lead:]}; its space declares {shape}")
    if array.dtype.kind not in kinds:
        raise DataError(f"has dtype {array.dtype}; its space declares {dtype}")
    return array


def _as_float32(values: np.ndarray, lead: int) -> np.ndarray:
    """Return float32; raise DataError for NaN, infinity and numbers too large for float32."""
    if surely_finite(values):
        return values.astype(np.float32, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):  # checked below
        array = values.astype(np.float32, copy=False)
        if np.isfinite(np.add.reduce(array, axis=None)):  # many times faster than each number
            return array
    wrong = np.argwhere(~np.isfinite(array))
    if len(wrong):
        at = tuple(map(int, wrong[0]))
        raise DataError(f"is {values[at]} at index {at[lead:]}: expected finite float32 numbers")
    return array


def surely_finite(array: np.ndarray) -> bool:
    """Return True only if ``array`` is small and its sum proves all numbers finite, faster than ``np.isfinite``."""
    if array.dtype.kind != "f" or array.size > FEW:
        return False
    if array.size <= HANDFUL:
        return bool(sum(map(abs, array.ravel().tolist())) < SMALL)
    return bool(np.vdot(array, array) < SMALL)


def _vector(space: spaces.Box) -> Conversion:
    low = float(space.low.astype(np.float64).min(initial=np.inf))
    high = float(space.high.astype(np.float64).max(initial=-np.inf))
    declared = f"{'numbers' if space.dtype.kind == 'f' else 'integers'} in {low:g}..{high:g}"
    is_bounded = math.isfinite(low) and math.isfinite(high)
    shape, dtype = space.shape, space.dtype
    part = ObsPart(kind="vector", shape=shape, dtype="float32", declared=declared if is_bounded else "")
    return part, lambda value, lead: _as_float32(_as_array(value, shape, dtype, NUMBERS, lead), lead), np.asarray


def looks_like_image(space: spaces.Box | spaces.MultiBinary) -> bool:
    """Return whether ``space`` has rank 3 with usable bounds, or rank 2 with dtype uint8 and bounds 0..255.

    Rank 4 is a stack of images if these have 1, 3 or 4 channels, or channels first. The bounds of floats must differ.
    """
    if isinstance(space, spaces.MultiBinary) or space.dtype.kind not in NUMBERS:
        return len(space.shape) == 3 and isinstance(space, spaces.MultiBinary)
    if len(space.shape) == 4 and space.shape[-1] not in (1, 3, 4) and not _channels_first(space.shape[1:]):
        return False
    if len(space.shape) in (3, 4) and space.dtype.kind == "f":
        return TINY <= float(space.high.max()) - float(space.low.min()) < SMALL
    if len(space.shape) in (3, 4):
        return int(space.high.max()) - int(space.low.min()) <= 255
    grey = space.dtype == np.uint8 and len(space.shape) == 2
    return bool(grey and space.low.min() == 0 and space.high.max() == 255)


def _channels_first(shape: tuple[int, ...]) -> bool:
    """Return whether ``shape`` reads as C, H, W: a usual channel count first, two larger sides, no such count last."""
    c, h, w = shape
    usual = c in (1, 3, 4) or (c <= 16 and min(h, w) >= 32)
    return usual and c < min(h, w) and w not in (1, 3, 4)


def _image(space: spaces.Box, channels: Channels) -> Conversion:
    """Return the conversion to ``[H, W, C]``; the frames of a stack become channels, as of ``env.frame_stack``."""
    low, high, encode, decode = _float_pixels(space) if space.dtype.kind == "f" else _byte_pixels(space)
    rank, dtype = len(space.shape), "float32" if space.dtype.kind == "f" else "uint8"
    image_shape = space.shape if rank > 2 else (*space.shape, 1)
    frames = image_shape[0] if rank == 4 else 1
    first = rank > 2 and (channels == "first" or (channels == "auto" and _channels_first(image_shape[-3:])))
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
    return part, lambda value, lead: to_hwc(encode(value, lead)), lambda values: from_hwc(decode(values))


def _check_between(array: np.ndarray, low: float, high: float, slack: float = 0.0) -> None:
    if array.size and (array.min() < low - slack or array.max() > high + slack):
        raise DataError(f"has values {array.min():g}..{array.max():g}; its space declares {low:g}..{high:g}")


def _float_pixels(space: spaces.Box) -> tuple[float, float, Encode, Decode]:
    low, high = float(space.low.min()), float(space.high.max())
    shape, dtype = space.shape, space.dtype

    def encode(value: Any, lead: int) -> np.ndarray:
        array = _as_float32(_as_array(value, shape, dtype, NUMBERS, lead), lead)
        _check_between(array, low, high, 1e-3 * (high - low))
        return array

    return low, high, encode, np.asarray


def _byte_pixels(space: spaces.Box) -> tuple[float, float, Encode, Decode]:
    """Return the conversion to uint8: the declared bounds are stretched to 0..255, so that 0/1 planes show."""
    low, high, shape, dtype = int(space.low.min()), int(space.high.max()), space.shape, space.dtype
    table = np.rint(np.arange(high - low + 1) * (255 / max(1, high - low))).astype(np.uint8)
    plain = (low, high) == (0, 255)

    def encode(value: Any, lead: int) -> np.ndarray:
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
        raise EnvError(f"has {total:,} classes, and networks see them one-hot: expected at most {MOST_CLASSES:,}")
    part = ObsPart(kind="categorical", shape=shape, dtype="int64", classes=tuple(map(int, counts.reshape(-1))))
    low, count = (int(start), int(counts)) if shape == () else (0, 0)

    def encode(value: Any, lead: int) -> np.ndarray:
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

    def encode_one(value: Any) -> np.ndarray:
        out = np.zeros(length, np.int64)
        if not isinstance(value, str) or len(value) > length or not codes.keys() >= set(value):
            allowed = brief("".join(characters))
            raise DataError(
                f"is {brief(value)}; its space declares a text of at most {length} of the characters {allowed}"
            )
        out[: len(value)] = [codes[character] for character in value]
        return out

    def encode(value: Any, lead: int) -> np.ndarray:
        return (
            np.array([encode_one(text) for text in value], np.int64).reshape(-1, length) if lead else encode_one(value)
        )

    return part, encode, lambda values: np.array(["".join(row) for row in letters[values]], object)


# ---------------------------------------------------------------- actions


class ActionCodec:
    """Converts actions of one space from and to flat ones ``[A]``: one-hot, or scaled to [-1, 1]."""

    def __init__(self, space: Space) -> None:
        leaves = {"/".join(map(str, path)) or "action": (path, leaf) for path, leaf in leaves_of(space)}
        if len(leaves) < len(list(leaves_of(space))):
            raise EnvError(f"two actions have the same key: found only {sorted(leaves)}. Rename one of them.")
        self.spec: ActionSpec = ActionSpec(parts={key: _action_part(key, leaf) for key, (_, leaf) in leaves.items()})
        self.outside: int = 0
        """Number of encoded actions that were moved to the nearest bound."""
        cuts = self.spec.slices()
        self._leaves = [(key, path, leaf, cuts[key], _decoder(leaf)) for key, (path, leaf) in sorted(leaves.items())]
        self._decode = _unflatten_fn(space, {path: (cut, decode) for _, path, _, cut, decode in self._leaves})

    def __call__(self, flat: np.ndarray) -> Any:
        """Return the action of the space for ``flat`` ``[A]``: the largest class, numbers clipped and scaled.

        Of ``[N, A]`` return N actions, as a vector environment takes them.
        """
        return self._decode(flat)

    def decode(self, flat: np.ndarray, last: np.ndarray) -> dict[str, np.ndarray]:
        """Return columns of the actions for ``flat`` ``[n, A]``; zeros in the rows ``last``: nothing is taken there."""
        out = {}
        for _, path, _, cut, decode in self._leaves:
            name = column("action", path)
            out[name] = decode(flat[:, cut])
            out[name][last] = 0
        return out

    def encode(self, rows: Columns, first: int = 0) -> np.ndarray:
        """Return flat actions ``[n, A]`` float32 of recorded columns; zeros where ``is_last``: nothing is taken there.

        Continuous actions outside their bounds are clipped, as environments do, and counted.
        """
        parts = []
        for key, path, leaf, _, _ in self._leaves:
            flat = self._scaled if isinstance(leaf, spaces.Box) else _one_hot
            columns = rows[column("action", path)], rows["is_last"]
            parts.append(_convert_rows(flat, columns, leaf, f"action '{key}'", first))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _scaled(self, values: np.ndarray, last: np.ndarray, leaf: spaces.Box) -> np.ndarray:
        if math.prod(values.shape[1:]) != math.prod(leaf.shape):
            raise DataError(f"has shape {values.shape[1:]}; its space declares {leaf.shape}")
        low, high = (bound.reshape(-1).astype(np.float64) / 2.0 for bound in (leaf.low, leaf.high))
        flat = values.reshape(len(values), -1)
        with np.errstate(over="ignore"):  # checked below
            if (low == -0.5).all() and (high == 0.5).all():
                unit: np.ndarray = flat.astype(np.float32, copy=False)
            else:
                unit = ((flat - (low + high)) / np.where(high > low, high - low, 1.0)).astype(np.float32)
        if unit[last].any():  # NaN too
            unit = np.where(last[:, None], np.float32(0.0), unit)
        smallest, largest = (float(unit.min()), float(unit.max())) if unit.size else (0.0, 0.0)
        if smallest >= -1.0 and largest <= 1.0:
            return unit
        bad = ~np.isfinite(unit).all(axis=1)
        if bad.any():
            raise DataError(f"is {values[bad][0]}: expected finite float32 numbers")
        self.outside += int((np.abs(unit) > 1.0 + SLACK).any(axis=1).sum())
        return unit.clip(-1.0, 1.0)


def _one_hot(values: np.ndarray, last: np.ndarray, leaf: Space) -> np.ndarray:
    counts, start = (array.reshape(-1) for array in classes_of(leaf))
    chosen = values.reshape(len(values), -1)
    if chosen.shape[1] != len(counts):
        raise DataError(f"has {chosen.shape[1]} discrete values; its space declares {len(counts)}")
    index = chosen.astype(np.int64) - start
    index[last] = 0
    wrong = (index < 0) | (index >= counts) | (index + start != chosen) & ~last[:, None]
    if wrong.any():
        row, part = (int(i) for i in np.argwhere(wrong)[0])
        raise DataError(f"is {chosen[row, part]}; its space declares {start[part]}..{start[part] + counts[part] - 1}")
    out = np.zeros((len(values), int(counts.sum())), np.float32)
    np.put_along_axis(out, index + np.cumsum(counts) - counts, 1.0, axis=1)
    out[last] = 0.0
    return out


def _action_part(key: str, space: Space) -> ActionPart:
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        counts = classes_of(space)[0]
        if (total := int(counts.astype(np.float64).sum())) > MOST_CLASSES:
            raise EnvError(
                f"action '{key}' has {total:,} classes, each an output of a network: expected at most "
                f"{MOST_CLASSES:,}. Declare numbers, a Box, and round them in a wrapper."
            )
        return ActionPart(kind="categorical", classes=tuple(map(int, counts.reshape(-1))))
    if isinstance(space, spaces.Box) and space.dtype.kind in "iuf":
        _check_bounds(key, space)
        low, high = (tuple(map(float, bound.reshape(-1))) for bound in (space.low, space.high))
        return ActionPart(kind="continuous", size=len(low), low=low, high=high)
    supported = "Discrete, MultiDiscrete, MultiBinary, numeric Box, or a Dict or Tuple of these"
    raise EnvError(f"action '{key}' has the space {space}, which is not supported: expected {supported}.")


def _check_bounds(key: str, space: spaces.Box) -> None:
    if not (np.isfinite(space.low) & np.isfinite(space.high)).all():
        box = f"gymnasium.spaces.Box(-1.0, 1.0, {space.shape})"
        raise EnvError(
            f"action '{key}' is unbounded (low {brief(space.low)}, high {brief(space.high)}): expected finite bounds, "
            "to which [-1, 1] is scaled. Declare them in the environment, or wrap it: "
            f"gymnasium.wrappers.TransformAction(env, lambda action: action, {box}). "
            "ClipAction removes bounds: apply it inside this wrapper. RescaleAction needs them: apply it outside."
        )


def _unflatten_fn(space: Space, leaves: Mapping[Path, tuple[slice, Decode]], path: Path = ()) -> Decode:
    """Return the function from flat actions to values of the ``space`` at ``path``."""
    if is_nested(space):
        parts = {name: _unflatten_fn(inner, leaves, (*path, name)) for name, inner in children(space)}
        if isinstance(space, spaces.Dict):
            return lambda flat: {name: part(flat) for name, part in parts.items()}
        return lambda flat: tuple(part(flat) for part in parts.values())
    cut, decode = leaves[path]
    return lambda flat: decode(flat[..., cut])


def _decoder(space: Space) -> Decode:
    if isinstance(space, spaces.Discrete):
        start, dtype = space.dtype.type(space.start), space.dtype  # NumPy's integers, as of space.sample()
        if dtype == np.intp and not start:
            return lambda flat: flat.argmax(-1)
        return lambda flat: start + flat.argmax(-1).astype(dtype)
    return _unscale_fn(space) if isinstance(space, spaces.Box) else _choices(*classes_of(space), space.dtype)


def _choices(counts: np.ndarray, start: np.ndarray, dtype: Any) -> Decode:
    ends = np.cumsum(counts.reshape(-1)).tolist()
    cuts = [slice(end - int(n), end) for end, n in zip(ends, counts.reshape(-1), strict=True)]

    def decode(flat: np.ndarray) -> np.ndarray:
        chosen = np.array([flat[..., cut].argmax(-1) for cut in cuts]).T  # [..., choices]
        classes: np.ndarray = chosen.reshape(*flat.shape[:-1], *counts.shape) + start
        return classes.astype(dtype)

    return decode


def _unscale_fn(space: spaces.Box) -> Decode:
    low, high, is_integer = space.low, space.high, space.dtype.kind != "f"
    # The bounds are halved before they are added, as the sum of two large ones would overflow.
    half_low, half_high = (bound.reshape(-1).astype(np.float64) / 2.0 for bound in (low, high))
    middle, half = half_high + half_low, half_high - half_low
    # Arrays, as clipping with Python numbers takes twice as long.
    unit_low, unit_high = -np.ones_like(half), np.ones_like(half)

    def unscale(flat: np.ndarray) -> np.ndarray:
        unit = flat.astype(np.float64)
        np.minimum(np.maximum(unit, unit_low, out=unit), unit_high, out=unit)
        return (unit * half + middle).reshape(*flat.shape[:-1], *low.shape).astype(space.dtype)

    ranges = list(zip(half.tolist(), middle.tolist(), strict=True))
    limits = list(zip(low.reshape(-1).tolist(), high.reshape(-1).tolist(), strict=True))

    def one_by_one(flat: np.ndarray) -> np.ndarray:
        values = [min(max(x, -1.0), 1.0) * by + at for x, (by, at) in zip(flat.tolist(), ranges, strict=True)]
        if is_integer:  # a number beyond the dtype would become one at its other end
            values = [min(max(round(x), lower), upper) for x, (lower, upper) in zip(values, limits, strict=True)]
        return np.array(values, space.dtype).reshape(low.shape)

    def scaled(flat: np.ndarray) -> np.ndarray:
        if flat.ndim == 1:  # 7 us less after an update, without NumPy
            return one_by_one(flat) if is_integer or len(ranges) <= SCALARS else unscale(flat)
        return np.array([one_by_one(row) for row in flat]).reshape(-1, *low.shape) if is_integer else unscale(flat)

    # Rounding to the dtype may step over a bound, as float32 does. If both ends stay inside, all between them do.
    inside = all(((low <= end) & (end <= high)).all() for end in (scaled(unit_low), scaled(unit_high)))
    return scaled if inside else lambda flat: np.minimum(np.maximum(scaled(flat), low), high)

"""Recorded values of spaces, many at once, to what learners see: the counterpart of ``spaces.py`` for datasets.

``spaces.py`` converts one observation per step, and a flat action to the environment's own. Here columns of thousands
of observations become the same arrays, and recorded actions become the flat actions that would have led to them.
``tests/envs/test_recorded.py`` compares the two.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.core.specs import ActionSpec, ObsPart
from reverie.envs.images import ImageOptions
from reverie.envs.leaves import Channels
from reverie.envs.spaces import ActionCodec, ObsCodec, action_key, inside, leaves_of

Space = spaces.Space[Any]
Columns = Mapping[str, np.ndarray]
Convert = Callable[[np.ndarray], np.ndarray]

SLACK = 1e-4
"""How far rounding alone may put an action outside its bounds, in units of half their distance."""
OUTSIDE = "an action outside its bounds was moved to the nearest bound"


class RecordedObs:
    """Converts columns ``obs`` or ``obs/<key>`` of one space to ``obs/<key>`` with the dtypes and shapes of ``spec``.

    Raises:
        EnvError: a kept leaf is not supported, or nothing is left.
    """

    def __init__(self, space: Space, keep: Callable[[str], bool] = bool, channels: Channels = "auto") -> None:
        codec = ObsCodec(space, keep, channels)
        self.spec: dict[str, ObsPart] = codec.spec
        self.columns = [
            (
                key,
                "/".join(("obs", *map(str, path))),
                _converter(inside(space, path), codec.spec[key], convert, channels),
            )
            for key, path, convert in codec.leaves
        ]

    def __call__(self, rows: Columns, first: int = 0) -> dict[str, np.ndarray]:
        """Return arrays ``[n, *shape]``. ``first`` is the number of the first row, for error messages.

        Raises:
            DataError: a value is not in the space; names the row.
        """
        out = {}
        for key, column, convert in self.columns:
            if column not in rows:
                raise DataError(f"the recorded rows have no column '{column}'. They have: {', '.join(rows)}.")
            try:
                out[f"obs/{key}"] = convert(rows[column])
            except AtRow as error:
                raise DataError(f"observation '{key}' of row {first + error.row} {error}") from None
        return out


class RecordedImages:
    """Applies ``env.resize`` and ``env.grayscale`` to recorded images, with the environment's own functions.

    Raises:
        EnvError: there is no image, or an option does not fit one.
    """

    def __init__(self, spec: Mapping[str, ObsPart], size: tuple[int, int] | None, grey: bool) -> None:
        self.spec: dict[str, ObsPart] = ImageOptions(spec, size, grey).spec
        changed = {key: part for key, part in spec.items() if self.spec[key] != part}
        self._options = ImageOptions(changed, size, grey) if changed else None
        self._keys = list(changed)

    def __call__(self, rows: Columns) -> dict[str, np.ndarray]:
        """Return ``rows`` with new columns ``obs/<key>`` for the images that change."""
        out = dict(rows)
        if self._options is None:
            return out
        for key in self._keys:
            n = len(rows[f"obs/{key}"])
            out[f"obs/{key}"] = np.empty((n, *self.spec[key].shape), self.spec[key].dtype)
        for row in range(len(rows["is_first"])):
            for key, image in self._options({key: rows[f"obs/{key}"][row] for key in self._keys}).items():
                out[f"obs/{key}"][row] = image
        return out


class RecordedActions:
    """Converts columns ``action`` or ``action/<key>`` of one space to flat actions ``[n, A]``.

    ``notes`` counts what was corrected.

    Raises:
        EnvError: a leaf is unbounded, or of an unsupported kind.
    """

    def __init__(self, space: Space) -> None:
        own = ActionCodec(space).spec.parts
        # The bounds are those of the numbers in the file, which are not always the environment's actions: PyDreamer's
        # and our own exports to Minari are in the policy's range.
        self.spec = ActionSpec(parts={key: replace(part, low=(), high=()) for key, part in own.items()})
        self.notes: Counter[str] = Counter()
        leaves = {action_key(path): leaf for path, leaf in leaves_of(space)}
        columns = {key: "action" if space is leaf else f"action/{key}" for key, leaf in leaves.items()}
        self.columns = [(key, columns[key], leaves[key]) for key in sorted(leaves)]

    def __call__(self, rows: Columns, first: int = 0) -> np.ndarray:
        """Return actions ``[n, A]`` float32; zeros where ``is_last``, as no action is taken there.

        Raises:
            DataError: an action is not in the space; names the row.
        """
        parts = []
        for key, column, leaf in self.columns:
            if column not in rows:
                raise DataError(f"the recorded rows have no column '{column}'. They have: {', '.join(rows)}.")
            try:
                parts.append(self._flat(leaf, rows[column], rows["is_last"]))
            except AtRow as error:
                raise DataError(f"action '{key}' of row {first + error.row} {error}") from None
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _flat(self, leaf: Space, values: np.ndarray, last: np.ndarray) -> np.ndarray:
        if isinstance(leaf, spaces.Box):
            return self._scaled(leaf, values, last)
        counts, start = _classes(leaf)
        chosen = values.reshape(len(values), -1)
        if chosen.shape[1] != len(counts):
            raise AtRow(0, f"has {chosen.shape[1]} discrete values; its space declares {len(counts)}")
        index = chosen.astype(np.int64) - start
        index[last] = 0
        wrong = (index < 0) | (index >= counts) | (index + start != chosen) & ~last[:, None]
        if wrong.any():
            row, part = (int(i) for i in np.argwhere(wrong)[0])
            low, high = int(start[part]), int(start[part] + counts[part] - 1)
            raise AtRow(row, f"is {chosen[row, part]}; its space declares {low}..{high}")
        out = np.zeros((len(values), int(counts.sum())), np.float32)
        offsets = np.cumsum(counts) - counts
        np.put_along_axis(out, index + offsets, 1.0, axis=1)
        out[last] = 0.0
        return out

    def _scaled(self, leaf: spaces.Box, values: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Return actions scaled to [-1, 1], zeros where ``last``.

        Those outside the bounds are clipped, as environments do, and counted.
        """
        if math.prod(values.shape[1:]) != math.prod(leaf.shape):
            raise AtRow(0, f"has shape {values.shape[1:]}; its space declares {leaf.shape}")
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
        _finite(unit, values)
        self.notes[OUTSIDE] += int((np.abs(unit) > 1.0 + SLACK).any(axis=1).sum())
        return unit.clip(-1.0, 1.0)


class AtRow(DataError):
    """An invalid value in row ``row`` of a part."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(what)
        self.row = row


def _classes(leaf: Space) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each categorical part of ``leaf``, the number of classes and the number of the first class."""
    if isinstance(leaf, spaces.Discrete):
        return np.array([int(leaf.n)]), np.array([int(leaf.start)])
    if isinstance(leaf, spaces.MultiDiscrete):
        return leaf.nvec.reshape(-1).astype(np.int64), np.asarray(leaf.start).reshape(-1).astype(np.int64)
    assert isinstance(leaf, spaces.MultiBinary)
    return np.full(math.prod(leaf.shape), 2), np.zeros(math.prod(leaf.shape), np.int64)


def _converter(space: Space, part: ObsPart, convert: Callable[[Any], np.ndarray], channels: Channels) -> Convert:
    """Return the conversion of a whole column: one operation where the leaf allows it, otherwise value by value."""
    if isinstance(space, spaces.Box) and part.kind == "vector":
        return lambda values: _vector(values, part.shape)
    plain = isinstance(space, spaces.Box) and part.dtype == "uint8" and space.dtype == np.uint8
    plain = plain and len(space.shape) < 4  # type: ignore[arg-type]  # a Box has a shape
    plain = plain and (channels != "first" or space.shape != part.shape)  # unclear if axes were moved
    if plain and not space.low.any() and (space.high == 255).all():  # type: ignore[attr-defined]  # a Box
        return lambda values: _bytes(values, space.shape, part.shape)  # type: ignore[arg-type]  # a Box has a shape
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        counts, start = _classes(space)
        return lambda values: _indices(values, counts, start, part.shape)
    return lambda values: _one_by_one(values, part, convert)


def _vector(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    _check_shape(values, shape)
    if values.dtype.kind not in "biuf":
        raise AtRow(0, f"has dtype {values.dtype}; its space declares numbers")
    with np.errstate(over="ignore"):  # checked right below
        out: np.ndarray = values.astype(np.float32, copy=False)
    _finite(out, values)
    return out


def _finite(out: np.ndarray, given: np.ndarray) -> None:
    """Raise AtRow if ``out`` has NaN or infinity. Their sum is checked first, many times faster than each number."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.add.reduce(out, axis=None)
    if np.isfinite(total):
        return
    good = np.isfinite(out.reshape(len(out), -1)).all(axis=1)
    if not good.all():
        row = int(np.argmin(good))
        raise AtRow(row, f"is {given[row]}: expected finite float32 numbers")


def _bytes(values: np.ndarray, given: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    _check_shape(values, given)
    if values.dtype != np.uint8:
        raise AtRow(0, f"has dtype {values.dtype}; its space declares uint8")
    if len(given) == 2:
        return values[..., None]
    return values if given == shape else values.transpose(0, 2, 3, 1)


def _indices(values: np.ndarray, counts: np.ndarray, start: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if values.dtype.kind not in "biu":
        raise AtRow(0, f"has dtype {values.dtype}; its space declares integers")
    index = values.reshape(len(values), -1).astype(np.int64) - start
    wrong = (index < 0) | (index >= counts)
    if wrong.any():
        row = int(np.argwhere(wrong)[0][0])
        raise AtRow(row, f"is {values[row]}; its space declares {counts.tolist()} classes starting at {start.tolist()}")
    shaped: np.ndarray = index.reshape(len(values), *shape)
    return shaped


def _one_by_one(values: np.ndarray, part: ObsPart, convert: Callable[[Any], np.ndarray]) -> np.ndarray:
    out = np.empty((len(values), *part.shape), part.dtype)
    for row, value in enumerate(values):
        try:
            out[row] = convert(value)
        except DataError as error:
            raise AtRow(row, str(error)) from None
    return out


def _check_shape(values: np.ndarray, shape: tuple[int, ...]) -> None:
    if values.shape[1:] != shape:
        raise AtRow(0, f"has shape {values.shape[1:]}; its space declares {shape}")

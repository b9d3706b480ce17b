"""Gymnasium spaces to specs, observations to flat dictionaries of arrays, and flat actions to values of a space.

Nested ``Dict`` and ``Tuple`` spaces become keys such as ``arm/camera`` and ``sensors/0``. A bare observation is called
``image`` or ``observation``, a bare action ``action``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError, EnvError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.envs.leaves import Channels, make_leaf

Space = spaces.Space[Any]
Path = tuple[Any, ...]
Decode = Callable[[np.ndarray], Any]

FEW = 16
"""Up to this many numbers Python scales faster than NumPy."""

LONGEST_NAME = 200
"""Bytes in a part of an observation's key: the replay store names folders after them."""


class ObsCodec:
    """Flattens observations of one space. Keys for which ``keep`` returns False are not read and need no support.

    Raises:
        EnvError: a kept leaf is not supported, two leaves have the same key, a key is the beginning of another one's
            path or no name for a file, or nothing is left.
    """

    def __init__(self, space: Space, keep: Callable[[str], bool] = bool, channels: Channels = "auto") -> None:
        self.spec: dict[str, ObsPart] = {}
        self.leaves: list[tuple[str, Path, Callable[[Any], np.ndarray]]] = []
        """For each kept leaf: its key, the path to its value, and the function that converts the value to an array."""
        self._branches = [(path, inner) for path, inner in _walk(space) if _is_nested(inner)]
        seen: list[str] = []
        for path, inner in leaves_of(space):
            if math.prod(inner.shape or (1,)) > 0:
                self._add(path, inner, keep, channels, seen)
        for key in self.spec:
            if parent := next((other for other in self.spec if key.startswith(f"{other}/")), ""):
                raise EnvError(
                    f"the observations '{parent}' and '{key}': the first would be stored both as an array and as the "
                    f"folder of the second. Rename one of them, or leave one out with env.exclude = '{key}'."
                )
        if not self.spec:
            known = ", ".join(f"'{key}'" for key in seen) or "none"
            raise EnvError(
                f"no observations are left to learn from. Available keys, before env.include and env.exclude: {known}."
            )

    def _add(self, path: Path, space: Space, keep: Callable[[str], bool], channels: Channels, seen: list[str]) -> None:
        key = "/".join(map(str, path)) or ("image" if _bare_image(space, channels) else "observation")
        if key in seen:
            raise EnvError(
                f"two observations have the same key '{key}' once nested keys are joined. Rename one of them."
            )
        seen.append(key)
        if not keep(key):
            return
        _check_storable(key)
        try:
            leaf = make_leaf(space, channels)
        except EnvError as error:
            remedy = f"Leave it out with env.exclude = '{key}', or convert it with a wrapper around the environment."
            raise EnvError(f"observation '{key}' {error}. {remedy}") from None
        self.spec[key] = leaf.part
        self.leaves.append((key, path, leaf.convert))

    def __call__(self, obs: Any) -> dict[str, np.ndarray]:
        """Return the arrays of ``obs`` by key, as ``spec`` describes them.

        Raises:
            DataError: ``obs`` is not in the space. Names key, value and expectation.
        """
        for path, space in self._branches:
            _check_branch(follow(obs, path), path, space)
        out = {}
        for key, path, convert in self.leaves:
            try:
                out[key] = convert(follow(obs, path))
            except DataError as error:
                raise DataError(f"observation '{key}' {error}") from None
            except (TypeError, ValueError) as error:
                raise DataError(f"observation '{key}' cannot be converted to an array: {error}") from error
        return out


class ActionCodec:
    """Turns flat actions ``[A]`` into actions of one space.

    A categorical part takes the class of its largest entry; continuous parts are clipped to [-1, 1], then scaled.

    Raises:
        EnvError: a leaf is unbounded, or of an unsupported kind.
    """

    def __init__(self, space: Space) -> None:
        named = [(action_key(path), inner) for path, inner in leaves_of(space)]
        leaves = dict(named)
        if len(leaves) < len(named):
            raise EnvError(
                f"two of the actions {sorted(key for key, _ in named)} have the same key. Rename one of them."
            )
        if not leaves:
            raise EnvError("the action space is empty: expected at least one action.")
        self.spec = ActionSpec(parts={key: _action_part(key, leaf) for key, leaf in leaves.items()})
        self._decode = _decoder(space, (), self.spec.slices())

    def __call__(self, flat: np.ndarray) -> Any:
        """Return the action of the space for ``flat`` ``[A]``."""
        return self._decode(flat)


def _is_nested(space: Space) -> bool:
    return isinstance(space, spaces.Dict | spaces.Tuple)


def _children(space: Space) -> list[tuple[Any, Space]]:
    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else []


def _walk(space: Space, path: Path = ()) -> Iterator[tuple[Path, Space]]:
    yield path, space
    for name, inner in _children(space):
        yield from _walk(inner, (*path, name))


def leaves_of(space: Space) -> Iterator[tuple[Path, Space]]:
    """Yield the path and the space of each leaf of nested ``Dict`` and ``Tuple`` spaces."""
    return ((path, inner) for path, inner in _walk(space) if not _is_nested(inner))


def inside(space: Space, path: Path) -> Space:
    """Return the space at ``path`` in nested ``Dict`` and ``Tuple`` spaces."""
    for name in path:
        space = space[name]  # type: ignore[index]  # Dict and Tuple alone have paths
    return space


def follow(value: Any, path: Path) -> Any:
    """Return what lies at ``path`` in nested dictionaries and tuples."""
    for name in path:
        value = value[name]
    return value


def _check_branch(value: Any, path: Path, space: Space) -> None:
    """Raise DataError unless a dictionary has exactly the declared keys, or a tuple the declared length."""
    where = f"observation '{'/'.join(map(str, path))}'" if path else "the observation"
    if isinstance(space, spaces.Dict):
        given = value.keys() if isinstance(value, Mapping) else None
        if given != space.spaces.keys():
            got = f"is of type {type(value).__name__}" if given is None else f"has the keys {sorted(map(str, given))}"
            raise DataError(f"{where} {got}; its space declares the keys {sorted(map(str, space.spaces))}")
    elif isinstance(space, spaces.Tuple) and (not isinstance(value, tuple | list) or len(value) != len(space)):
        raise DataError(f"{where} is {value!r}; its space declares a tuple of length {len(space)}")


def _bare_image(space: Space, channels: Channels) -> bool:
    try:
        return make_leaf(space, channels).part.kind == "image"
    except EnvError:
        return False


def action_key(path: Path) -> str:
    """Return the key of the action at ``path``."""
    return "/".join(map(str, path)) or "action"


def _action_part(key: str, space: Space) -> ActionPart:
    if isinstance(space, spaces.Discrete):
        return ActionPart(kind="categorical", classes=(int(space.n),))
    if isinstance(space, spaces.MultiDiscrete):
        return ActionPart(kind="categorical", classes=tuple(int(n) for n in space.nvec.reshape(-1)))
    if isinstance(space, spaces.MultiBinary):
        return ActionPart(kind="categorical", classes=(2,) * math.prod(space.shape))
    if isinstance(space, spaces.Box) and space.dtype.kind in "iuf":
        _check_bounds(key, space)
        low, high = (tuple(map(float, bound.reshape(-1))) for bound in (space.low, space.high))
        return ActionPart(kind="continuous", size=len(low), low=low, high=high)
    known = "Discrete, MultiDiscrete, MultiBinary, numeric Box, or a Dict or Tuple of these"
    raise EnvError(f"action '{key}' has the space {space}, which is not supported: expected {known}.")


def _check_bounds(key: str, space: spaces.Box) -> None:
    if math.prod(space.shape) == 0:
        raise EnvError(f"action '{key}' has shape {space.shape}: expected at least one number.")
    open_ends = np.argwhere(~(np.isfinite(space.low) & np.isfinite(space.high)))
    if not len(open_ends):
        return
    dims = [tuple(map(int, i)) if len(i) > 1 else int(i[0]) for i in open_ends[:8] if len(i)]
    at = tuple(open_ends[0])
    box = f"gymnasium.spaces.Box(-1.0, 1.0, {space.shape})"
    where = f" in dimensions {dims}{'...' if len(open_ends) > 8 else ''}" if dims else ""
    raise EnvError(
        f"action '{key}' is unbounded{where} (low {space.low[at]}, high {space.high[at]}): expected finite bounds, "
        "to which [-1, 1] is scaled. Declare them in the environment, or wrap it: "
        f"gymnasium.wrappers.TransformAction(env, lambda action: action, {box}). "
        "ClipAction removes bounds: apply it inside this wrapper. RescaleAction needs them: apply it outside."
    )


def _decoder(space: Space, path: Path, slices: Mapping[str, slice]) -> Decode:
    if isinstance(space, spaces.Dict):
        by_key = {name: _decoder(inner, (*path, name), slices) for name, inner in _children(space)}
        return lambda flat: {name: decode(flat) for name, decode in by_key.items()}
    if isinstance(space, spaces.Tuple):
        in_order = [_decoder(inner, (*path, name), slices) for name, inner in _children(space)]
        return lambda flat: tuple(decode(flat) for decode in in_order)
    decode, cut = _leaf_decoder(space), slices[action_key(path)]
    return lambda flat: decode(flat[cut])


def _leaf_decoder(space: Space) -> Decode:
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return lambda flat: int(flat.argmax()) + start
    if isinstance(space, spaces.MultiDiscrete):
        return _choices(space.nvec, np.asarray(space.start), space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return _choices(np.full(space.shape, 2), np.zeros(space.shape, np.int64), space.dtype)
    assert isinstance(space, spaces.Box)
    return _scaled(space)


def _choices(counts: np.ndarray, start: np.ndarray, dtype: Any) -> Decode:
    shape = counts.shape
    ends = np.cumsum(counts.reshape(-1)).tolist()
    cuts = [slice(end - int(n), end) for end, n in zip(ends, counts.reshape(-1), strict=True)]

    def decode(flat: np.ndarray) -> np.ndarray:
        chosen: np.ndarray = np.array([flat[cut].argmax() for cut in cuts]).reshape(shape) + start
        return chosen.astype(dtype)

    return decode


def _scaled(space: spaces.Box) -> Decode:
    low, high, whole = space.low, space.high, space.dtype.kind != "f"
    # The bounds are halved before they are added, as the sum of two large ones would overflow.
    half_low, half_high = (bound.reshape(-1).astype(np.float64) / 2.0 for bound in (low, high))
    middle, half = half_high + half_low, half_high - half_low

    limits = [_inner(low, np.inf), _inner(high, -np.inf)] if whole else []
    least, most = -np.ones_like(half), np.ones_like(half)  # arrays: clipping with Python numbers takes twice as long

    def scaled(flat: np.ndarray) -> np.ndarray:
        unit = flat.astype(np.float64)
        np.minimum(np.maximum(unit, least, out=unit), most, out=unit)
        value = (unit * half + middle).reshape(low.shape)
        if whole:  # a number beyond the dtype would become one at its other end
            value = np.clip(np.rint(value), *limits)
        rounded: np.ndarray = value.astype(space.dtype)
        return rounded

    ranges = list(zip(half.tolist(), middle.tolist(), strict=True))

    def scaled_one_by_one(flat: np.ndarray) -> np.ndarray:
        values = [min(max(x, -1.0), 1.0) * by + at for x, (by, at) in zip(flat.tolist(), ranges, strict=True)]
        return np.array(values, space.dtype).reshape(low.shape)

    if len(ranges) <= FEW and not whole:  # the same numbers without NumPy's calls: 7 us less after an update
        scaled = scaled_one_by_one
    # Rounding to the dtype may step over a bound, as float32 does. If both ends stay inside, all between them do.
    inside = all(((low <= end) & (end <= high)).all() for end in (scaled(least), scaled(most)))
    return scaled if inside else lambda flat: np.minimum(np.maximum(scaled(flat), low), high)


def _check_storable(key: str) -> None:
    """Raise EnvError unless each part of ``key`` can be a folder of the replay store."""
    for part in key.split("/"):
        if part in ("", ".", "..", "zarr.json") or not part.isprintable() or len(part.encode()) > LONGEST_NAME:
            raise EnvError(
                f"observation {key!r} cannot be stored in a folder of that name: rename it in a wrapper. Its parts "
                f"between / must be printable, of at most {LONGEST_NAME} bytes, and none may be empty, ., .. or "
                "zarr.json."
            )


def _inner(bound: np.ndarray, towards: float) -> np.ndarray:
    """Return whole numbers as float64, or the next ones ``towards`` the other bound if those are beyond."""
    near = bound.astype(np.float64)
    beyond = [int(x) < int(b) if towards > 0 else int(x) > int(b) for x, b in zip(near.flat, bound.flat, strict=True)]
    return np.where(np.reshape(beyond, bound.shape), np.nextafter(near, towards), near)

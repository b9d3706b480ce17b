"""Conversion between observations of any space and the arrays of learners, for one observation or a column of n.

Nested observations have keys such as ``arm/camera``. A bare observation is called ``image`` or ``observation``.

This file must not import torch: worker processes import it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError, EnvError
from reverie.core.obs_conversion import ChannelAxis, Decode, Encode, conversion, looks_like_image, mask_conversion
from reverie.core.spaces import Columns, Path, Space, cast, children, column, convert_rows, get_at_path, iter_leaves
from reverie.core.specs import MASK_KEY, PLAYER_KEY, ObsPart


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

    def __init__(self, space: Space, keep: Callable[[str], bool] = bool, channel_axis: ChannelAxis = "auto") -> None:
        self.space = space
        leaves = [(path, inner) for path, inner in iter_leaves(space) if math.prod(inner.shape or (1,))]
        keyed_leaves = [("/".join(map(str, path)) or default_key(inner), path, inner) for path, inner in leaves]
        keys = [key for key, _, _ in keyed_leaves]
        if twice := next((key for key in keys if keys.count(key) > 1), ""):
            raise EnvError(f"two observations have the same key '{twice}' once nested keys are joined. Rename one of "
                           "them.")  # fmt: skip
        self.leaves: list[Leaf] = [
            _leaf(key, path, inner, channel_axis) for key, path, inner in keyed_leaves if keep(key)
        ]
        """The selected leaves."""
        self._encoders = [(leaf.key, leaf.path, leaf.encode) for leaf in self.leaves]
        self.spec: dict[str, ObsPart] = {leaf.key: leaf.part for leaf in self.leaves}
        if not self.spec:
            available = ", ".join(f"'{key}'" for key in keys) or "none"
            raise EnvError(
                f"no observations are left. Available keys, before env.include_keys and env.exclude_keys: {available}."
            )

    def __call__(self, obs: object, without: Collection[str] = ()) -> dict[str, np.ndarray]:
        """Return the arrays of one observation by key, as described by ``spec``, ``without`` some."""
        out = {}
        for key, path, encode in self._encoders:
            if key in without:
                continue
            try:
                out[key] = encode(get_at_path(obs, path), 0)
            except DataError as error:
                raise DataError(f"observation '{key}' {error}") from None
        return out

    def batch(self, obs: object, without: Collection[str] = ()) -> dict[str, np.ndarray]:
        """Return the arrays ``[N, *part.shape]`` of N observations, as a vector environment returns them."""
        encoders = [encoder for encoder in self._encoders if encoder[0] not in without]
        values = ((key, np.asarray(get_at_path(obs, path)), encode) for key, path, encode in encoders)
        return {key: convert_rows(encode, (array,), 1, f"observation '{key}'", 0) for key, array, encode in values}

    def missing(self, obs: object) -> list[str]:
        """Return the keys that are not in ``obs``, one observation or many."""
        out = []
        for key, path, _ in self._encoders:
            try:
                get_at_path(obs, path)
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
            if leaf.part.kind == "categorical" and values.dtype.kind == "f" and (values == np.rint(values)).all():
                values = values.astype(np.int64)  # tables can store class indices as floats
            out[f"obs/{leaf.key}"] = convert_rows(leaf.encode, (values,), 1, f"observation '{leaf.key}'", first)
        return out

    def decode(self, rows: Columns) -> dict[str, np.ndarray]:
        """Return ``rows`` with the columns of the space instead of the columns of ``encode``."""
        out = {name: values for name, values in rows.items() if name.partition("/")[0] != "obs"}
        for leaf in self.leaves:
            name, stored = column("obs", leaf.path), f"obs/{leaf.key}"
            values = leaf.decode(rows[stored if stored in rows else "obs"])  # a single observation can have no name
            out[name] = values if isinstance(leaf.space, spaces.Text) else cast(values, leaf.space.dtype, name)
        return out

    def filtered_space(self) -> Space:
        """Return the space with only the selected leaves."""
        return _drop_leaves(self.space, (), {leaf.path for leaf in self.leaves})


def default_key(space: Space) -> str:
    """Return the key of a single observation, which is named by its kind."""
    return "image" if isinstance(space, spaces.Box | spaces.MultiBinary) and looks_like_image(space) else "observation"


def _leaf(key: str, path: Path, space: Space, channel_axis: ChannelAxis) -> Leaf:
    if {"", ".", "..", "zarr.json"}.intersection(key.split("/")):
        raise EnvError(f"observation {key!r} cannot be stored in a folder of that name. Rename it in a wrapper.")
    try:
        part, encode, decode = mask_conversion(space) if key == MASK_KEY else conversion(space, channel_axis)
        if key == PLAYER_KEY and space == spaces.Discrete(2):
            part = replace(part, kind="player")
        return Leaf(key, path, space, part, encode, decode)
    except EnvError as error:
        remedy = f"Exclude it with env.exclude_keys = '{key}', or convert it with a wrapper around the environment."
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

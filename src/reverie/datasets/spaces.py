"""Questions that readers and writers ask about Gymnasium spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.core.spaces import columns_in, with_leaves
from reverie.datasets.reader import Space


def is_open(space: Space) -> bool:
    """Return True if it is a Box of which at least one bound is infinite."""
    return isinstance(space, spaces.Box) and not bool(np.isfinite(space.low).all() and np.isfinite(space.high).all())


def opened(space: Space) -> Space:
    """Return ``space`` with infinite bounds for all leaves of floats."""

    def without(_: str, leaf: Space) -> Space:
        if not isinstance(leaf, spaces.Box) or leaf.dtype.kind != "f":
            return leaf
        return spaces.Box(-np.inf, np.inf, leaf.shape, leaf.dtype.type)

    return with_leaves(space, "", without)


def tree_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with keys such as ``arm/camera`` as nested dictionaries.

    Raises:
        DataError: a key is also the beginning of another, as ``camera`` is of ``camera/depth``.
    """
    for key in values:
        below = next((other for other in values if other.startswith(f"{key}/")), None)
        if below is not None:
            raise DataError(
                f"'{key}' and '{below}' cannot both be keys: '{key}' would be an array and a dictionary at once. Give "
                "one of them another name. Of a replay store, `reverie data export PATH --to pydreamer FOLDER` writes "
                "both, as these files have no nested keys."
            )
    out: dict[str, Any] = {}
    for key, value in values.items():
        *parents, leaf = key.split("/")
        inside = out
        for parent in parents:
            inside = inside.setdefault(parent, {})
        inside[leaf] = value
    return out


def nested_spaces(found: Mapping[str, Space], root: str) -> Any:
    """Arrange spaces with names such as ``obs/arm/camera`` as nested Dict spaces."""

    def made(value: Any) -> Any:
        return spaces.Dict({key: made(inner) for key, inner in value.items()}) if isinstance(value, dict) else value

    return made(tree_of({name.removeprefix(f"{root}/"): space for name, space in found.items()}))


def check_held(space: Space, columns: Mapping[str, np.ndarray], root: str) -> None:
    """Check that ``nested`` changes no value of ``columns`` ``[n, ...]``, other than that it rounds floats.

    Raises:
        DataError: it does, as of fractions to integers, or of integers beyond 2^53 to floats.
    """
    for column, leaf in columns_in(space, root):
        values = columns[column]
        kinds = values.dtype.kind + np.dtype(leaf.dtype).kind
        if values.dtype == leaf.dtype or kinds == "ff" or not set(kinds) <= set("biuf"):
            continue
        with np.errstate(invalid="ignore"):  # a float that is beyond all integers
            changed = values[values.astype(leaf.dtype).astype(values.dtype) != values]
        if len(changed):
            raise DataError(
                f"'{column}' has the value {changed.flat[0]}, which {leaf.dtype}, the type of its space, does not "
                "hold. Correct the data, or use a format that keeps the type of arrays (--to d4rl, --to parquet)."
            )


def first_of(values: Any) -> Any:
    """Return the first of the values that ``nested`` returns."""
    if isinstance(values, dict):
        return {key: first_of(inner) for key, inner in values.items()}
    if isinstance(values, tuple):
        return tuple(first_of(inner) for inner in values)
    return values[0]


def is_picture(space: Space) -> bool:
    """Return True if Minari compresses values of this space as images: uint8 from 0 to 255, at least 32 x 32."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return False
    return min(space.shape[:2]) >= 32 and not space.low.any() and bool((space.high == 255).all())

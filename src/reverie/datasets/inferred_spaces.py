"""Spaces of recorded observations and actions, inferred from shapes, dtypes and values where files declare none."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from reverie.core.errors import ConfigError, DataError
from reverie.core.obs_conversion import looks_like_image
from reverie.core.spaces import classes_of
from reverie.datasets.reader import Reader, ReadOptions, Space

MOST_CLASSES = 256
"""Maximum number of classes inferred from integers stored as floats."""
CLASSES = (
    "the recorded actions are floats, all of them whole numbers from 0 to {}: they are treated as discrete actions "
    "(if there is an environment with continuous actions, its action space is used instead)"
)
SPARSE = (
    "the recorded actions are {:,} different numbers up to {:,}: they are read as classes of a discrete action, one "
    "for each number up to there. Renumber them from 0, or name an environment"
)
LARGE = (
    f"the recorded actions are floats, all of them whole numbers, some of them {MOST_CLASSES} or more: they are "
    "treated as continuous actions. Store them as integers if they are classes"
)
WHOLE = (
    "the recorded actions are floats, all of them whole numbers, several for a step: they are treated as continuous "
    "actions, since discrete actions would be integers"
)


def nested_space(leaves: Mapping[str, Space], root: str) -> Space:
    """Combine the spaces of columns such as ``obs/arm/camera`` into one: nested dictionaries, or the single ``obs``."""
    if root in leaves:
        return leaves[root]
    parts: dict[str, dict[str, Space]] = {}
    for name, space in leaves.items():
        key = name.removeprefix(f"{root}/").partition("/")[0]
        parts.setdefault(f"{root}/{key}", {})[name] = space
    return spaces.Dict({name.removeprefix(f"{root}/"): nested_space(inner, name) for name, inner in parts.items()})


def infer_obs_space(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Space:
    """Return a space for observations of this shape and dtype: uint8 that looks like an image or a stack is one.

    All others are unbounded floats of the smallest dtype that represents the numbers.
    """
    if dtype == np.uint8 and looks_like_image(image := spaces.Box(0, 255, shape, np.uint8)):
        return image
    if dtype.kind not in "biuf":
        raise DataError(f"observations have dtype {dtype}: expected numbers.")
    return spaces.Box(-np.inf, np.inf, shape, np.result_type(np.float32, dtype).type)


def classes_space(classes: Sequence[int], shape: tuple[int, ...]) -> Space:
    """Return the space of class indices ``[*shape]``; ``classes``: number of classes of each element, in flat order."""
    counts = np.reshape(list(classes), shape)
    return spaces.MultiDiscrete(counts) if shape else spaces.Discrete(int(counts))


def text_space(texts: Collection[str]) -> spaces.Text:
    """Return the space of observations that are one of ``texts``."""
    return spaces.Text(max(map(len, texts)), min_length=0, charset="".join(sorted(set("".join(texts)))))


def seen_space(
    arrays: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]], options: ReadOptions, env_spaces: Mapping[str, Space],
    path: Path, texts: Collection[str] = (),
) -> Space:  # fmt: skip
    """Return an observation space by column, when files store only shapes and dtypes.

    The kind of each comes from ``options.classes``, else from the space of the same name and shape in ``env_spaces``,
    else from :func:`infer_obs_space`. Objects are ``texts``.
    """
    classes = {"obs" if name == "observation" and "obs" in arrays else f"obs/{name}": n
               for name, n in options.classes.items()}  # fmt: skip
    if unknown := ", ".join(sorted(name.removeprefix("obs/") for name in classes.keys() - arrays.keys())):
        names = ", ".join("observation" if name == "obs" else name.removeprefix("obs/") for name in arrays)
        raise ConfigError(f"data.classes: {path} has no observation '{unknown}'. It has: {names}.")
    leaves: dict[str, Space] = {}
    for name, (shape, dtype) in arrays.items():
        if dtype.kind == "O" and texts:
            leaves[name] = text_space(texts)
        elif name in classes:
            leaves[name] = _classes_space(
                classes[name], shape, f"data.classes: '{name.removeprefix('obs/')}' in {path}"
            )
        elif (leaf := env_spaces.get(name)) is not None and _tells_kind(leaf, shape, dtype):
            leaves[name] = leaf
        else:
            leaves[name] = infer_obs_space(shape, dtype)
    return nested_space(leaves, "obs")


def _classes_space(classes: int | tuple[int, ...], shape: tuple[int, ...], label: str) -> Space:
    size = math.prod(shape)
    counts = (classes,) * size if isinstance(classes, int) else classes
    if len(counts) != size:
        raise ConfigError(
            f"{label} has shape {list(shape)}, but {len(counts)} numbers of classes: expected {size}, or one."
        )
    return classes_space(counts, shape)


def _tells_kind(leaf: Space, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether an environment's ``leaf`` determines more about an array than its shape and dtype."""
    if dtype.kind not in "biuf" or leaf.shape is None or (leaf.shape or (1,)) != (shape or (1,)):
        return False
    boxes = [space for space in (leaf, infer_obs_space(shape, dtype)) if isinstance(space, spaces.Box)]
    return len(boxes) < 2 or any(map(looks_like_image, boxes))


def infer_action_space(
    blocks: Callable[[], Iterable[np.ndarray]], label: Path | str, *, scaled: bool = False
) -> tuple[Space, bool]:
    """Return a space that contains the recorded actions ``[n, ...]``, and whether its bounds were measured.

    Integers are discrete actions. Floats get the bounds [-1, 1] if these contain all of them, else the measured range,
    rounded to float32. ``blocks`` returns the actions in blocks, and is called several times. ``scaled``: the format
    stores the policy's output, whose bounds are [-1, 1]; with noise, it may be outside of them.
    """
    ranges = [(block.min(), block.max(), block.dtype) for block in blocks() if block.size]
    if not ranges:
        raise DataError(f"{label} contains no actions, or none that are finite float32 numbers.")
    low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
    is_integer = all(r[2].kind in "iub" for r in ranges)
    if is_integer and low < 0:
        raise DataError(f"{label} contains integer actions down to {low}: expected class indices, 0 or more.")
    if not _fits(np.array([float(bound) for r in ranges for bound in r[:2]])).all():  # reported while reading

        def finite() -> Iterator[np.ndarray]:
            return (block[_fits(block.reshape(len(block), -1)).all(axis=1)] for block in blocks())

        return infer_action_space(finite, label, scaled=scaled)
    shape = next(block.shape[1:] for block in blocks() if block.size)
    dtype = np.result_type(np.float32, *{r[2] for r in ranges}).type
    if not is_integer and (scaled or (low >= -1.0 - 1e-5 and high <= 1.0 + 1e-5)):
        return spaces.Box(-1.0, 1.0, shape, dtype), not scaled
    bounds = [(block.min(axis=0), block.max(axis=0)) for block in blocks() if block.size]
    lows, highs = np.min([e[0] for e in bounds], axis=0), np.max([e[1] for e in bounds], axis=0)
    if not is_integer:
        lows, highs = lows.astype(np.float32), highs.astype(np.float32)
        highs = np.where(highs > lows, highs, lows + 1)
        return spaces.Box(lows.astype(dtype), highs.astype(dtype), shape, dtype), True
    counts = np.maximum(highs.astype(np.int64), 1) + 1
    return (spaces.MultiDiscrete(counts) if counts.ndim else spaces.Discrete(int(counts))), True


class MeasuredAction(NamedTuple):
    """The space of recorded actions, for ``DatasetInfo``."""

    space: Space
    measured: bool
    numbered: bool


def measured_action(
    reader: Reader, blocks: Callable[[], Iterable[np.ndarray]], *, scaled: bool = False, classes: bool = True
) -> MeasuredAction:
    """Infer the space of actions ``[n, ...]`` by ``infer_action_space``.

    With ``classes``, floats that are class indices are discrete actions, like integers; assumptions become remarks of
    ``reader``.
    """
    space, measured = infer_action_space(blocks, reader.path, scaled=scaled)
    count = _classes_in(blocks()) if classes else 0
    if not isinstance(space, spaces.Box):
        _note_sparse(reader, space, blocks)
    if not count or math.prod(space.shape or ()) != 1:
        reader.add_remark(WHOLE, int(count > 0))
        is_large = isinstance(space, spaces.Box) and classes and not count and float(space.low.min()) >= 0
        reader.add_remark(LARGE, int(is_large and all((block == np.rint(block)).all() for block in blocks())))
        return MeasuredAction(space, measured, False)
    reader.add_remark(CLASSES.format(count - 1))
    return MeasuredAction(spaces.MultiDiscrete([count]) if space.shape else spaces.Discrete(count), True, True)


def _note_sparse(reader: Reader, space: Space, blocks: Callable[[], Iterable[np.ndarray]]) -> None:
    """Add a remark on each element of actions ``[n, ...]`` of which most class numbers do not occur."""
    for index, classes in enumerate(np.reshape(classes_of(space)[0], -1).tolist()):
        if classes > MOST_CLASSES:
            different = len(
                np.unique(np.concatenate([np.unique(block.reshape(len(block), -1)[:, index]) for block in blocks()]))
            )
            reader.add_remark(SPARSE.format(different, classes - 1), int(2 * different < classes))


def _classes_in(blocks: Iterable[np.ndarray]) -> int:
    """Return the number of classes of recorded actions ``[n, ...]`` stored as floats; 0 if they are not class indices.

    Classes are stored as floats if a table has missing values, or one array contains all columns. Floats count as class
    indices if all are whole numbers from 0 to at most ``MOST_CLASSES - 1``, and not all are 0.
    """
    largest = 0.0
    for block in blocks:
        if block.dtype.kind != "f" or not ((block >= 0) & (block < MOST_CLASSES) & (block == np.rint(block))).all():
            return 0
        largest = max(largest, float(block.max(initial=0)))
    return int(largest) + 1 if largest else 0


def _fits(values: np.ndarray) -> np.ndarray:
    """Return a mask of the ``values`` that are finite as float32."""
    return np.asarray(np.abs(values) <= np.finfo(np.float32).max)

"""Goals that the caller of a goal-conditioned agent passes, instead of an environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.agent.conversion import count_obs, to_numpy_readable
from reverie.core.errors import DataError
from reverie.core.spaces import column, columns_to_nested, get_at_path, iter_leaves
from reverie.core.specs import DESIRED_GOAL, GOAL_KEY


def add_goal(space: spaces.Dict, obs: Any, goal: Any) -> Any:
    """Return an observation of ``space``, or N of them, with ``goal``: one goal for all of them, or one for each.

    ``obs`` and ``goal`` may be the bare observation if there is a single one beside the goal.

    Raises:
        DataError: there is no goal, or it does not fit the space.
    """
    if isinstance(obs, tuple | list) and obs and isinstance(obs[-1], Mapping):
        return obs  # the whole return value of reset or step, which is reported elsewhere
    name = _goal_name(space)
    rest = spaces.Dict({key: part for key, part in space.items() if key != name})
    parts = _to_parts(rest, obs)
    if goal is None and name in parts:
        return parts
    arrays = _goal_arrays(space, goal, count_obs(rest, to_numpy_readable(parts)))
    return {**parts, name: columns_to_nested(space[name], arrays, "goal")}


def _goal_arrays(space: spaces.Dict, goal: Any, count: int | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of a goal of ``space``, repeated for ``count`` of them; errors as :func:`add_goal`."""
    goal_space = space[_goal_name(space)]
    if goal is None:
        raise DataError(f"there is no goal: pass goal, an observation to reach, of the space {goal_space}.")
    values = _to_parts(goal_space, goal) if isinstance(goal_space, spaces.Dict) else goal
    return {column("goal", path): _part(values, path, leaf, count) for path, leaf in iter_leaves(goal_space)}


def to_goal(space: spaces.Dict, goal: Any) -> Any:
    """Return one goal of ``space`` as arrays, by key if it has several parts; errors as :func:`add_goal`."""
    parts = columns_to_nested(space[_goal_name(space)], _goal_arrays(space, goal), "goal")
    alone = next(iter(parts.values())) if isinstance(parts, Mapping) and len(parts) == 1 else parts
    return parts if isinstance(alone, Mapping) else alone


def goal_shapes(space: spaces.Space[Any] | None) -> list[tuple[int, ...]]:
    """Return the shapes of a goal's parts; none if observations of ``space`` have no goal."""
    if not isinstance(space, spaces.Dict) or (name := _goal_name(space)) not in space.spaces:
        return []
    return [tuple(leaf.shape or ()) for _, leaf in iter_leaves(space[name])]


def _goal_name(space: spaces.Dict) -> str:
    return GOAL_KEY if GOAL_KEY in space.spaces else DESIRED_GOAL


def _to_parts(space: spaces.Dict, value: Any) -> dict[str, Any]:
    """Return ``value`` as a dictionary; a bare value is that of the only part of ``space``."""
    if isinstance(value, Mapping):
        return dict(value)
    if len(space) > 1:
        raise DataError(f"expected a dictionary of {', '.join(map(repr, space))}, got {type(value).__name__}.")
    return dict.fromkeys(space, value)


def _part(goal: Any, path: tuple[Any, ...], leaf: spaces.Space[Any], count: int | None) -> np.ndarray:
    """Return one array of a goal, repeated for ``count`` observations."""
    name, shape = column("goal", path), tuple(leaf.shape or ())
    try:
        part = get_at_path(goal, path)
        if isinstance(part, Mapping):
            raise DataError(f"has the keys {', '.join(map(repr, part))}: expected an array of shape {shape}")
        value = np.asarray(to_numpy_readable(part))
    except (DataError, ValueError) as error:  # a list of different lengths is a ValueError
        raise DataError(f"{name} {error}.") from None
    if value.shape == shape and count is not None:
        value = np.broadcast_to(value, (count, *shape))
    expected = shape if count is None else (count, *shape)
    if value.shape != expected:
        raise DataError(f"{name} has shape {value.shape}: expected {expected}, that of an observation.")
    if value.dtype.kind == "f" and leaf.dtype is not None and leaf.dtype.kind != "f":
        raise DataError(f"{name} has dtype {value.dtype}; its space declares {leaf.dtype}.")
    if value.dtype.kind not in "biuf" or not np.isfinite(value).all():
        raise DataError(f"{name} contains NaN, infinite numbers or other objects: expected finite numbers.")
    if value.dtype.kind != "f" and (value.astype(leaf.dtype) != value).any():
        raise DataError(f"{name} has values {value.min()}..{value.max()}; its space declares {leaf.dtype}.")
    return value

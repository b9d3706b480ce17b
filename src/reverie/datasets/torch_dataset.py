"""PyTorch datasets of transitions or episodes as arrays under D4RL's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from reverie.core.errors import ConfigError

NAMES = {
    "observation": "observations", "obs": "observations", "state": "observations", "action": "actions",
    "reward": "rewards", "terminal": "terminals", "terminated": "terminals", "timeout": "timeouts",
    "truncated": "timeouts", "next_observation": "next_observations", "next_obs": "next_observations",
    "next_state": "next_observations",
}  # fmt: skip
"""D4RL's name of each value of an item; an item may also have D4RL's names."""
FLAGS = ("rewards", "terminals", "timeouts")
"""Arrays with one number for each step."""
TUPLE = ("observations", "actions", "rewards", "next_observations", "terminals")
"""The values of an item that is a tuple."""


def to_arrays(data: Any) -> dict[str, np.ndarray]:
    """Return the arrays of a map-style dataset, all of whose items are transitions or all episodes.

    An episode has n actions and rewards, and n or n + 1 observations. It is terminal if its flag says so, a number or
    one for each step; otherwise it is truncated.

    Raises:
        ConfigError: the items are neither.
    """
    kind = type(data).__name__
    if not hasattr(data, "__len__"):
        raise ConfigError(f"data = {kind}: a stream has no end. Pass a dataset with __len__ and __getitem__.")
    items = [_named_arrays(data[index], kind) for index in range(len(data))]
    if not items or any(item.keys() != items[0].keys() for item in items):
        names = " and ".join(sorted({", ".join(item) for item in items})) or "nothing"
        raise ConfigError(f"data = {kind}: its {len(items)} items have {names}. Expected the same of each.")
    if any(map(_is_episode, items)):
        items = [_with_ends(item, kind) for item in items]
        return {name: np.concatenate([item[name] for item in items]) for name in items[0]}
    arrays = {name: np.stack([item[name] for item in items]) for name in items[0]}
    if not arrays.keys() & {"terminals", "timeouts", "next_observations"}:
        raise ConfigError(
            f"data = {kind}: nothing in its items tells where an episode ends. Add terminated, truncated or next_obs."
        )
    flags = {name: arrays[name].reshape(-1) for name in FLAGS if name in arrays}
    return {"terminals": np.zeros(len(items), bool), **arrays, **flags}


def _is_episode(item: dict[str, np.ndarray]) -> bool:
    """Return whether an item has several steps; without rewards, its observations must be a list of arrays."""
    is_list = item["observations"].ndim > 1 and len(item["observations"]) - len(item["actions"]) in (0, 1)
    return any(item[name].size > 1 for name in FLAGS if name in item) or ("rewards" not in item and is_list)


def _named_arrays(item: Any, kind: str) -> dict[str, np.ndarray]:
    """Return the numbers of an item by D4RL's names."""
    if isinstance(item, tuple | list) and len(item) == len(TUPLE):
        item = dict(zip(TUPLE, item, strict=True))
    values = item.items() if isinstance(item, Mapping) else ()
    named = {NAMES.get(str(name), str(name)): value for name, value in values}
    arrays = {name: np.asarray(value) for name, value in named.items() if not isinstance(value, Mapping | str)}
    if missing := [name for name in ("observations", "actions") if name not in arrays]:
        has = ", ".join(named) or f"{type(item).__name__}"
        raise ConfigError(
            f"data = {kind}: its items have {has}, but no array of {' and '.join(missing)}. Expected dictionaries of "
            f"{', '.join(NAMES)}, or tuples of {', '.join(TUPLE)}."
        )
    return {name: x for name, x in arrays.items() if x.dtype.kind in "biuf"}


def _with_ends(item: dict[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    """Return the steps of an episode with ``terminals`` and ``timeouts``."""
    obs, count = item["observations"], len(item["actions"])
    terminal = np.asarray(item.get("terminals", False), bool).reshape(-1)
    steps = {name: x for name, x in item.items() if x.ndim and name not in ("observations", "terminals", "timeouts")}
    if len(obs) not in (count, count + 1) or any(len(x) != count for x in steps.values()):
        sizes = ", ".join(f"{len(x)} {name}" for name, x in item.items() if x.ndim)
        raise ConfigError(f"data = {kind}: an episode has {sizes}. Expected n of each, and n or n + 1 observations.")
    if len(obs) > count:
        steps["next_observations"] = obs[1:]
    is_last = np.arange(count) == count - 1
    ended = terminal if len(terminal) == count else is_last & terminal.any()
    return {**steps, "observations": obs[:count], "terminals": ended, "timeouts": is_last & ~ended}

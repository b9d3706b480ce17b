"""Steps of a native vector environment, checked, and the parts that belong to one of its environments.

This file must not import torch: worker processes import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from reverie.core.errors import DataError, EnvError, short_repr
from reverie.core.logger import logger
from reverie.envs.interventions import FINAL_INFO

Vector = VectorEnv[Any, Any, Any]
Info = Mapping[str, Any] | Sequence[Mapping[str, Any] | None]
"""Of all environments, or of each."""
VectorStep = tuple[Any, np.ndarray, np.ndarray, np.ndarray, Info]
CLIPS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"sign": np.sign, "tanh": np.tanh, "none": np.asarray}
"""How ``env.clip_reward`` changes rewards."""
FINAL_OBS = ("final_obs", "final_observation")
"""Keys of the info with the last observations of episodes, if the vector resets in the step that ends them."""


def checked_vector_step(vector: Vector, actions: object) -> VectorStep:
    """Step ``vector``; return the results, with float64 rewards and bool flags ``[N]``; DataError for other values."""
    answer: Any = vector.step(actions)
    name = type(vector.unwrapped).__name__
    if not isinstance(answer, tuple | list) or len(answer) != 5:
        raise DataError(f"{name}.step() returned {short_repr(answer)}: expected 5 values.")
    obs, reward, *flags, info = answer
    arrays = [_check_values(f"{name}: {label}", x, vector.num_envs)
              for label, x in zip(("reward", "terminated", "truncated"), (reward, *flags), strict=True)]  # fmt: skip
    for label, array in zip(("terminated", "truncated"), arrays[1:], strict=True):
        if array.dtype != bool and not np.isin(array, (0, 1)).all():  # such as NaN, which is truthy
            raise DataError(f"{name}: {label} is {short_repr(array)}: expected bools.")
    reward, terminated, truncated = arrays[0].astype(np.float64), arrays[1].astype(bool), arrays[2].astype(bool)
    return obs, reward, terminated, truncated, {} if info is None else info


def _check_values(label: str, value: object, num: int) -> np.ndarray:
    array = np.asarray(value)
    if array.shape != (num,) or array.dtype.kind not in "biuf":
        raise DataError(f"{label} has shape {array.shape} and dtype {array.dtype}: expected numbers of shape ({num},).")
    return array


def resets_in_same_step(info: Info) -> bool:
    """Return whether ``info``, a dictionary or a list of infos, shows resets in the step that ends an episode."""
    parts = [info] if isinstance(info, Mapping) else [part for part in info if isinstance(part, Mapping)]
    return any(key in part for part in parts for key in (*FINAL_OBS, FINAL_INFO))


def warn_of_hidden_steps(vector_name: str) -> None:
    """Warn that a vector resets in the step that ends an episode, so that nobody sees the first step of the next."""
    logger.warning(
        f"{vector_name} resets in the step that ends an episode, so an episode begins one step later: its first step "
        "takes an action of zeros or the first legal classes, and belongs to no row, score or evaluation. If possible, "
        "let the vector reset in the next step, or not at all (docs/collecting.md)"
    )


def final_obs(info: Info, obs: object, ended: np.ndarray, vector: Vector) -> Any:
    """Return ``obs`` with the last observations of the episodes that ``ended`` in the step, from its ``info``."""
    numbers = np.flatnonzero(ended).tolist()
    parts = [info] if isinstance(info, Mapping) else [info[number] or {} for number in numbers]
    key = next((key for key in FINAL_OBS if all(key in part for part in parts)), None)
    if key is None or (isinstance(info, Mapping) and not np.asarray(info.get(f"_{key}", ended))[ended].all()):
        raise EnvError(
            f"{type(vector.unwrapped).__name__} resets in the step that ends an episode, but its info lacks the last "
            "observation. Return it as info['final_obs'], with the mask info['_final_obs']."
        )
    final = info[key] if isinstance(info, Mapping) else [(part or {}).get(key) for part in info]
    return _replace_items(obs, final, numbers)


def _replace_items(obs: Any, final: Any, numbers: list[int]) -> Any:
    """Return a copy of the batch ``obs`` with items ``numbers`` from ``final``, a batch or a sequence of items."""
    if isinstance(obs, Mapping | tuple):
        keys = list(obs) if isinstance(obs, Mapping) else list(range(len(obs)))
        if not isinstance(final, Mapping | tuple):  # a sequence of items
            items = [final[i] if i in numbers else None for i in range(len(final))]
            final = {key: [None if item is None else item[key] for item in items] for key in keys}
        parts = [_replace_items(obs[key], final[key], numbers) for key in keys]
        return dict(zip(keys, parts, strict=True)) if isinstance(obs, Mapping) else tuple(parts)
    out = np.array(obs)
    for number in numbers:
        out[number] = final[number]
    return out


def info_at(info: Info, number: int, num: int) -> dict[str, Any]:
    """Return the info of environment ``number`` of ``num``, without the keys that its masks ``_KEY`` leave out."""
    if not isinstance(info, Mapping):  # a list of infos, of which some can be None
        return dict(info[number] or {}) if len(info) == num else {}
    out = {}
    for key, value in info.items():
        mask = info.get(f"_{key}")
        if (mask is not None and not mask[number]) or (str(key).startswith("_") and str(key)[1:] in info):
            continue
        if isinstance(value, Mapping):
            out[key] = info_at(value, number, num)
        else:
            out[key] = value[number] if np.ndim(value) and len(value) == num else value
    return out


def episode_info_at(info: Info, number: int, num: int) -> dict[str, Any]:
    """Return the info of the step that has ended the episode of environment ``number``."""
    parts = info_at(info, number, num)
    inside = parts.pop(FINAL_INFO, None)
    parts = {key: value for key, value in parts.items() if key not in FINAL_OBS}
    return {**parts, **inside} if isinstance(inside, Mapping) else parts

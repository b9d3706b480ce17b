"""The executed action: what the info of a step says of an action that replaced the policy's.

Two kinds. A *takeover* is a decision that is no function of the policy's action, as of a person; a *filter* is one, as
of a safety layer, and so a part of the environment. The first of these that an info has counts:

==================================================  =========  ============================================
keys                                                kind       written by
==================================================  =========  ============================================
``executed_action``                                 filter     anybody: the action that was executed instead
``intervene_action``                                takeover   HIL-SERL, only while a person acts
``is_intervention``, ``teleop_action``              takeover   gym-hil, LeRobot; false: the policy's action
``is_intervention``, ``action_intervention``        takeover   older versions of gym-hil
==================================================  =========  ============================================

With ``is_intervention``, or HIL-SERL's ``intervene_flag``, every key is of a takeover, and false means the policy's
action. A key can also be the member of an enum with this value, as in LeRobot.

This file must not import torch: worker processes import it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from reverie.core.action_codec import ActionCodec
from reverie.core.errors import DataError, RowError, short_repr
from reverie.core.spaces import Space, column, get_at_path, iter_leaves
from reverie.core.specs import IS_INTERVENTION as IS_INTERVENTION

EXECUTED_ACTION = "executed_action"
ACTION_KEYS = (EXECUTED_ACTION, "intervene_action", "teleop_action", "action_intervention")
FLAG_KEYS = (IS_INTERVENTION, "intervene_flag")
FLAGGED_KEYS = ACTION_KEYS[2:]
"""Keys that environments write in every step, so that only a flag says whether they count."""
FINAL_INFO = "final_info"
"""Key of the info of a vector with that of the steps that ended episodes, if it resets in the same step."""
KEYS = frozenset(ACTION_KEYS + FLAG_KEYS)
POLICY, FILTER, TAKEOVER = 0, 1, 2
"""Whose action was executed."""


class Replacement(NamedTuple):
    """What an info says: ``action``, under the key ``key``, was executed instead of the policy's."""

    action: Any
    key: str
    is_takeover: bool


def name_keys(info: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return ``info`` with the values of enum members as keys instead of the members."""
    if {*map(type, info)} <= {str}:
        return info
    return {key.value if isinstance(key, Enum) else key: value for key, value in info.items()}


def find_keys(info: Mapping[Any, Any]) -> tuple[str, str] | None:
    """Return the keys of the action and of the flag in ``info``, as of :func:`name_keys`; None if there is no action.

    The flag is "" if there is none.
    """
    if KEYS.isdisjoint(info):
        return None
    flag = next((key for key in FLAG_KEYS if key in info), "")
    key = next((key for key in ACTION_KEYS if key in info and (flag or key not in FLAGGED_KEYS)), "")
    return (key, flag) if key else None


def is_of_takeover(key: str, flag: str) -> bool:
    """Return whether an action under these keys, as of :func:`find_keys`, is of a takeover and not of a filter."""
    return bool(flag) or key != EXECUTED_ACTION


def read_replacement(info: object) -> Replacement | None:
    """Return what the ``info`` of a step says of the executed action; None: it was the policy's."""
    if not isinstance(info, Mapping) or not info:
        return None
    keys = find_keys(info := name_keys(info))
    if keys is None:
        if IS_INTERVENTION in info and _read_flag(info, IS_INTERVENTION):
            raise DataError(
                f"info['{IS_INTERVENTION}'] is true, but the info does not say which action was executed: expected "
                f"one of {', '.join(ACTION_KEYS)}"
            )
        return None
    if keys[1] and not _read_flag(info, keys[1]):
        return None
    return Replacement(info[keys[0]], keys[0], is_of_takeover(*keys))


def mentions_executed_action(info: object) -> bool:
    """Return whether the info of a vector, a mapping or a sequence of infos, has one of the keys."""
    if isinstance(info, Mapping):
        return not KEYS.isdisjoint(name_keys(info)) or mentions_executed_action(info.get(FINAL_INFO))
    return isinstance(info, Sequence | np.ndarray) and any(map(mentions_executed_action, info))


def _read_flag(info: Mapping[str, Any], key: str) -> bool:
    flag = np.asarray(info[key])
    if flag.size != 1 or flag.dtype.kind not in "biuf" or flag.item() not in (0, 1):
        raise DataError(f"info['{key}'] is {short_repr(info[key])}: expected a bool, whether a person acted")
    return bool(flag.item())


class ExecutedActionReader:
    """Converts executed actions in infos to flat ones, and checks them."""

    def __init__(self, space: Space, layers: Sequence[gymnasium.Env[Any, Any] | Any], keeps_filtered: bool) -> None:
        """``space``: of the policy's actions; ``layers``: the wrappers, for messages.

        ``keeps_filtered``: read filters as the policy's action.
        """
        self._space, self._codec, self._keeps_filtered = space, ActionCodec(space), keeps_filtered
        self._stack = " > ".join(type(layer).__name__ for layer in layers)
        self.seen: dict[str, str] = {}
        """Kinds of replaced actions so far, by their keys."""

    def __call__(self, info: object, legal: np.ndarray | None = None) -> tuple[np.ndarray, int]:
        """Return the flat action ``[A]`` that was executed, and whose it was: ``POLICY``, ``FILTER`` or ``TAKEOVER``.

        ``legal``: the action mask ``[A]`` of the row in which it was taken. DataError if the action does not fit.
        """
        replacement = read_replacement(info)
        if replacement is None or (self._keeps_filtered and not replacement.is_takeover):
            return _NOTHING, POLICY
        flat = self._flatten(replacement)
        for _, cut in self._codec.spec.categorical_slices() if legal is not None else ():
            if (flat[cut] > legal[cut]).any():  # type: ignore[index]  # checked in the line above
                raise DataError(
                    f"info['{replacement.key}'] is {short_repr(replacement.action)}, which the action mask of its row "
                    "forbids: expected a legal action. One of the two is wrong"
                )
        self.seen[replacement.key] = "takeover" if replacement.is_takeover else "filter"
        return flat, TAKEOVER if replacement.is_takeover else FILTER

    def _flatten(self, replacement: Replacement) -> np.ndarray:
        """Return the flat action ``[A]``, clipped if it is within ``BOUND_TOLERANCE`` of its bounds."""
        outside = self._codec.outside
        try:
            rows = {column("action", path): _as_row(get_at_path(replacement.action, path), leaf)
                    for path, leaf in iter_leaves(self._space)}  # fmt: skip
            flat: np.ndarray = self._codec.flatten(rows | {"is_last": np.zeros(1, bool)})[0]
        except DataError as error:
            raise self._misfit(replacement, error.problem if isinstance(error, RowError) else str(error)) from None
        if self._codec.outside > outside:
            raise self._misfit(replacement, "is beyond the bounds")
        return flat

    def _misfit(self, replacement: Replacement, problem: str) -> DataError:
        return DataError(
            f"info['{replacement.key}'] = {short_repr(replacement.action)} {problem}: expected an action of "
            f"{self._space}, the space of the outermost wrapper ({self._stack}). If a wrapper around the one that "
            "replaces actions converts actions, convert the executed action back in it"
        )


_NOTHING = np.zeros(0, np.float32)


def _as_row(value: object, leaf: Space) -> np.ndarray:
    """Return one action as a row ``[1, *shape]``; DataError unless it has the shape and numbers of its space."""
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise DataError(f"is of type {type(value).__name__}")
    if array.shape != leaf.shape:
        raise DataError(f"has shape {array.shape}; its space declares {leaf.shape}")
    return array[None]


def join_replacements(
    space: Space, action: object, replacements: Sequence[Replacement | None], info: Mapping[Any, Any]
) -> dict[Any, Any]:
    """Return the ``info`` of the last of several steps of one decision, with one executed action for all of them.

    Executed numbers are averaged; of classes, the last counts. A takeover in one of them is one of the decision.
    ``action``: the policy's. ``replacements``: what :func:`read_replacement` says of each step.
    """
    executed = [action if replacement is None else replacement.action for replacement in replacements]
    is_takeover = any(replacement is not None and replacement.is_takeover for replacement in replacements)
    told = {key: value for key, value in name_keys(info).items() if key not in KEYS}
    told[EXECUTED_ACTION] = _join_actions(space, executed)
    return told | ({IS_INTERVENTION: True} if is_takeover else {})


def _join_actions(space: Space, actions: Sequence[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _join_actions(part, [a[key] for a in actions]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_join_actions(part, [a[i] for a in actions]) for i, part in enumerate(space.spaces))
    if not isinstance(space, spaces.Box):
        return actions[-1]
    mean = np.mean([np.asarray(a, np.float64) for a in actions], axis=0)
    return (mean if space.dtype.kind == "f" else np.rint(mean)).astype(space.dtype)

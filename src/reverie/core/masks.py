"""Masks of legal actions, ``[A]`` bool over the flat action: true for legal classes and continuous elements.

This file must not import torch: worker processes import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.action_codec import ActionCodec
from reverie.core.errors import DataError, EnvError, RowError
from reverie.core.spaces import Space, iter_leaves
from reverie.core.specs import MASK_KEY, ActionSpec, ObsSpec

EXCLUDE_ADVICE = f"To go without masks, set env.exclude_keys = {MASK_KEY}."


def has_choices(space: Space) -> bool:
    """Return whether actions of ``space`` are discrete, at least in part."""
    return not all(isinstance(leaf, spaces.Box) for _, leaf in iter_leaves(space))


def mask_in(info: object) -> Any:
    """Return the mask in an observation or an info; None if there is none."""
    return info.get(MASK_KEY) if isinstance(info, Mapping) else None


def refuse_info_mask(info: Mapping[str, Any] | Sequence[Any]) -> None:
    """Raise EnvError if the ``info`` of a vector, a dictionary or a list of them, has a mask that no space declares."""
    if any(mask_in(part) is not None for part in ([info] if isinstance(info, Mapping) else info)):
        raise EnvError(
            f"env.vectorization = native: the info has an {MASK_KEY}, which is only supported for single environments. "
            f"Return it as the observation {MASK_KEY}, train in single environments, or ignore it with "
            f"env.exclude_keys = {MASK_KEY}"
        )


class MaskCodec:
    """Converts an environment's legal actions to a mask ``[A]``.

    Each part of the action has a flag for each class: ``[n]`` for ``Discrete(n)``; for several choices, concatenated
    arrays or a list of arrays. ``Dict`` and ``Tuple`` actions have a ``Dict`` or ``Tuple`` of parts; in a part that is
    absent or None, all classes are legal. A single array of A flags is also accepted.
    """

    def __init__(self, space: Space) -> None:
        """``space``: the action space."""
        self.spec: ActionSpec = ActionCodec(space).spec
        cuts = self.spec.slices()
        keys = {"/".join(map(str, path)) or "action": path for path, _ in iter_leaves(space)}
        self._parts = [(key, keys[key], cuts[key]) for key, part in self.spec.parts.items() if part.classes]

    def __call__(self, value: object) -> np.ndarray:
        """Return the mask; DataError names an invalid part."""
        flat = np.ones(self.spec.width, bool)
        if isinstance(value, np.ndarray) and value.shape == flat.shape and value.dtype != object:
            flat &= _flags(value, "of the action")
        else:
            for key, path, cut in self._parts:
                part: Any = value
                for name in path:
                    within = part is not None and (name in part if isinstance(part, Mapping) else True)
                    part = part[name] if within else None
                if part is not None:
                    flat[cut] = _part_flags(part, cut, key)
        return flat

    def batch(self, masks: Iterable[Any]) -> np.ndarray:
        """Return the masks ``[N, A]`` of N observations."""
        if isinstance(masks, np.ndarray) and masks.shape[1:] == (self.spec.width,) and masks.dtype != object:
            return _flags(masks, "of the action")
        return np.stack([self(row) for row in masks])


def _part_flags(part: object, cut: slice, key: str) -> np.ndarray:
    pieces = part if isinstance(part, list | tuple) else [part]
    flags = np.concatenate([np.asarray(piece).reshape(-1) for piece in pieces])
    if len(flags) != cut.stop - cut.start:
        width = cut.stop - cut.start
        raise DataError(
            f"the {MASK_KEY} of action '{key}' has {len(flags)} values: expected {width}, one for each class"
        )
    return _flags(flags, f"of action '{key}'")


def _flags(values: np.ndarray, owner: str) -> np.ndarray:
    if values.dtype.kind not in "biuf" or not ((values == 0) | (values == 1)).all():
        raise DataError(f"the {MASK_KEY} {owner} is {values}: expected 1 for legal actions and 0 for all others")
    return values.astype(bool)


def ensure_legal_choice(
    mask: np.ndarray, spec: ActionSpec, terminal: np.ndarray | bool, first: int | None = None
) -> np.ndarray:
    """Return masks ``[..., A]`` in which each choice has a legal class: without one in a ``terminal`` row, all are.

    DataError if there is none in another row, such as a truncated one, from which learners bootstrap. ``first``: number
    of the first row; None: there is only one row.
    """
    for key, cut in spec.categorical_slices():
        none = ~mask[..., cut].any(-1)
        if none.any():
            if (wrong := none & ~np.asarray(terminal)).any():
                problem = (
                    f"leaves no legal action (part '{key}'), but the row is not terminal: expected at least one legal "
                    f"action, also at time limits, where learners bootstrap. {EXCLUDE_ADVICE}"
                )
                if first is None:
                    raise DataError(f"the {MASK_KEY} {problem}")
                raise RowError(f"the {MASK_KEY}", first + int(np.argmax(wrong)), problem)
            mask = mask.copy()
            mask[none, cut] = True
    return mask


def check_mask_shape(obs: ObsSpec, action: ActionSpec) -> None:
    """Raise EnvError if recorded observations have a mask of another size than the flat action."""
    if MASK_KEY in obs and obs[MASK_KEY].shape != (action.width,):
        raise EnvError(
            f"observation '{MASK_KEY}' has shape {obs[MASK_KEY].shape}: expected {(action.width,)}, a flag for each "
            f"element of the flat action. {EXCLUDE_ADVICE}"
        )


def check_action_legal(mask: np.ndarray, action: np.ndarray, last: np.ndarray, spec: ActionSpec, first: int) -> None:
    """Raise DataError if a recorded action ``[n, A]`` is illegal by its row's mask, except in ``last`` rows ``[n]``."""
    for key, cut in spec.categorical_slices():
        wrong = ~last & (action[:, cut] > 0.5).any(-1) & ~((action[:, cut] > 0.5) & mask[:, cut]).any(-1)
        if wrong.any():
            row = int(np.argmax(wrong))
            problem = (
                f"is class {int(action[row, cut].argmax())}, which the {MASK_KEY} of that row forbids. {EXCLUDE_ADVICE}"
            )
            raise RowError(f"action '{key}'", first + row, problem, "action")

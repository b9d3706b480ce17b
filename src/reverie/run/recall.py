"""Actions that a policy would take in recorded rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from reverie.core.errors import DataError
from reverie.core.protocols import Memoryless, Policy
from reverie.core.specs import ActionSpec
from reverie.core.types import FLAGS, Mode, Step
from reverie.run.collect import initial_state

BLOCK = 1024
"""Rows in a batch for a memoryless policy."""
SIDE_BY_SIDE = 256
"""Most episodes side by side for any other policy."""


def actions_of(
    policy: Policy[Any],
    columns: Mapping[str, np.ndarray],
    width: int,
    *,
    mode: Mode = "eval",
    draws: int = 1,
    env_steps: int = 0,
) -> np.ndarray:
    """Return the actions that a policy would take in each row, float32 ``[rows, draws, A]``.

    A policy with state sees whole episodes in order, and its state is told the recorded actions (``override``): it is
    then the same as if the policy had lived the episodes. A ``Memoryless`` policy sees rows in the order of storage.

    Args:
        policy: the policy.
        columns: all rows, ``[rows, ...]``: ``obs/<key>``, ``action``, ``reward``, ``is_first``, ``is_last`` and
            ``is_terminal``.
        width: A, the numbers of an action.
        mode: whether the policy takes its mode (``eval``) or samples (``explore``).
        draws: number of actions per row.
        env_steps: where schedules of exploration begin; they matter only in mode ``explore``.

    Raises:
        DataError: the policy's actions do not have ``width`` numbers.
    """
    seen = {name.removeprefix("obs/"): column for name, column in columns.items() if name.startswith("obs/")}
    fixed = {name: columns[name] for name in ("reward", *FLAGS)}
    done = columns["action"]

    def shown(rows: np.ndarray) -> Step:
        obs = {key: torch.from_numpy(column[rows]) for key, column in seen.items()}
        return Step(obs=obs, **{name: torch.from_numpy(column[rows]) for name, column in fixed.items()})

    memoryless = isinstance(policy, Memoryless) and policy.memoryless(mode)
    order = order_of(fixed["is_first"], carried=not memoryless)
    found = np.zeros((len(done), draws, width), np.float32)
    state = initial_state(policy, order.shape[1], env_steps)
    for rows in order:
        real = rows >= 0
        step = shown(rows.clip(min=0))
        for n in range(draws):
            action, after = policy.act(step, state, mode)
            if action.shape != (len(rows), width):
                raise DataError(
                    f"the policy's actions have shape {tuple(action.shape[1:])}, those of the data ({width},). Pass "
                    "data from the environment that the policy was trained on."
                )
            found[rows[real], n] = action.numpy()[real]
        state = policy.override(after, torch.from_numpy(done[rows.clip(min=0)]))
    return found


class Agreement(NamedTuple):
    """How near a policy's actions are to the recorded ones, over all steps."""

    same: float | None = None
    """Share of actions whose classes are all those that were recorded, in [0, 1]; None without discrete actions."""
    distance: float | None = None
    """Root mean square difference of continuous actions, in units of half their range; None without any."""


def agreement_of(chosen: np.ndarray, taken: np.ndarray, spec: ActionSpec) -> Agreement:
    """Compare the policy's actions in R rows, ``[R, n, A]``, with those that were taken there, ``[R, A]``."""
    discrete = np.zeros(spec.width, bool)
    for key, place in spec.slices().items():
        discrete[place] = spec.parts[key].kind == "categorical"
    apart = np.abs(chosen - taken[:, None])
    same = (apart[..., discrete] < 0.5).all(-1).mean()  # one-hot, but a network's 1 may be off by a rounding error
    return Agreement(
        float(same) if discrete.any() else None,
        None if discrete.all() else float(np.sqrt(np.square(apart[..., ~discrete], dtype=np.float64).mean())),
    )


def order_of(first: np.ndarray, carried: bool) -> np.ndarray:
    """Return row numbers ``[L, N]``: L batches of N rows; -1 is padding.

    With state (``carried``), each of the N columns holds whole episodes one after the other. Episodes are assigned
    longest first, each to the shortest column. N is chosen such that at most about half of the table is padding.
    """
    total = len(first)
    if not carried:
        length = -(-total // BLOCK)
        out = np.full(length * min(BLOCK, total), -1, np.int64)
        out[:total] = np.arange(total)
        return out.reshape(length, -1)
    starts = np.flatnonzero(first)
    lengths = np.diff(np.append(starts, total))
    side = max(1, min(SIDE_BY_SIDE, len(starts), total // int(lengths.max())))
    held: list[list[int]] = [[] for _ in range(side)]
    filled = np.zeros(side, np.int64)
    for episode in np.argsort(-lengths, kind="stable").tolist():
        column = int(filled.argmin())
        held[column].append(episode)
        filled[column] += lengths[episode]
    out = np.full((int(filled.max()), side), -1, np.int64)
    for column, episodes in enumerate(held):
        rows = [np.arange(starts[e], starts[e] + lengths[e]) for e in episodes]
        out[: filled[column], column] = np.concatenate(rows)
    return out

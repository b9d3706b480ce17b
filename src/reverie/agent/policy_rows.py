"""A policy's actions in recorded rows, their probabilities, and their agreement with the recorded actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.core.errors import ConfigError
from reverie.core.protocols import Inspectable, Memoryless, Policy
from reverie.core.specs import ActionSpec
from reverie.core.types import FLAGS, Mode, Step
from reverie.run.turn import initial_state

BLOCK = 1024
"""First states per forward pass, and rows in a batch for a memoryless policy."""
MAX_PARALLEL_EPISODES = 256
"""Maximum number of parallel episodes for other policies."""


def policy_actions(
    policy: Policy[Any], columns: Mapping[str, np.ndarray], width: int, *,
    mode: Mode = "eval", num_action_samples: int = 1, env_steps: int = 0,
) -> np.ndarray:  # fmt: skip
    """Return the actions that a policy would take in each row, float32 ``[rows, n, A]``.

    A policy with state processes whole episodes in order, and its actions are replaced by the recorded ones
    (``override``). ``columns`` are all rows, ``[rows, ...]``: ``obs/<key>``, ``action``, ``reward`` and the flags.
    ``width`` is A, and n is ``num_action_samples``.
    """
    actions = np.zeros((len(columns["action"]), num_action_samples, width), np.float32)

    def act(step: Step, state: Any, recorded_actions: Tensor, rows: np.ndarray) -> Any:
        for n in range(num_action_samples):
            action, next_state = policy.act(step, state, mode)
            actions[rows[rows >= 0], n] = action.numpy()[rows >= 0]
        return next_state

    _run_policy_over(policy, columns, act, mode=mode, env_steps=env_steps)
    return actions


@torch.no_grad()
def policy_log_probs(
    policy: Policy[Any], columns: Mapping[str, np.ndarray], device: torch.device, env_steps: int = 0
) -> np.ndarray:
    """Return ln pi(a | s) of each row's recorded action, ``[rows]``; ConfigError if the policy cannot compute it.

    Takes the arguments of :func:`policy_actions`, and the policy's ``device``.
    """
    log_probs = np.zeros(len(columns["action"]))

    def ask(step: Step, state: Any, recorded_actions: Tensor, rows: np.ndarray) -> Any:
        choice: Any = policy.inspect(step, state).decision if isinstance(policy, Inspectable) else None
        if not hasattr(choice, "log_prob"):
            raise ConfigError(
                "this policy does not provide action probabilities, which importance sampling needs for sampled "
                "actions. Use method fqe, or evaluate its most likely actions (deterministic)."
            )
        log_probs[rows[rows >= 0]] = choice.log_prob(recorded_actions.to(device)).cpu().numpy()[rows >= 0]
        return policy.act(step, state, "explore")[1]

    _run_policy_over(policy, columns, ask, mode="explore", env_steps=env_steps)
    return log_probs


def _run_policy_over(
    policy: Policy[Any], columns: Mapping[str, np.ndarray],
    visit: Callable[[Step, Any, Tensor, np.ndarray], Any], *, mode: Mode, env_steps: int,
) -> None:  # fmt: skip
    """Run a policy over all rows in batches: ``visit(step, state, recorded actions, rows [N])`` returns its state.

    Row number -1 is padding.
    """
    observations = {name.removeprefix("obs/"): column for name, column in columns.items() if name.startswith("obs/")}
    row_columns = {name: columns[name] for name in ("reward", *FLAGS)}
    memoryless = isinstance(policy, Memoryless) and policy.memoryless(mode)
    for order in _batch_orders(row_columns["is_first"], carried=not memoryless):
        state = initial_state(policy, order.shape[1], env_steps)
        for rows in order:
            indices = rows.clip(min=0)
            obs = {key: torch.from_numpy(column[indices]) for key, column in observations.items()}
            step = Step(obs=obs, **{name: torch.from_numpy(column[indices]) for name, column in row_columns.items()})
            recorded_actions = torch.from_numpy(columns["action"][indices])
            state = policy.override(visit(step, state, recorded_actions, rows), recorded_actions)


def _batch_orders(first: np.ndarray, carried: bool) -> Iterator[np.ndarray]:
    """Yield tables ``[L, N]`` of row numbers; -1 is padding. With state (``carried``), each column is an episode."""
    total, size = len(first), min(BLOCK, len(first))
    if not carried:
        yield np.pad(np.arange(total), (0, -total % size), constant_values=-1).reshape(-1, size)
        return
    starts = np.flatnonzero(first)
    lengths = np.diff(np.append(starts, total))
    cuts = range(MAX_PARALLEL_EPISODES, len(starts), MAX_PARALLEL_EPISODES)
    for group in np.split(np.argsort(-lengths, kind="stable"), cuts):
        t = np.arange(lengths[group].max())[:, None]
        yield np.where(t < lengths[group], starts[group] + t, -1)


def action_agreement(chosen: np.ndarray, recorded_actions: np.ndarray, spec: ActionSpec) -> dict[str, float]:
    """Compare the policy's actions in R rows, ``[R, n, A]``, with the recorded actions ``[R, A]``.

    Return ``same_action``, the fraction whose classes all match, and ``action_distance``, the root-mean-square
    difference of continuous actions in units of half their range.
    """
    discrete = np.zeros(spec.width, bool)
    for key, action_slice in spec.slices().items():
        discrete[action_slice] = spec.parts[key].kind == "categorical"
    distance, agreement = np.abs(chosen - recorded_actions[:, None]), dict[str, float]()
    if discrete.any():  # one-hot, but a network's 1 can have a rounding error
        agreement["same_action"] = float((distance[..., discrete] < 0.5).all(-1).mean())
    if not discrete.all():
        agreement["action_distance"] = float(np.sqrt(np.square(distance[..., ~discrete], dtype=np.float64).mean()))
    return agreement

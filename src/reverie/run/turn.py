"""One turn of acting: what every policy's state begins with, which action is executed, random actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.core.kernel_dispatch import accelerated
from reverie.core.protocols import Env, Policy, RunningStatistics, ScheduledPolicy
from reverie.core.specs import ActionSpec
from reverie.core.types import Mode, Step, count_set


@accelerated
def watch_and_act(
    statistics: RunningStatistics, policy: Policy[Any], step: Step, state: object, mode: Mode
) -> tuple[Tensor, Any]:
    """Update the ``statistics`` with the rows ``step``, then act on them; return the actions and the next state."""
    statistics.update_statistics(step)
    return policy.act(step, state, mode)


def initial_state(policy: Policy[Any], num_envs: int, env_steps: int = 0) -> Any:
    """Return the state before the first observation, with exploration schedules advanced to ``env_steps``."""
    state = policy.initial(num_envs)
    return policy.advance_schedule(state, env_steps) if env_steps and isinstance(policy, ScheduledPolicy) else state


def to_executed_action(action: Tensor, step: Step) -> Tensor:
    """Return ``action`` ``[N, A]`` as it is stored and sent: float32 beside the rows, zeros after an episode."""
    is_last = step.is_last
    if action.requires_grad or action.dtype is not torch.float32 or action.device != is_last.device:
        action = action.detach().to(is_last.device, torch.float32)
    if not is_last.is_cpu:
        return action.masked_fill(is_last[:, None], 0.0)  # without waiting for the device
    return action.index_fill(0, is_last.nonzero()[:, 0], 0.0) if count_set(is_last) else action


def take_action(env: Env, action: Tensor) -> tuple[Step, Tensor]:
    """Step ``env``; return the rows and the action that was executed: ``action`` itself unless it was replaced."""
    step = env.step(action)
    return step, action if env.executed_actions is None else env.executed_actions.replace_in(action)


def take_turn(env: Env, policy: Policy[Any], step: Step, state: object, mode: Mode) -> tuple[Tensor, Step, Any]:
    """Act on the rows ``step``; return the executed action ``[N, A]``, the next rows and the policy's state."""
    action, state = policy.act(step, state, mode)
    action = to_executed_action(action, step)
    next_step, executed = take_action(env, action)
    return executed, next_step, state if executed is action else policy.override(state, executed)


def random_flat_actions(
    spec: ActionSpec, num_envs: int, rng: np.random.Generator, legal: Tensor | None = None
) -> Tensor:
    """Return uniformly random flat actions ``[N, A]``: one-hot for each categorical part, -1..1 where continuous.

    ``legal`` ``[N, A]``: the mask of legal actions. Classes that it forbids are redrawn among the allowed classes.
    """
    columns: list[np.ndarray] = [np.zeros((num_envs, 0), np.float32)]
    for key in sorted(spec.parts):
        part = spec.parts[key]
        if part.kind == "continuous":
            columns.append(rng.uniform(-1.0, 1.0, (num_envs, part.size)).astype(np.float32))
        for classes in part.classes:
            columns.append(np.eye(classes, dtype=np.float32)[rng.integers(classes, size=num_envs)])
    action = np.concatenate(columns, axis=1)
    if legal is not None:
        allowed = legal.numpy()
        for _, cut in spec.categorical_slices():
            for row in np.flatnonzero((action[:, cut] > allowed[:, cut]).any(1)):
                action[row, cut] = 0.0
                action[row, cut.start + rng.choice(np.flatnonzero(allowed[row, cut]))] = 1.0
    return torch.from_numpy(action)


def random_actions_on(device: torch.device, spec: ActionSpec, num_envs: int, legal: Tensor | None = None) -> Tensor:
    """Return :func:`random_flat_actions` on ``device``, drawn from its default generator without waiting for it."""
    action = torch.empty(num_envs, spec.width, device=device).uniform_(-1.0, 1.0)
    for _, cut in spec.categorical_slices():
        order = torch.rand(num_envs, cut.stop - cut.start, device=device)
        order = order if legal is None else order.masked_fill_(~legal[:, cut], -1.0)
        action[:, cut] = torch.zeros_like(order).scatter_(1, order.argmax(1, keepdim=True), 1.0)
    return action

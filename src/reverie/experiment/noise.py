"""Random data and random play for measurements: observations, batches, and the rate of an environment."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from reverie.algos.base import Algorithm
from reverie.algos.on_policy import OnPolicy
from reverie.core.protocols import Env
from reverie.core.specs import MASK_KEY, ActionSpec, ObsPart, ObsSpec
from reverie.core.types import Batch, Step
from reverie.run.collect import random_flat_actions


def _random_part(part: ObsPart, *lead: int) -> Tensor:
    """Return random values ``[*lead, *shape]`` for one part of an observation."""
    shape = (*lead, *part.shape)
    if part.kind == "categorical":
        return torch.randint(0, min(part.classes), shape)
    if part.kind == "mask":
        return torch.ones(shape, dtype=torch.bool)
    if part.dtype == "uint8":
        return torch.randint(0, 256, shape, dtype=torch.uint8)
    return torch.rand(shape) * (part.high - part.low) + part.low if part.kind == "image" else torch.randn(shape)


def noise_step(obs_spec: ObsSpec, envs: int) -> Step:
    """Return a random step of N environments in the middle of an episode."""
    none = torch.zeros(envs, dtype=torch.bool)
    obs = {key: _random_part(part, envs) for key, part in obs_spec.items()}
    return Step(obs=obs, reward=torch.zeros(envs), is_first=none, is_last=none, is_terminal=none)


def noise_batch(learner: Algorithm, obs_spec: ObsSpec, action_spec: ActionSpec, windows: int = 0) -> Batch:
    """Return a random batch for ``learner``, from the middle of episodes, with the columns that its policy stores.

    ``windows``: their number B; 0 for the learner's own.
    """
    b, t, window = windows or learner.window.batch, learner.window.rows, learner.window
    if window.rollout:
        num_windows, t = b, window.context + window.rollout + 1
        b = -(-num_windows * window.length // window.rollout)
    actions = random_flat_actions(action_spec, b * t, np.random.default_rng(0))  # [B * T, A]
    none = torch.zeros(b, t, dtype=torch.bool)
    extras = {}
    for key, part in learner.extra_spec.items():
        dtype = getattr(torch, part.dtype)
        filled = torch.rand if dtype.is_floating_point else torch.zeros
        extras[key] = filled(b, t, *part.shape, dtype=dtype)
    rows = Batch(
        obs={key: _random_part(part, b, t) for key, part in obs_spec.items()}, action=actions.view(b, t, -1),
        reward=torch.randn(b, t), is_first=none, is_last=none, is_terminal=none, weight=torch.ones(b),
        index=torch.arange(b), extras=extras,
    )  # fmt: skip
    return learner.prepare_rollout(rows).map(lambda x: x[:num_windows]) if isinstance(learner, OnPolicy) else rows


def env_rate(env: Env, seconds: float = 2.0) -> float:
    """Return the env steps per second of ``env`` under random actions, summed over its environments."""
    rng = np.random.default_rng(0)
    step, num_steps = env.reset(0), 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds or num_steps == 0:
        num_steps += len(step) - int(step.is_last.sum())
        step = env.step(random_flat_actions(env.action_spec, env.num_envs, rng, step.obs.get(MASK_KEY)))
    return num_steps / max(1e-9, time.perf_counter() - started)

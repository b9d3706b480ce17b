"""Random experience of the right shapes, to time learners with."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from reverie.core.protocols import Algorithm
from reverie.core.specs import ActionSpec, ObsPart, ObsSpec
from reverie.core.types import Batch, Step
from reverie.run.collect import random_action


def noise(part: ObsPart, *lead: int) -> Tensor:
    """Return random values ``[*lead, *shape]`` for one part of an observation."""
    shape = (*lead, *part.shape)
    if part.kind == "categorical":
        return torch.randint(0, min(part.classes), shape)
    if part.dtype == "uint8":
        return torch.randint(0, 256, shape, dtype=torch.uint8)
    return torch.rand(shape) * (part.high - part.low) + part.low if part.kind == "image" else torch.randn(shape)


def noise_step(obs_spec: ObsSpec, envs: int) -> Step:
    """Return a random step of N environments in the middle of an episode."""
    none = torch.zeros(envs, dtype=torch.bool)
    obs = {key: noise(part, envs) for key, part in obs_spec.items()}
    return Step(obs=obs, reward=torch.zeros(envs), is_first=none, is_last=none, is_terminal=none)


def noise_batch(learner: Algorithm, obs_spec: ObsSpec, action_spec: ActionSpec) -> Batch:
    """Return a random batch for ``learner``, from the middle of episodes, with the columns that its policy stores."""
    b, t = learner.window.batch, learner.window.rows
    actions = random_action(action_spec, b * t, np.random.default_rng(0))  # [B * T, A]
    none = torch.zeros(b, t, dtype=torch.bool)
    extras = {}
    for key, part in learner.extra_spec.items():
        dtype = getattr(torch, part.dtype)
        filled = torch.rand if dtype.is_floating_point else torch.zeros
        extras[key] = filled(b, t, *part.shape, dtype=dtype)
    return Batch(
        obs={key: noise(part, b, t) for key, part in obs_spec.items()},
        action=actions.view(b, t, -1),
        reward=torch.randn(b, t),
        is_first=none,
        is_last=none,
        is_terminal=none,
        weight=torch.ones(b),
        index=torch.arange(b),
        extras=extras,
    )

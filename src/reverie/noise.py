"""Random experience of the right shapes, and the time that learners need for it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reverie.algos.base import AlgorithmConfig
from reverie.core.hardware import wait_for
from reverie.core.protocols import Algorithm
from reverie.core.randomness import left_as_found, threads_kept
from reverie.core.specs import ActionSpec, ObsPart, ObsSpec
from reverie.core.types import Batch, Mode, Step
from reverie.run.collect import random_action


def noise(part: ObsPart, *lead: int) -> Tensor:
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
    obs = {key: noise(part, envs) for key, part in obs_spec.items()}
    return Step(obs=obs, reward=torch.zeros(envs), is_first=none, is_last=none, is_terminal=none)


def noise_batch(learner: Algorithm, obs_spec: ObsSpec, action_spec: ActionSpec, windows: int = 0) -> Batch:
    """Return a random batch for ``learner``, from the middle of episodes, with the columns that its policy stores.

    ``windows``: their number B; 0 for the learner's own.
    """
    b, t = windows or learner.window.batch, learner.window.rows
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


# ---------------------------------------------------------------- times


def median_seconds(
    call: Callable[[], object], device: torch.device, *, warm_up: int, seconds: float, least: int = 3, most: int
) -> float:
    """Return the median seconds of ``call``, over ``least`` to ``most`` calls within about ``seconds``."""
    for _ in range(warm_up):
        call()
    wait_for(device)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or (len(times) < most and time.perf_counter() < end):
        started = time.perf_counter()
        call()
        wait_for(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def act_seconds(learner: Algorithm, step: Step, mode: Mode = "explore", *, seconds: float = 1.0) -> float:
    """Return the seconds of one decision for the environments of ``step``."""
    state = learner.policy.initial(len(step))
    return median_seconds(
        lambda: learner.policy.act(step, state, mode), learner.device, warm_up=10, seconds=seconds, most=1000
    )


LONG = 16.0
"""Seconds of an update above which :func:`pace` only times one with a single window, and counts it for each."""
MARGIN = 1.3
"""How many times as fast several threads must be to be preferred to one: a single thread waits for no other."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Seconds that a learner needs on this machine's CPU, at its present load."""

    update_s: float
    """Per update."""
    act_s: float
    """Per decision for all environments."""
    threads: int
    """With this number of threads."""


def pace(
    algo: AlgorithmConfig, obs_spec: ObsSpec, action_spec: ActionSpec, envs: int, threads: Sequence[int]
) -> Pace | None:
    """Time a learner made for this purpose on random data, for about a second; None if it does not accept them.

    The global random generators stay as they are, and no environment is touched. ``threads``: numbers to choose from;
    the first one unless another is clearly faster.
    """
    with left_as_found(), threads_kept():
        try:
            learner = algo.build(obs_spec, action_spec, "cpu")
            torch.set_num_threads(threads[-1])
            thin = noise_batch(learner, obs_spec, action_spec, windows=1)
            times = {threads[-1]: learner.window.batch * update_seconds(learner, thin, warm_up=1)}
            if times[threads[-1]] < LONG:
                batch = noise_batch(learner, obs_spec, action_spec)
                for number in threads:
                    torch.set_num_threads(number)
                    times[number] = update_seconds(learner, batch, seconds=0.5)
            best = min(times, key=lambda number: times[number] * (1.0 if number == threads[0] else MARGIN))
            torch.set_num_threads(best)
            act = act_seconds(learner, noise_step(obs_spec, envs), seconds=0.1)
        except Exception:  # a learner of the user's own may need more of its data than their shapes
            return None
    return Pace(update_s=times[best], act_s=act, threads=best)


def update_seconds(learner: Algorithm, batch: Batch, *, seconds: float = 0.0, warm_up: int = 0) -> float:
    """Return the median seconds of an update on ``batch``, for about ``seconds``."""
    return median_seconds(
        lambda: learner.update(batch), learner.device, warm_up=warm_up, seconds=seconds, least=1, most=500
    )

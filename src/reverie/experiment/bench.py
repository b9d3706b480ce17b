"""Measure what a learner costs on this machine: time, memory, share of the machine's speed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from reverie.algos.base import Algorithm
from reverie.algos.on_policy import OnPolicy
from reverie.algos.settings import AlgorithmConfig
from reverie.core.hardware import describe_machine, matrix_rates, peak_memory, set_up_pytorch, synchronize
from reverie.core.kernel_dispatch import kernel_status
from reverie.core.protocols import Env
from reverie.core.specs import MASK_KEY, ActionSpec, ObsPart, ObsSpec
from reverie.core.types import Batch, Mode, Step
from reverie.experiment.config import ExperimentConfig
from reverie.run.turn import random_flat_actions

CAPTURE_UPDATES = 4
"""The first updates on rows of a shape, which record a tape or a CUDA graph: they take up to 100 times as long."""
WARM_UP = {"cpu": CAPTURE_UPDATES - 1, "cuda": 10}
"""Updates after the first one that are not timed: caches fill, CUDA graphs are captured."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Speed of one learner by itself, on random data; medians."""

    parameters: int
    """Number of trainable parameters."""
    first_update_s: float
    """Seconds from the settings to the end of the first update."""
    update_s: float
    """Seconds per update."""
    rows_per_s: float
    """Rows learned from per second."""
    act_ms: dict[int, float]
    """Milliseconds per decision of the policy, by the number of environments that it decides for at once."""
    peak_gb: float
    """Peak memory of this process so far in GB (1e9 bytes), without a replay."""
    device_peak_gb: float | None
    """Peak GPU memory in GB; None without a GPU."""
    gflop: float | None
    """Floating-point operations of an update in 1e9, see :func:`gflop`; None if they could not be counted."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Measurements."""

    speed: Speed
    env_steps_per_s: float | None
    """Env steps per second of the environments by themselves; None without an environment."""
    precision: str
    """Precision in which networks compute."""
    matrix_gflops: dict[str, float]
    """Rate of this machine's matrix products in 1e9 operations per second, by precision."""
    machine: dict[str, Any] = field(default_factory=dict)
    """Description of the machine."""

    @property
    def matrix_rate_share(self) -> float | None:
        """Share of the machine's matrix rate that an update reaches; None if one of the two is unknown."""
        rate = self.matrix_gflops.get(self.precision)
        return None if rate is None or self.speed.gflop is None else self.speed.gflop / self.speed.update_s / rate


def benchmark(
    config: ExperimentConfig, obs_spec: ObsSpec, action_spec: ActionSpec, *, env: Env | None = None, seconds: float = 15
) -> Report:
    """Time the learner that ``config`` describes on random data, its updates for about ``seconds``, and ``env`` itself.

    Sets PyTorch's number of threads, and how cuDNN chooses, as in ``config``.
    """
    device = torch.device(set_up_pytorch(config.learner_device(), config.threads, config.cudnn_benchmark))
    speed = _measure_speed(config.algo, obs_spec, action_spec, device, seconds, {1, 8, config.env.num})
    return Report(
        speed=speed,
        env_steps_per_s=None if env is None else env_rate(env),
        precision=config.algo.precision,
        matrix_gflops={name: rate / 1e9 for name, rate in matrix_rates(device).items()},
        machine=describe_machine(device) | {"kernels": kernel_status(device)},
    )


def _measure_speed(
    algo: AlgorithmConfig, obs_spec: ObsSpec, action_spec: ActionSpec, device: torch.device, seconds: float,
    envs: Iterable[int],
) -> Speed:  # fmt: skip
    """Build a learner and time it for about ``seconds``."""
    started = time.perf_counter()
    learner = algo.build(obs_spec, action_spec, str(device))
    batch = noise_batch(learner, obs_spec, action_spec).to(device)
    learner.update(batch)
    synchronize(device)
    first = time.perf_counter() - started
    update = median_seconds(
        lambda: learner.update(batch), device, warm_up=WARM_UP[device.type], seconds=seconds / 2, max_calls=1000
    )
    acts = {n: 1e3 * act_seconds(learner, noise_step(obs_spec, n), seconds=seconds / 15) for n in sorted(envs)}
    return Speed(
        parameters=sum(p.numel() for p in learner.parameters() if p.requires_grad),
        first_update_s=first,
        update_s=update,
        rows_per_s=learner.window.batch * learner.window.length / update,
        act_ms=acts,
        peak_gb=peak_memory() / 1e9,
        device_peak_gb=torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else None,
        gflop=gflop(algo, obs_spec, action_spec),
    )


def gflop(algo: AlgorithmConfig, obs_spec: ObsSpec, action_spec: ActionSpec) -> float | None:
    """Return the operations, in 1e9, of matrix products and convolutions in one update, forward and backward.

    None for an algorithm that does not run on the meta device.

    A multiplication and an addition count as two. Counted are the PyTorch definitions, on tensors without memory. The
    compiled functions need fewer for images, so an update's share of the matrix rate by this count can exceed 1. Norms,
    softmax, sampling and the optimizer are not counted.
    """
    try:
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            learner = algo.build(obs_spec, action_spec, "meta")
            learner.update(noise_batch(learner, obs_spec, action_spec))
    except (NotImplementedError, RuntimeError):
        return None
    return int(counter.get_total_flops()) / 1e9


# ---------------------------------------------------------------- times


def median_seconds(
    call: Callable[[], object], device: torch.device, *, warm_up: int, seconds: float, min_calls: int = 3,
    max_calls: int,
) -> float:  # fmt: skip
    """Return the median seconds of ``call``, over ``min_calls`` to ``max_calls`` calls within about ``seconds``."""
    for _ in range(warm_up):
        call()
    synchronize(device)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < min_calls or (len(times) < max_calls and time.perf_counter() < end):
        started = time.perf_counter()
        call()
        synchronize(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def act_seconds(learner: Algorithm, step: Step, mode: Mode = "explore", *, seconds: float = 1.0) -> float:
    """Return the seconds of one decision for the environments of ``step``."""
    state = learner.policy.initial(len(step))
    return median_seconds(
        lambda: learner.policy.act(step, state, mode), learner.device, warm_up=10, seconds=seconds, max_calls=1000
    )


# ---------------------------------------------------------------- random data and random play


def _random_part(part: ObsPart, *lead: int) -> Tensor:
    """Return random values ``[*lead, *shape]`` for one part of an observation."""
    shape = (*lead, *part.shape)
    if part.kind in ("categorical", "player"):
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

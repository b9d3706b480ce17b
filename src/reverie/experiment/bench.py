"""Measure what a learner costs on this machine: time, memory, share of the machine's speed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from reverie.algos.base import Algorithm
from reverie.algos.settings import AlgorithmConfig
from reverie.core.hardware import (
    choose_device,
    describe_machine,
    keep_freed_memory,
    matrix_rates,
    peak_memory,
    synchronize,
)
from reverie.core.kernel_dispatch import kernel_status
from reverie.core.protocols import Env
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Mode, Step
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.noise import env_rate, noise_batch, noise_step

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

    Sets PyTorch's number of threads, as in ``config``.
    """
    device = torch.device(choose_device(config.device))
    if config.threads:
        torch.set_num_threads(config.threads)
    if device.type == "cpu":
        keep_freed_memory()
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

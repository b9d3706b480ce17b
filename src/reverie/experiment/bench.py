"""Measure what a learner costs on this machine: time, memory, share of the machine's speed; forecast a whole run."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from reverie.algos.base import Algorithm
from reverie.algos.on_policy import OnPolicy
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
from reverie.core.seeding import preserve_num_threads, preserve_rng_state
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Mode, Step, Window
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.noise import MAX_TURNS, NoiseEnv, env_rate, noise_batch, noise_step
from reverie.replay.rollout import RolloutBuffer
from reverie.replay.sources import prefetch
from reverie.run.collect import Collector
from reverie.run.signal_handling import explain_interrupt

TimeFn = Callable[[], float]
"""A clock, in seconds."""
WARMUP_TURNS, MIN_TURNS = 1, 4
"""Updates of :func:`measure_turns` that are not timed, and its least number of updates in all."""
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


class TurnTimes(NamedTuple):
    """Times of alternating collection and learning, as in a run: each finds the caches full of the other's data."""

    env_step_s: float
    """Seconds per env step: the environment, the policy's decision, and storing the row."""
    update_s: float
    """Seconds per update, with sampling its batch."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of what a run consists of, on this machine, at its present load."""

    update_s: float
    """Per update."""
    turn_s: float
    """Per turn of all environments: the policy's decision, and storing the rows."""
    env_step_s: float | None = None
    """Per env step of the environments by themselves; None if unknown."""
    threads: int = 1
    """CPU threads of PyTorch."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Hours that a run will take, all work in sequence, without evaluations and checkpoints."""

    env_steps: int
    """Env steps of the run."""
    updates: int
    """Gradient updates of the run."""
    env_steps_per_s: float | None
    """Env steps per second of the environments by themselves; None if unknown."""
    updates_h: float
    """Hours of updates."""
    acting_h: float
    """Hours of the policy's decisions and of storing rows."""
    envs_h: float | None
    """Hours of the environments' steps; None if unknown."""

    @property
    def hours(self) -> float:
        """Sum of all."""
        return self.updates_h + self.acting_h + (self.envs_h or 0.0)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Measurements and the forecast from them."""

    speed: Speed
    forecast: Forecast
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

    Sets PyTorch's number of threads to that of ``config``.
    """
    device = torch.device(choose_device(config.device))
    if config.threads:
        torch.set_num_threads(config.threads)
    if device.type == "cpu":
        keep_freed_memory()
    speed, learner = measure_speed(config.algo, obs_spec, action_spec, device, seconds, {1, 8, config.env.num})
    cost = measure_cost(config, obs_spec, action_spec, [torch.get_num_threads()], env)
    cost = cost or Cost(update_s=speed.update_s, turn_s=speed.act_ms[config.env.num] / 1e3)
    return Report(
        speed=speed,
        forecast=forecast(config, learner.window, cost),
        precision=config.algo.precision,
        matrix_gflops={name: rate / 1e9 for name, rate in matrix_rates(device).items()},
        machine=describe_machine(device) | {"kernels": kernel_status(device)},
    )


def measure_speed(
    algo: AlgorithmConfig, obs_spec: ObsSpec, action_spec: ActionSpec, device: torch.device, seconds: float,
    envs: Iterable[int],
) -> tuple[Speed, Algorithm]:  # fmt: skip
    """Build a learner, time it for about ``seconds``, and return both."""
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
    speed = Speed(
        parameters=sum(p.numel() for p in learner.parameters() if p.requires_grad),
        first_update_s=first,
        update_s=update,
        rows_per_s=learner.window.batch * learner.window.length / update,
        act_ms=acts,
        peak_gb=peak_memory() / 1e9,
        device_peak_gb=torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else None,
        gflop=gflop(algo, obs_spec, action_spec),
    )
    return speed, learner


def measure_turns(
    config: ExperimentConfig, learner: Algorithm, env: Any, seconds: float, max_seconds: float = math.inf,
    timer: TimeFn = time.perf_counter,
) -> TurnTimes | None:  # fmt: skip
    """Collect in ``env`` and learn in turns for about ``seconds``, with the updates per env step of a run.

    Returns None if the replay holds no window after :data:`MAX_TURNS` turns, or half of ``max_seconds``, or the run
    makes no updates.
    """
    window, ratio, clock = learner.window, config.updates_per_step(learner.window), time.perf_counter
    replay = config.replay.merge({"storage": "ram"}).build(
        obs_spec=env.obs_spec, action_spec=env.action_spec, extra_spec=learner.extra_spec, num_envs=env.num_envs,
        window=window, seed=0, max_rows=(MAX_TURNS + window.rows) * env.num_envs,
    )  # fmt: skip
    collector = Collector(env, learner.policy, replay, seed=0, running_statistics=learner.running_statistics)
    if isinstance(replay, RolloutBuffer) and isinstance(learner, OnPolicy):
        replay.prepare_fn, replay.next_row_fn = learner.prepare_rollout, lambda: collector.step
    source, limit = prefetch(replay, learner.device), clock() + max_seconds / 2
    for _ in range(max(MAX_TURNS, window.rollout)):
        if len(source) or clock() > limit:
            break
        collector.collect()
    if not len(source) or ratio == 0:
        return None
    steps = updates = 0
    living = learning = 0.0
    owed, begin = 1.0 + WARMUP_TURNS, clock()
    while updates < MIN_TURNS or clock() < begin + seconds:
        started = timer()
        num_steps = collector.collect()
        living, steps, owed = living + timer() - started, steps + num_steps, owed + num_steps * ratio
        while (owed >= 1 or window.rollout) and len(source) and (updates < MIN_TURNS or clock() < begin + seconds):
            started = timer()
            batch = source.sample()
            update = learner.update(batch)
            source.feedback(batch.index, update)
            synchronize(learner.device)
            learning, updates, owed = learning + timer() - started, updates + 1, owed - 1
            if updates == WARMUP_TURNS:
                learning = 0.0
    collector.pop_episodes()
    return TurnTimes(env_step_s=living / max(1, steps), update_s=learning / (updates - WARMUP_TURNS))


def forecast(config: ExperimentConfig, window: Window, cost: Cost) -> Forecast:
    """Forecast a run with the updates and decisions that ``config`` plans."""
    updates, decisions = config.planned_counts(window)
    steps = 0 if config.offline else config.steps
    return Forecast(
        env_steps=steps, updates=updates, env_steps_per_s=None if cost.env_step_s is None else 1 / cost.env_step_s,
        updates_h=updates * cost.update_s / 3600, acting_h=decisions * cost.turn_s / 3600,
        envs_h=None if cost.env_step_s is None else steps * cost.env_step_s / 3600,
    )  # fmt: skip


def learner_window(config: ExperimentConfig, obs_spec: ObsSpec, action_spec: ActionSpec) -> Window:
    """Return the window of the learner, without memory for its networks."""
    with torch.device("meta"):
        return config.algo.build(obs_spec, action_spec, "meta").window


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
    max_calls: int, timer: TimeFn | None = None,
) -> float:  # fmt: skip
    """Return the median seconds of ``call``, over ``min_calls`` to ``max_calls`` calls within about ``seconds``."""
    timer = timer or time.perf_counter
    for _ in range(warm_up):
        call()
    synchronize(device)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < min_calls or (len(times) < max_calls and time.perf_counter() < end):
        started = timer()
        call()
        synchronize(device)
        times.append(timer() - started)
    return statistics.median(times)


def act_seconds(
    learner: Algorithm, step: Step, mode: Mode = "explore", *, seconds: float = 1.0, timer: TimeFn | None = None
) -> float:
    """Return the seconds of one decision for the environments of ``step``."""
    state = learner.policy.initial(len(step))
    return median_seconds(
        lambda: learner.policy.act(step, state, mode),
        learner.device,
        warm_up=10,
        seconds=seconds,
        max_calls=1000,
        timer=timer,
    )


THREADS_MARGIN = 1.3
"""How many times as fast several threads must be to be preferred to one: a single thread waits for no other."""
MAX_SECONDS = 5.0
"""Seconds that :func:`measure_cost` takes at most, but for an update with few windows that takes longer."""
BATCH_PARTS, WHOLE_UPDATES = (16, 4, 1), 6
"""Updates are timed with a 16th of the windows of a batch, then with all if there is time for so many updates; else
with a quarter, and with all if there is time for one."""


def thread_choices(config: ExperimentConfig) -> list[int]:
    """Return the numbers of threads that a measurement chooses from: one or all, unless ``threads`` is set."""
    num_threads = torch.get_num_threads()
    return [1, num_threads] if num_threads > 1 and not config.threads else [num_threads]


def measure_cost(
    config: ExperimentConfig, obs_spec: ObsSpec, action_spec: ActionSpec, threads: Sequence[int], env: Env | None = None
) -> Cost | None:
    """Time a learner made for this purpose on random data, and ``env``; None if the learner does not accept them.

    The global random generators stay as they are. ``threads``: numbers to choose from; the first one unless another is
    clearly faster. On a busy machine, short times vary: those of one thread are its processor time, multiplied by the
    slowdown over the whole measurement.
    """
    device = choose_device(config.device)
    timer = time.process_time if device == "cpu" and threads[0] == 1 else time.perf_counter
    end = time.perf_counter() + MAX_SECONDS
    explained = explain_interrupt("The learner was being timed and no run has begun; nothing is lost")
    with preserve_rng_state(), preserve_num_threads(), explained:
        try:
            env_timer = timer if config.env.vectorization == "sync" else time.perf_counter
            rate = None if env is None else env_rate(env, MAX_SECONDS / 10, env_timer)
            learner = config.algo.build(obs_spec, action_spec, device)
            wall, begin = time.perf_counter(), timer()
            torch.set_num_threads(threads[0])
            whole, times, slowdown, warm_up = learner.window.batch, dict[int, float](), 1.0, 1.0
            for size in sorted({max(1, whole // part) for part in BATCH_PARTS}):
                left = (end - time.perf_counter()) / slowdown
                if times and WHOLE_UPDATES * _extrapolate(times, whole) < left and size < whole:
                    continue
                if times and _extrapolate(times, size) > left:
                    break
                batch = noise_batch(learner, obs_spec, action_spec, windows=size)
                until = end if size == whole else end - 0.75 * slowdown * left
                times[size], warm_up = update_seconds(learner, batch, until, end, timer, warm_up)
                slowdown = max(1.0, (time.perf_counter() - wall) / max(1e-9, timer() - begin))
            by_threads = {threads[0]: slowdown * times[max(times)]}
            for number in threads[1:]:
                if slowdown < THREADS_MARGIN and WHOLE_UPDATES * by_threads[threads[0]] < end - time.perf_counter():
                    torch.set_num_threads(number)
                    by_threads[number], _ = update_seconds(learner, batch, end, end)
            margins = {number: 1.0 if number == threads[0] else THREADS_MARGIN for number in threads}
            best = min(by_threads, key=lambda number: by_threads[number] * margins[number])
            torch.set_num_threads(best)
            env_step_s = None if rate is None else (slowdown if env_timer is timer else 1.0) / rate
            if best > 1:
                timer, slowdown = time.perf_counter, 1.0
            update_s = _extrapolate(times, whole) * by_threads[best] / times[max(times)]
            turn_s = slowdown * act_seconds(learner, noise_step(obs_spec, config.env.num), seconds=0.1, timer=timer)
            if whole in times and update_s * MIN_TURNS < (left := end - time.perf_counter()) and not config.offline:
                noise = NoiseEnv(obs_spec, action_spec, config.env.num)
                turns = measure_turns(config, learner, noise, left / 2, left, timer)
                if turns is not None:
                    update_s, turn_s = slowdown * turns.update_s, slowdown * turns.env_step_s * config.env.num
        except Exception:  # a learner of the user's own may need more of its data than their shapes
            return None
    return Cost(update_s=update_s, turn_s=turn_s, env_step_s=env_step_s, threads=best)


def _extrapolate(times: dict[int, float], size: int) -> float:
    """Return the seconds of an update with ``size`` windows by those with fewer, as a power of their number."""
    (second, time), *rest = sorted(times.items(), reverse=True)
    power = 0.5
    if rest:
        first, less = rest[0]
        power = min(1.0, max(power, math.log(time / less) / math.log(second / first)))
    return float(time * (size / second) ** power)


def update_seconds(
    learner: Algorithm, batch: Batch, until: float, end: float, timer: TimeFn = time.perf_counter, warm_up: float = 1.0
) -> tuple[float, float]:
    """Return the median seconds of steady updates on ``batch``, and their ratio to those of the first ones.

    The first ones record a tape; five follow until ``until``. Without time for any, the ratio is ``warm_up``.
    """
    times: list[float] = []
    while len(times) < 2 or (
        time.perf_counter() < (until if len(times) > CAPTURE_UPDATES else end) and len(times) < CAPTURE_UPDATES + 5
    ):
        started = timer()
        learner.update(batch)
        synchronize(learner.device)
        times.append(timer() - started)
    first, steady = statistics.median(times[1:CAPTURE_UPDATES]), times[CAPTURE_UPDATES:]
    seconds = statistics.median(steady) if steady else warm_up * first
    return seconds, min(1.0, seconds / first)

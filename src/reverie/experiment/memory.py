"""Forecast the memory of a run before anything is allocated, and refuse one that does not fit."""

from __future__ import annotations

import contextlib
import shlex
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from reverie.core.columns import row_columns
from reverie.core.config import flatten
from reverie.core.errors import ConfigError
from reverie.core.hardware import available_address_space, available_memory
from reverie.core.logger import logger
from reverie.core.seeding import preserve_rng_state
from reverie.core.specs import ActionSpec, ColumnSpec, ObsSpec
from reverie.core.types import Window
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.config_layers import base_config
from reverie.experiment.noise import noise_batch, noise_step
from reverie.experiment.presets import CPU_SUFFIX
from reverie.replay.config import max_rows
from reverie.replay.rollout import rollout_rows
from reverie.replay.storage import row_nbytes

WORKSPACE = 2.0
"""Bytes that an update takes on a CPU for each byte of its tensors: convolutions copy what they read."""
MEMORY_ERROR = 1.5
"""How many times as much as a run takes may have been forecast."""
NOMINAL_RATE, OPERATION_SECONDS = 5e10, 5e-6
"""Multiplications and additions a second of a CPU core, and the time of an operation besides them: those by which
default lengths are chosen, so that they are the same for the same command."""
DEFAULT_HOURS = 1.0
"""Hours that a run without a GPU takes at most by default."""
MIN_STEPS, MIN_BATCH, MIN_RATIO = 50_000, 32, 0.05
"""Above these env steps a default run is shortened; then its batches and its updates per env step get fewer."""
SMALL_IMAGE = (64, 64)
"""Height and width to which a command that fits resizes images."""
MIN_BATCH_SIZE = 4
"""The smallest batch that a command that fits has."""


class MemoryForecast(NamedTuple):
    """Bytes that a run takes at its end."""

    learning: int
    """The networks and their optimizers, one update, and one decision."""
    replay: int
    """Rows of the replay at the end of the run."""
    row: int
    """One row of the replay."""

    @property
    def total(self) -> int:
        """Sum of all."""
        return self.learning + self.replay


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations, their multiplications and additions, and follows the bytes of the tensors that they make."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: otherwise the first operation imports ``torch._dynamo``, as in ``kernels/tape.py: Tape``."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current = self.peak = self.operations = self.flop = 0
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._outputs: dict[Any, tuple[Any, ...]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = self._call(func, args, kwargs or {})
        self.operations += 1
        if (count := flop_registry.get(func._overloadpacket)) is not None:
            self.flop += count(*args, **(kwargs or {}), out_val=out)
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, Tensor):
                self._add(x.untyped_storage())
        return out

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of an operation; if it had the same shapes before, without the time to infer its shape."""
        if any(argument.alias_info for argument in func._schema.arguments):  # a view, or in place
            return func(*args, **kwargs)
        key = func, _shapes(args), _shapes(list(kwargs.items()))
        if key in self._outputs:
            size, stride, dtype = self._outputs[key]
            return torch.empty_strided(size, stride, dtype=dtype, device="meta")
        out = func(*args, **kwargs)
        if isinstance(out, Tensor) and out.device.type == "meta":
            self._outputs[key] = out.shape, out.stride(), out.dtype
        return out

    def nominal_seconds(self) -> float:
        """Return the seconds that the operations so far take on a core like that of ``NOMINAL_RATE``."""
        return self.flop / NOMINAL_RATE + self.operations * OPERATION_SECONDS

    def _add(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive:
            return

        def forget(_: object) -> None:
            del self._alive[key]
            self.current -= size

        self._alive[key] = weakref.ref(storage, forget)
        self.current += size
        self.peak = max(self.peak, self.current)


@contextlib.contextmanager
def _without_dynamo() -> Iterator[None]:
    """Keep PyTorch's shape functions from importing ``torch._dynamo``, which takes more than a second.

    They exclude themselves from compilation by ``torch._dynamo.disable``. Nothing is compiled here.
    """
    if "torch._dynamo" in sys.modules:
        yield
        return
    functions = list[Any]()

    def disable(function: Any, *args: Any, **kwargs: Any) -> Any:
        functions.append(function)
        return function

    stand_in = ModuleType("torch._dynamo")
    stand_in.disable = disable  # type: ignore[attr-defined]
    sys.modules["torch._dynamo"] = stand_in
    try:
        yield
    finally:
        del sys.modules["torch._dynamo"]
        for function in functions:  # where PyTorch keeps what ``disable`` returned
            vars(function).pop("__dynamo_disable", None)


def _shapes(value: Any) -> Any:
    """Return arguments of an operation with the shapes of tensors in their places."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    return tuple(map(_shapes, value)) if isinstance(value, list | tuple) else (type(value), value)


class CountedLearner(NamedTuple):
    """What a learner without memory tells."""

    nbytes: int
    """Most bytes at a time."""
    update_s: float
    """Nominal seconds of an update."""
    act_s: float
    """Nominal seconds of a decision for all environments."""
    window: Window
    extra_spec: Mapping[str, ColumnSpec]


def count_learner(config: ExperimentConfig, obs_spec: ObsSpec, action_spec: ActionSpec) -> CountedLearner | None:
    """Update a learner, and let it act, on the meta device, which has no memory; None if it does not run there."""
    envs, seconds = max(config.env.num, min(config.eval_envs, config.eval_episodes)), list[float]()
    try:
        with preserve_rng_state(), _without_dynamo(), torch.device("meta"), _Counter() as counter:
            learner = config.algo.build(obs_spec, action_spec, "meta")
            batch = noise_batch(learner, obs_spec, action_spec)
            seconds.append(counter.nominal_seconds())
            with contextlib.suppress(Exception):  # at its end, an action is copied to the host
                learner.policy.act(noise_step(obs_spec, envs), learner.policy.initial(envs), "eval")
            seconds.append(counter.nominal_seconds())
            learner.update(batch)
            seconds.append(counter.nominal_seconds())
    except Exception:  # an algorithm of the user's own may do anything
        return None
    built, acted, updated = seconds
    return CountedLearner(counter.peak, updated - acted, acted - built, learner.window, learner.extra_spec)


def forecast_memory(
    config: ExperimentConfig, obs_spec: ObsSpec, action_spec: ActionSpec, counted: CountedLearner | None = None
) -> MemoryForecast | None:
    """Forecast the memory of a run on a CPU; None if the learner cannot be ``counted``."""
    if (learner := counted or count_learner(config, obs_spec, action_spec)) is None:
        return None
    row = int(row_nbytes(row_columns(obs_spec, action_spec, learner.extra_spec)))
    rows = 0
    if learner.window.rollout:
        rows = rollout_rows(learner.window, config.env.num) * config.env.num
    elif not config.offline and config.replay.device == "cpu" and config.replay.storage == "ram":
        # Memory without rows is never used, but a limit of the address space counts it.
        allocated = max_rows(config.replay, config.steps, config.env.num)
        limit = allocated and config.steps if available_address_space() is None else allocated
        capacity = config.replay.capacity_rows(row)
        rows = capacity if limit is None else min(capacity, limit)
    return MemoryForecast(int(WORKSPACE * learner.nbytes), row * rows, row)


def check_fits_memory(
    config: ExperimentConfig, obs_spec: ObsSpec, action_spec: ActionSpec, counted: CountedLearner | None = None,
    confirm: Callable[[str], bool] | None = None,
) -> None:  # fmt: skip
    """Raise ConfigError, with a command that fits, if a run on a CPU takes more memory than is available.

    ``confirm``: asked whether to begin all the same, if it may fit.
    """
    free = min((size for size in (available_memory(), available_address_space()) if size is not None), default=None)
    needed = None if free is None else forecast_memory(config, obs_spec, action_spec, counted)
    if needed is None or free is None or needed.total <= free:
        return
    text = (
        f"this run takes about {needed.total / 1e9:.1f} GB of memory (learning {needed.learning / 1e9:.1f} GB, replay "
        f"{needed.replay / 1e9:.1f} GB), but {free / 1e9:.1f} GB is available"
    )
    if needed.total < MEMORY_ERROR * free and confirm is not None:
        if confirm(text):
            logger.warning(f"{text}: it may run out of memory")
            return
        text = f"{text}; it may fit: --yes begins it"
    text = f"{text}. Lower env.resize, algo.batch_size or replay.capacity"
    changes = _find_changes(config, obs_spec, action_spec, free)
    raise ConfigError(f"{text}, as in: {format_command(config.merge(changes))}" if changes else f"{text}.")


def nominal_hours(config: ExperimentConfig, counted: CountedLearner) -> float:
    """Return the hours of updates and decisions of a run on a nominal CPU core."""
    updates, decisions = config.planned_counts(counted.window)
    return (updates * counted.update_s + decisions * counted.act_s) / 3600


def fit_default_length(
    config: ExperimentConfig, obs_spec: ObsSpec, action_spec: ActionSpec
) -> tuple[ExperimentConfig, CountedLearner | None]:
    """Return ``config`` with a run of at most ``DEFAULT_HOURS``, if it is one for a machine without a GPU.

    What the user has set stays. Also returns the learner that was counted.
    """
    counted = count_learner(config, obs_spec, action_spec)
    if counted is None or not config.preset.endswith(CPU_SUFFIX) or not config.is_open(config.unit):
        return config, counted
    base = base_config(config.name, config.env.id, config.preset, config.device)
    if config.length != getattr(base, config.unit):
        return config, counted
    config = _shorten(config, counted, MIN_STEPS)
    if nominal_hours(config, counted) > DEFAULT_HOURS and not config.algo.on_policy:
        if config.algo.batch_size > MIN_BATCH and config.is_open("algo.batch_size"):
            config = config.merge({"algo.batch_size": MIN_BATCH})
            counted = count_learner(config, obs_spec, action_spec) or counted
        ratio, hours = config.updates_per_step(counted.window), nominal_hours(config, counted)
        is_open = config.is_open("replay_ratio", "train_ratio") and not config.offline
        if hours > DEFAULT_HOURS and ratio > MIN_RATIO and is_open:
            ratio = max(MIN_RATIO, float(f"{ratio / hours:.1g}"))
            config = config.merge({"replay_ratio": ratio, "train_ratio": None})
    return _shorten(config, counted), counted


def _shorten(config: ExperimentConfig, counted: CountedLearner, least: int = 100) -> ExperimentConfig:
    """Return ``config`` with a run of ``DEFAULT_HOURS``, but of at least ``least`` steps, if it is longer."""
    while (hours := nominal_hours(config, counted)) > DEFAULT_HOURS and config.length > least:
        shorter = 0.9 * config.length / max(hours, 1.01)
        digit = 10 ** (len(str(int(shorter))) - 1)
        config = config.merge({config.unit: max(least, int(shorter // digit * digit))})
        starts = min(config.learning_starts, max(1, config.steps // 4))
        if not config.algo.on_policy and not config.offline:
            config = config.merge({"learning_starts": starts, "random_steps": min(config.random_steps, starts)})
    return config


def _find_changes(
    config: ExperimentConfig, obs_spec: ObsSpec, action_spec: ActionSpec, free: int
) -> dict[str, Any] | None:
    """Return changes of settings with which a run fits: smaller images, then smaller batches, then fewer rows."""
    changes: dict[str, Any] = {}

    def measure() -> MemoryForecast | None:
        return forecast_memory(config.merge(changes), obs_spec, action_spec)

    needed = measure()
    if any(part.kind == "image" and max(part.shape[:2]) > max(SMALL_IMAGE) for part in obs_spec.values()):
        changes["env.resize"] = SMALL_IMAGE
        obs_spec = {
            key: replace(part, shape=(*SMALL_IMAGE, part.shape[2])) if part.kind == "image" else part
            for key, part in obs_spec.items()
        }
        needed = measure()
    batch = config.algo.batch_size
    while needed is not None and needed.learning > free / 2 and batch > MIN_BATCH_SIZE:
        batch //= 2
        changes["algo.batch_size"] = batch
        needed = measure()
    if needed is not None and needed.total > free and needed.replay:
        rows = max(0, free - needed.learning) / needed.row / 1.25
        changes["replay.capacity"] = int(float(f"{rows:.1g}"))
        if changes["replay.capacity"] < 1000:
            return None
        needed = measure()
    return changes if needed is not None and needed.total <= free else None


UNPRINTED = ("preset", "explicit", "env.id", "experience", "replay.store_path")
"""Settings that :func:`format_command` does not print."""


def format_command(config: ExperimentConfig) -> str:
    """Return the command that trains with these settings: those that its preset does not have, as flags."""
    base = base_config(config.name, config.env.id, config.preset or None, config.device)
    before, flags = flatten(base.to_dict()), list[str]()
    for path, value in flatten(config.to_dict()).items():
        if path not in UNPRINTED and value != before.get(path):
            words = value if isinstance(value, list | tuple) else [value]
            flags += [f"--{path.replace('_', '-')}", *map(str, words)]
    return shlex.join(["reverie", "train", config.name, "--env", config.env.id, *flags])

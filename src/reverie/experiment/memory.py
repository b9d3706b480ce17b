"""Forecast the memory of a run before anything is allocated, and refuse one that does not fit."""

from __future__ import annotations

import contextlib
import shlex
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from reverie.algos.settings import AlgorithmConfig
from reverie.core.columns import row_columns
from reverie.core.errors import ConfigError
from reverie.core.hardware import available_address_space, available_memory
from reverie.core.specs import ActionSpec, ColumnSpec, ObsSpec
from reverie.core.types import Window
from reverie.experiment.bench import noise_batch, noise_step
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.config_layers import base_config
from reverie.replay.config import max_rows
from reverie.replay.storage import row_nbytes

WORKSPACE = 2.0
"""Bytes that an update takes on a CPU for each byte of its tensors: convolutions copy what they read."""
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


class _PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the bytes of the tensors that operations make."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current = self.peak = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, Tensor):
                self._add(x.untyped_storage())
        return out

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


class _Learner(NamedTuple):
    """What a learner without memory tells."""

    nbytes: int
    window: Window
    extra_spec: Mapping[str, ColumnSpec]


def _measure_learner(algo: AlgorithmConfig, obs_spec: ObsSpec, action_spec: ActionSpec, envs: int) -> _Learner | None:
    """Update a learner, and let it act, on the meta device, which has no memory; None if it does not run there."""
    try:
        with torch.device("meta"), _PeakMemory() as memory:
            learner = algo.build(obs_spec, action_spec, "meta")
            with contextlib.suppress(NotImplementedError):  # at its end, an action is copied to the host
                learner.policy.act(noise_step(obs_spec, envs), learner.policy.initial(envs), "eval")
            learner.update(noise_batch(learner, obs_spec, action_spec))
    except Exception:  # an algorithm of the user's own may do anything
        return None
    return _Learner(memory.peak, learner.window, learner.extra_spec)


def forecast_memory(config: ExperimentConfig, obs_spec: ObsSpec, action_spec: ActionSpec) -> MemoryForecast | None:
    """Forecast the memory of a run on a CPU; None if the learner cannot be measured."""
    envs = max(config.env.num, min(config.eval_envs, config.eval_episodes))
    if (learner := _measure_learner(config.algo, obs_spec, action_spec, envs)) is None:
        return None
    row = int(row_nbytes(row_columns(obs_spec, action_spec, learner.extra_spec)))
    rows = 0
    if learner.window.rollout:
        rows = (learner.window.rollout + learner.window.context) * config.env.num
    elif not config.offline and config.replay.device == "cpu" and config.replay.storage == "ram":
        # Memory without rows is never used, but a limit of the address space counts it.
        allocated = max_rows(config.replay, config.steps, config.env.num)
        limit = allocated and config.steps if available_address_space() is None else allocated
        capacity = config.replay.capacity_rows(row)
        rows = capacity if limit is None else min(capacity, limit)
    return MemoryForecast(int(WORKSPACE * learner.nbytes), row * rows, row)


def check_fits_memory(config: ExperimentConfig, obs_spec: ObsSpec, action_spec: ActionSpec) -> None:
    """Raise ConfigError, with a command that fits, if a run on a CPU takes more memory than is available."""
    free = min((size for size in (available_memory(), available_address_space()) if size is not None), default=None)
    needed = None if free is None else forecast_memory(config, obs_spec, action_spec)
    if needed is None or free is None or needed.total <= free:
        return
    text = (
        f"this run takes about {needed.total / 1e9:.1f} GB of memory (learning {needed.learning / 1e9:.1f} GB, replay "
        f"{needed.replay / 1e9:.1f} GB), but {free / 1e9:.1f} GB is available. Lower env.resize, algo.batch_size or "
        "replay.capacity"
    )
    changes = _find_changes(config, obs_spec, action_spec, free)
    raise ConfigError(f"{text}, as in: {format_command(config.merge(changes))}" if changes else f"{text}.")


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


def format_command(config: ExperimentConfig) -> str:
    """Return the command that trains with these settings: those that its preset does not have, as flags."""
    base = base_config(config.name, config.env.id, config.preset or None, config.device)
    before, flags = _flatten(base.to_dict()), list[str]()
    for path, value in _flatten(config.to_dict()).items():
        if path not in ("preset", "env.id", "experience", "replay.store_path") and value != before.get(path):
            words = value if isinstance(value, list | tuple) else [value]
            flags += [f"--{path.replace('_', '-')}", *map(str, words)]
    return shlex.join(["reverie", "train", config.name, "--env", config.env.id, *flags])


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted path."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        out |= _flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else {prefix + key: value}
    return out

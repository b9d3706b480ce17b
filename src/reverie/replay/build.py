"""A replay, or a rollout, from its settings, and whether learning can start with them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from reverie.core.columns import row_columns
from reverie.core.errors import ConfigError
from reverie.core.hardware import available_memory
from reverie.core.protocols import Env
from reverie.core.specs import VERSION_COLUMN, ActionSpec, ColumnSpec, ObsSpec
from reverie.core.types import Window
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.config import ReplayConfig
from reverie.replay.rollout import DeviceRollout, RolloutBuffer, RolloutQueue, check_rollout, rollout_rows
from reverie.replay.storage import MappedStorage, Storage, row_nbytes, storage_on


def build_replay(
    config: ReplayConfig, *, obs_spec: ObsSpec, action_spec: ActionSpec, extra_spec: Mapping[str, ColumnSpec],
    num_envs: int, window: Window, seed: int, max_rows: int | None = None, scratch: Path | None = None,
    versions: bool = False,
) -> ReplayBuffer:  # fmt: skip
    """Return a replay of ``num_envs`` streams that samples batches of ``window``; each stream fits one window.

    Memory is allocated for ``max_rows`` rows in total, if that is less than the capacity. Memory-mapped files are
    in ``scratch``, or in the folder for temporary files. With ``versions``, rows contain the policy's version.
    """
    columns = row_columns(obs_spec, action_spec, extra_spec)
    columns |= {VERSION_COLUMN: ColumnSpec((), "int32")} if versions else {}
    if window.rollout:
        check_rollout(config, window, num_envs)
        kind = RolloutQueue if window.queued else RolloutBuffer
        return kind(storage_on("cpu", columns, num_envs, rollout_rows(window, num_envs)), window, seed=seed)
    rows = config.capacity_rows(row_nbytes(columns))
    config.check(window)
    capacity = (rows if max_rows is None else min(rows, max_rows)) // num_envs
    per_stream = max(window.rows, capacity + window.num_free_rows)  # as many windows as without free rows in front
    storage: Storage
    if config.storage == "mmap":
        storage = MappedStorage(columns, num_envs, per_stream, scratch or Path(tempfile.gettempdir()))
    else:
        storage = storage_on(config.device, columns, num_envs, per_stream)
    return ReplayBuffer(storage, window, seed=seed, config=config)


def build_device_rollout(
    config: ReplayConfig, env: Env, extra_spec: Mapping[str, ColumnSpec], window: Window, seed: int
) -> DeviceRollout:
    """Return the rollout of environments on a device; ConfigError if a setting has no meaning there."""
    if config.store_path not in ("auto", "none"):
        raise ConfigError(
            f"replay.store_path = {config.store_path!r}: rows of environments on a device are not stored. Remove it."
        )
    check_rollout(config, window, env.num_envs)
    return DeviceRollout(
        row_columns(env.obs_spec, env.action_spec, extra_spec), env.num_envs, window, env.device, seed=seed
    )


def max_rows(config: ReplayConfig, steps: int, num_envs: int) -> int | None:
    """Return the maximum number of rows of ``steps`` env steps: two per step; None if the initial rows are unknown."""
    return None if config.init_from else 2 * steps + num_envs


def check_capacity(config: ReplayConfig, replay: ReplayBuffer, learning_starts: int) -> None:
    """Raise ConfigError if the replay can never contain ``learning_starts`` windows; rollouts do not wait for them."""
    if replay.window.rollout:
        return
    rows, streams = config.capacity_rows(_bytes_per_row(replay)), replay.storage.streams
    length = replay.window.rows - replay.window.num_free_rows
    offered = max(0, rows // streams - length + 1) * streams
    if learning_starts > offered:
        raise ConfigError(
            f"learning_starts = {learning_starts} windows, but replay.capacity = {config.capacity} "
            f"({rows} rows) over {streams} envs holds at most {offered} windows of {length} rows, so "
            "learning would never start. Lower learning_starts or raise replay.capacity."
        )


def check_memory(config: ReplayConfig, replay: ReplayBuffer, steps: int) -> None:
    """Raise ConfigError if the rows of ``steps`` env steps do not fit into memory."""
    if config.device != "cpu" or config.storage != "ram":  # those storages check themselves
        return
    needed, free = replay_bytes(config, replay, steps), available_memory()
    if free is not None and needed > free:
        per_row = _bytes_per_row(replay)
        raise ConfigError(
            f"replay.capacity = {config.capacity}: {config.capacity_rows(per_row)} rows of {per_row:,.0f} bytes "
            f"need {needed / 1e9:.1f} GB, but only {free / 1e9:.1f} GB of memory is available. Lower it to "
            f"{int(free * 0.8 / per_row)}, or use replay.storage = 'mmap', smaller observations or smaller networks."
        )


def replay_bytes(config: ReplayConfig, replay: ReplayBuffer | DeviceRollout, steps: int) -> int:
    """Return the bytes that ``steps`` env steps will really take: memory without rows is never touched."""
    if isinstance(replay, DeviceRollout):
        return replay.nbytes
    slots = replay.storage.streams * replay.storage.capacity
    return int(_bytes_per_row(replay) * (slots if config.init_from else min(slots, steps)))


def _bytes_per_row(replay: ReplayBuffer) -> float:
    """Return the bytes of one row."""
    return replay.nbytes / (replay.storage.streams * replay.storage.capacity)

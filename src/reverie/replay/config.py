"""Settings of the replay: its capacity and storage, and whether learning can start with them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal, NamedTuple

from reverie.core.columns import row_columns
from reverie.core.errors import ConfigError
from reverie.core.hardware import available_memory
from reverie.core.protocols import DeviceEnv
from reverie.core.specs import VERSION_COLUMN, ActionSpec, ColumnSpec, ObsSpec
from reverie.core.types import Window
from reverie.replay.batch_sampler import BatchSamplerConfig
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.hindsight import Hindsight
from reverie.replay.rollout import DeviceRollout, RolloutBuffer, RolloutQueue, check_rollout, rollout_rows
from reverie.replay.storage import MappedStorage, Storage, row_nbytes, storage_on

UNIT_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
            "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}  # fmt: skip


class Size(NamedTuple):
    """A number of rows or of bytes."""

    amount: int
    is_bytes: bool


def parse_size(value: int | str, name: str) -> Size:
    """Return the size that ``value`` describes: ``1000000``, ``5e6`` (rows), ``20GB``, ``512 MiB`` (bytes)."""
    text = str(value).strip().replace("_", "").lower()
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)(e\+?\d+)?\s*(?:([kmgt]i?|)(b))?", text)
    number, power, prefix, is_bytes = match.groups("") if match else ("0", "", "", "")
    amount = Decimal(number + power) * UNIT_FACTORS.get(prefix, 0)
    if amount < 1 or (not is_bytes and amount % 1):
        raise ConfigError(
            f"{name} = {value!r}: expected rows such as 1000000 or 5e6, or bytes such as 20GB or 512MiB, "
            "at least 1 and a whole number of rows."
        )
    return Size(int(amount), bool(is_bytes))


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(BatchSamplerConfig):
    """Settings of the replay buffer."""

    capacity: int | str = 1_000_000
    """Total capacity of all streams in rows, such as 5e6, or in bytes, such as 20GB or 512MiB. When it is full, the
    oldest rows are evicted."""
    storage: Literal["ram", "mmap"] = "ram"
    """Storage of the rows with device cpu: ram, or mmap (memory-mapped files) for more rows than fit into memory."""
    store_path: str = "auto"
    """Permanent store of all rows: auto (the run's folder; none for on-policy learners), a path, a URL such as
    s3://bucket/name, or none."""
    store_keep: Literal["all", "replay"] = "all"
    """Rows that the store keeps: all, or replay for those that the replay of a checkpoint may need."""
    save: bool = True
    """Write all rows to the newest checkpoint, with environments on a device, which have no store by default. False: a
    resumed run begins with an empty replay."""
    write_buffer: int | str = "1GB"
    """Bytes that may wait for a store that is slow or cannot be reached; when they are full, collecting waits."""
    init_from: tuple[str, ...] = ()
    """Run folders or stores of earlier runs, whose rows fill the replay of a new run."""
    hindsight: Hindsight | None = None
    """Hindsight experience replay, for goal environments: 0.8 of the sampled windows get a goal that their episode has
    achieved in a later row (`future`), in its newest row (`final`) or in any row (`episode`)."""
    device: str = "cpu"
    """Device of the rows: cpu, or cuda (or cuda:<number>) if all of them fit on the GPU of the learner."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_size(self.capacity, "replay.capacity")
        if self.device != "cpu" and self.storage != "ram":
            settings = f"replay.device = '{self.device}', replay.storage = '{self.storage}'"
            raise ConfigError(
                f"{settings}: rows on a GPU cannot be in memory-mapped files. Use replay.device = 'cpu' or "
                "replay.storage = 'ram'."
            )

    def capacity_rows(self, bytes_per_row: float) -> int:
        """Return the total capacity in rows of ``_bytes_per_row`` bytes."""
        size = parse_size(self.capacity, "replay.capacity")
        return int(size.amount // bytes_per_row) if size.is_bytes else size.amount

    def build(
        self, *, obs_spec: ObsSpec, action_spec: ActionSpec, extra_spec: Mapping[str, ColumnSpec], num_envs: int,
        window: Window, seed: int, max_rows: int | None = None, scratch: Path | None = None, versions: bool = False,
    ) -> ReplayBuffer:  # fmt: skip
        """Return a replay of ``num_envs`` streams that samples batches of ``window``; each stream fits one window.

        Memory is allocated for ``max_rows`` rows in total, if that is less than the capacity. Memory-mapped files are
        in ``scratch``, or in the folder for temporary files. With ``versions``, rows contain the policy's version.
        """
        columns = row_columns(obs_spec, action_spec, extra_spec)
        if window.rollout:
            check_rollout(self, window, num_envs)
            columns |= {VERSION_COLUMN: ColumnSpec((), "int32")} if versions else {}
            kind = RolloutQueue if window.queued else RolloutBuffer
            return kind(storage_on("cpu", columns, num_envs, rollout_rows(window, num_envs)), window, seed=seed)
        columns |= {VERSION_COLUMN: ColumnSpec((), "int32")} if versions else {}
        rows = self.capacity_rows(row_nbytes(columns))
        self.check(window)
        capacity = (rows if max_rows is None else min(rows, max_rows)) // num_envs
        per_stream = max(window.rows, capacity + window.num_free_rows)  # as many windows as without free rows in front
        storage: Storage
        if self.storage == "mmap":
            storage = MappedStorage(columns, num_envs, per_stream, scratch or Path(tempfile.gettempdir()))
        else:
            storage = storage_on(self.device, columns, num_envs, per_stream)
        return ReplayBuffer(storage, window, seed=seed, config=self)


def build_device_rollout(
    config: ReplayConfig, env: DeviceEnv, extra_spec: Mapping[str, ColumnSpec], window: Window, seed: int
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

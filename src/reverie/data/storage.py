"""Rows in memory: one ring buffer for each stream, one column for each thing that a row holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reverie.core.errors import ConfigError, DataError
from reverie.core.specs import ActionSpec, ExtraPart, ObsSpec


@dataclass(frozen=True, slots=True)
class Column:
    """Shape and dtype of one number of each row."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def columns_of(obs: ObsSpec, action: ActionSpec, extras: Mapping[str, ExtraPart]) -> dict[str, Column]:
    """The columns of a row: ``obs/<key>``, ``extras/<key>``, and the fixed ones under their names.

    Raises:
        ConfigError: a column has a dtype that NumPy does not know, such as bfloat16.
    """
    columns = {f"obs/{key}": Column(part.shape, part.dtype) for key, part in obs.items()}
    columns["action"] = Column((action.width,), "float32")
    columns["reward"] = Column((), "float32")
    columns |= {name: Column((), "bool") for name in ("is_first", "is_last", "is_terminal")}
    columns |= {f"extras/{key}": Column(part.shape, part.dtype) for key, part in extras.items()}
    for name, column in columns.items():
        try:
            np.dtype(column.dtype)
        except TypeError:
            raise ConfigError(f"{name} has dtype {column.dtype!r}: rows are stored as a NumPy dtype.") from None
    return columns


class Storage:
    """Rows of ``streams`` streams that grow together. Row ``t`` of a stream lies in slot ``t % capacity``.

    Rows are numbered from 0 for ever, so a number never comes to mean another row. A row's *handle* is
    ``row * streams + stream``: one integer, and of two rows the older has the smaller.
    """

    def __init__(self, columns: Mapping[str, Column], streams: int, capacity: int) -> None:
        """``capacity`` in rows of one stream. Memory is reserved now and touched only when rows come.

        Raises:
            ConfigError: the memory cannot be had; names the bytes.
        """
        self.specs, self.streams, self.capacity = dict(columns), streams, capacity
        self.count = 0
        self.nbytes = streams * capacity * sum(column.nbytes for column in columns.values())
        try:
            self.columns = {
                name: np.empty((streams, capacity, *column.shape), column.dtype) for name, column in columns.items()
            }
        except (MemoryError, ValueError):
            raise ConfigError(
                f"{streams * capacity} rows need {self.nbytes / 1e9:.1f} GB of memory, more than can be had. "
                "Lower replay.capacity or store smaller observations."
            ) from None
        self.flat = {name: array.reshape(streams * capacity, *array.shape[2:]) for name, array in self.columns.items()}

    @property
    def oldest(self) -> int:
        """The number of the oldest row still held."""
        return max(0, self.count - self.capacity)

    def add(self, rows: Mapping[str, Tensor]) -> None:
        """One row for each stream, over the oldest ones if the rings are full.

        Raises:
            DataError: on the first call only: a column is missing, unknown or of another shape.
        """
        if self.count == 0:
            self._check(rows)
        slot = self.count % self.capacity
        for name, value in rows.items():
            self.columns[name][:, slot] = as_numpy(value)
        self.count += 1

    def gather(self, handles: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Every column, ``[B, length, ...]``, of the windows of ``length`` rows that begin at ``handles`` ``[B]``."""
        slots = self.slots(handles, np.arange(length))
        return {name: array.take(slots, axis=0, mode="clip") for name, array in self.flat.items()}

    def write(self, name: str, handles: np.ndarray, offsets: np.ndarray, values: np.ndarray) -> None:
        """Overwrite one column with ``values`` ``[B, T', ...]`` at rows ``handles[:, None] + offsets``.

        Rows evicted meanwhile are left out. Where windows overlap, the later one in the batch holds.
        """
        rows = handles[:, None] // self.streams + offsets  # [B, T']
        kept = (rows >= self.oldest) & (rows < self.count)
        self.flat[name][self.slots(handles, offsets)[kept]] = values[kept]

    def slots(self, handles: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Where rows ``handles[:, None] + offsets`` lie in a flat column, ``[B, T']``."""
        row, stream = np.divmod(handles, self.streams)
        slots: np.ndarray = stream[:, None] * self.capacity + (row[:, None] + offsets) % self.capacity
        return slots

    def _check(self, rows: Mapping[str, Tensor]) -> None:
        if rows.keys() != self.specs.keys():
            missing, unknown = sorted(self.specs.keys() - rows.keys()), sorted(rows.keys() - self.specs.keys())
            raise DataError(f"rows do not have the columns that were declared: missing {missing}, unknown {unknown}.")
        for name, value in rows.items():
            expected = (self.streams, *self.specs[name].shape)
            if tuple(value.shape) != expected:
                raise DataError(f"{name} has shape {tuple(value.shape)}: expected {expected} (streams first).")


def as_numpy(value: Tensor) -> np.ndarray:
    """``value`` as an array on the CPU, waiting for the device where it must; NumPy has no bfloat16."""
    if value.dtype is torch.bfloat16:
        value = value.float()
    return value.numpy(force=True)

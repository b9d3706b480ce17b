"""Rows in memory: one ring buffer for each stream, one column for each thing that a row holds.

``HostStorage`` is here, ``DeviceStorage`` in ``data/device.py``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
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


class Storage(ABC):
    """Rows of ``streams`` streams that grow together. Row ``t`` of a stream lies in slot ``t % capacity``.

    Rows are numbered from 0 for ever, so a number never comes to mean another row. A row's *handle* is
    ``row * streams + stream``: one integer, and of two rows the older has the smaller.
    """

    def __init__(self, columns: Mapping[str, Column], streams: int, capacity: int) -> None:
        """``capacity`` in rows of one stream."""
        self.specs, self.streams, self.capacity = dict(columns), streams, capacity
        self.count = 0
        self.nbytes = streams * capacity * sum(column.nbytes for column in columns.values())

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
        self._put(rows, self.count % self.capacity)
        self.count += 1

    @abstractmethod
    def _put(self, rows: Mapping[str, Tensor], slot: int) -> None:
        """Keep one row for each stream."""

    @abstractmethod
    def gather(self, handles: np.ndarray, length: int) -> dict[str, Tensor]:
        """Every column, ``[B, length, ...]``, of the windows of ``length`` rows that begin at ``handles`` ``[B]``."""

    @abstractmethod
    def write(self, name: str, handles: np.ndarray, offset: int, values: Tensor) -> None:
        """Overwrite one column with ``values`` ``[B, T', ...]``, from ``offset`` rows after ``handles`` ``[B]`` on.

        Rows evicted meanwhile are left out. Where windows overlap, the later one in the batch holds.
        """

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


class HostStorage(Storage):
    """Rows in this computer's memory. With ``pin`` windows lie where a GPU can fetch them by itself."""

    def __init__(self, columns: Mapping[str, Column], streams: int, capacity: int) -> None:
        """Memory is reserved now and touched only when rows come.

        Raises:
            ConfigError: it cannot be had; names the bytes.
        """
        super().__init__(columns, streams, capacity)
        self.pin = False
        try:
            self.columns = {
                name: np.empty((streams, capacity, *spec.shape), spec.dtype) for name, spec in self.specs.items()
            }
        except (MemoryError, ValueError):
            raise ConfigError(
                f"{streams * capacity} rows need {self.nbytes / 1e9:.1f} GB of memory, more than can be had. "
                "Lower replay.capacity or store smaller observations."
            ) from None
        self.flat = {name: array.reshape(streams * capacity, *array.shape[2:]) for name, array in self.columns.items()}

    def _put(self, rows: Mapping[str, Tensor], slot: int) -> None:
        for name, value in rows.items():
            self.columns[name][:, slot] = as_numpy(value)

    def gather(self, handles: np.ndarray, length: int) -> dict[str, Tensor]:
        """See ``Storage``."""
        slots = self.slots(handles, np.arange(length))
        rows = {
            name: torch.empty((*slots.shape, *spec.shape), dtype=getattr(torch, spec.dtype), pin_memory=self.pin)
            for name, spec in self.specs.items()
        }
        for name, array in self.flat.items():
            array.take(slots, axis=0, mode="clip", out=rows[name].numpy())
        return rows

    def write(self, name: str, handles: np.ndarray, offset: int, values: Tensor) -> None:
        """See ``Storage``. Windows are written one by one: two copies each at most, and no lists of indices."""
        rows, streams = np.divmod(handles, self.streams)
        for row, stream, new in zip((rows + offset).tolist(), streams.tolist(), as_numpy(values), strict=True):
            held = new[max(0, self.oldest - row) : max(0, self.count - row)]
            start = max(row, self.oldest) % self.capacity
            before_end = self.capacity - start
            column = self.columns[name][stream]
            column[start : start + len(held)] = held[:before_end]
            if len(held) > before_end:
                column[: len(held) - before_end] = held[before_end:]


def as_numpy(value: Tensor) -> np.ndarray:
    """``value`` as an array on the CPU, waiting for the device where it must; NumPy has no bfloat16."""
    if value.dtype is torch.bfloat16:
        value = value.float()
    return value.numpy(force=True)

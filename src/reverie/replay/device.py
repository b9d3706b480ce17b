"""Rows in the memory of a GPU: batches are gathered on the GPU, so they need not be copied there."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from reverie.core.columns import Column, as_numpy, end_at_seams, slots_of
from reverie.core.errors import ConfigError
from reverie.core.machine import gpus
from reverie.replay.storage import HostStorage, Storage


def storage_on(device: str, columns: Mapping[str, Column], streams: int, capacity: int) -> Storage:
    """Return an empty storage on ``device``: cpu, cuda or cuda:<number>."""
    if device == "cpu":
        return HostStorage(columns, streams, capacity)
    known = ["cpu", *(f"cuda:{number}" for number in range(gpus()))]
    if device not in known and (device != "cuda" or len(known) == 1):
        raise ConfigError(f"replay.device = '{device}': PyTorch sees {', '.join(known)} here.")
    return DeviceStorage(columns, streams, capacity, torch.device(device))


class DeviceStorage(Storage):
    """Rows on ``device``. All work is queued on its current CUDA stream, so the host never waits."""

    def __init__(self, columns: Mapping[str, Column], streams: int, capacity: int, device: torch.device) -> None:
        """Allocate all memory."""
        super().__init__(columns, streams, capacity)
        self.nbytes: int = (
            streams * capacity * sum(column.nbytes for column in columns.values())
        )  # none are interleaved
        self.device = device
        try:
            self.columns: dict[str, Tensor] = {
                name: torch.empty((streams, capacity, *spec.shape), dtype=getattr(torch, spec.dtype), device=device)
                for name, spec in self.specs.items()
            }
        except RuntimeError:  # torch.OutOfMemoryError is one
            raise ConfigError(
                f"{streams * capacity} rows need {self.nbytes / 1e9:.1f} GB of memory on {device}, more than is free. "
                "Lower replay.capacity, or keep the rows in host memory (replay.device = 'cpu')."
            ) from None
        self.flat: dict[str, Tensor] = {name: column.flatten(0, 1) for name, column in self.columns.items()}

    def _put(self, rows: Mapping[str, Tensor], slot: int) -> None:
        for name, value in rows.items():
            self.columns[name][:, slot].copy_(value.detach(), non_blocking=True)

    def _assign(self, name: str, slots: slice, values: np.ndarray | None, stream: int | None = None) -> None:
        streams = slice(None) if stream is None else slice(stream, stream + 1)
        target = self.columns[name][streams, slots]
        if values is None:
            target.zero_()
        else:
            target.copy_(torch.from_numpy(np.array(values)))

    def _fetch(self, name: str, streams: slice, slots: slice) -> np.ndarray:
        return as_numpy(self.columns[name][streams, slots])

    def gather(self, handles: Tensor, length: int) -> dict[str, Tensor]:
        slots = slots_of(handles.numpy(), np.arange(length), self.streams, self.capacity)
        where = self._index(slots.ravel())
        rows = {
            name: column.index_select(0, where).view(*slots.shape, *column.shape[1:])
            for name, column in self.flat.items()
        }
        end_at_seams(rows)
        return rows

    def write(self, name: str, handles: np.ndarray, offset: int, values: Tensor) -> None:
        """See ``Storage``. A GPU writes in any order, so only the last value of a row that occurs twice is written."""
        offsets = np.arange(offset, offset + values.shape[1])
        rows = handles[:, None] // self.streams + offsets  # [B, T']
        kept = np.flatnonzero((rows >= self.oldest) & (rows < self.count))
        slots = slots_of(handles, offsets, self.streams, self.capacity).ravel()[kept]
        slots, from_the_end = np.unique(slots[::-1], return_index=True)
        chosen = self._index(kept[len(kept) - 1 - from_the_end])
        column = self.flat[name]
        new = values.detach().to(self.device, column.dtype).flatten(0, 1)
        column.index_copy_(0, self._index(slots), new.index_select(0, chosen))

    def _index(self, numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self.device, non_blocking=True)

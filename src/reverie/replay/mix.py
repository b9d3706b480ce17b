"""Batches of recorded and of newly collected rows."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from reverie.core.bounds import Within
from reverie.core.config import Choice
from reverie.core.errors import ConfigError
from reverie.core.protocols import Source
from reverie.core.types import Batch, Update, Window


@dataclass(frozen=True)
class Experience(Choice):
    """Where the rows come from that a run learns from."""

    @property
    def recorded(self) -> float:
        """Part of each batch that is recorded, in [0, 1]."""
        raise NotImplementedError


@dataclass(frozen=True)
class Collected(Experience):
    """All rows are collected during the run."""

    @property
    def recorded(self) -> float:
        """Nothing is recorded."""
        return 0.0


@dataclass(frozen=True)
class Recorded(Experience):
    """All rows are recorded data."""

    @property
    def recorded(self) -> float:
        """Everything is recorded."""
        return 1.0


@dataclass(frozen=True)
class Mixed(Experience):
    """Part of each batch is recorded, the rest is collected during the run."""

    part: Annotated[float, Within("(0, 1)")] = 0.5
    """Part of each batch that is recorded, in (0, 1), rounded to whole windows."""

    @property
    def recorded(self) -> float:
        """Part of each batch that is recorded."""
        return self.part


def of_share(share: float) -> Experience:
    """Return the experience of which this part is recorded."""
    return Collected() if share == 0 else Recorded() if share == 1 else Mixed(share)


class Mix:
    """A ``Source`` of batches whose first windows are ``recorded``; the others, ``lived``, were collected by this run.

    Each of the two sources samples its own part of a batch (``shares``).
    """

    def __init__(self, recorded: Source, lived: Source) -> None:
        self.recorded, self.lived = recorded, lived
        self._split = 0

    def __len__(self) -> int:
        """Return the number of collected windows: learning starts when there are enough of these."""
        return len(self.lived)

    def sample(self) -> Batch:
        """Return a batch of both on the device of the collected windows, the recorded windows first."""
        first, second = self.recorded.sample(), self.lived.sample()
        self._split = len(first.index)
        joined: dict[str, Any] = {}
        for field in fields(Batch):
            one, two = getattr(first, field.name), getattr(second, field.name)
            if isinstance(one, dict):
                joined[field.name] = {key: cat(one[key], two[key]) for key in one}
            else:
                joined[field.name] = cat(one, two)
        return Batch(**joined)

    def feedback(self, index: Tensor, update: Update) -> None:
        """Pass each source the part of the update that concerns its windows, those sampled last."""
        split = self._split
        for source, part in ((self.recorded, slice(0, split)), (self.lived, slice(split, None))):
            priority = None if update.priority is None else update.priority[part]
            extras = {key: value[part] for key, value in update.extras.items()}
            source.feedback(index[part], replace(update, priority=priority, extras=extras))


def cat(one: Tensor, two: Tensor) -> Tensor:
    """Return both as one tensor on the device of ``two``."""
    return torch.cat([one.to(two.device, non_blocking=True), two])


def shares(window: Window, fraction: float) -> tuple[Window, Window]:
    """Return ``window`` with the batch sizes of the recorded and of the collected part.

    Raises:
        ConfigError: the batch is too small for both parts to have a window.
    """
    recorded = round(window.batch * fraction)
    if not 0 < recorded < window.batch:
        raise ConfigError(
            f"experience = mixed({fraction}): of the {window.batch} windows of a batch (algo.batch_size), {recorded} "
            "would be recorded; expected at least one recorded and one collected."
        )
    return replace(window, batch=recorded), replace(window, batch=window.batch - recorded)

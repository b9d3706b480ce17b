"""Notices the first NaN or infinite loss term without making any update wait for the device."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from reverie.core.types import Metrics


class BadLoss(NamedTuple):
    """The first loss term that went wrong."""

    term: str
    value: float
    update: int


class LossGuard:
    """Watches every metric named ``loss/...``; remembers on the device at which update each first went wrong."""

    def __init__(self) -> None:
        self.terms: tuple[str, ...] = ()
        self.first: Tensor | None = None  # [K] int64, the update at which each term first was not finite; 0: never
        self.value: Tensor | None = None  # [K] what it was then

    def add(self, metrics: Metrics, update: int) -> None:
        """Look at the loss terms of update number ``update``, counted from 1."""
        terms = tuple(name for name in metrics if name.startswith("loss/"))
        if not terms:
            return
        now = torch.stack([metrics[name] for name in terms]).detach().float()
        if terms != self.terms or self.first is None or self.value is None:
            self.terms, self.value = terms, torch.zeros_like(now)
            self.first = torch.zeros_like(now, dtype=torch.int64)
        fresh = ~torch.isfinite(now) & (self.first == 0)
        self.value = torch.where(fresh, now, self.value)
        self.first = self.first.masked_fill(fresh, update)

    def first_bad(self) -> BadLoss | None:
        """The term that went wrong first, or None. Waits for the device.

        Terms that went wrong in the same update are told apart by the order in which the algorithm lists them.
        """
        if self.first is None or self.value is None:
            return None
        bad = [
            (update, value, term)
            for update, value, term in zip(self.first.tolist(), self.value.tolist(), self.terms, strict=True)
            if update
        ]
        if not bad:
            return None
        update, value, term = min(bad, key=lambda entry: entry[0])
        return BadLoss(term=term, value=math.nan if math.isnan(value) else value, update=update)

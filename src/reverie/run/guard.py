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


class Seen(NamedTuple):
    """What became of the terms that some updates report together."""

    first: Tensor  # [K] int64, the update at which each term first was not finite; 0: never
    value: Tensor  # [K] what it was then


class LossGuard:
    """Watches every metric named ``loss/...``; remembers on the device at which update each first went wrong.

    Updates need not all report the same terms: those of TD3's critics come twice as often as its actor's.
    """

    def __init__(self) -> None:
        self.seen: dict[tuple[str, ...], Seen] = {}

    def add(self, metrics: Metrics, update: int) -> None:
        """Look at the loss terms of update number ``update``, counted from 1."""
        terms = tuple(name for name in metrics if name.startswith("loss/"))
        if not terms:
            return
        now = torch.stack([metrics[name] for name in terms]).detach().float()
        first, value = self.seen.get(terms) or Seen(torch.zeros_like(now, dtype=torch.int64), torch.zeros_like(now))
        fresh = ~torch.isfinite(now) & (first == 0)
        self.seen[terms] = Seen(first.masked_fill(fresh, update), torch.where(fresh, now, value))

    def first_bad(self) -> BadLoss | None:
        """The term that went wrong first, or None. Waits for the device.

        Terms that went wrong in the same update are told apart by the order in which the algorithm lists them.
        """
        bad = [
            (update, value, term)
            for terms, seen in self.seen.items()
            for update, value, term in zip(seen.first.tolist(), seen.value.tolist(), terms, strict=True)
            if update
        ]
        if not bad:
            return None
        update, value, term = min(bad, key=lambda entry: entry[0])
        return BadLoss(term=term, value=math.nan if math.isnan(value) else value, update=update)

"""Notices the first NaN or infinite loss term without making any update wait for the device, and weights that are."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

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
    """Watches every metric named ``loss/...``; remembers at which update each first went wrong.

    Those in this computer's memory are read, others are watched where they are. Updates need not all report the same
    terms: those of TD3's critics come twice as often as its actor's.
    """

    def __init__(self, learner: object = None) -> None:
        """``learner``: whose losses they are, if its parameters are to be looked at as well."""
        self.learner = learner
        self.read: dict[str, BadLoss] = {}
        self.seen: dict[tuple[str, ...], Seen] = {}

    def add(self, metrics: Metrics, update: int) -> None:
        """Look at the loss terms of update number ``update``, counted from 1."""
        terms = tuple(name for name in metrics if name.startswith("loss/"))
        if not terms:
            return
        look = self._read if all(metrics[name].is_cpu for name in terms) else self._watch
        look(metrics, terms, update)

    def _read(self, metrics: Metrics, terms: tuple[str, ...], update: int) -> None:
        for name in terms:
            value = metrics[name].item()
            if not math.isfinite(value):
                self.read.setdefault(name, BadLoss(name, value, update))

    def _watch(self, metrics: Metrics, terms: tuple[str, ...], update: int) -> None:
        now = torch.stack([metrics[name] for name in terms]).detach().float()
        first, value = self.seen.get(terms) or Seen(torch.zeros_like(now, dtype=torch.int64), torch.zeros_like(now))
        fresh = ~torch.isfinite(now) & (first == 0)
        self.seen[terms] = Seen(first.masked_fill(fresh, update), torch.where(fresh, now, value))

    def first_bad(self) -> BadLoss | None:
        """The term that went wrong first, or None. Waits for the device.

        Terms that went wrong in the same update are told apart by the order in which the algorithm lists them.
        """
        bad = list(self.read.values())
        bad += [
            BadLoss(term, value, update)
            for terms, seen in self.seen.items()
            for update, value, term in zip(seen.first.tolist(), seen.value.tolist(), terms, strict=True)
            if update
        ]
        if not bad:
            return None
        worst = min(bad, key=lambda entry: entry.update)
        return worst._replace(value=math.nan if math.isnan(worst.value) else worst.value)

    def bad_parameter(self) -> str | None:
        """The name of a parameter with a NaN or infinite number, or None. Reads them all and waits for the device.

        Losses are of the weights before their update, so they do not tell of one that has just gone wrong.
        """
        named = self.learner.named_parameters() if isinstance(self.learner, nn.Module) else ()
        learned = ((name, values) for name, values in named if values.requires_grad)  # others may be masks
        return next((name for name, values in learned if not torch.isfinite(values).all()), None)

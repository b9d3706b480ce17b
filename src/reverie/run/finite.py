"""Detection of NaN and infinity: in loss terms, without making updates wait for the device, and in what learns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from reverie.core.types import Metrics
from reverie.run.metrics import check_names


class Seen(NamedTuple):
    """The state, on the device, of K loss terms that are reported together."""

    first: Tensor  # [K] int64, the first update at which each term was not finite; 0: none
    value: Tensor  # [K] its value then


class FiniteCheck:
    """Watches every metric named ``loss/...``; remembers the first update at which each was NaN or infinite.

    Terms on the CPU are read at once; others are checked on their device. Updates need not all report the same terms:
    TD3's critic reports twice as often as its actor.
    """

    def __init__(self, learner: object = None) -> None:
        """``learner``: the module whose parameters and moments are checked; any other object has none."""
        self.learner = learner
        self.read: dict[str, tuple[int, float]] = {}  # the first update at which each term was not finite; its value
        self.seen: dict[tuple[str, ...], Seen] = {}
        self._terms: dict[tuple[str, ...], tuple[str, ...]] = {}  # the loss terms among the names of an update

    def add(self, metrics: Metrics, update: int) -> None:
        """Check the loss terms of update number ``update``, counted from 1."""
        names = tuple(metrics)
        terms = self._terms.get(names)
        if terms is None:
            check_names(names)
            terms = self._terms[names] = tuple(name for name in names if name.startswith("loss/"))
        if terms:
            look = self._read if all(metrics[name].is_cpu for name in terms) else self._watch
            look(metrics, terms, update)

    def _read(self, metrics: Metrics, terms: tuple[str, ...], update: int) -> None:
        for name in terms:
            value = metrics[name].item()
            if not math.isfinite(value):
                self.read.setdefault(name, (update, value))

    def _watch(self, metrics: Metrics, terms: tuple[str, ...], update: int) -> None:
        now = torch.stack([metrics[name] for name in terms]).detach().float()
        first, value = self.seen.get(terms) or Seen(torch.zeros_like(now, dtype=torch.int64), torch.zeros_like(now))
        fresh = ~torch.isfinite(now) & (first == 0)
        self.seen[terms] = Seen(first.masked_fill(fresh, update), torch.where(fresh, now, value))

    def bad_loss(self) -> str | None:
        """Describe the first term that was NaN or infinite; None if all were finite. Waits for the device."""
        bad = [(update, term, value) for term, (update, value) in self.read.items()]
        bad += [
            (update, term, value)
            for terms, seen in self.seen.items()
            for update, value, term in zip(seen.first.tolist(), seen.value.tolist(), terms, strict=True)
            if update
        ]
        if not bad:
            return None
        update, term, value = min(bad, key=lambda entry: entry[0])
        return f"{term} became {value} at update {update}"

    def problem(self, updates: int) -> str | None:
        """Describe a loss, a weight or a moment that is NaN or infinite after ``updates``; None if all are finite.

        Reads all parameters and waits for the device. A loss is computed before its update, so it cannot show that this
        very update went wrong; and a parameter whose moments are not finite may stay finite because it never moves.
        """
        if (what := self.bad_loss()) is not None:
            return what
        named = self.learner.named_parameters() if isinstance(self.learner, nn.Module) else ()
        learned = ((name, values) for name, values in named if values.requires_grad)  # others may be masks with -inf
        if (name := next((name for name, values in learned if not torch.isfinite(values).all()), None)) is not None:
            return f"weights in {name} are not finite after update {updates}"
        find: Callable[[], str | None] | None = getattr(self.learner, "bad_moment", None)
        if find is not None and (name := find()) is not None:
            return f"the optimiser's moments of {name} are not finite after update {updates}"
        return None

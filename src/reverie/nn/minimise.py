"""Gradient steps on losses by name, and the whole update around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from reverie.core.accelerate import accelerated
from reverie.core.types import Batch, Update
from reverie.nn.adam import Adam
from reverie.objectives.td import Losses

Loss = Callable[..., Losses]
TrainStep = Callable[[Batch], Update]
"""One gradient step on a batch that lies on the learner's device."""


@accelerated
def gradients(
    loss: Loss, optims: Mapping[str, Adam], *inputs: Any
) -> tuple[Losses, dict[str, Sequence[Tensor | None]]]:
    """Return the losses ``loss(*inputs)``, and the gradient of each term that has an optimiser of its name."""
    losses = loss(*inputs)
    return losses, {name: optims[name].gradient(term) for name, term in losses.terms.items() if name in optims}


class Learner(Protocol):
    """What :func:`run` reads of a learner, which is a module."""

    device: torch.device
    graph: bool
    """Whether its updates may be captured: they do the same work each time."""
    since: object
    """Captures that were made while it was another object are not valid any more."""

    def prepared(self, batch: Batch) -> Batch:
        """Return what its methods get of a batch on its device."""
        ...

    @property
    def tapes(self) -> bool:
        """Whether capturing them pays on CPUs too."""
        ...


@accelerated
def run(learner: Learner, step: TrainStep, batch: Batch) -> Update:
    """Return ``step(batch)``, a method of ``learner``, for a batch on any device."""
    return step(learner.prepared(batch.to(learner.device)))

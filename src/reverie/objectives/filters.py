"""Weights of recorded actions in CRR's actor loss: Wang et al., "Critic regularized regression", 2020.

They are the f of equation 2 (arXiv:2006.15134), as settings: ``filter=Exp(beta=1.0)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reverie.core.config import Choice
from reverie.core.errors import ConfigError, unwritten
from reverie.objectives.transforms import exp


@dataclass(frozen=True)
class Filter(Choice):
    """f: weight of an action in the actor's loss, a function of its advantage A."""

    def __call__(self, advantage: Tensor) -> Tensor:
        """Return weights ``[...]`` of advantages ``[...]``."""
        raise unwritten(self, "__call__")


@dataclass(frozen=True)
class Exp(Filter):
    """min(exp(A / beta), clip): equation 4 and appendix B."""

    beta: float = 1.0
    """Temperature: an advantage larger by beta has e times the weight. Above 0."""
    clip: float = 20.0
    """Upper bound of the weight, above 0."""

    def __post_init__(self) -> None:
        if not (self.beta > 0 and self.clip > 0):
            raise ConfigError(f"beta = {self.beta}, clip = {self.clip}: expected numbers above 0.")

    def __call__(self, advantage: Tensor) -> Tensor:
        """Return weights ``[...]`` of advantages ``[...]``."""
        return exp(advantage / self.beta).clamp(max=self.clip)


@dataclass(frozen=True)
class Binary(Filter):
    """1 if the advantage is above 0, else 0: equation 3."""

    def __call__(self, advantage: Tensor) -> Tensor:
        """Return weights ``[...]`` of advantages ``[...]``."""
        return (advantage > 0).to(advantage.dtype)


@dataclass(frozen=True)
class All(Filter):
    """1 for all actions: behaviour cloning. The critic then evaluates the cloned policy."""

    def __call__(self, advantage: Tensor) -> Tensor:
        """Return weights ``[...]`` of advantages ``[...]``."""
        return torch.ones_like(advantage)

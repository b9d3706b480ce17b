"""How much a recorded action counts for a policy, by its advantage: Wang et al., "Critic regularized regression", 2020.

The f of equation 2 there (arXiv:2006.15134), chosen by an object: ``filter=Exp(beta=1.0)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reverie.core.config import Choice
from reverie.core.errors import ConfigError
from reverie.objectives.transforms import exp


@dataclass(frozen=True)
class Filter(Choice):
    """f: how much an action counts for the policy, by its advantage."""

    def __call__(self, advantage: Tensor) -> Tensor:
        """``[...]``."""
        raise NotImplementedError


@dataclass(frozen=True)
class Exp(Filter):
    """min(exp(A / beta), clip): equation 4 and appendix B."""

    beta: float = 1.0
    """How much better an action must be to count e times as much."""
    clip: float = 20.0
    """The most that it counts."""

    def __post_init__(self) -> None:
        if not (self.beta > 0 and self.clip > 0):
            raise ConfigError(f"beta = {self.beta}, clip = {self.clip}: expected numbers above 0.")

    def __call__(self, advantage: Tensor) -> Tensor:
        """``[...]``."""
        return exp(advantage / self.beta).clamp(max=self.clip)


@dataclass(frozen=True)
class Binary(Filter):
    """1 of the better actions, 0 of the others: equation 3."""

    def __call__(self, advantage: Tensor) -> Tensor:
        """``[...]``."""
        return (advantage > 0).to(advantage.dtype)


@dataclass(frozen=True)
class All(Filter):
    """1 of all actions: behaviour cloning, whose critic is that of the clone."""

    def __call__(self, advantage: Tensor) -> Tensor:
        """``[...]``."""
        return torch.ones_like(advantage)

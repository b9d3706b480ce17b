"""LaProp as its authors released it, with adaptive gradient clipping."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reverie.core.types import State
from reverie.nn.optim import Optim, OptimConfig


@dataclass(frozen=True, kw_only=True)
class LaPropConfig(OptimConfig):
    """LaProp as its authors released it, with adaptive gradient clipping: R2-Dreamer."""

    def build(self, parameters: Iterable[nn.Parameter]) -> LaProp:
        return LaProp(parameters, self)


class LaProp(Optim):
    """:class:`Optim` with each u weighted by its own learning rate, which matters while that changes.

    In the order of the authors of LaProp::

        m  <- beta1 m + (1 - beta1) lr_t u
        c  <- beta1 c + (1 - beta1) lr_t
        p  <- p - lr_t m / c

    With a warm-up, the first update has lr / warmup.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], cfg: LaPropConfig) -> None:
        super().__init__(parameters, cfg)
        self.mass: Tensor = torch.zeros_like(self.updates)

    def _warm(self) -> Any:
        return (self.updates + 1) / max(1, self.cfg.warmup)

    def _update_direction(self, u: Tensor, rate: Tensor) -> Tensor:
        self.momentum.lerp_(u * rate, 1 - self.cfg.beta1)
        self.mass.lerp_(rate, 1 - self.cfg.beta1)
        return self.momentum * (rate / self.mass.clamp(min=1e-30))  # a ramp may begin at a rate of 0

    def state_dict(self) -> State:
        return {**super().state_dict(), "mass": self.mass}

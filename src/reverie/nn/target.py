"""Slowly moving copies of networks."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class Target(nn.Module):
    """A frozen copy that moves towards its source: theta' <- rate theta + (1 - rate) theta' (Polyak averaging)."""

    def __init__(self, source: nn.Module, rate: float) -> None:
        super().__init__()
        self.model = copy.deepcopy(source).requires_grad_(False)
        self.rate = rate
        self._source = (source,)  # a tuple hides it from torch: it is no part of this module, only what it follows

    @torch.no_grad()
    def update(self) -> None:
        """One step towards the source."""
        targets, sources = (tuple(module.parameters()) for module in (self.model, *self._source))
        torch._foreach_lerp_(targets, sources, self.rate)

    @torch.no_grad()
    def forward(self, x: Tensor) -> object:
        """The copy's answer, without gradient."""
        return self.model(x)

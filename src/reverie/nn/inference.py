"""Asking a network for an action."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from reverie.core.accelerate import accelerated
from reverie.core.types import Obs


class Inference:
    """A function of observations that calls a network and depends on no other state that changes."""

    def __init__(self, function: Callable[[Obs], Tensor], network: nn.Module) -> None:
        """``function`` calls ``network``."""
        self.function, self.network = function, network

    @accelerated
    def __call__(self, obs: Obs) -> Tensor:
        """Return ``function(obs)`` of observations ``[N, ...]``."""
        return self.function(obs)

"""Running statistics that scale what a learner sees."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PercentileScale(nn.Module):
    """The spread of returns, as a moving average of percentiles. DreamerV3 (Hafner et al. 2025), equation 7.

    S = max(limit, ema(per(R, high)) - ema(per(R, low))), the averages starting at 0 and not debiased.
    """

    low: Tensor
    high: Tensor

    def __init__(self, rate: float = 0.01, limit: float = 1.0, percentiles: tuple[float, float] = (5.0, 95.0)) -> None:
        super().__init__()
        self.rate, self.limit, self.percentiles = rate, limit, percentiles
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Take in new values ``[...]``."""
        q = torch.tensor([p / 100 for p in self.percentiles], dtype=torch.float32, device=x.device)
        low, high = torch.quantile(x.detach().float().flatten(), q)
        self.low.lerp_(low, self.rate)
        self.high.lerp_(high, self.rate)

    def forward(self) -> tuple[Tensor, Tensor]:
        """``(offset, scale)``."""
        return self.low, (self.high - self.low).clamp(min=self.limit)

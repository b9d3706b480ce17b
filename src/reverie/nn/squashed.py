"""A normal distribution squashed into [-1, 1] by tanh, with its exact density."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

LOG_STD = (-20.0, 2.0)
"""Within which ln sigma is kept: the code of the authors of SAC."""


class SquashedNormal:
    """a = tanh(u), u ~ N(mean, std): Haarnoja et al. 2018, arXiv:1812.05905, appendix C.

    ln pi(a) = ln N(u) - sum ln(1 - tanh(u)^2)   (equation 26)

    where ln(1 - tanh(u)^2) = 2 (ln 2 - u - softplus(-2 u)), which is exact and finite for any u.
    """

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        """``[..., A]`` both."""
        self.mean = mean
        self.log_std = log_std.clamp(*LOG_STD)

    def sample(self) -> tuple[Tensor, Tensor]:
        """An action ``[..., A]`` and its log-density ``[...]``, both with gradient."""
        noise = torch.randn_like(self.mean)  # [..., A]
        u = self.mean + self.log_std.exp() * noise  # [..., A]
        return u.tanh(), self._log_density(noise, u)

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-density ``[...]`` of actions ``[..., A]``; on the border, that of the nearest number inside."""
        inside = 1 - torch.finfo(action.dtype).eps
        u = action.clamp(-inside, inside).atanh()  # [..., A]
        return self._log_density((u - self.mean) / self.log_std.exp(), u)

    def mode(self) -> Tensor:
        """tanh(mean), ``[..., A]``."""
        return self.mean.tanh()

    def _log_density(self, noise: Tensor, u: Tensor) -> Tensor:
        normal = -0.5 * noise.square() - self.log_std - 0.5 * math.log(2 * math.pi)  # [..., A]
        squashing = 2 * (math.log(2) - u - F.softplus(-2 * u))  # [..., A]
        return (normal - squashing).sum(-1)

"""A normal distribution squashed into [-1, 1] by tanh, with its exact density."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from reverie.core.compiled import call, compiled, library

LOG_STD = (-20.0, 2.0)
"""Within which ln sigma is kept: the code of the authors of SAC."""


class SquashedNormal:
    """a = tanh(u), u ~ N(mean, std): Haarnoja et al. 2018, arXiv:1812.05905, appendix C.

    ln pi(a) = ln N(u) - sum ln(1 - tanh(u)^2)   (equation 26)

    where ln(1 - tanh(u)^2) = 2 (ln 2 - u - softplus(-2 u)), which is exact and finite for any u.
    """

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        """``[..., A]`` both; ln sigma may be any number, and is taken to the nearest within ``LOG_STD``."""
        self.mean, self.raw = mean, log_std

    @property
    def log_std(self) -> Tensor:
        """Ln sigma within its limits, ``[..., A]``."""
        return self.raw.clamp(*LOG_STD)

    def sample(self) -> tuple[Tensor, Tensor]:
        """An action ``[..., A]`` and its log-density ``[...]``, both with gradient."""
        noise = torch.randn(self.mean.shape, dtype=self.mean.dtype, device=self.mean.device)  # [..., A]
        if compiled(self.mean, self.raw) and noise.numel():
            action, density = call(_Sample, self.mean, self.raw, noise)
            return action, density
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


class _Sample(torch.autograd.Function):
    """The same in one call forwards and one backwards (``squashed.c``)."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, raw: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        flat = [apart(x) for x in (mean, raw)]  # [M, A]
        if flat[0].stride(0) != flat[1].stride(0):
            flat = [x.contiguous() for x in flat]
        (rows, width), ld = flat[0].shape, flat[0].stride(0)
        action, density = torch.empty_like(noise), noise.new_empty(noise.shape[:-1])
        library().squashed_sample(
            flat[0].data_ptr(), flat[1].data_ptr(), ld, noise.data_ptr(), action.data_ptr(), density.data_ptr(), rows,
            width, *LOG_STD,
        )  # fmt: skip
        if ctx is not None:
            ctx.save_for_backward(flat[1], noise, action)
        return action, density

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, daction: Tensor, ddensity: Tensor) -> tuple[Tensor, Tensor, None]:
        raw, noise, action = ctx.saved_tensors
        daction, ddensity = daction.contiguous(), ddensity.contiguous()
        dmean, draw = torch.empty_like(action), torch.empty_like(action)
        library().squashed_sample_backward(
            raw.data_ptr(), raw.stride(0), noise.data_ptr(), action.data_ptr(), daction.data_ptr(),
            ddensity.data_ptr(), dmean.data_ptr(), draw.data_ptr(), *raw.shape, *LOG_STD,
        )  # fmt: skip
        return dmean, draw, None


def apart(x: Tensor) -> Tensor:
    """``[..., A]`` as rows ``[M, A]`` without gaps inside; those between them stay."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 else flat.contiguous()

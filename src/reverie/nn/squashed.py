"""The tanh-squashed Gaussian policy of SAC, with its exact density."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.compiled import call, compiled, first_order, library
from reverie.core.shapes import expect
from reverie.core.specs import ObsSpec
from reverie.core.types import Obs
from reverie.nn.action_samples import times
from reverie.nn.actor_critic import Inputs, NetworkConfig
from reverie.nn.perceptron import ReluMLP
from reverie.objectives.transforms import exp

LOG_STD = (-20.0, 2.0)
"""Limits of ln sigma, from the code of the authors of SAC."""


class SquashedNormal:
    """a = tanh(u), u ~ N(mean, std^2): Haarnoja et al. 2018, arXiv:1812.05905, appendix C.

    ln pi(a) = ln N(u) - sum ln(1 - tanh(u)^2)   (equation 26)

    where ln(1 - tanh(u)^2) = 2 (ln 2 - u - softplus(-2 u)), which is exact and finite for any u.
    """

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        """Both are ``[..., A]``; ``log_std`` (ln sigma) may be any number, and is clamped to ``LOG_STD``.

        Raises:
            ValueError: they have different shapes.
        """
        expect(mean.shape, log_std=log_std)
        self.mean, self.raw = mean, log_std

    @property
    def log_std(self) -> Tensor:
        """The clamped ln sigma, ``[..., A]``."""
        return self.raw.clamp(*LOG_STD)

    def repeated(self, n: int) -> SquashedNormal:
        """Return the distribution repeated n times, over ``[..., n, A]``."""
        return SquashedNormal(times(self.mean, n), times(self.raw, n))

    def sample(self) -> tuple[Tensor, Tensor]:
        """Return an action ``[..., A]`` and its log-density ``[...]``, both with gradient."""
        noise = torch.randn(self.mean.shape, dtype=self.mean.dtype, device=self.mean.device)  # [..., A]
        if compiled(self.mean, self.raw) and noise.numel():
            action, density = call(_Sample, self.mean, self.raw, noise)
            return action, density
        u = self.mean + exp(self.log_std) * noise  # [..., A]
        return u.tanh(), self._log_density(noise, u)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-density ``[...]`` of actions ``[..., A]``; at -1 and 1, that of the nearest number inside."""
        inside = 1 - torch.finfo(action.dtype).eps
        u = action.clamp(-inside, inside).atanh()  # [..., A]
        return self._log_density((u - self.mean) / exp(self.log_std), u)

    def mode(self) -> Tensor:
        """Return tanh(mean), ``[..., A]``."""
        return self.mean.tanh()

    def _log_density(self, noise: Tensor, u: Tensor) -> Tensor:
        normal = -0.5 * noise.square() - self.log_std - 0.5 * math.log(2 * math.pi)  # [..., A]
        squashing = 2 * (math.log(2) - u - F.softplus(-2 * u))  # [..., A]
        return (normal - squashing).sum(-1)


class _Sample(torch.autograd.Function):
    """``SquashedNormal.sample`` with a hand-written backward pass, each direction in one C call (``squashed.c``).

    ``tests/nn/test_squashed.py: test_draws_are_those_of_the_definition`` holds it equal to autograd.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, raw: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        flat = [apart(x) for x in (mean, raw)]  # [M, A]
        if flat[0].stride(0) != flat[1].stride(0):
            flat = [x.contiguous() for x in flat]
        action, density = draw(flat[0], flat[1], noise)
        if ctx is not None:
            ctx.save_for_backward(flat[1], noise, action)
        return action, density

    @staticmethod
    @first_order
    def backward(ctx: Any, daction: Tensor, ddensity: Tensor) -> tuple[Tensor, Tensor, None]:
        raw, noise, action = ctx.saved_tensors
        dmean, draw = action.new_empty(raw.shape), action.new_empty(raw.shape)  # [M, A]
        draw_back(raw, noise, action, daction.contiguous(), ddensity.contiguous(), dmean, draw)
        return dmean.view_as(action), draw.view_as(action), None


def draw(mean: Tensor, raw: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions ``[..., A]`` and log-densities ``[...]``, without autograd.

    ``mean`` and ``raw`` (unclamped ln sigma) are ``[M, A]`` with equal strides, ``noise`` is ``[..., A]``.
    """
    action, density = torch.empty_like(noise), noise.new_empty(noise.shape[:-1])
    library().squashed_sample(
        mean.data_ptr(), raw.data_ptr(), mean.stride(0), noise.data_ptr(), action.data_ptr(), density.data_ptr(),
        *mean.shape, *LOG_STD,
    )  # fmt: skip
    return action, density


def draw_back(
    raw: Tensor, noise: Tensor, action: Tensor, daction: Tensor, ddensity: Tensor, dmean: Tensor, draw: Tensor
) -> None:
    """Write the gradients of :func:`draw` to ``dmean`` and ``draw``, which have equal strides.

    ``daction`` and ``ddensity``, the gradients of the outputs, must be contiguous.
    """
    library().squashed_sample_backward(
        raw.data_ptr(), raw.stride(0), noise.data_ptr(), action.data_ptr(), daction.data_ptr(), ddensity.data_ptr(),
        dmean.data_ptr(), draw.data_ptr(), dmean.stride(-2), *raw.shape, *LOG_STD,
    )  # fmt: skip


def apart(x: Tensor) -> Tensor:
    """Return ``[..., A]`` as rows ``[M, A]``, each contiguous; there may be gaps between rows."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 else flat.contiguous()


class TanhGaussianActor(nn.Module):
    """A policy pi(a | s): an MLP to a tanh-squashed Gaussian over [-1, 1]^A (appendix C of the SAC paper)."""

    def __init__(self, obs_spec: ObsSpec, width: int, cfg: NetworkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.inputs = Inputs(obs_spec, cfg, dtype)
        self.body = ReluMLP(self.inputs.width, cfg.units, 2 * width)

    def forward(self, obs: Obs) -> SquashedNormal:
        """Map observations ``[..., *shape]`` to a distribution over actions ``[..., A]``."""
        y: Tensor = self.body(self.inputs(obs))
        mean, log_std = y.float().chunk(2, -1)  # [..., A]
        return SquashedNormal(mean, log_std)

"""MLPs with noisy parameters, whose noise explores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

from reverie.nn.relu_mlp import ReluMLP, perceptron


class NoisyMLP(ReluMLP):
    """An MLP with ReLU whose parameters are noisy: Fortunato et al. 2018, "Noisy networks for exploration".

    Within :func:`noisy_parameters`, each forward pass has the parameters theta + sigma noise, with new noise that all
    rows share; elsewhere it has theta. Section 3.2: theta and sigma are initialized for factorized Gaussian noise.
    """

    def __init__(self, inputs: int, units: tuple[int, ...], outputs: int, sigma: float) -> None:
        """``sigma``: initial standard deviation of the noise, times the square root of a layer's inputs."""
        super().__init__(inputs, units, outputs)
        scale = torch.zeros_like(self.theta)
        for weight, bias in self.layout.layers(scale):
            weight.fill_(sigma / math.sqrt(weight.shape[1]))
            bias.fill_(sigma / math.sqrt(weight.shape[1]))
        self.sigma: nn.Parameter = nn.Parameter(scale)

    def forward(self, x: Tensor, copy: int | None = None) -> Tensor:  # type: ignore[override]
        """Map ``[..., inputs]`` to ``[..., outputs]``. There is a single copy."""
        theta = torch.addcmul(self.theta, self.sigma, self.draw_noise()) if _is_noisy.get() else self.theta
        y = perceptron(theta, self.layout, x.reshape(-1, x.shape[-1]))  # [1, M, outputs]
        return y.view(*x.shape[:-1], y.shape[-1])

    def draw_noise(self) -> Tensor:
        """Return noise for all parameters, ``[1, P]``: equations 10 and 11.

        f(e_i) f(e_j) for the weight from input i to output j and f(e_j) for the bias of j, where e are standard normal
        and f(x) = sgn(x) sqrt(|x|).
        """
        sizes = [size for i, o, *_ in self.layout.places for size in (i, o)]
        draws = torch.randn(sum(sizes), device=self.theta.device)
        factors = torch.split(draws.sign() * draws.abs().sqrt(), sizes)
        pairs = zip(factors[::2], factors[1::2], strict=True)
        parts = [part for a, b in pairs for part in ((a.unsqueeze(1) * b).flatten(), b)]
        unused = self.layout.stride - sum(map(len, parts))
        return torch.cat([*parts, draws.new_zeros(unused)]).unsqueeze(0)


_is_noisy: ContextVar[bool] = ContextVar("is_noisy", default=False)


@contextmanager
def noisy_parameters() -> Iterator[None]:
    """Draw noise in each forward pass of a :class:`NoisyMLP` in this context."""
    token = _is_noisy.set(True)
    try:
        yield
    finally:
        _is_noisy.reset(token)

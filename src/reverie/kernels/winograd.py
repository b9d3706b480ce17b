"""Convolutions on CPUs, by Winograd's algorithm where that is faster.

It evaluates tiles and weights as polynomials at a few points, where the convolution is a product for each point
(``winograd.c``). A convolution of 5 x 5 takes a sixth of the multiplications, one of 3 x 3 a quarter; their time is a
third and a half of oneDNN's. Values differ from the direct sum by a relative error of a few 1e-6.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.kernels.call import compute, threads
from reverie.nn.functional import convolve

SIDE, TILES, FULL = 4, 24, 16
"""Constants of ``winograd.c``."""

MIN_TILES = 512
"""Smallest number of tiles for which it is used: below, transforming the weights takes too long."""

MIN_CHANNELS = 16
"""Smallest number of input channels for which it is used: below, transforming tiles takes longer than the products."""

_POINTS: dict[int, tuple[list[float], list[float]]] = {
    3: ([0, 1, -1, 2, -2], [1 / 4, -1 / 6, -1 / 6, 1 / 24, 1 / 24]),
    5: ([0, 1, -1, 2, -2, 1 / 2, -1 / 2], [1, -2 / 9, -2 / 9, 1 / 90, 1 / 90, 32 / 45, 32 / 45]),
}
"""For each kernel size, the points other than infinity, and the factors of the weights' values at these points."""


class Convolution:
    """A convolution that keeps height and width, prepared once for several calls on images ``[M, H, W, C]``.

    The weights are ``[outputs, C, kernel, kernel]`` with an odd kernel, the bias is ``[outputs]``.
    """

    def __init__(self, weight: Tensor, bias: Tensor, images: torch.Size) -> None:
        """``images`` is the shape ``[M, H, W, C]`` of all images together."""
        self.weight = weight
        self.bias = bias
        tiles = images[0] * -(-images[1] // SIDE) * -(-images[2] // SIDE)
        pays = tiles >= MIN_TILES and images[3] >= MIN_CHANNELS and weight.shape[-1] in _POINTS
        self.points: Tensor | None = _to_points(weight) if pays else None
        self.base: Tensor = bias if self.points is None else F.pad(bias, (0, self.points.shape[-1] - len(weight)))

    def __call__(self, x: Tensor) -> Tensor:
        """Map ``[M, H, W, C]`` to ``[M, H, W, outputs]``."""
        if self.points is None:
            return convolve(x, self.weight, self.bias)
        x, outputs, workers = x.contiguous(), len(self.weight), threads(x)
        in_, out = -(-x.shape[-1] // FULL) * FULL, self.points.shape[-1]
        scratch = x.new_zeros(workers, len(self.points) * (TILES * (in_ + out) + 2 * FULL))
        y = x.new_empty(*x.shape[:-1], outputs)
        compute(
            "winograd", x, self.points, self.base, y, scratch, scratch.shape[1], *x.shape, outputs,
            self.weight.shape[-1], workers,
        )  # fmt: skip
        return y


def _to_points(weight: Tensor) -> Tensor:
    """Transform weights ``[outputs, C, kernel, kernel]`` to ``[n * n, C, outputs padded to whole vectors]``."""
    outputs, channels, kernel, _ = weight.shape
    values, factors = _POINTS[kernel]
    rows = [[f * v**i for i in range(kernel)] for v, f in zip(values, factors, strict=True)]
    line = torch.tensor([*rows, [0.0] * (kernel - 1) + [1.0]], dtype=torch.float64)  # [n, kernel]
    both = torch.kron(line, line)  # [n * n, kernel * kernel]
    points = both @ weight.detach().double().permute(2, 3, 1, 0).reshape(kernel * kernel, -1)
    return F.pad(points.view(-1, channels, outputs), (0, -outputs % FULL)).float().contiguous()

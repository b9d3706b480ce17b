"""All kernels: which definition each takes over, and when. Of several, the first that fits is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reverie.core.accelerate import Kernel
from reverie.kernels import optim, steps
from reverie.kernels.conditions import cpu32
from reverie.nn import adam, target
from reverie.objectives import compiled_quantile, quantile

ROWS: list[tuple[Callable[..., Any], Kernel]] = [
    (quantile.quantile_huber, Kernel(
        lambda prediction, target, kappa=1.0: (
            cpu32(prediction, target) and prediction.shape[:-1] == target.shape[:-1]
            and prediction.numel() > 0 and target.numel() > 0 and 0 <= kappa < float("inf")),
        compiled_quantile.quantile_huber)),
    (adam.adam, Kernel(optim.fits, optim.adam)),
    (adam.adam, Kernel(optim.fits_gpu, optim.fused_adam)),
    (adam.gradients, Kernel(steps.fits, steps.gradients)),
    (target.polyak, Kernel(optim.fits_polyak, optim.polyak)),
]  # fmt: skip
"""Definitions and their kernels."""

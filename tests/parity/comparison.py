"""The errors of a comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

TOLERANCES = (1e-4, 1e-3)
"""Default tolerances: forward pass and losses; gradients, metrics of updates and updated parameters."""

MISSING = np.full((0, 0), np.nan)
"""Stands for a tensor we do not have: infinitely wrong."""


class Comparison:
    """Collects the largest relative error of each tensor."""

    def __init__(self, output: float, update: float) -> None:
        self.tolerance = {"output": output, "update": update}
        self.lines: list[tuple[str, float, float]] = []

    def add(self, name: str, ours: Any, theirs: np.ndarray, kind: str, unit: float = 0.0, factor: float = 1.0) -> None:
        """Compare one tensor; a missing or misshapen one counts as infinitely wrong.

        Errors are relative to the largest recorded magnitude, or to ``unit`` if that is larger. ``factor``: how much
        larger than the tolerance of its kind the error may be.
        """
        mine = ours.detach().cpu().numpy() if isinstance(ours, Tensor) else np.asarray(ours)
        theirs = np.asarray(theirs)
        if mine.shape != theirs.shape:
            error = float("inf")
        else:
            a, b = mine.astype(np.float64), theirs.astype(np.float64)
            scale = max(float(np.abs(b).max(initial=0.0)), unit, 1e-8)
            error = float(np.abs(a - b).max(initial=0.0)) / scale
            error = error if np.isfinite(error) else float("inf")
        self.lines.append((name, error, factor * self.tolerance[kind]))

    @property
    def failed(self) -> list[str]:
        """Names of tensors over their tolerance."""
        return [name for name, error, limit in self.lines if error > limit]

    def __str__(self) -> str:
        width = max(len(name) for name, _, _ in self.lines)
        rows = [f"{n:<{width}}  {e:9.2e}  {'' if e <= t else f'OVER {t:g}'}".rstrip() for n, e, t in self.lines]
        return "\n".join(rows)

"""The share of right dreams over training, which ``agent/right_dreams.py`` counts: drawn beside the scores."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from reverie.core.documents import read_json
from reverie.core.errors import RunError
from reverie.core.statistics import Series

RIGHT_DREAMS = "dream/right"
"""Name of the metric, and of its file in a run folder."""


def read_right_dreams(run: Path) -> Series:
    """Return steps, and the fraction of right dreams there; none if nothing was counted, or the file is damaged."""
    points = list[tuple[float, float]]()
    with contextlib.suppress(RunError, TypeError, ValueError, ZeroDivisionError):
        points = sorted(
            (int(step), right / total) for step, (right, total) in read_json(run / f"{RIGHT_DREAMS}.json").items()
        )
    steps, fractions = np.array(points, float).reshape(-1, 2).T
    return steps, fractions

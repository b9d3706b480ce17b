"""The share of right dreams over training: counted for a report, drawn beside the scores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from reverie.core.documents import read_json
from reverie.core.errors import RunError
from reverie.core.files import write_json
from reverie.core.logger import logger
from reverie.core.statistics import Series

RIGHT_DREAMS = "dream/right"
"""Name of the metric, and of its file in a run folder."""


def save_right_dreams(run: Path, counts: Iterable[tuple[int, int, int]], title: str, unit: str) -> None:
    """Keep how many dreams of snapshots are right, ``(step, right, total)``; draw the learning curve of the run again.

    A disk error is only reported.
    """
    from reverie.log.plot import plot_learning_curve  # matplotlib: not needed to read

    path = run / f"{RIGHT_DREAMS}.json"
    try:
        path.parent.mkdir(exist_ok=True)
        write_json(path, {str(step): [right, total] for step, right, total in counts})
        if (curve := run / "curve.png").is_file():
            plot_learning_curve(run / "metrics.jsonl", curve, title, unit)
    except OSError as error:
        logger.warning(f"cannot write: {error}")


def read_right_dreams(run: Path) -> Series:
    """Return steps, and the fraction of right dreams there; none if nothing was counted, or the file is damaged."""
    points = list[tuple[float, float]]()
    with contextlib.suppress(RunError, TypeError, ValueError, ZeroDivisionError):
        points = sorted(
            (int(step), right / total) for step, (right, total) in read_json(run / f"{RIGHT_DREAMS}.json").items()
        )
    steps, fractions = np.array(points, float).reshape(-1, 2).T
    return steps, fractions
